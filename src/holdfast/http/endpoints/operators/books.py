"""The books over all accounts: trial balance, revenue, liabilities.

They are summed from rows at each request, so they are exact and never behind; one request at a time reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import FROM, TO, read_window
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.schemas.common import render
from holdfast.ledger.clock import format_time
from holdfast.ledger.credit.operations import AVAILABLE, HELD
from holdfast.ledger.money import CURRENCY, format_amount
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.audit.progress import count_differences, known_differences, load_progress
from holdfast.persistence.queries.books import RevenueBy, liabilities, revenue, trial_balance
from holdfast.persistence.records.rows import AuditProgress, KnownDifference

route = RouteTable("Operators")

REVENUE_DAYS: Final = 31
REVENUE_DAYS_MAX: Final = 366
_FIRST_TIME: Final = datetime.min.replace(tzinfo=UTC)

_BY: Final = Parameter(
    "by",
    "query",
    "What each line is for: a day, or a model or provider on a day.",
    schema={"type": "string", "enum": [*get_args(RevenueBy)], "default": "day"},
)


class LedgerAccountBody(msgspec.Struct, frozen=True):
    """The balance of one ledger account over all accounts, and how many postings it sums."""

    ledger_account: str
    balance: Amount
    postings: int


class TrialBalanceBody(msgspec.Struct, frozen=True):
    """Every ledger account's balance. They sum to zero, and customers' to what their accounts store.

    ``is_balanced`` says whether both are so.
    """

    at: Time
    currency: str
    ledger_accounts: list[LedgerAccountBody]
    total: Amount
    stored_balance: Amount
    stored_held: Amount
    is_balanced: bool


class RevenueLine(msgspec.Struct, frozen=True):
    """What was captured on one day in UTC; ``name`` is the model or provider, empty for all."""

    day: str
    name: str
    captures: int
    amount: Amount


class RevenueBody(msgspec.Struct, frozen=True):
    """Revenue from ``since`` on and before ``until``, the earliest day first, and its sum."""

    since: Time
    until: Time
    by: RevenueBy
    currency: str
    data: list[RevenueLine]
    captures: int
    total: Amount


class LiabilitiesBody(msgspec.Struct, frozen=True):
    """The credit of all accounts: ``credit`` above zero, ``overdrawn`` below. ``held`` is part of it.

    ``holds_open_total`` is the sum of the open holds, which is what is held.
    """

    at: Time
    currency: str
    accounts: int
    accounts_with_credit: int
    accounts_overdrawn: int
    credit: Amount
    overdrawn: Amount
    held: Amount
    holds_open: int
    holds_open_total: Amount


@route(
    "GET",
    "/ops/api/books/trial-balance",
    summary="Sum all postings by ledger account",
    auth=Auth.OPERATOR_READ,
    reply=TrialBalanceBody,
)
async def read_trial_balance(call: Call) -> Outcome:
    """Sums all postings by one statement."""
    found = await call.deps.database.scan(trial_balance)
    balances = {each.ledger_account: each.balance_micro for each in found.ledger_accounts}
    total_micro, held_micro = sum(balances.values()), balances.get(HELD, 0)
    stored = (found.stored_balance_micro, found.stored_held_micro)
    return TrialBalanceBody(
        at=format_time(found.at),
        currency=CURRENCY,
        ledger_accounts=[render(LedgerAccountBody, each) for each in found.ledger_accounts],
        total=format_amount(total_micro),
        stored_balance=format_amount(found.stored_balance_micro),
        stored_held=format_amount(found.stored_held_micro),
        is_balanced=total_micro == 0 and stored == (balances.get(AVAILABLE, 0) + held_micro, held_micro),
    )


@route(
    "GET",
    "/ops/api/books/revenue",
    summary="Sum what was captured by day, and by model or provider",
    auth=Auth.OPERATOR_READ,
    reply=RevenueBody,
    parameters=(_BY, FROM, TO),
)
async def read_revenue(call: Call) -> Outcome:
    """Reads the operations of the time asked for by one statement: by default the last 31 days, at most 366."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    until = window.until or call.deps.now()
    midnight = until.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    since = window.since or midnight - min(timedelta(days=REVENUE_DAYS - 1), midnight - _FIRST_TIME)
    if not timedelta(0) < until - since <= timedelta(days=REVENUE_DAYS_MAX):
        return invalid_parameter("from", f"must be at most {REVENUE_DAYS_MAX} days before to")
    by = msgspec.convert(window.filters.get("by", "day"), RevenueBy)
    found = await call.deps.database.scan(lambda rows: revenue(rows, by, since=since, until=until))
    return RevenueBody(
        since=format_time(since),
        until=format_time(until),
        by=by,
        currency=CURRENCY,
        data=[render(RevenueLine, each, day=each.day.isoformat()) for each in found],
        captures=sum(each.captures for each in found),
        total=format_amount(sum(each.amount_micro for each in found)),
    )


