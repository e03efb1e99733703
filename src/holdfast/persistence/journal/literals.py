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


# --------------------------------------------------------------------------------------------------- array literals


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


def _integer_array(values: Iterable[int | None]) -> str:
    return "{" + ",".join(["NULL" if v is None else str(v) for v in values]) + "}"


def _boolean_array(values: Iterable[bool | None]) -> str:
    return "{" + ",".join(["NULL" if v is None else "t" if v else "f" for v in values]) + "}"


def _time_array(values: Iterable[datetime | None]) -> str:
    return "{" + ",".join(["NULL" if v is None else _time(v) for v in values]) + "}"


@functools.lru_cache(maxsize=4096)
def _time(at: datetime) -> str:
    """Encode a time, which needs no quotes. Cached: a decision's time is in many columns of its rows."""
    return at.isoformat()


def _binary_array(values: Iterable[bytes | None]) -> str:
    return "{" + ",".join(["NULL" if v is None else '"\\\\x' + v.hex() + '"' for v in values]) + "}"


def _text_list_array(values: Iterable[Sequence[str] | None]) -> str:
    """Encode each row's text array as a literal, cast back by the statement (rows may differ in length)."""
    return text_array(None if v is None else text_array(v) for v in values)


def _json_array(values: Iterable[Any]) -> str:
    return text_array([_json.encode(v).decode() for v in values])


# ------------------------------------------------------------------------------------------------------------- COPY


def _text_cells(values: Sequence[str | None]) -> list[str]:
    if None not in values:
        joined = _BETWEEN.join(values)  # type: ignore[arg-type]  # there is no None among them
        if joined.count(_BETWEEN) == len(values) - 1:
            return joined.translate(_COPY_ESCAPES).split(_BETWEEN) if _needs_escapes(joined) else list(values)  # type: ignore[arg-type]  # as above
    return [_NULL if v is None else v.translate(_COPY_ESCAPES) for v in values]


def _needs_escapes(text: str) -> bool:
    return "\\" in text or "\n" in text or "\r" in text or "\t" in text


def _integer_cells(values: Sequence[int | None]) -> list[str]:
    return [_NULL if v is None else str(v) for v in values]


def _boolean_cells(values: Sequence[bool | None]) -> list[str]:
    return [_NULL if v is None else "t" if v else "f" for v in values]


def _time_cells(values: Sequence[datetime | None]) -> list[str]:
    return [_NULL if v is None else _time(v) for v in values]


def _binary_cells(values: Sequence[bytes | None]) -> list[str]:
    return [_NULL if v is None else "\\\\x" + v.hex() for v in values]


def _text_list_cells(values: Sequence[Sequence[str] | None]) -> list[str]:
    return _text_cells([None if v is None else text_array(v) for v in values])


def _json_cells(values: Sequence[Any]) -> list[str]:
    return _text_cells([_json.encode(v).decode() for v in values])


_BY_TYPE: tuple[tuple[type[Any], ColumnCodec], ...] = (
    (ARRAY, ColumnCodec("text", _text_list_array, _text_list_cells)),
    (JSON, ColumnCodec("json", _json_array, _json_cells)),
    (TIMESTAMP, ColumnCodec("timestamptz", _time_array, _time_cells)),
    (Text, ColumnCodec("text", text_array, _text_cells)),
    (BigInteger, ColumnCodec("bigint", _integer_array, _integer_cells)),
    (SmallInteger, ColumnCodec("smallint", _integer_array, _integer_cells)),
    (Integer, ColumnCodec("integer", _integer_array, _integer_cells)),
    (Boolean, ColumnCodec("boolean", _boolean_array, _boolean_cells)),
    (LargeBinary, ColumnCodec("bytea", _binary_array, _binary_cells)),
)
