"""The books over all accounts: exact sums of rows, each in one statement and so of one snapshot."""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal, NamedTuple

from sqlalchemy import Connection, text

RevenueBy = Literal["day", "model", "provider"]


class LedgerAccountTotal(NamedTuple):
    """The balance of one ledger account over all accounts, and how many postings it sums."""

    ledger_account: str
    balance_micro: int
    postings: int


class TrialBalance(NamedTuple):
    """Every ledger account's balance, and the totals that the accounts themselves store, at one time."""

    at: datetime
    ledger_accounts: tuple[LedgerAccountTotal, ...]
    stored_balance_micro: int
    stored_held_micro: int


class Liabilities(NamedTuple):
    """What accounts have: credit that is owed to them, and what overdrawn accounts owe; holds are part of it."""

    at: datetime
    accounts: int
    accounts_with_credit: int
    accounts_overdrawn: int
    credit_micro: int
    overdrawn_micro: int
    held_micro: int
    holds_open: int
    holds_open_micro: int


class Revenue(NamedTuple):
    """What was captured on one day (in UTC), for all or for one model or provider."""

    day: date
    name: str
    captures: int
    amount_micro: int


_TRIAL_BALANCE = text(
    """
    with stored as (
        select coalesce(sum(balance_micro), 0) as balance, coalesce(sum(held_micro), 0) as held from accounts
    )
    select now() as at, p.ledger_account, p.balance_micro, p.postings,
           stored.balance as stored_balance_micro, stored.held as stored_held_micro
    from stored left join (
        select ledger_account, sum(amount_micro) as balance_micro, count(*) as postings
        from postings group by ledger_account
    ) p on true
    order by p.ledger_account
    """
)
_LIABILITIES = text(
    """
    select now() as at, count(*) as accounts,
           count(*) filter (where balance_micro > 0) as accounts_with_credit,
           count(*) filter (where balance_micro < 0) as accounts_overdrawn,
           coalesce(sum(balance_micro) filter (where balance_micro > 0), 0) as credit_micro,
           coalesce(sum(balance_micro) filter (where balance_micro < 0), 0) as overdrawn_micro,
           coalesce(sum(held_micro), 0) as held_micro,
           (select count(*) from holds where settled_number is null) as holds_open,
           (select coalesce(sum(amount_micro), 0) from holds where settled_number is null) as holds_open_micro
    from accounts
    """
)
_REVENUE = """
    select date(o.at at time zone 'UTC') as day, {name} as name, count(*) as captures,
           sum(o.amount_micro) as amount_micro
    from operations o {joined}
    where o.kind = 'capture' and o.at >= :since and o.at < :until
    group by 1, 2 order by 1, 2
"""
_OF_TASKS = "join tasks t on t.request_id = o.reference and t.account_id = o.account_id"
_REVENUE_BY = {
    "day": text(_REVENUE.format(name="''", joined="")),
    "model": text(_REVENUE.format(name="t.model", joined=_OF_TASKS)),
    "provider": text(_REVENUE.format(name="t.provider", joined=_OF_TASKS)),
}


def trial_balance(rows: Connection) -> TrialBalance:
    """Sum all postings by ledger account. Reads every posting there is."""
    found = rows.execute(_TRIAL_BALANCE).all()
    return TrialBalance(
        found[0].at,
        tuple(
            LedgerAccountTotal(row.ledger_account, int(row.balance_micro), row.postings)
            for row in found
            if row.ledger_account is not None
        ),
        int(found[0].stored_balance_micro),
        int(found[0].stored_held_micro),
    )


def liabilities(rows: Connection) -> Liabilities:
    """Sum the accounts' balances and open holds. Reads every account, and of the holds the open ones."""
    return Liabilities._make(
        value if isinstance(value, datetime) else int(value) for value in rows.execute(_LIABILITIES).one()
    )


def revenue(rows: Connection, by: RevenueBy, *, since: datetime, until: datetime) -> list[Revenue]:
    """Sum captures from ``since`` on and before ``until``. Reads the operations of that time."""
    found = rows.execute(_REVENUE_BY[by], {"since": since, "until": until})
    return [Revenue(row.day, row.name, row.captures, int(row.amount_micro)) for row in found]
