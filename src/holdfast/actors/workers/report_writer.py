"""The report writer: stores this process's reports in the table, in their order and in batches.

Reports come from everywhere, also while the database is away, and nothing waits for them: the queue keeps the
newest ones, counts what it loses, and the writer stores them when the database answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import islice

import structlog
import trio

from holdfast.actors.workers.passes import one_pass
from holdfast.persistence.claims.reports import write_last_reports, write_reports
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import PERIOD_S, Reporter

log = structlog.get_logger(__name__)

QUEUE_MAX = 10_000
BATCH_MAX = 500
BUSY_PAUSE_S = 0.05
"""How long to wait while another process writes."""
RETRY_S = 1.0
LAST_WRITE_S = 2.0
PATH = "holdfast/workers/report-writer"


class ReportQueue:
    """The newest reports that are not stored yet, in order; a listener of the reporter. It outlives the writer."""

    def __init__(self, *, most: int = QUEUE_MAX) -> None:
        self._waiting: deque[Report] = deque(maxlen=most)
        self._has_some = trio.Event()
        self.lost_count = 0
        """How many were dropped and not stored, since :meth:`take_lost`."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, report: Report) -> None:
        """Add a report; the oldest is dropped if there is no room."""
        self.lost_count += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(report)
        self._has_some.set()

    async def wait(self) -> None:
        """Wait until there is a report."""
        await self._has_some.wait()

    def first(self, most: int) -> list[Report]:
        """Return the oldest reports, which stay."""
        return list(islice(self._waiting, most))

    def remove(self, done: Collection[Report]) -> None:
        """Remove reports that :meth:`first` has returned. Those that were dropped since are not lost."""
        ids = {report.report_id for report in done}
        while self._waiting and self._waiting[0].report_id in ids:
            ids.remove(self._waiting.popleft().report_id)
        self.lost_count -= len(ids)
        if not self._waiting:
            self._has_some = trio.Event()

    def take_lost(self) -> int:
        """Return the number of lost reports, and count from zero again."""
        lost, self.lost_count = self.lost_count, 0
        return lost


class ReportWriter:
    """Stores what is in ``queue``. No fault of a report or of the database ends it."""

    def __init__(self, queue: ReportQueue, *, database: Database, reporter: Reporter) -> None:
        self._queue = queue
        self._database = database
        self._reporter = reporter

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Store reports until cancelled."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report_sums)
            while True:
                await self._queue.wait()
                await self._store(self._queue.first(BATCH_MAX))

    async def _report_sums(self) -> None:
        while True:
            await trio.sleep(PERIOD_S / 2)
            self._reporter.report_sums()

    async def _store(self, batch: list[Report]) -> None:
        try:
            with one_pass("storing of reports"):
                is_written = await self._database.work(write_reports, batch)
        except DatabaseAway:
            if self._database.gate.is_open:
                await trio.sleep(RETRY_S)
            await self._database.gate.wait_open()
        except Exception as fault:
            if len(batch) > 1:
                await self._store(batch[: len(batch) // 2])  # the rest follows, and what cannot be stored is found
                return
            log.error("report cannot be stored", kind=batch[0].kind, path=batch[0].path, reason=str(fault))
            self._queue.remove(batch)
            self._queue.lost_count += 1
        else:
            if not is_written:
                await trio.sleep(BUSY_PAUSE_S)
                return
            self._queue.remove(batch)
            self._report_lost()

    def _report_lost(self) -> None:
        lost = self._queue.take_lost()
        if lost:
            reason = "they could not be stored in time; the log has them"
            self._reporter.report(Report(kind="loss", path=PATH, count=lost, reason=reason))


async def store_last_reports(queue: ReportQueue, url: str) -> None:
    """Store what is left when the tree has ended, on a connection of its own and within :data:`LAST_WRITE_S`."""
    limiter = trio.CapacityLimiter(1)
    with trio.move_on_after(LAST_WRITE_S):
        while batch := queue.first(BATCH_MAX):
            try:
                is_written = await trio.to_thread.run_sync(
                    write_last_reports, url, batch, abandon_on_cancel=True, limiter=limiter
                )
            except Exception as fault:
                log.info("the last reports are not stored", count=len(queue), reason=type(fault).__name__)
                return
            if is_written:
                queue.remove(batch)
            else:
                await trio.sleep(BUSY_PAUSE_S)
