"""The two workers for payment orders: one reconciles them with the card provider, one expires them.

Both find due orders by ``wake_at`` and claim them by moving it forward under ``SKIP LOCKED``. So any number of
processes share the work, and a claim whose process dies lapses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import structlog
import trio

from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.actors.workers.passes import always, repeat
from holdfast.persistence.claims.orders import claim_expired_orders, claim_unreconciled_orders
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

    claim: ClassVar[Callable[..., list[str]]]

    def __init__(
        self, *, database: Database, order_checks: OrderChecks, is_ours: Callable[[], bool] = always
    ) -> None:
        self._is_ours = is_ours
        self._database = database
        self._order_checks = order_checks

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Check due orders every few seconds until cancelled."""
        task_status.started()
        await repeat(
            self._poll, every_s=TICK_S, name="check of due orders", is_ours=self._is_ours, bound_s=CHECKS_BOUND_S
        )

    async def _poll(self) -> bool:
        """Check due orders; return whether others may be due."""
        return await self.poll_due() == ORDERS_MAX

    async def poll_due(self) -> int:
        """Claim due orders, check each, and return their number. Raises :class:`DatabaseAway`."""
        due = await self._database.work(self.claim, most=ORDERS_MAX, now=self._order_checks.now())
        limiter = trio.CapacityLimiter(CONCURRENT_MAX)
        async with trio.open_nursery() as nursery:
            for order_id in due:
                nursery.start_soon(self._check, order_id, limiter)
        return len(due)

    async def _check(self, order_id: str, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            try:
                await self._order_checks.check(order_id)
            except (AskFault, Crashed, DatabaseAway, UnreadableRow) as fault:
                # Its claim lapses, and the order is checked again.
                log.debug("order check postponed", order_id=order_id, reason=str(fault))


class Reconciler(OrderWorker):
    """Compares card orders with their provider, and finds lost intents."""

    claim = staticmethod(claim_unreconciled_orders)


class OrderSweeper(OrderWorker):
    """Expires unpaid orders."""

    claim = staticmethod(claim_expired_orders)
