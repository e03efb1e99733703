"""The sampler: measures how late the event loop is, takes this process's samples, and meters the database."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import trio
from prometheus_client import Gauge

from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.workers.passes import LOOK_S, next_tick, repeat
from holdfast.ledger.values import Now
from holdfast.persistence.claims.files import all_files_total
from holdfast.persistence.queries.backlog import WalSyncs, measure_backlog, read_wal_syncs
from holdfast.persistence.queries.events import failure_counts
from holdfast.persistence.server.database import Database
from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.samples import (
    SAMPLE_S,
    ProcessMeter,
    Queues,
    SampleRing,
    Totals,
    read_totals,
    sample_between,
)

LAG_S = LOOK_S
"""How often the event loop's lag is measured, and other workers see what was counted in batches."""


class Sampler:
    """Adds a sample to ``ring`` every few seconds, and sets the metrics that nothing else sets.

    ``journal_units`` are those that wait for the journal, ``quarantined`` the actors in quarantine by kind. Where
    there ``are_others``, they find in files what this process has counted in batches.
    """

    def __init__(
        self,
        ring: SampleRing,
        *,
        journal_units: Callable[[], int],
        mailboxes: Callable[[], Iterable[Mailbox]],
        quarantined: Callable[[], Mapping[str, int]],
        processes: ProcessMeter,
        are_others: bool,
        now: Now,
    ) -> None:
        self._ring = ring
        self._journal_units = journal_units
        self._mailboxes = mailboxes
        self._quarantined = quarantined
        self._processes = processes
        self._are_others = are_others
        self._now = now

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Take samples until cancelled."""
        task_status.started()
        before, begun = read_totals(), trio.current_time()
        try:
            while True:
                self._ring.take_over(self._now())
                self._processes.measure()
                for kind, count in self._quarantined().items():
                    metrics.ACTORS_QUARANTINED.labels(kind).set(count)
                lag_max_s = await self._measure_lag(begun + SAMPLE_S)
                before, begun = self._take_sample(before, begun, lag_max_s)
        finally:
            self._flush()

    def _flush(self) -> None:
        if self._are_others:
            metrics.flush()

    async def _measure_lag(self, until: float) -> float:
        """Measure until about then how late a task resumes that is due; return the longest delay."""
        longest = 0.0
        while (due := next_tick(LAG_S)) <= until:
            await trio.sleep_until(due)
            lag_s = trio.current_time() - due
            metrics.LOOP_LAG_S.observe(lag_s)
            longest = max(longest, lag_s)
            self._flush()
        return longest

    def _take_sample(self, before: Totals, begun: float, lag_max_s: float) -> tuple[Totals, float]:
        totals, ended = read_totals(), trio.current_time()
        sample = sample_between(
            before,
            totals,
            at=self._now(),
            interval_s=ended - begun,
            loop_lag_max_s=lag_max_s,
            queues=self._queues(ended),
        )
        self._ring.add(sample)
        return totals, ended

    def _queues(self, now: float) -> Queues:
        # Thousands of actors may be active; nearly all of their mailboxes are empty.
        waiting = [mailbox for mailbox in self._mailboxes() if not mailbox.empty()]
        oldest = min((at for mailbox in waiting if (at := mailbox.oldest_sent_at()) is not None), default=now)
        return Queues(self._journal_units(), sum(map(len, waiting)), now - oldest)


BACKLOG_S = 30.0
BACKLOG_BOUND_S = 120.0
FILES_S = 300.0
"""Reads all rows of files."""

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
            count = partial(repeat, bound_s=BACKLOG_BOUND_S)
            nursery.start_soon(partial(count, self.measure_backlog, every_s=BACKLOG_S, name="backlog metrics"))
            nursery.start_soon(partial(count, self.measure_files, every_s=FILES_S, name="metrics of files"))
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

    async def measure_files(self) -> None:
        """Count the files of all accounts. Raises :class:`DatabaseAway`."""
        found = await self._database.scan(all_files_total)
        metrics.FILES.set(found.files)
        metrics.FILES_BYTES.set(found.bytes)

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
