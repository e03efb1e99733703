"""The ``reconcile`` command: reconcile card orders with their provider, with or without a running service.

It does what the reconciler does, through account actors of its own: every write is fenced, so that it and the
service cannot corrupt each other's changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import trio

from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.runtime.refs import WorkerRef
from holdfast.actors.task.dependencies import queued
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.cluster.codec import ACCOUNTS
from holdfast.persistence.claims.processes import this_process
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.queries.orders import orders_to_reconcile
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.service_clock import ServiceClock
from holdfast.providers.outbound.name_lookups import limit_name_lookups
from holdfast.settings.settings import Settings
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.actors import create_account, keyed_group
from holdfast.wiring.card import card_setup

CONCURRENT_MAX = 4

Progress = Callable[[int, int, str, str], None]
"""Called after each order: how many are done, of how many, which one, and its result."""


class NoCardProvider(Exception):
    """No card provider is configured."""


def reconcile(settings: Settings, database_url: str, *, every: bool, progress: Progress) -> Counter[str]:
    """Reconcile every card order that is not reconciled yet, or with ``every`` all of the last thirty days.

    Returns the number of orders for each result; ``postponed`` counts those whose account could not respond. Raises
    :class:`NoCardProvider`, and :class:`~holdfast.persistence.server.database_faults.DatabaseAway`.
    """
    return trio.run(partial(_reconcile, settings, database_url, every=every, progress=progress))


async def _reconcile(settings: Settings, database_url: str, *, every: bool, progress: Progress) -> Counter[str]:
    limit_name_lookups()
    card = card_setup(settings)
    if card is None:
        raise NoCardProvider
    database = Database(database_url, pool_size=CONCURRENT_MAX)
    clock = ServiceClock(this_process().member_id, off_max_s=settings.clock_off_max_s)
    journal = Journal(
        BatchWriter(database.keep_writer(), now=clock.now, idempotency_ttl_s=settings.idempotency_ttl_s),
        database.gate,
    )
    # This process creates no tasks, so the dispatcher's address receives nothing.
    begin_task = partial(queued, WorkerRef("dispatcher"))
    create = create_account(settings, database, journal, begin_task=begin_task, now=clock.now)
    accounts = keyed_group(
        ACCOUNTS,
        create,
        settings=settings,
        database=database,
        journal=journal,
        reporter=Reporter(),
        dead_letters=DeadLetters(),
    )
    order_checks = OrderChecks(
        database=database, accounts=accounts, card=card.provider, env=settings.env, now=clock.now
    )
    try:
        await database.open()
        await database.work(clock.measure)
        async with trio.open_nursery() as nursery:
            await nursery.start(_running, journal)
            await nursery.start(accounts.run)
            results = await _reconcile_all(database, order_checks, every=every, progress=progress)
            await accounts.stop()
            await journal.stop()
    finally:
        with trio.CancelScope(shield=True):
            await card.provider.close()
        database.close()
    return results


async def _reconcile_all(
    database: Database, order_checks: OrderChecks, *, every: bool, progress: Progress
) -> Counter[str]:
    order_ids = await database.read(orders_to_reconcile, every=every)
    results: Counter[str] = Counter()
    limiter = trio.CapacityLimiter(CONCURRENT_MAX)

    async def reconcile_one(order_id: str) -> None:
        async with limiter:
            try:
                result: str = await order_checks.check(order_id)
            except (AskFault, Crashed, UnreadableRow):
                result = "postponed"
            results[result] += 1
            progress(results.total(), len(order_ids), order_id, result)

    async with trio.open_nursery() as nursery:
        for order_id in order_ids:
            nursery.start_soon(reconcile_one, order_id)
    return results


async def _running(journal: Journal, *, task_status: trio.TaskStatus[None]) -> None:
    await journal.run(task_status=task_status)
