"""An account's totals, its live keys, and what operators see of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import NamedTuple, Unpack

import msgspec
from sqlalchemy import Connection, Text, bindparam, func, select

from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.public_types import Role
from holdfast.ledger.values import Now
from holdfast.persistence.queries.credentials import live_api_keys
from holdfast.persistence.queries.paging import PageOptions, page
from holdfast.persistence.records.tables import accounts, holds, sessions
from holdfast.persistence.records.unreadable import UnreadableEntry, read_row, read_rows
from holdfast.persistence.server.repeated_queries import RepeatedQuery, one_of


class FirstCallFacts(NamedTuple):
    """The facts that readiness is computed from: the account's totals, and its keys that can be used."""

    totals: AccountTotals
    usable_keys: int
    writable_keys: int


class AccountOverview(NamedTuple):
    """An account and its state; each open hold is a task in flight."""

    account_id: str
    email: str
    role: Role
    brand_id: str
    created_at: datetime
    disabled_at: datetime | None
    closes_at: datetime | None
    closed_at: datetime | None
    erased_at: datetime | None
    balance_micro: int
    held_micro: int
    operation_count: int
    tasks_in_flight: int
    sessions_live: int


_TOTALS = RepeatedQuery(
    select(accounts.c.id, accounts.c.balance_micro, accounts.c.held_micro).where(
        accounts.c.id == one_of("account_ids", Text())
    )
)

_overview_of: Callable[[object], AccountOverview] = partial(msgspec.convert, type=AccountOverview)
_IN_FLIGHT = (
    select(func.count())
    .where(holds.c.account_id == accounts.c.id, holds.c.settled_number.is_(None))
    .scalar_subquery()
)
_OVERVIEW = select(
    accounts.c.id,
    *(accounts.c[name] for name in AccountOverview._fields[1:-2]),
    _IN_FLIGHT,
    select(func.count())
    .where(
        sessions.c.account_id == accounts.c.id,
        sessions.c.revoked_at.is_(None),
        sessions.c.expires_at > bindparam("now"),
    )
    .scalar_subquery(),
)


class ClosingAccount(NamedTuple):
    """An account that is to be closed, or that is closed and of which not all is deleted yet."""

    account_id: str
    email: str
    closes_at: datetime
    closed_at: datetime | None
    balance_micro: int
    tasks_in_flight: int


_CLOSING = select(
    accounts.c.id.label("account_id"),
    *(accounts.c[name] for name in ("email", "closes_at", "closed_at", "balance_micro")),
    _IN_FLIGHT.label("tasks_in_flight"),
).where(accounts.c.closes_at.is_not(None), accounts.c.erased_at.is_(None))


def closing_accounts(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[ClosingAccount | UnreadableEntry]:
    """Return a page of the accounts that are being closed, the next to be closed first, unfiltered."""
    assert not filters
    found = page(rows, _CLOSING, (accounts.c.closes_at, accounts.c.id), oldest_first=True, **options)
    return read_rows(ClosingAccount._make, found, "accounts", attrgetter("closes_at", "account_id"))


def find_totals(rows: Connection, account_ids: Sequence[str]) -> dict[str, AccountTotals]:
    """Return the totals of accounts."""
    return {row.id: AccountTotals(*row) for row in _TOTALS.rows(rows, {"account_ids": account_ids})}


def email_of_account(rows: Connection, account_id: str) -> str | None:
    """Return the e-mail address of an account; None if there is no such account."""
    found: str | None = rows.scalar(select(accounts.c.email).where(accounts.c.id == account_id))
    return found


def emails_of_accounts(rows: Connection, account_ids: Sequence[str]) -> dict[str, str]:
    """Return the e-mail address of each of these accounts that exists."""
    found = rows.execute(select(accounts.c.id, accounts.c.email).where(accounts.c.id.in_(account_ids)))
    return {row.id: row.email for row in found}


def account_of_email(rows: Connection, email: str) -> str | None:
    """Return the account of an e-mail address, if it has one."""
    found: str | None = rows.scalar(select(accounts.c.id).where(accounts.c.email == email))
    return found


def first_call_facts(rows: Connection, account_id: str, *, writing_scope: str, now: Now) -> FirstCallFacts:
    """Return the account's totals, how many keys it can use, and how many of them have ``writing_scope``."""
    usable = [key.terms for key in live_api_keys(rows, account_id).keys if key.terms.refuse_use(now) is None]
    writable = sum(writing_scope in terms.scopes for terms in usable)
    return FirstCallFacts(find_totals(rows, [account_id])[account_id], len(usable), writable)


def account_overview(rows: Connection, account_id: str, *, now: datetime) -> AccountOverview | None:
    """Return an account as operators see it, None if it does not exist. Raises ``UnreadableRow``."""
    query = _OVERVIEW.where(accounts.c.id == bindparam("account_id"))
    found = rows.execute(query, {"account_id": account_id, "now": now}).one_or_none()
    if found is None:
        return None
    return read_row(_overview_of, (*found,), "accounts", account_id, columns=AccountOverview._fields)
