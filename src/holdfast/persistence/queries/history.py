"""The account's history: what happened to it as a whole, and what its API keys did."""

from __future__ import annotations

from operator import attrgetter
from typing import Final, Unpack

from sqlalchemy import Connection

from holdfast.persistence.queries.paging import AccountPageOptions, page_of_account
from holdfast.persistence.records.rows import AccountChangeRow
from holdfast.persistence.records.table_base import selected
from holdfast.persistence.records.tables import account_changes
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows

_CHANGES: Final = selected(account_changes, AccountChangeRow.__struct_fields__)


def changes_of_account(
    rows: Connection, account_id: str, **options: Unpack[AccountPageOptions]
) -> list[AccountChangeRow | UnreadableEntry]:
    """Return a page of an account's history, newest first. The filters are ``what`` and ``api_key_id``."""
    order = (account_changes.c.at, account_changes.c.change_id)
    found = page_of_account(rows, _CHANGES, order, account_id, **options)
    return read_rows(lambda row: AccountChangeRow(*row), found, "account_changes", attrgetter("at", "change_id"))
