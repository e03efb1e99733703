"""The usage log: a page of an account's entries, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection

from holdfast.ledger.tasks.task import UsageEntry
from holdfast.persistence.queries.paging import page_of_account
from holdfast.persistence.records.tables import usage_entries as usage
from holdfast.persistence.records.tasks import USAGE_ENTRY, usage_entry_of
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows


def usage_of_account(
    rows: Connection,
    account_id: str,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    after: tuple[datetime, str] | None = None,
    filters: Mapping[str, str] | None = None,
) -> list[UsageEntry | UnreadableEntry]:
    """Return up to ``limit`` entries, newest first by (ts, request_id), after the position ``after``.

    ``since`` is inclusive, ``until`` exclusive. ``filters`` are exact matches by column name.
    """
    order = (usage.c.ts, usage.c.request_id)
    page = page_of_account(
        rows, USAGE_ENTRY, order, account_id, limit=limit, since=since, until=until, after=after, filters=filters
    )
    return read_rows(usage_entry_of, page, "usage_entries", lambda row: (row.ts, row.request_id))