@route(
    "GET",
    "/ops/api/books/liabilities",
    summary="Sum all accounts' balances and open holds",
    auth=Auth.OPERATOR_READ,
    reply=LiabilitiesBody,
)
async def read_liabilities(call: Call) -> Outcome:
    """Reads all accounts by one statement."""
    found = await call.deps.database.scan(liabilities)
    return render(LiabilitiesBody, found, currency=CURRENCY, holds_open_total=format_amount(found.holds_open_micro))


DIFFERENCES_SHOWN: Final = 20


class DifferenceBody(msgspec.Struct, frozen=True):
    """A rule of the audit that an account breaks: what disagrees, since when it is known, when it was seen last."""

    account_id: str
    rule: str
    what: str
    found_at: Time
    seen_at: Time


class AuditPass(msgspec.Struct, frozen=True):
    """The checker's current pass over all accounts. ``accounts_behind`` were not checked in it yet.

    ``skipped`` checks took too long; a pass with any verifies nothing.
    """

    begun_at: Time
    accounts_done: int
    accounts_behind: int
    operations_done: int
    operations_per_s: float
    skipped: int


class LedgerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Every operation committed before ``verified_up_to`` has been checked, ``age_s`` seconds ago or later.

    Both are null before the first of ``passes`` has ended; ``current_pass`` is null before the first check.
    ``newest_operation_id`` is the newest operation checked so far. ``differences`` exist now;
    ``newest_differences`` are at most 20 of them.
    """

    verified_up_to: Time | None
    age_s: float | None
    passes: int
    newest_operation_id: str | None
    newest_operation_at: Time | None
    written_at: Time | None
    current_pass: AuditPass | None
    differences: int
    newest_differences: list[DifferenceBody]


@route(
    "GET",
    "/ops/api/ledger",
    summary="Retrieve up to when the ledger is verified, and the differences found",
    auth=Auth.OPERATOR_READ,
    reply=LedgerHealth,
)
async def read_ledger_health(call: Call) -> Outcome:
    """Reads what the checker has stored, in whichever process it runs."""

    def read(rows: Connection) -> tuple[AuditProgress | None, int, Sequence[KnownDifference]]:
        return load_progress(rows), count_differences(rows), known_differences(rows, limit=DIFFERENCES_SHOWN)

    progress, differences, newest = await call.deps.database.read(read)
    now = call.deps.now()
    found = progress or AuditProgress(begun_at=now, written_at=now)
    verified_up_to = found.verified_up_to
    return render(
        LedgerHealth,
        found,
        age_s=None if verified_up_to is None else round((now - verified_up_to).total_seconds(), 1),
        written_at=None if progress is None else progress.written_at,
        current_pass=None if progress is None else _pass_body(progress),
        differences=differences,
        newest_differences=[render(DifferenceBody, each) for each in newest],
    )


def _pass_body(progress: AuditProgress) -> AuditPass:
    return render(
        AuditPass,
        progress,
        accounts_behind=max(progress.accounts_total - progress.accounts_done, 0),
        operations_per_s=round(progress.operations_per_s, 1),
    )
