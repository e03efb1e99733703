"""The reporter: completes, logs and retains reports, and passes them to listeners.

A failure to report never makes anything else fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

import structlog
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.ids import new_id
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.bursts import Bursts
from holdfast.telemetry.reports.report import Report, level_of
from holdfast.telemetry.reports.words import in_words
from holdfast.telemetry.scrubbing import masked, scrub

RING_RECORDS = 1_000
TEXT_LOGGED_CHARS = 240
"""A line to be read at a glance; the stored report has the whole text."""


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
        self._log: FilteringBoundLogger = logger or structlog.get_logger("holdfast.telemetry.reports")
        self._member_id = member_id
        self._host = host
        self._worker = worker
        self._number = 0
        self._bursts = Bursts()
        self._ring: deque[Report] = deque(maxlen=ring_records)
        self._listeners: list[Callable[[Report], None]] = []
        self.dropped_count = 0
        """How many reports a listener missed because it raised."""

    def report(self, report: Report, fault: BaseException | None = None) -> None:
        """Accept one report; the traceback of ``fault`` is logged at debug. Never raises."""
        try:
            self.report_sums()
            is_summed = self._bursts.sums(report)
        except Exception:
            self.dropped_count += 1
            is_summed = False
        if not is_summed:
            self._emit(report, fault)

    def report_sums(self) -> None:
        """Report the sums of bursts that are over. Called now and then: a burst may be the last for long."""
        for total in self._bursts.take(self.now()):
            self._emit(total, None)

    def _emit(self, report: Report, fault: BaseException | None) -> None:
        try:
            report = self._complete(report)
        except Exception:
            self.dropped_count += 1
            return
        # The log may be a closed pipe, which is no reason to fail.
        with suppress(Exception):
            self._write(report, fault)
        self.accept(report)

    def accept(self, report: Report) -> None:
        """Pass on a complete report, which this process or another one has logged."""
        metrics.REPORTS.labels(report.kind, report.level).inc()
        self._ring.append(report)
        for listener in self._listeners:
            try:
                listener(report)
            except Exception:
                self.dropped_count += 1

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
            reason=_clean(report.reason),
            key=key,
            account_id=report.account_id or (key if key and key.startswith("acct_") else None),
            task_id=report.task_id or (key if key and key.startswith("task_") else None),
            level=level_of(report),
            report_id=new_id("rep"),
            number=self._number,
            member_id=self._member_id,
            host=self._host,
            worker=self._worker,
        )

    def _write(self, report: Report, fault: BaseException | None) -> None:
        text = in_words(report if report.operator is None else replace(report, operator=masked(report.operator)))
        # Also without a value: what the present task is about need not be what the report is about.
        fields = {
            "path": report.path,
            "key": report.key,
            "account_id": report.account_id if report.account_id != report.key else None,
            "task_id": report.task_id if report.task_id != report.key else None,
            "order_id": None,
            "provider": report.provider,
            "text": text if len(text) <= TEXT_LOGGED_CHARS else f"{text[: TEXT_LOGGED_CHARS - 1]}…",
            "trace_id": report.trace_id,
            "request_id": None,
        }
        getattr(self._log, report.level or "info")(report.kind, **fields)
        if fault is not None:
            self._log.debug("traceback", path=report.path, exc_info=fault)


def _clean(text: str | None) -> str | None:
    """Scrub a text, and replace what no row and no JSON can have: NUL and unpaired surrogates."""
    return scrub(text.replace("\0", "?").encode("utf-8", "replace").decode()) if text else text
