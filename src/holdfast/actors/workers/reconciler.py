"""The two workers that look after payment orders: one compares them with the card provider, one ends them in time.

Both find their work in the orders' rows and claim it by moving ``wake_at`` on under ``SKIP LOCKED``, so any number
of processes share it, and a claim whose process dies lapses by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import structlog
import trio
from sqlalchemy import Connection, text

from holdfast import metrics
from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.actors.workers.worker import Worker, WorkerAddress
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database import Database, DatabaseAway

log = structlog.get_logger(__name__)

TICK_S = 2.0
ORDERS_MAX = 8
LOOKS_AT_ONCE_MAX = 4
LEASE_S = 180
"""Longer than any look takes: three calls to the provider and as many to the account."""

COUNT_S = 30.0

_OVER = "(expires_at <= :now and status in ('pending', 'failed'))"
_CLAIM = (
    "with due as (select account_id, order_id from orders where wake_at <= :now and {which} "
    "order by wake_at limit :most for update skip locked) "
    "update orders o set wake_at = :now + make_interval(secs => :lease_s) from due "
    "where o.account_id = due.account_id and o.order_id = due.order_id returning o.order_id"
)
_ODD = text(
    "select count(*) filter (where status = 'held') as held, "
    "count(*) filter (where reconcile_status = 'mismatch') as mismatched, "
    "(select count(*) from tasks where wake_at is not null and dispatched and status = 'review') as in_review "
    "from orders where status = 'held' or reconcile_status = 'mismatch'"
)


class OrderWorker(Worker):
    """Takes due orders, a bounded number at a time, and runs their errands."""

    which: ClassVar[str]

    def __init__(self, post: WorkerAddress, *, database: Database, order_checks: OrderChecks) -> None:
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

        def claim(connection: Connection) -> list[str]:
            statement = text(_CLAIM.format(which=self.which))
            found = connection.execute(statement, {"most": ORDERS_MAX, "lease_s": LEASE_S, "now": now})
            return [row.order_id for row in found]

        due = await self._database.work(claim)
        at_once = trio.CapacityLimiter(LOOKS_AT_ONCE_MAX)
        async with trio.open_nursery() as nursery:
            for order_id in due:
                nursery.start_soon(self._look, order_id, at_once)
        return len(due)

    async def _look(self, order_id: str, at_once: trio.CapacityLimiter) -> None:
        async with at_once:
            try:
                await self._errands.look(order_id)
            except (AskFault, Crashed, DatabaseAway) as fault:
                # Its claim lapses, and it is looked at again.
                log.info("an order is put off", order_id=order_id, reason=str(fault))
            except UnreadableRow as fault:
                log.error("an order cannot be read", order_id=order_id, reason=str(fault))


class Reconciler(OrderWorker):
    """Compares card orders with their provider, finds lost intents, and counts what an operator should see."""

    which = f"provider = 'cardprovider' and not {_OVER}"

    def background_loops(self) -> tuple[Callable[[], Any], ...]:
        """Look for due orders, and count the odd ones."""
        return (*super().background_loops(), self._count_loop)

    async def _count_loop(self) -> None:
        while True:
            try:
                row = await self._database.read(lambda connection: connection.execute(_ODD).one())
                metrics.ORDERS_HELD.set(row.held)
                metrics.ORDERS_MISMATCHED.set(row.mismatched)
                metrics.REVIEWS_OPEN.set(row.in_review)
            except DatabaseAway:
                pass
            await trio.sleep(COUNT_S)


class OrderSweeper(OrderWorker):
    """Ends orders whose time is over and that nobody has paid."""

    which = _OVER
