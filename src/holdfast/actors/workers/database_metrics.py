"""Metrics of the database: how much in it is unfinished, and how fast its log is flushed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TypeVar

import trio
from prometheus_client import Gauge

from holdfast.actors.workers.loops import repeat
from holdfast.ledger.clock import Now
from holdfast.persistence.queries.backlog import measure_backlog
from holdfast.persistence.queries.events import failure_counts
from holdfast.persistence.queries.wal_syncs import WalSyncs, read_wal_syncs
from holdfast.persistence.server.database import Database
from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.samples import SAMPLE_S

BACKLOG_S = 30.0
BACKLOG_BOUND_S = 120.0

Labels = TypeVar("Labels", bound=Hashable)


class DatabaseMetrics:
    """Every process measures, so that each one's metrics are complete. ``now`` is service time."""

    def __init__(self, *, database: Database, now: Now) -> None:
        self._database = database
        self._now = now
        self._tasks: Mapping[tuple[str, str], float] = {}
        self._queued_age_s: Mapping[str, float] = {}
        self._syncs: WalSyncs | None = None

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Measure every few seconds until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            nursery.start_soon(
                partial(
                    repeat, self.measure_backlog, every_s=BACKLOG_S, name="backlog metrics", bound_s=BACKLOG_BOUND_S
                )
            )
            nursery.start_soon(partial(repeat, self.measure_syncs, every_s=SAMPLE_S, name="metrics of the log"))

    async def measure_backlog(self) -> None:
        """Count what is unfinished. Raises :class:`DatabaseAway`."""
        found = await self._database.scan(measure_backlog, self._now())
        _show(self._tasks, found.tasks, lambda labels: metrics.TASKS_UNFINISHED.labels(*labels))
        _show(self._queued_age_s, found.queued_age_s, metrics.TASKS_QUEUED_AGE_S.labels)
        self._tasks, self._queued_age_s = found.tasks, found.queued_age_s
        metrics.EVENTS_PENDING.set(found.events)
        metrics.EVENTS_PENDING_AGE_S.set(found.events_age_s)
        failures = await self._database.scan(failure_counts)
        metrics.EVENTS_FAILING.set(failures.failing)
        metrics.EVENTS_GIVEN_UP.set(failures.given_up)
        metrics.ORDERS_HELD.set(found.operators.held)
        metrics.ORDERS_MISMATCHED.set(found.operators.mismatched)
        metrics.REVIEWS_OPEN.set(found.operators.in_review)
        metrics.REVIEWS_AGE_S.set(found.review_age_s)

    async def measure_syncs(self) -> None:
        """Measure the flushes since the last call, by any process. Raises :class:`DatabaseAway`."""
        before = self._syncs
        self._syncs = now = await self._database.read(read_wal_syncs)
        if before is None or now is None or now.count <= before.count:
            # Not measured, no flush, or a server with new statistics.
            metrics.WAL_SYNC_S.set(float("nan"))
        else:
            metrics.WAL_SYNC_S.set((now.seconds - before.seconds) / (now.count - before.count))


def _show(before: Mapping[Labels, float], now: Mapping[Labels, float], gauge_of: Callable[[Labels], Gauge]) -> None:
    """Set the gauge of each combination of labels; one that is gone is 0."""
    for labels in before.keys() | now.keys():
        gauge_of(labels).set(now.get(labels, 0))
