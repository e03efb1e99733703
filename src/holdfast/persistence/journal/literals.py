"""Encode values for PostgreSQL: a column as one array literal, or its cells in COPY's text format.

Both work on whole columns: a batch under load has hundreds of rows, and a call for each value would cost more than
the encoding. Arrays suit statements of any kind and size; COPY inserts many new rows in two thirds of the server's
time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, SmallInteger, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSON, TIMESTAMP

_json = msgspec.json.Encoder()

_BETWEEN = "\x1f"
_NULL = "\\N"
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class ColumnCodec(NamedTuple):
    """The encoding of a column's values: their type, and the text of each.

    The text looks the same in an array and in COPY, unless it ``is_free``: then it may have any characters, and is
    quoted or escaped. None is a null, unless ``encodes_none``: JSON has a null of its own.
    """

    pg_type: str
    encode: Callable[[Any], str]
    is_free: bool = False
    encodes_none: bool = False


def codec_of(column: Column[Any]) -> ColumnCodec:
    """Return the codec of ``column``."""
    return next(codec for kind, codec in _BY_TYPE if isinstance(column.type, kind))


def array_literals(codecs: Iterable[ColumnCodec], columns: Iterable[Sequence[Any]]) -> list[str]:
    """Encode each column as an array literal."""
    literals = []
    for (_, encode, is_free, encodes_none), column in zip(codecs, columns, strict=True):
        if None in column and not encodes_none:
            quoted = _quoted if is_free else format
            joined = ",".join(["NULL" if v is None else quoted(encode(v)) for v in column])
        elif not is_free:
            joined = ",".join(map(encode, column))
        elif (joined := _BETWEEN.join(map(encode, column))).count(_BETWEEN) < len(column):
            # Joined by a character that occurs in no text, they are quoted at once.
            joined = '"' + joined.replace("\\", "\\\\").replace('"', '\\"').replace(_BETWEEN, '","') + '"'
        else:
            joined = ",".join([_quoted(encode(v)) for v in column])
        literals.append("{" + joined + "}")
    return literals


def text_array(values: Iterable[str]) -> str:
    """Encode texts as an array literal."""
    return array_literals([_TEXT], [list(values)])[0]


def copy_cells(codec: ColumnCodec, column: Sequence[Any]) -> list[str]:
    """Encode each value of a column as a cell of COPY."""
    _, encode, is_free, encodes_none = codec
    if None in column and not encodes_none:
        escapes = _COPY_ESCAPES if is_free else {}
        return [_NULL if v is None else encode(v).translate(escapes) for v in column]
    texts = list(map(encode, column))
    if is_free and _needs_escapes(_BETWEEN.join(texts)):
        return [text.translate(_COPY_ESCAPES) for text in texts]
    return texts


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _needs_escapes(text: str) -> bool:
    return "\\" in text or "\n" in text or "\r" in text or "\t" in text


def _json_text(value: Any) -> str:
    return _json.encode(value).decode()


@functools.lru_cache(maxsize=4096)
def _time(at: datetime) -> str:
    """Encode a time. Cached: a decision's time is in many columns of its rows."""
    return at.isoformat()


def _binary(value: bytes) -> str:
    return "\\\\x" + value.hex()


_TEXT: Final = ColumnCodec("text", format, is_free=True)
_BY_TYPE: tuple[tuple[type[Any], ColumnCodec], ...] = (
    # A row's array is a literal, cast back by the statement: rows may differ in length.
    (ARRAY, ColumnCodec("text", text_array, is_free=True)),
    (JSON, ColumnCodec("json", _json_text, is_free=True, encodes_none=True)),
    (TIMESTAMP, ColumnCodec("timestamptz", _time)),
    (Text, _TEXT),
    (BigInteger, ColumnCodec("bigint", format)),
    (SmallInteger, ColumnCodec("smallint", format)),
    (Integer, ColumnCodec("integer", format)),
    (Boolean, ColumnCodec("boolean", {True: "t", False: "f"}.__getitem__)),
    (LargeBinary, ColumnCodec("bytea", _binary)),
)
