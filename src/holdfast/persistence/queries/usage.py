"""The usage log as rows tell it: a page of an account's entries, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Text, cast, select, tuple_

from holdfast.ledger.tasks import StatusEntry, UsageEntry
from holdfast.persistence.tables import usage_entries as usage

_HISTORY = msgspec.json.Decoder(tuple[StatusEntry, ...])

_ENTRY = select(
    *(column for column in usage.c if column.name != "status_history"),
    cast(usage.c.status_history, Text).label("status_history"),
)


def usage_of_account(
    rows: Connection,
    account_id: str,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    after: tuple[datetime, str] | None = None,
    filters: Mapping[str, str] | None = None,
) -> list[UsageEntry]:
    """Up to ``limit`` entries, newest first by (ts, request_id), behind the position ``after``.

    ``since`` is inclusive, ``until`` exclusive. ``filters`` are exact matches of ``status`` and ``model``.
    """
    query = _ENTRY.where(usage.c.account_id == account_id)
    if since is not None:
        query = query.where(usage.c.ts >= since)
    if until is not None:
        query = query.where(usage.c.ts < until)
    if after is not None:
        query = query.where(tuple_(usage.c.ts, usage.c.request_id) < tuple_(*after))
    for name, value in (filters or {}).items():
        query = query.where(usage.c[name] == value)
    newest_first = query.order_by(usage.c.ts.desc(), usage.c.request_id.desc()).limit(limit)
    return [_entry(row) for row in rows.execute(newest_first)]


def _entry(row: Row[*tuple[Any, ...]]) -> UsageEntry:
    columns = row._asdict()
    columns["status_history"] = _HISTORY.decode(columns["status_history"])
    return UsageEntry(**columns)
