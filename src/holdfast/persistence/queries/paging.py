"""A page of an account's rows, newest first: one keyset query for every list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Row, Select, tuple_


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
    """Up to ``limit`` rows of ``entries``, newest first by ``order`` (time, id), behind the position ``after``.

    ``since`` is inclusive, ``until`` exclusive. ``filters`` are exact matches by column name.
    """
    time, row_id = order
    columns = time.table.c
    query = entries.where(columns.account_id == account_id)
    if since is not None:
        query = query.where(time >= since)
    if until is not None:
        query = query.where(time < until)
    if after is not None:
        query = query.where(tuple_(time, row_id) < tuple_(*after))
    for name, value in (filters or {}).items():
        query = query.where(columns[name] == value)
    return rows.execute(query.order_by(time.desc(), row_id.desc()).limit(limit)).all()
