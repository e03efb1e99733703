"""The mapping of values to the rows that the journal writes, and the queries that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Select, Table, Text, cast, select
from sqlalchemy.dialects.postgresql import JSON


class RowMapping(NamedTuple):
    """The rows of ``table`` that values of ``kind`` become: their columns, and a function from values to tuples.

    A value of a JSON column is encoded when it is written.
    """

    table: Table
    kind: type[Any]
    columns: tuple[str, ...]
    rows: Callable[[Sequence[Any]], Sequence[tuple[Any, ...]]]


def fields_of(table: Table, kind: type[Any]) -> RowMapping:
    """Map a type whose fields are columns; a NamedTuple is its own row."""
    if issubclass(kind, msgspec.Struct):
        return attributes_of(table, kind, kind.__struct_fields__)
    return RowMapping(table, kind, kind._fields, lambda values: values)


def attributes_of(table: Table, kind: type[Any], paths: Iterable[str], **renamed: str) -> RowMapping:
    """Map attributes, whose paths may be dotted, to the columns of their last names, or to those of ``renamed``."""
    columns = {path.rpartition(".")[2]: path for path in paths} | renamed
    read = attrgetter(*columns.values())
    return RowMapping(table, kind, tuple(columns), lambda values: list(map(read, values)))


def selected(table: Table, columns: Iterable[str]) -> Select[*tuple[Any, ...]]:
    """Select columns of a table, JSON as text, so that it is decoded once and directly into its type."""
    chosen = (table.c[name] for name in columns)
    return select(*(cast(c, Text).label(c.name) if isinstance(c.type, JSON) else c for c in chosen))
