"""The reports of a supervisor."""

from __future__ import annotations

import trio

from holdfast.supervision.faults import root_cause
from holdfast.supervision.intensity import RestartWindow
from holdfast.supervision.supervised_child import SupervisedChild
from holdfast.telemetry.reports.causes import describe, location_of
from holdfast.telemetry.reports.conditions import CRASH_LOOP, Conditions
from holdfast.telemetry.reports.report import Context, Decision, Level, Report, ReportKind, level_of_failure
from holdfast.telemetry.reports.reporter import Reporter


class ChildReports:
    """``path`` is the supervisor's. ``window`` counts the restarts within the budget that reports name."""

    def __init__(self, path: str, reporter: Reporter, conditions: Conditions, window: RestartWindow) -> None:
        self.path = path
        self._reporter = reporter
        self._conditions = conditions
        self.window = window

    def report(
        self,
        kind: ReportKind,
        child: SupervisedChild | None,
        context: Context | None = None,
        fault: BaseException | None = None,
        *,
        reason: str | None = None,
        decision: Decision = "none",
        delay_s: float | None = None,
        level: Level | None = None,
    ) -> None:
        """Report on ``child``, or on the supervisor (None). The reason is that of ``fault``, else ``reason``."""
        cause = describe(fault) if fault is not None else None
        self._reporter.report(
            Report(
                kind=kind,
                at=self._reporter.now(),
                level=level,
                path=self.path if child is None else child.path,
                child_id=child.spec.child_id if child is not None else None,
                incarnation=child.incarnation if child is not None else None,
                context=context,
                reason_type=cause.reason_type if cause else None,
                reason=cause.reason if cause else reason,
                location=location_of(root_cause(fault) or fault) if fault is not None else None,
                restarts=self.window.count(trio.current_time()),
                budget=self.window.restarts,
                decision=decision,
                delay_s=delay_s,
            ),
            fault,
        )

    def crash(
        self,
        child: SupervisedChild,
        context: Context,
        fault: Exception | None,
        *,
        decision: Decision,
        delay_s: float | None = None,
    ) -> None:
        """Report that ``child`` failed, or (None) returned though it should run; also if it keeps failing."""
        self.report(
            "crash",
            child,
            context,
            fault,
            reason="it returned",
            decision=decision,
            delay_s=delay_s,
            level="error" if decision in ("escalate", "none") else level_of_failure(child.failures_in_row),
        )
        if decision != "none":
            self._conditions.failed(
                CRASH_LOOP,
                child.path,
                child.last_fault if fault is not None and child.last_fault else "it returned",
            )

    def up(self, child: SupervisedChild) -> None:
        """Report that ``child`` is up. The first start of each is a line that few need: that of the tree is one."""
        is_first = child.incarnation == 1
        self.report("start" if is_first else "restart", child, level="debug" if is_first else None)

    def stopped(self, child: SupervisedChild, *, in_drain: bool) -> None:
        """Report that ``child`` has stopped in order. A drain is summed up by one report at its end."""
        self.report("stop", child, level="debug" if in_drain else None)
