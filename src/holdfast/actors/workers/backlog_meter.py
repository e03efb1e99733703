"""The backlog meter: counts what is unfinished in the database, for the metrics."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import trio
from prometheus_client import Gauge

from holdfast import metrics
from holdfast.actors.workers.loops import repeat
from holdfast.ledger.clock import Now
from holdfast.persistence.queries.backlog import measure_backlog
from holdfast.persistence.server.database import Database

MEASURE_S = 30.0

Labels = TypeVar("Labels", bound=Hashable)


class BacklogMeter:
    """Every process measures, so that each one's metrics are complete. ``now`` is service time."""

    def __init__(self, *, database: Database, now: Now) -> None:
        self._database = database
        self._now = now
        self._tasks: Mapping[tuple[str, str], float] = {}
        self._queued_age_s: Mapping[str, float] = {}

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Measure every few seconds until cancelled."""
        task_status.started()
        await repeat(self.measure, every_s=MEASURE_S, name="backlog metrics")

    async def measure(self) -> None:
        """Measure once. Raises :class:`DatabaseAway`."""
        found = await self._database.scan(measure_backlog, self._now())
        _show(self._tasks, found.tasks, lambda labels: metrics.TASKS_UNFINISHED.labels(*labels))
        _show(self._queued_age_s, found.queued_age_s, metrics.TASKS_QUEUED_AGE_S.labels)
        self._tasks, self._queued_age_s = found.tasks, found.queued_age_s
        metrics.EVENTS_PENDING.set(found.events)
        metrics.EVENTS_PENDING_AGE_S.set(found.events_age_s)
        metrics.ORDERS_HELD.set(found.operators.held)
        metrics.ORDERS_MISMATCHED.set(found.operators.mismatched)
        metrics.REVIEWS_OPEN.set(found.operators.in_review)


def _show(before: Mapping[Labels, float], now: Mapping[Labels, float], gauge_of: Callable[[Labels], Gauge]) -> None:
    """Set the gauge of each combination of labels; one that is gone is 0."""
    for labels in before.keys() | now.keys():
        gauge_of(labels).set(now.get(labels, 0))
