"""Queries that clients repeat all the time, run by the driver alone.

SQLAlchemy takes longer to execute such a query and to wrap its rows than the driver and the server need for it. So
the query is compiled once, and its rows are the driver's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import ARRAY, BindParameter, ColumnElement, Connection, any_, bindparam, func, select
from sqlalchemy.dialects import registry
from sqlalchemy.sql import ClauseElement, TableValuedAlias
from sqlalchemy.types import TypeEngine

from holdfast.persistence.server.connections import driver_of, name_unreadable

_DIALECT = registry.load("postgresql.psycopg")()


class RepeatedQuery:
    """A query whose values are all parameters. Each connection prepares it when it has run a few times."""

    __slots__ = ("sql",)

    def __init__(self, query: ClauseElement) -> None:
        compiled = query.compile(dialect=_DIALECT)
        assert not any(compiled.params.values()), "a value is part of the query"
        self.sql = str(compiled)

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Any]:
        """Run it, and return its rows as named tuples.

        Raises as SQLAlchemy's execution on an engine of ours does.
        """
        cursor = driver_of(connection).cursor(row_factory=namedtuple_row, binary=True)
        try:
            return cursor.execute(self.sql, parameters).fetchall()
        except psycopg.Error as exc:
            name_unreadable(exc, cursor)
            # Private, but what it does has no other name: of a lost connection it tells the pool.
            connection._handle_dbapi_exception(exc, self.sql, parameters, None, None)


def one_of(name: str, of_type: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return what a column is compared with to be equal to one of the elements of the parameter ``name``."""
    return any_(_elements(name, of_type))


def each_of(name: str, of_type: TypeEngine[Any]) -> TableValuedAlias:
    """Return the elements of the parameter ``name`` as the rows of a table, whose column ``key`` they are."""
    return func.unnest(_elements(name, of_type)).table_valued("key").render_derived(name)


def _elements(name: str, of_type: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return the array ``name``, passed through a subquery so that a plan does not depend on its length.

    Otherwise the server plans each execution, because it expects less of a plan for any array than of one for a
    short one.
    """
    elements: BindParameter[Any] = bindparam(name, type_=ARRAY(of_type))
    return func.array(select(func.unnest(elements)).scalar_subquery(), type_=ARRAY(of_type))
