"""The report writer: stores this process's reports in the table, in their order and in batches.

Reports come from everywhere, also while the database is away. How many the queue lost is a report, too.
"""

from __future__ import annotations

import structlog
import trio

from holdfast.actors.workers.newest_queue import NewestQueue, wait_to_retry
from holdfast.actors.workers.passes import one_pass
from holdfast.persistence.claims.reports import write_last_reports, write_reports
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import PERIOD_S, Reporter

log = structlog.get_logger(__name__)

REPORTS_MAX = 10_000
"""How many reports wait, the newest."""
BATCH_MAX = 500
BUSY_PAUSE_S = 0.05
"""How long to wait while another process writes."""
LAST_WRITE_S = 2.0
PATH = "holdfast/workers/report-writer"


class ReportWriter:
    """Stores what is in ``queue``. No fault of a report or of the database ends it."""

    def __init__(self, queue: NewestQueue[Report], *, database: Database, reporter: Reporter) -> None:
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
            await wait_to_retry(self._database)
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


async def store_last_reports(queue: NewestQueue[Report], url: str) -> None:
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
