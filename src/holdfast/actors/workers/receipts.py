"""The receipts worker: issues the receipts of money that the ledger has, after its commit.

One member does it for all. It finds its work in rows, so nothing is lost with a process, and the payments of before
it was installed get their receipts first.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Final

import structlog
import trio

from holdfast.actors.workers.passes import ALWAYS, Schedule, repeat
from holdfast.ledger.receipts import ReceiptTerms, issue_receipts
from holdfast.ledger.values import Now
from holdfast.persistence.claims.receipts import BEGINNING, LedgerPosition, read_due, store_receipts
from holdfast.persistence.server.database import Database

log = structlog.get_logger(__name__)

PASS_S: Final = 2.0
PASS_BOUND_S: Final = 60.0
OPERATIONS_MAX: Final = 250
"""How many operations a pass reads: so few that deciding on them keeps no request waiting."""
OVERLAP_S: Final = 60.0
"""An operation may be committed later than others that were decided after it: so far back each reading begins."""
LATE_S: Final = 3_600.0
LATE_EVERY_S: Final = 60.0
"""How far back, and how often, it is read for what was later, as by a process that was frozen."""
WHOLE_EVERY_S: Final = 3_600.0
"""How often the whole ledger is read, for what was later still."""


class ReceiptsWorker:
    """Issues receipts every few seconds, a bounded number at a time."""

    def __init__(
        self,
        *,
        database: Database,
        terms: ReceiptTerms,
        now: Now,
        schedule: Schedule = ALWAYS,
    ) -> None:
        self._database = database
        self._terms = terms
        self._now = now
        self._schedule = schedule
        self._after = BEGINNING
        self._late_at = self._whole_at = now()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Issue receipts every few seconds until cancelled."""
        task_status.started()
        await repeat(
            self.issue,
            every_s=PASS_S,
            name="receipts",
            bound_s=PASS_BOUND_S,
            schedule=self._schedule,
        )

    async def issue(self) -> bool:
        """Issue the receipts of the next operations; return whether others follow. Raises ``DatabaseAway``."""
        settled_at = self._now() - timedelta(seconds=OVERLAP_S)
        due = await self._database.read(read_due, self._after, settled_at=settled_at, most=OPERATIONS_MAX)
        receipts = issue_receipts(
            due.operations,
            due.orders,
            due.firsts,
            due.emails,
            self._terms,
            last_number=due.last_number,
            now=self._now(),
        )
        # Another process may have issued them meanwhile; the next pass reads what it has done.
        if receipts and not await self._database.record(partial(store_receipts, issued=receipts)):
            log.info("receipts not issued: another process has issued some")
            return False
        self._after = due.next_after or self._start_again()
        # Recent operations whose orders are not readable can have no receipt, and are tried again by a later pass.
        is_settled = due.next_after != LedgerPosition(settled_at)
        return due.next_after is not None and (bool(receipts) or is_settled)

    def _start_again(self) -> LedgerPosition:
        now = self._now()
        if now - self._whole_at >= timedelta(seconds=WHOLE_EVERY_S):
            self._whole_at = self._late_at = now
            return BEGINNING
        if now - self._late_at >= timedelta(seconds=LATE_EVERY_S):
            self._late_at = now
            return LedgerPosition(now - timedelta(seconds=LATE_S))
        return LedgerPosition(now - timedelta(seconds=OVERLAP_S))
