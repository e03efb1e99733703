"""The ledger's health: how far the checker has come, and what it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.rendering import render
from holdfast.ledger.public_types import Time
from holdfast.persistence.audit.progress import count_differences, known_differences, load_progress
from holdfast.persistence.records.rows import AuditProgress, KnownDifference

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
