"""The books over all accounts: trial balance, revenue, liabilities.

They are summed from rows at each request, so they are exact and never behind; one request at a time reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import FROM, TO, read_window
from holdfast.http.kit.routes import Outcome, Parameter
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.schemas.common import render
from holdfast.ledger.public_types import AccountId, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.audit.progress import count_differences, known_differences, load_progress
from holdfast.persistence.queries.books import (
    LiabilitiesBody,
    RevenueBody,
    RevenueBy,
    TrialBalanceBody,
    liabilities,
    revenue,
    trial_balance,
)
from holdfast.persistence.records.rows import AuditProgress, KnownDifference

route = OperatorRoutes("Books")

REVENUE_DAYS: Final = 31
REVENUE_DAYS_MAX: Final = 366
_FIRST_TIME: Final = datetime.min.replace(tzinfo=UTC)

_BY: Final = Parameter(
    "by",
    "query",
    "What each line is for: a day, or a model or provider on a day.",
    schema={"type": "string", "enum": [*get_args(RevenueBy)], "default": "day"},
)


@route.read("/ops/api/books/trial-balance", "Sum all postings by ledger account", TrialBalanceBody)
async def read_trial_balance(call: Call) -> Outcome:
    """Sums all postings by one statement."""
    return await call.deps.database.scan(trial_balance)


@route.read(
    "/ops/api/books/revenue",
    "Sum what was captured by day, and by model or provider",
    RevenueBody,
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
    return await call.deps.database.scan(lambda rows: revenue(rows, by, since=since, until=until))


@route.read("/ops/api/books/liabilities", "Sum all accounts' balances and open holds", LiabilitiesBody)
async def read_liabilities(call: Call) -> Outcome:
    """Reads all accounts by one statement."""
    return await call.deps.database.scan(liabilities)


DIFFERENCES_SHOWN: Final = 20


class DifferenceBody(msgspec.Struct, frozen=True):
    """A rule of the audit that an account breaks."""

    account_id: AccountId
    rule: str
    """The rule's name."""
    what: str
    """What disagrees, in words."""
    found_at: Time
    """When it was found first."""
    seen_at: Time
    """When it was seen last."""


class AuditPass(msgspec.Struct, frozen=True):
    """The checker's current pass over all accounts."""

    begun_at: Time
    """When it began."""
    accounts_done: int
    """How many accounts it has checked."""
    accounts_behind: int
    """How many it has not checked yet."""
    operations_done: int
    """How many operations it has checked."""
    operations_per_s: float
    """How many operations it checks a second."""
    skipped: int
    """How many checks took too long; a pass with any verifies nothing."""


class LedgerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How far the ledger has been checked, and what was found."""

    verified_up_to: Time | None
    """Every operation committed before this was checked; null before the first pass has ended."""
    age_s: float | None
    """How long ago that was, in seconds; null before the first pass has ended."""
    passes: int
    """How many passes have ended."""
    newest_operation_id: str | None
    """The newest operation checked so far, `op_…`; null before the first."""
    newest_operation_at: Time | None
    """When it was made; null before the first."""
    written_at: Time | None
    """When the checker stored this; null before its first check."""
    current_pass: AuditPass | None
    """The current pass; null before the first check."""
    differences: int
    """How many differences exist now."""
    newest_differences: list[DifferenceBody]
    """The newest of them, at most 20."""


@route.read(
    "/ops/api/ledger", "Retrieve up to when the ledger is verified, and the differences found", LedgerHealth
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
