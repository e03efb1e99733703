"""The embedded database as a child of the parent's supervisor."""

from __future__ import annotations

import structlog
import trio

from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.postmaster import EmbeddedFault
from holdfast.telemetry.reports.report import Report, ReportKind
from holdfast.telemetry.reports.reporter import Reporter

log = structlog.get_logger(__name__)

RETRY_FIRST_S = 0.1
RETRY_LAST_S = 1.0


class DatabaseServer:
    """Starts the server again whenever it has ended, at no cost in restarts: the workers wait for it meanwhile.

    It does not stop the server, which must outlive the last worker.
    """

    def __init__(self, embedded: EmbeddedPostgres, reporter: Reporter) -> None:
        self._embedded = embedded
        self._reporter = reporter
        self._scope = trio.CancelScope()
        self._limiter = trio.CapacityLimiter(2)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Watch the server until stopped."""
        task_status.started()
        with self._scope:
            while True:
                await trio.to_thread.run_sync(self._embedded.wait, limiter=self._limiter, abandon_on_cancel=True)
                began = trio.current_time()
                self._report("outage", "the embedded database has stopped")
                await self._start_again()
                self._report("recovery", "the embedded database runs again", round(trio.current_time() - began, 3))

    async def stop(self) -> None:
        """End the watch."""
        self._scope.cancel()

    def _report(self, kind: ReportKind, reason: str, duration_s: float | None = None) -> None:
        now = self._reporter.now()
        self._reporter.report(
            Report(kind=kind, at=now, path="processes/database", reason=reason, duration_s=duration_s)
        )

    async def _start_again(self) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            try:
                await trio.to_thread.run_sync(self._embedded.start, limiter=self._limiter)
            except EmbeddedFault as fault:
                log.error("the embedded database does not start", reason=str(fault))
                await trio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_LAST_S)
            else:
                return
