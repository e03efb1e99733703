"""The reports of a supervisor."""

from __future__ import annotations

import trio

from holdfast.supervision.intensity import RestartWindow
from holdfast.supervision.reports import Context, Decision, Report, Reporter, ReportKind, describe
from holdfast.supervision.supervised_child import SupervisedChild


class ChildReports:
    """``window`` counts the supervisor's restarts."""

    def __init__(self, reporter: Reporter, window: RestartWindow) -> None:
        self._reporter = reporter
        self._window = window

    def report(
        self,
        kind: ReportKind,
        path: str,
        child: SupervisedChild | None,
        context: Context | None = None,
        fault: BaseException | None = None,
        *,
        reason: str | None = None,
        decision: Decision = "none",
        delay_s: float | None = None,
    ) -> None:
        """Report on ``child``, or on the supervisor (None). The reason is that of ``fault``, else ``reason``."""
        cause = describe(fault) if fault is not None else None
        self._reporter.report(
            Report(
                kind=kind,
                at=self._reporter.now(),
                path=path if child is None else child.path,
                child_id=child.spec.child_id if child is not None else None,
                incarnation=child.incarnation if child is not None else None,
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
