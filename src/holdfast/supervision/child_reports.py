"""A supervisor's voice: fills in what all its reports share."""

from __future__ import annotations

import trio

from holdfast.supervision.intensity import RestartWindow
from holdfast.supervision.reports import Context, Decision, Report, Reporter, ReportKind, describe
from holdfast.supervision.slots import Slot


class ChildReports:
    """Makes the reports of one supervisor, whose restarts are counted in ``window``."""

    def __init__(self, reporter: Reporter, window: RestartWindow) -> None:
        self._reporter = reporter
        self._window = window

    def announce(
        self,
        kind: ReportKind,
        path: str,
        slot: Slot | None,
        context: Context | None = None,
        fault: BaseException | None = None,
        *,
        reason: str | None = None,
        decision: Decision = "none",
        delay_s: float | None = None,
    ) -> None:
        """Report on the child in ``slot``, or on the supervisor. ``fault`` explains itself, else ``reason``."""
        cause = describe(fault) if fault is not None else None
        self._reporter.report(
            Report(
                kind=kind,
                at=self._reporter.now(),
                path=path if slot is None else slot.path,
                child_id=slot.spec.child_id if slot is not None else None,
                incarnation=slot.incarnation if slot is not None else None,
                context=context,
                reason_type=cause.reason_type if cause else None,
                reason=cause.reason if cause else reason,
                location=cause.location if cause else None,
                restarts=self._window.count(trio.current_time()),
                budget=self._window.restarts,
                decision=decision,
                delay_s=delay_s,
            )
        )
