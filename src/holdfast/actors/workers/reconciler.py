"""The workers for payment orders: they reconcile them with the card provider, expire them, and charge top-ups.

They find due orders by ``wake_at`` and claim them by moving it forward under ``SKIP LOCKED``. So any number of
processes share the work, and a claim whose process dies lapses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import structlog
import trio

from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.actors.workers.passes import ALWAYS, Schedule, do_each, repeat
from holdfast.persistence.claims.orders import Due, claim_due
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway

log = structlog.get_logger(__name__)

TICK_S = 2.0
ORDERS_MAX = 8
CONCURRENT_MAX = 4
CHECKS_BOUND_S = 300.0
"""Enough for two calls with retries for each order, to a card provider that does not answer."""


class OrderWorker:
    """Claims due orders, a bounded number at a time, and checks each."""

    claimed: ClassVar[Due]

    def __init__(
        self,
        *,
        database: Database,
        order_checks: OrderChecks,
        schedule: Schedule = ALWAYS,
    ) -> None:
        self._schedule = schedule
        self._database = database
        self._order_checks = order_checks

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Check due orders every few seconds until cancelled."""
        task_status.started()
        await repeat(
            self._poll,
            every_s=TICK_S,
            name="check of due orders",
            bound_s=CHECKS_BOUND_S,
            schedule=self._schedule,
        )

    async def _poll(self) -> bool:
        """Check due orders; return whether others may be due."""
        return await self.poll_due() == ORDERS_MAX

    async def poll_due(self) -> int:
        """Claim due orders, check each, and return their number. Raises :class:`DatabaseAway`."""
        due = await self._database.work(claim_due, self.claimed, most=ORDERS_MAX, now=self._order_checks.now())
        await do_each(self._check, due, concurrent_max=CONCURRENT_MAX)
        return len(due)

    async def _check(self, order_id: str) -> None:
        with _postponing(order_id=order_id):
            await self._order_checks.check(order_id)


@contextmanager
def _postponing(**about: str) -> Iterator[None]:
    """Leave work that could not be done to a later round: its claim lapses."""
    try:
        yield
    except (AskFault, Crashed, DatabaseAway, UnreadableRow) as fault:
        log.debug("order check postponed", reason=str(fault), **about)


class Reconciler(OrderWorker):
    """Compares card orders with their provider, and finds lost intents."""

    claimed = "unreconciled_orders"


class OrderSweeper(OrderWorker):
    """Expires unpaid orders."""

    claimed = "expired_orders"


class TopUpWorker(OrderWorker):
    """Charges automatic top-ups, and resumes those that the limits of a day or month have prevented."""

    claimed = "top_ups"

    async def poll_due(self) -> int:
        """Resume accounts, then charge what is due; return how many of the larger group there were."""
        now = self._order_checks.now()
        resuming = await self._database.work(claim_due, "resuming_accounts", most=ORDERS_MAX, now=now)
        for account_id in resuming:
            with _postponing(account_id=account_id):
                await self._order_checks.resume_top_up(account_id)
        return max(len(resuming), await super().poll_due())
