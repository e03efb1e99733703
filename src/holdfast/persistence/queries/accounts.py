"""An account's totals and the number of its live keys."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, any_, bindparam, func, select

from holdfast.ledger.credit.account import AccountTotals
from holdfast.persistence.records.tables import account_emails, accounts, api_keys


class FirstCallFacts(NamedTuple):
    """The facts that readiness is computed from: the account's totals and its live keys."""

    totals: AccountTotals
    live_keys: int
    writable_keys: int


_TOTALS = select(accounts.c.id, accounts.c.balance_micro, accounts.c.held_micro).where(
    accounts.c.id == bindparam("account_id")
)
_LIVE_KEYS = select(
    func.count(),
    func.count().filter(bindparam("writing_scope") == any_(api_keys.c.scopes)),
).where(api_keys.c.account_id == bindparam("account_id"), api_keys.c.revoked_at.is_(None))


def account_totals(rows: Connection, account_id: str) -> AccountTotals:
    """Return the totals of an account that exists (a credential named it)."""
    return AccountTotals(*rows.execute(_TOTALS, {"account_id": account_id}).one())


def account_of_email(rows: Connection, email: str) -> str | None:
    """Return the account of an e-mail address, if it has one."""
    found: str | None = rows.scalar(select(account_emails.c.account_id).where(account_emails.c.email == email))
    return found


def first_call_facts(rows: Connection, account_id: str, *, writing_scope: str) -> FirstCallFacts:
    """Return the account's totals, how many live keys it has, and how many of them have ``writing_scope``."""
    live, writable = rows.execute(_LIVE_KEYS, {"account_id": account_id, "writing_scope": writing_scope}).one()
    return FirstCallFacts(account_totals(rows, account_id), live, writable)
