"""What operators look for by a part of its name. Each search reads a range of an index, however large the table."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select, text

from holdfast.persistence.records.tables import accounts, api_keys, operations

_LAST_CHARACTER = "\U0010ffff"
_BY_ADDRESS = text(
    # In the order of the index, which compares bytes whatever the database's collation is.
    "select id, email from accounts where email ~>=~ :start and email ~<~ :end order by email using ~<~ limit :most"
)


class FoundAccount(NamedTuple):
    """An account and its e-mail address."""

    account_id: str
    email: str


def accounts_of_address(rows: Connection, start: str, limit: int) -> list[FoundAccount]:
    """Return accounts whose e-mail address begins so, in alphabetical order."""
    given = {"start": start, "end": start + _LAST_CHARACTER, "most": limit}
    return [FoundAccount(row.id, row.email) for row in rows.execute(_BY_ADDRESS, given)]


def accounts_of_key(rows: Connection, prefix: str, limit: int) -> list[FoundAccount]:
    """Return the accounts of the API keys with this prefix, revoked or not."""
    query = (
        select(accounts.c.id, accounts.c.email)
        .join(api_keys, api_keys.c.account_id == accounts.c.id)
        .where(api_keys.c.prefix == prefix)
        .distinct()
        .order_by(accounts.c.id)
        .limit(limit)
    )
    return [FoundAccount._make(row) for row in rows.execute(query)]


def operation_place(rows: Connection, operation_id: str) -> tuple[str, str] | None:
    """Return the account of an operation and the task or order it refers to; None if there is no such operation."""
    query = select(operations.c.account_id, operations.c.reference).where(operations.c.operation_id == operation_id)
    found = rows.execute(query).one_or_none()
    return None if found is None else (found.account_id, found.reference)
