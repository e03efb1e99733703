"""The base of all tables: their metadata, the names of their constraints, and columns from the types of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Select,
    SmallInteger,
    Table,
    Text,
    cast,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, TIMESTAMP

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Time = TIMESTAMP(timezone=True)
Int32: TypeAlias = Annotated[int, Integer()]
Int16: TypeAlias = Annotated[int, SmallInteger()]
"""Numbers that are an INTEGER or SMALLINT in their table, where others are BIGINT."""

_TYPES: dict[Any, Any] = {
    str: Text, bytes: LargeBinary, datetime: Time, bool: Boolean, int: BigInteger, float: Double, Literal: Text,
    tuple: JSON, dict: JSON(none_as_null=True), object: JSON,
}  # fmt: skip


def table(name: str, key: Sequence[str], *parts: Column[Any] | Index, **options: Any) -> Table:
    """Return a table of these columns and indexes, of which the columns ``key`` are the primary key."""
    return Table(name, metadata, *parts, PrimaryKeyConstraint(*key), **options)


def columns_of(kind: type[Any], *, without: Collection[str] = ()) -> list[Column[Any]]:
    """Return a column for each field of a row's type, by the field's type."""
    hints = get_type_hints(kind, include_extras=True)
    return columns(**{name: hint for name, hint in hints.items() if name not in without})


def columns(**types: Any) -> list[Column[Any]]:
    """Return a column of each name for values of that type."""
    return [_column(name, hint) for name, hint in types.items()]


def _column(name: str, hint: Any) -> Column[Any]:
    alternatives = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    [found] = [each for each in alternatives if each is not NoneType]
    if get_origin(found) is Annotated:
        sql_type = get_args(found)[1]
    elif found == tuple[str, ...]:
        sql_type = ARRAY(Text)
    else:
        origin = get_origin(found)
        sql_type = next(_TYPES[each] for each in (found.__mro__ if origin is None else (origin,)) if each in _TYPES)
    return Column(name, sql_type, nullable=NoneType in alternatives)


def index(name: str, *columns: str, where: str | None = None, unique: bool = False, **options: Any) -> Index:
    """Return an index of these columns, of the rows for which ``where`` is true."""
    if where is not None:
        options["postgresql_where"] = text(where)
    return Index(name, *columns, unique=unique, **options)


def selected(table: Table, columns: Iterable[str]) -> Select[*tuple[Any, ...]]:
    """Select columns of a table, JSON as text, so that it is decoded once and directly into its type."""
    chosen = (table.c[name] for name in columns)
    return select(*(cast(c, Text).label(c.name) if isinstance(c.type, JSON) else c for c in chosen))
