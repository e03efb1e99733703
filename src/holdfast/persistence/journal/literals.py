"""Encode values for PostgreSQL: a column as one array literal, or its cells in COPY's text format.

Both work on whole columns: a batch under load has hundreds of rows, and a call for each value would cost more than
the encoding. Arrays suit statements of any kind and size; COPY inserts many new rows in two thirds of the server's
time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, SmallInteger, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSON, TIMESTAMP

_json = msgspec.json.Encoder()

_BETWEEN = "\x1f"
_NULL = "\\N"
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class ColumnCodec(NamedTuple):
    """The encoding of a column's values: their type, all of them as one array literal, each as a cell of COPY."""

    pg_type: str
    array: Callable[[Iterable[Any]], str]
    cells: Callable[[Sequence[Any]], list[str]]


def codec_of(column: Column[Any]) -> ColumnCodec:
    """Return the codec of ``column``."""
    return next(codec for kind, codec in _BY_TYPE if isinstance(column.type, kind))


# ------------------------------------------------------------------------------------------------------------- text


def text_array(values: Iterable[str | None]) -> str:
    """Encode a text array. The column is joined by a character that occurs in no value, and escaped at once."""
    column = list(values)
    if None not in column:
        joined = _BETWEEN.join(column)  # type: ignore[arg-type]  # there is no None among them
        if joined.count(_BETWEEN) == len(column) - 1:
            return '{"' + _escaped(joined).replace(_BETWEEN, '","') + '"}'
    return "{" + ",".join(["NULL" if v is None else '"' + _escaped(v) + '"' for v in column]) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _text_cells(values: Sequence[str | None]) -> list[str]:
    if None not in values:
        joined = _BETWEEN.join(values)  # type: ignore[arg-type]  # there is no None among them
        if joined.count(_BETWEEN) == len(values) - 1:
            return joined.translate(_COPY_ESCAPES).split(_BETWEEN) if _needs_escapes(joined) else list(values)  # type: ignore[arg-type]  # as above
    return [_NULL if v is None else v.translate(_COPY_ESCAPES) for v in values]


def _needs_escapes(text: str) -> bool:
    return "\\" in text or "\n" in text or "\r" in text or "\t" in text


def _as_text(pg_type: str, encode: Callable[[Any], str | None]) -> ColumnCodec:
    """Return the codec of values that are sent as text of any characters."""
    return ColumnCodec(
        pg_type,
        lambda values: text_array([encode(v) for v in values]),
        lambda values: _text_cells([encode(v) for v in values]),
    )


def _text_list(values: Sequence[str] | None) -> str | None:
    """Encode a row's text array as a literal, cast back by the statement (rows may differ in length)."""
    return None if values is None else text_array(values)


def _json_text(value: Any) -> str:
    return _json.encode(value).decode()


# ------------------------------------------------------------------------------------------- what needs no quotes


def _plain(pg_type: str, encode: Callable[[Any], str]) -> ColumnCodec:
    """Return the codec of values that look the same in an array and in COPY, except for null."""
    return ColumnCodec(
        pg_type,
        lambda values: "{" + ",".join(["NULL" if v is None else encode(v) for v in values]) + "}",
        lambda values: [_NULL if v is None else encode(v) for v in values],
    )


@functools.lru_cache(maxsize=4096)
def _time(at: datetime) -> str:
    """Encode a time. Cached: a decision's time is in many columns of its rows."""
    return at.isoformat()


def _binary(value: bytes) -> str:
    return "\\\\x" + value.hex()


_BY_TYPE: tuple[tuple[type[Any], ColumnCodec], ...] = (
    (ARRAY, _as_text("text", _text_list)),
    (JSON, _as_text("json", _json_text)),
    (TIMESTAMP, _plain("timestamptz", _time)),
    (Text, ColumnCodec("text", text_array, _text_cells)),
    (BigInteger, _plain("bigint", str)),
    (SmallInteger, _plain("smallint", str)),
    (Integer, _plain("integer", str)),
    (Boolean, _plain("boolean", {True: "t", False: "f"}.__getitem__)),
    (LargeBinary, _plain("bytea", _binary)),
)
