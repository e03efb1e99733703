"""The two workers that look after payment orders: one compares them with the card provider, one ends them in time.

Both find their work in the orders' rows and claim it by moving ``wake_at`` on under ``SKIP LOCKED``, so any number
of processes share it, and a claim whose process dies lapses by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import structlog
import trio

from holdfast import metrics
from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.actors.workers.worker import Worker, WorkerRef
from holdfast.persistence.claims.orders import claim_expired_orders, claim_unreconciled_orders
from holdfast.persistence.queries.orders import operator_backlog
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway

log = structlog.get_logger(__name__)

TICK_S = 2.0
ORDERS_MAX = 8
LOOKS_AT_ONCE_MAX = 4
COUNT_S = 30.0


class OrderWorker(Worker):
    """Takes due orders, a bounded number at a time, and runs their errands."""

    claim: ClassVar[Callable[..., list[str]]]

    def __init__(self, post: WorkerRef, *, database: Database, order_checks: OrderChecks) -> None:
        super().__init__(post)
        self._database = database
        self._errands = order_checks

    def background_loops(self) -> tuple[Callable[[], Any], ...]:
        """Look for due orders every few seconds."""
        return (self._poll_loop,)

    async def _poll_loop(self) -> None:
        while True:
            try:
                while await self.poll_due() == ORDERS_MAX:
                    pass
            except DatabaseAway as away:
                # What is due stays due; the next tick finds it.
                log.info("due orders cannot be read", reason=str(away))
            await trio.sleep(TICK_S)

    async def poll_due(self) -> int:
        """Claim due orders and see to each; how many there were. Raises :class:`DatabaseAway`."""

        now = self._errands.now()

        due = await self._database.work(self.claim, most=ORDERS_MAX, now=now)
        at_once = trio.CapacityLimiter(LOOKS_AT_ONCE_MAX)
        async with trio.open_nursery() as nursery:
            for order_id in due:
                nursery.start_soon(self._look, order_id, at_once)
        return len(due)

    async def _look(self, order_id: str, at_once: trio.CapacityLimiter) -> None:
        async with at_once:
            try:
                await self._errands.check(order_id)
            except (AskFault, Crashed, DatabaseAway) as fault:
                # Its claim lapses, and it is looked at again.
                log.info("an order is put off", order_id=order_id, reason=str(fault))
            except UnreadableRow as fault:
                log.error("an order cannot be read", order_id=order_id, reason=str(fault))


class Reconciler(OrderWorker):
    """Compares card orders with their provider, finds lost intents, and counts what an operator should see."""

    claim = staticmethod(claim_unreconciled_orders)

    def background_loops(self) -> tuple[Callable[[], Any], ...]:
        """Look for due orders, and count the odd ones."""
        return (*super().background_loops(), self._count_loop)

    async def _count_loop(self) -> None:
        while True:
            try:
                backlog = await self._database.read(operator_backlog)
                metrics.ORDERS_HELD.set(backlog.held)
                metrics.ORDERS_MISMATCHED.set(backlog.mismatched)
                metrics.REVIEWS_OPEN.set(backlog.in_review)
            except DatabaseAway:
                pass
            await trio.sleep(COUNT_S)


class OrderSweeper(OrderWorker):
    """Ends orders whose time is over and that nobody has paid."""

    claim = staticmethod(claim_expired_orders)
