"""The books over all accounts, as operators see them: exact sums of rows, each of one statement and snapshot."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec
from sqlalchemy import Connection, text

from holdfast.ledger.credit.operations import AVAILABLE, CELLS, HELD
from holdfast.ledger.public_types import Amount, Currency, Time
from holdfast.ledger.values import CURRENCY, format_amount, format_time

RevenueBy = Literal["day", "model", "provider"]


class LedgerAccountBody(msgspec.Struct, frozen=True):
    """The balance of one ledger account over all accounts."""

    ledger_account: str
    """Its name, such as `available`, `held`, `revenue` or `cash:sandbox`."""
    balance: Amount
    """The sum of its postings."""
    postings: int
    """How many postings it sums."""


class TrialBalanceBody(msgspec.Struct, frozen=True):
    """Every ledger account's balance."""

    at: Time
    """When the postings were summed."""
    currency: Currency
    ledger_accounts: list[LedgerAccountBody]
    """Every ledger account."""
    total: Amount
    """The sum of their balances, which must be zero."""
    stored_balance: Amount
    """The sum of the balances stored with the accounts."""
    stored_held: Amount
    """The sum of the held totals stored with the accounts."""
    is_balanced: bool
    """Whether the total is zero and the postings agree with what is stored."""


class RevenueLine(msgspec.Struct, frozen=True):
    """What was captured on one day."""

    day: str
    """The day in UTC, `YYYY-MM-DD`."""
    name: str
    """The model or provider; empty for all."""
    captures: int
    """How many charges were captured."""
    amount: Amount
    """Their sum."""


class RevenueBody(msgspec.Struct, frozen=True):
    """Revenue from ``since`` on and before ``until``, the earliest day first, and its sum."""

    since: Time
    """The first moment that is summed."""
    until: Time
    """The first moment that is not summed any more."""
    by: RevenueBy
    """What each line is for."""
    currency: Currency
    data: list[RevenueLine]
    """The lines, the earliest day first."""
    captures: int
    """How many charges were captured in all."""
    total: Amount
    """Their sum."""


class LiabilitiesBody(msgspec.Struct, frozen=True):
    """The credit of all accounts."""

    at: Time
    """When it was summed."""
    currency: Currency
    accounts: int
    """How many accounts there are."""
    accounts_with_credit: int
    """How many have a balance above zero."""
    accounts_overdrawn: int
    """How many have a balance below zero."""
    credit: Amount
    """The sum of the balances above zero."""
    overdrawn: Amount
    """The sum of the balances below zero."""
    held: Amount
    """The held credit, which is part of the balances."""
    holds_open: int
    """How many holds are open."""
    holds_open_total: Amount
    """Their sum, which is what is held."""


# What an account that came from another cell did before is in the books of the cells where it was.
_NOT_ELSEWHERE = """
    not exists (
        select from account_moves m where m.account_id = {of}.account_id and m.direction = 'in'
          and {of}.number > m.number_before and {of}.number <= m.number and m.state = 'arrived')
"""
_TRIAL_BALANCE = text(
    f"""
    with stored as (
        select coalesce(sum(balance_micro), 0) as balance, coalesce(sum(held_micro), 0) as held from accounts
    ), transfers as (
        select case direction when 'in' then 1 else -1 end as sign, balance_micro, held_micro
        from account_moves where state not in ('undone', 'refused')
    ), entries as (
        select ledger_account, amount_micro from postings p where {_NOT_ELSEWHERE.format(of="p")}
        union all select '{AVAILABLE}', sign * (balance_micro - held_micro) from transfers
        union all select '{HELD}', sign * held_micro from transfers
        union all select '{CELLS}', -sign * balance_micro from transfers
    )
    select now() as at, p.ledger_account, p.balance_micro, p.postings,
           stored.balance as stored_balance_micro, stored.held as stored_held_micro
    from stored left join (
        select ledger_account, sum(amount_micro) as balance_micro, count(*) as postings
        from entries group by ledger_account
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
    where o.kind = 'capture' and o.at >= :since and o.at < :until and {not_elsewhere}
    group by 1, 2 order by 1, 2
"""
_OF_TASKS = "left join tasks t on t.request_id = o.reference and t.account_id = o.account_id"
_OF_MOVED = "(accounts in other cells)"
"""The name of what was captured for tasks that have left with their accounts."""
_REVENUE_BY = {
    by: text(_REVENUE.format(name=name, joined=joined, not_elsewhere=_NOT_ELSEWHERE.format(of="o")))
    for by, name, joined in (
        ("day", "''", ""),
        ("model", f"coalesce(t.model, '{_OF_MOVED}')", _OF_TASKS),
        ("provider", f"coalesce(t.provider, '{_OF_MOVED}')", _OF_TASKS),
    )
}


def trial_balance(rows: Connection) -> TrialBalanceBody:
    """Sum all postings by ledger account. Reads every posting there is."""
    found = rows.execute(_TRIAL_BALANCE).all()
    totals = {row.ledger_account: row for row in found if row.ledger_account is not None}
    balances_micro = {name: int(row.balance_micro) for name, row in totals.items()}
    total_micro, held_micro = sum(balances_micro.values()), balances_micro.get(HELD, 0)
    stored_micro = (int(found[0].stored_balance_micro), int(found[0].stored_held_micro))
    return TrialBalanceBody(
        at=format_time(found[0].at),
        currency=CURRENCY,
        ledger_accounts=[
            LedgerAccountBody(name, format_amount(balances_micro[name]), row.postings)
            for name, row in totals.items()
        ],
        total=format_amount(total_micro),
        stored_balance=format_amount(stored_micro[0]),
        stored_held=format_amount(stored_micro[1]),
        is_balanced=total_micro == 0
        and stored_micro == (balances_micro.get(AVAILABLE, 0) + held_micro, held_micro),
    )


def liabilities(rows: Connection) -> LiabilitiesBody:
    """Sum the accounts' balances and open holds. Reads every account, and of the holds the open ones."""
    found = rows.execute(_LIABILITIES).one()
    return LiabilitiesBody(
        at=format_time(found.at),
        currency=CURRENCY,
        accounts=found.accounts,
        accounts_with_credit=found.accounts_with_credit,
        accounts_overdrawn=found.accounts_overdrawn,
        credit=format_amount(int(found.credit_micro)),
        overdrawn=format_amount(int(found.overdrawn_micro)),
        held=format_amount(int(found.held_micro)),
        holds_open=found.holds_open,
        holds_open_total=format_amount(int(found.holds_open_micro)),
    )


def revenue(rows: Connection, by: RevenueBy, *, since: datetime, until: datetime) -> RevenueBody:
    """Sum captures from ``since`` on and before ``until``. Reads the operations of that time."""
    found = rows.execute(_REVENUE_BY[by], {"since": since, "until": until}).all()
    return RevenueBody(
        since=format_time(since),
        until=format_time(until),
        by=by,
        currency=CURRENCY,
        data=[
            RevenueLine(row.day.isoformat(), row.name, row.captures, format_amount(int(row.amount_micro)))
            for row in found
        ],
        captures=sum(row.captures for row in found),
        total=format_amount(sum(int(row.amount_micro) for row in found)),
    )
