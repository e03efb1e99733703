"""What a supervisor holds and reports of each child."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Literal

import trio

from holdfast.ledger.values import format_time
from holdfast.supervision.faults import root_cause
from holdfast.supervision.spec import Child, ChildSpec, Intensity, RestartWindow
from holdfast.supervision.status import Branch, ChildState, ChildStatus, Works, work_of
from holdfast.telemetry.reports.causes import Cause, location_of
from holdfast.telemetry.reports.conditions import CRASH_LOOP, Conditions
from holdfast.telemetry.reports.report import Context, Decision, Level, Report, ReportKind, level_of_failure
from holdfast.telemetry.reports.reporter import Reporter

Phase = Literal["down", "starting", "running", "stopping"]
EndState = Literal["finished", "failed", "stopped"]


class Run:
    """One incarnation. An action on a child names its run, so that a late one cannot affect the next."""

    __slots__ = ("done", "instance", "scope", "up_at")

    def __init__(self) -> None:
        self.scope = trio.CancelScope(shield=True)
        self.done = trio.Event()
        self.instance: Child | None = None
        self.up_at: float | None = None


class StartSignal:
    """The ``task_status`` of one incarnation; calls ``on_started`` once."""

    __slots__ = ("_called", "_on_started")

    def __init__(self, on_started: Callable[[], None]) -> None:
        self._on_started = on_started
        self._called = False

    def started(self, _value: None = None) -> None:
        """Report that the child is up. Raises RuntimeError the second time."""
        if self._called:
            raise RuntimeError("started() was called twice")
        self._called = True
        self._on_started()


class SupervisedChild:
    """``ended_as`` is set while the child is not to be started; ``must_stop`` while it is to be stopped."""

    def __init__(self, spec: ChildSpec, intensity: Intensity, path: str, since: datetime) -> None:
        self.spec = spec
        self.path = path
        self.since = since
        self.phase: Phase = "down"
        self.run = Run()
        self.ended_as: EndState | None = None
        self.must_stop = False
        self.asked: str | None = None
        """Why an operator stops or starts it; None if none does."""
        self.incarnation = 0
        self.last_message_type: str | None = None
        """The type of the last message of an actor that has ended."""
        self.was_up = False
        self.failures_in_row = 0
        self.window = RestartWindow(intensity.restarts, intensity.period_s)
        self.last_fault: str | None = None
        self.timer: trio.CancelScope | None = None
        self.due_at = 0.0

    @property
    def live(self) -> bool:
        """Whether an incarnation exists, in any phase."""
        return self.phase != "down"

    @property
    def ready(self) -> bool:
        """Whether it runs and, if it reports readiness, is ready."""
        instance: object = self.run.instance
        return self.phase == "running" and (not isinstance(instance, Branch) or instance.is_ready)

    def clear_timer(self) -> None:
        """Cancel the backoff."""
        if self.timer is not None:
            timer, self.timer = self.timer, None
            timer.cancel()

    def end_as(self, state: EndState) -> None:
        """Do not start it again, until an operator or a group restart does."""
        self.ended_as = state
        self.clear_timer()

    def state(self, ending: bool) -> ChildState:
        """Return its public state. ``ending``: the supervisor is stopping or has stopped."""
        if self.phase != "down":
            return self.phase
        if self.ended_as is not None:
            return self.ended_as
        if ending:
            return "stopped"
        return "restarting" if self.incarnation else "pending"

    def status(self, now: float | None, ending: bool) -> ChildStatus:
        """Return its status at ``now`` (trio's clock; None outside of trio)."""
        instance: object = self.run.instance
        return ChildStatus(
            child_id=self.spec.child_id,
            state=self.state(ending),
            restart=self.spec.restart,
            incarnation=self.incarnation,
            restarts_in_window=0 if now is None else self.window.count(now),
            since=format_time(self.since),
            retry_in_s=max(0.0, self.due_at - now) if self.timer is not None and now is not None else None,
            last_fault=self.last_fault,
            work=work_of(instance.actor_inbox, instance, now)
            if now is not None and isinstance(instance, Works)
            else None,
            children=instance.children() if isinstance(instance, Branch) else (),
        )


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
        cause: Cause | None = None,
        *,
        reason: str | None = None,
        decision: Decision = "none",
        delay_s: float | None = None,
        level: Level | None = None,
    ) -> None:
        """Report on ``child``, or on the supervisor (None). The reason is that of ``cause``, else ``reason``."""
        self._reporter.report(
            Report(
                kind=kind,
                level=level,
                path=self.path if child is None else child.path,
                child_id=child.spec.child_id if child is not None else None,
                incarnation=child.incarnation if child is not None else None,
                context=context,
                last_message_type=child.last_message_type if child is not None and kind == "crash" else None,
                reason=reason,
                location=location_of(root_cause(cause.fault) or cause.fault) if cause is not None else None,
                restarts=self.window.count(trio.current_time()),
                budget=self.window.restarts,
                decision=decision,
                delay_s=delay_s,
            ),
            cause,
        )

    def crash(
        self,
        child: SupervisedChild,
        context: Context,
        cause: Cause | None,
        *,
        decision: Decision,
        delay_s: float | None = None,
    ) -> None:
        """Report that ``child`` failed, or (None) returned though it should run; also if it keeps failing."""
        self.report(
            "crash",
            child,
            context,
            cause,
            reason="it returned",
            decision=decision,
            delay_s=delay_s,
            level="error" if decision in ("escalate", "none") else level_of_failure(child.failures_in_row),
        )
        if decision != "none":
            self._conditions.failed(CRASH_LOOP, child.path, "it returned" if cause is None else cause.text)

    def up(self, child: SupervisedChild) -> None:
        """Report that ``child`` is up. The first start of each is a line that few need: that of the tree is one."""
        is_first = child.incarnation == 1
        self.report(
            "start" if is_first else "restart", child, reason=child.asked, level="debug" if is_first else None
        )
        child.asked = None

    def stopped(self, child: SupervisedChild, *, in_drain: bool) -> None:
        """Report that ``child`` has stopped in order. A drain is summed up by one report at its end."""
        reason = None if in_drain else child.asked
        self.report("stop", child, reason=reason, level="debug" if in_drain else None)
