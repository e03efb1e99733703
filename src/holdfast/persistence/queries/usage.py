"""The usage log: a page of an account's entries, newest first."""

from __future__ import annotations

from typing import Unpack

from sqlalchemy import Connection

from holdfast.persistence.queries.paging import AccountPageOptions, page_of_account
from holdfast.persistence.records.tables import usage_entries as usage
from holdfast.persistence.records.tasks import USAGE_ENTRY, UsageEntry, usage_entry_of
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows


def usage_of_account(
    rows: Connection, account_id: str, **page: Unpack[AccountPageOptions]
) -> list[UsageEntry | UnreadableEntry]:
    """Return a page of the account's entries, newest first by (ts, request_id)."""
    found = page_of_account(rows, USAGE_ENTRY, (usage.c.ts, usage.c.request_id), account_id, **page)
    return read_rows(usage_entry_of, found, "usage_entries", lambda row: (row.ts, row.request_id))
