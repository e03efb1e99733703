"""Pages of rows by (time, id): one keyset query for every list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Required, TypedDict, Unpack

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, tuple_


class PageOptions(TypedDict, total=False):
    """Up to ``limit`` entries from ``since`` on and before ``until``, after the position ``after`` (time, id)."""

    limit: Required[int]
    since: datetime | None
    until: datetime | None
    after: tuple[datetime, str] | None


class AccountPageOptions(PageOptions, total=False):
    """A page of an account's list. ``filters`` are exact matches by column name."""

    filters: Mapping[str, str]


def page_of_account(
    rows: Connection,
    entries: Select[*tuple[Any, ...]],
    order: tuple[Column[Any], Column[Any]],
    account_id: str,
    *,
    filters: Mapping[str, str] | None = None,
    **options: Unpack[PageOptions],
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return a page of the account's ``entries``, newest first by ``order`` (time, id)."""
    columns = order[0].table.c
    matches = [columns[name] == value for name, value in (filters or {}).items()]
    return page(rows, entries.where(columns.account_id == account_id, *matches), order, **options)


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
    """Return a page of ``entries`` in the order of (time, id)."""
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
