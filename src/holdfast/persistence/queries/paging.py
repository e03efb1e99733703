"""Pages of rows by (time, id): one keyset query for every list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, tuple_


def page_of_account(
    rows: Connection,
    entries: Select[*tuple[Any, ...]],
    order: tuple[Column[Any], Column[Any]],
    account_id: str,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    after: tuple[datetime, str] | None = None,
    filters: Mapping[str, str] | None = None,
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return up to ``limit`` rows of ``entries``, newest first by ``order`` (time, id), after position ``after``.

    ``since`` is inclusive, ``until`` exclusive. ``filters`` are exact matches by column name.
    """
    columns = order[0].table.c
    matches = [columns[name] == value for name, value in (filters or {}).items()]
    of_account = entries.where(columns.account_id == account_id, *matches)
    return page(rows, of_account, order, limit=limit, since=since, until=until, after=after)


def page(
    rows: Connection,
    entries: Select[*tuple[Any, ...]],
    order: tuple[Column[Any], Column[Any]],
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    after: tuple[datetime, str] | None = None,
    oldest_first: bool = False,
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return up to ``limit`` rows of ``entries`` in the order of (time, id), after the position ``after``."""
    time, row_id = order
    query = entries
    if since is not None:
        query = query.where(time >= since)
    if until is not None:
        query = query.where(time < until)
    if after is not None:
        row, cursor = tuple_(time, row_id), tuple_(*after)
        query = query.where(row > cursor if oldest_first else row < cursor)
    ordered: tuple[ColumnElement[Any], ...] = (time, row_id) if oldest_first else (time.desc(), row_id.desc())
    return rows.execute(query.order_by(*ordered).limit(limit)).all()
