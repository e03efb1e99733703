"""The reporter: completes, logs and retains reports, and passes them to listeners.

A failure to report never makes anything else fail. When many actors of a group report the same at once, the first
reports pass one by one, the rest as a sum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from holdfast.ledger.values import Now, new_id, utc_now
from holdfast.telemetry import metrics
from holdfast.telemetry.repetitions import Period, Repetitions
from holdfast.telemetry.reports.causes import Cause
from holdfast.telemetry.reports.report import UNDATED, Report, in_words, level_of
from holdfast.telemetry.scrubbing import scrub, spelled

RING_RECORDS: Final = 1_000
ALONE_MAX: Final = 100
"""So many reports of one kind and path pass one by one in a period."""
PERIOD_S: Final = 10.0


class Reporter:
    """Every report of a process passes through one of these. For trio's thread only.

    ``member_id``, ``host`` and ``worker`` say whose reports these are.
    """

    def __init__(
        self,
        *,
        now: Now = utc_now,
        logger: FilteringBoundLogger | None = None,
        ring_records: int = RING_RECORDS,
        member_id: str | None = None,
        host: str | None = None,
        worker: int | None = None,
    ) -> None:
        self.now = now
        self._log: FilteringBoundLogger = logger or structlog.get_logger(__name__)
        self._emitter = {"member_id": member_id, "host": host, "worker": worker}
        self._number = 0
        self._bursts = Repetitions[Report](lambda: self.now().timestamp(), ALONE_MAX, [PERIOD_S])
        self._ring: deque[Report] = deque(maxlen=ring_records)
        self._listeners: list[Callable[[Report], None]] = []

    def report(self, report: Report, cause: Cause | None = None) -> None:
        """Accept one report, with the reason and the location of its ``cause``, whose traceback is logged at debug.

        Never raises.
        """
        try:
            if cause is not None:
                location = report.location or cause.location
                report = replace(report, reason_type=cause.reason_type, reason=cause.reason, location=location)
            self.report_sums()
            # Those about parts of the tree, and what operators did, always pass.
            always = report.key is None or report.operator is not None
            if always or self._bursts.admit((report.kind, report.path), report):
                self._emit(report, cause)
        except Exception:
            self._log_fault()

    def report_sums(self, *, at_once: bool = False) -> None:
        """Report the sums of bursts that are over, or of all. Called now and then: no report may follow."""
        for burst in self._bursts.due(at_once=at_once):
            self._emit(_sum(burst), None)

    def _emit(self, report: Report, cause: Cause | None) -> None:
        report = self._complete(report)
        # The log may be a closed pipe, which is no reason to fail.
        with suppress(Exception):
            self._write(report, cause)
        self.accept(report)

    def accept(self, report: Report) -> None:
        """Pass on a complete report, which this process or another one has logged."""
        metrics.REPORTS.labels(report.kind, report.level).inc()
        self._ring.append(report)
        for listener in self._listeners:
            try:
                listener(report)
            except Exception:
                self._log_fault()

    def _log_fault(self) -> None:
        with suppress(Exception):
            self._log.error("a report could not be passed on", exc_info=True)

    def recent(self, limit: int = RING_RECORDS) -> tuple[Report, ...]:
        """Return the newest reports, newest first."""
        return tuple(reversed(self._ring))[:limit]

    def listen(self, listener: Callable[[Report], None]) -> None:
        """Call ``listener`` with every report from now on, inside the supervisor: it must not block."""
        self._listeners.append(listener)

    def _complete(self, report: Report) -> Report:
        key = _clean(report.key)
        self._number += 1
        return replace(
            report,
            at=self.now() if report.at is UNDATED else report.at,
            reason=_clean(report.reason),
            key=key,
            account_id=report.account_id or (key if key and key.startswith("acct_") else None),
            task_id=report.task_id or (key if key and key.startswith("task_") else None),
            level=level_of(report),
            report_id=new_id("rep"),
            number=self._number,
            **self._emitter,
        )

    def _write(self, report: Report, cause: Cause | None) -> None:
        operator = None if report.operator is None else spelled(report.operator)
        # Also without a value: what the present task is about need not be what the report is about.
        fields = {
            "path": report.path,
            "key": report.key,
            "account_id": report.account_id if report.account_id != report.key else None,
            "task_id": report.task_id if report.task_id != report.key else None,
            "order_id": None,
            "provider": report.provider,
            # The links between processes name them by this.
            "member": report.member_id if report.kind in ("start", "stop") and "/" not in report.path else None,
            "text": in_words(replace(report, operator=operator)),
            "trace_id": report.trace_id,
            "request_id": None,
        }
        getattr(self._log, report.level or "info")(report.kind, **fields)
        if cause is not None:
            self._log.debug("traceback", path=report.path, exc_info=cause.fault)


def _sum(burst: Period[Report]) -> Report:
    """Return the last report, with the number of those that it stands for."""
    last = burst.last
    return replace(
        last,
        at=UNDATED,
        key=None,
        account_id=None,
        task_id=None,
        trace_id=None,
        count=burst.count,
        duration_s=round(burst.lasted_s, 3),
        reason=f"more of the same, the last on {last.key}" + (f": {last.reason}" if last.reason else ""),
    )


def _clean(text: str | None) -> str | None:
    """Scrub a text, and replace what no row and no JSON can have: NUL and unpaired surrogates."""
    return scrub(text.replace("\0", "?").encode("utf-8", "replace").decode()) if text else text
