"""The ledger's health: how far the checker has come, and what it found."""

from __future__ import annotations

from typing import Final

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.ledger.clock import format_time
from holdfast.ledger.public_types import Time, time_or_none
from holdfast.persistence.audit.progress import (
    AuditProgress,
    KnownDifference,
    count_differences,
    known_differences,
    load_progress,
)

route = RouteTable("Operators")

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
    """One read of what the checker, whichever process it runs in, has stored."""

    def read(rows: Connection) -> tuple[AuditProgress | None, int, list[DifferenceBody]]:
        newest = known_differences(rows, limit=DIFFERENCES_SHOWN)
        return load_progress(rows), count_differences(rows), [_difference_body(each) for each in newest]

    progress, differences, newest = await call.deps.database.read(read)
    verified_up_to = None if progress is None else progress.verified_up_to
    return LedgerHealth(
        verified_up_to=time_or_none(verified_up_to),
        age_s=None if verified_up_to is None else round((call.deps.now() - verified_up_to).total_seconds(), 1),
        passes=0 if progress is None else progress.passes,
        newest_operation_id=None if progress is None else progress.newest_operation_id,
        newest_operation_at=None if progress is None else time_or_none(progress.newest_operation_at),
        written_at=None if progress is None else format_time(progress.written_at),
        current_pass=None if progress is None else _pass_body(progress),
        differences=differences,
        newest_differences=newest,
    )


def _pass_body(progress: AuditProgress) -> AuditPass:
    return AuditPass(
        begun_at=format_time(progress.begun_at),
        accounts_done=progress.accounts_done,
        accounts_behind=max(progress.accounts_total - progress.accounts_done, 0),
        operations_done=progress.operations_done,
        operations_per_s=round(progress.operations_per_s, 1),
        skipped=progress.skipped,
    )


def _difference_body(known: KnownDifference) -> DifferenceBody:
    return DifferenceBody(
        account_id=known.account_id,
        rule=known.rule,
        what=known.what,
        found_at=format_time(known.found_at),
        seen_at=format_time(known.seen_at),
    )
