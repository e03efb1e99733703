"""The supervisor: starts children in order, restarts them by strategy within limits, stops them in reverse order.

It has no loop. Each incarnation of a child runs in its own task, and each event of it (started, ended, backoff
over) calls a method of the supervisor that records it; ``_advance`` then starts and stops what is due. So a slow
start, stop or backoff of one child never delays another.

Children run in shielded scopes that only their supervisor cancels: a cancellation from outside becomes the same
ordered drain as :meth:`Supervisor.stop`, within ``drain_timeout_s``. A child that swallows its own cancellation
cannot be ended on trio: it is reported as stuck, and ends with the process.
"""

from __future__ import annotations

import contextvars
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from holdfast.supervision.faults import GaveUp, NotRunning, StartFailed, fault_of, root_cause
from holdfast.supervision.spec import ChildSpec, HasPath, Intensity, RestartWindow, StopsAtOnce, Strategy
from holdfast.supervision.status import ChildState, ChildStatus
from holdfast.supervision.supervised_child import ChildReports, Run, StartSignal, SupervisedChild
from holdfast.telemetry.reports.causes import CannotServe, Cause, describe, leaf_of
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.report import Context, Decision
from holdfast.telemetry.reports.reporter import Reporter

KILL_GRACE_S: Final = 1.0
"""How long a killed child may take to end before it is reported as stuck."""
READY_POLL_S: Final = 0.1
"""How often :meth:`Supervisor.wait_ready` checks the supervisors below."""


class ChildStops:
    """How a supervisor stops ``children``: each is asked, then killed; all of them in reverse order, by a deadline.

    The list may grow until the first of them is started.
    """

    def __init__(self, children: Sequence[SupervisedChild], reports: ChildReports) -> None:
        self._children = children
        self._reports = reports
        self._scope = trio.CancelScope(shield=True)
        self._is_draining = False
        self._is_at_once = False
        self._killed: list[str] = []

    async def stop(self, child: SupervisedChild, run: Run) -> None:
        """Ask a child to stop, if it is up, then kill it. Returns when it has ended or is stuck, not sooner."""
        with trio.CancelScope(shield=True):
            await self._stop(child, run)

    async def drain(self, within_s: float) -> None:
        """Stop all children, the last first; after ``within_s`` or :meth:`end_drain` kill what is left."""
        self._is_draining = True
        self._scope.deadline = trio.current_time() + within_s
        with self._scope:
            for child in reversed(self._children):
                if child.phase == "stopping":  # another task stops it, and kills it in time
                    with trio.move_on_after(child.spec.shutdown_s + KILL_GRACE_S):
                        await child.run.done.wait()
                elif child.live:
                    child.phase = "stopping"
                    await self._stop(child, child.run)
        reason = "stopped at once" if self._is_at_once else f"killed at the deadline of {within_s:g} s"
        for child in reversed(self._children):
            if child.live and child.spec.child_id not in self._killed:
                self._kill(child, child.run, reason)
        summary = f"killed: {', '.join(self._killed)}" if self._killed else "every child in time"
        self._reports.report(
            "drain", None, "killed" if self._killed else "shutdown", reason=summary, decision="stop"
        )

    def end_drain(self) -> None:
        """Let the drain, now or once it begins, kill what has not stopped."""
        self._is_at_once = True
        self._scope.cancel(reason=f"{self._reports.path} is stopped at once")

    async def _stop(self, child: SupervisedChild, run: Run) -> None:
        grace_s = child.spec.shutdown_s
        if run.up_at is None or run.instance is None:
            run.scope.cancel(reason=f"{child.path} is stopped while starting")
            with trio.move_on_after(grace_s):
                await run.done.wait()
        elif grace_s > 0:
            with trio.move_on_after(grace_s):
                try:
                    await run.instance.stop()
                    await run.done.wait()
                except Exception as exc:
                    self._reports.report("drain", child, "shutdown_error", describe(exc), decision="stop")
        if run.done.is_set():
            return
        self._kill(child, run, f"killed after {grace_s:g} s")
        with trio.move_on_after(KILL_GRACE_S):
            await run.done.wait()
        if not run.done.is_set():
            reason = f"killed, and still there {KILL_GRACE_S:g} s later"
            self._reports.report("drain", child, "stuck", reason=reason)

    def _kill(self, child: SupervisedChild, run: Run, reason: str) -> None:
        if self._is_draining:
            self._killed.append(child.spec.child_id)
        run.scope.cancel(reason=f"{child.path} {reason}")
        self._reports.report("drain", child, "killed", reason=reason, decision="stop")


class Supervisor:
    """A supervisor, itself a child for a supervisor above it. One object runs once.

    A failed start, including the first, counts as a restart and is retried after the child's backoff.
    ``drain_timeout_s`` limits the whole drain; the default is the sum of the children's shutdown times.
    """

    def __init__(
        self,
        name: str,
        specs: Sequence[ChildSpec],
        *,
        strategy: Strategy,
        intensity: Intensity,
        reporter: Reporter,
        conditions: Conditions,
        start_timeout_s: float = 30.0,
        drain_timeout_s: float | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.strategy = strategy
        self.intensity = intensity
        self.start_timeout_s = start_timeout_s
        if drain_timeout_s is None:
            drain_timeout_s = sum(spec.shutdown_s + KILL_GRACE_S for spec in specs)
        self.drain_timeout_s = drain_timeout_s
        self._reporter = reporter
        self._rng = rng if rng is not None else random.Random()  # noqa: S311 - spreads waiting times, guards nothing
        budgets = [intensity] if intensity.longer is None else [intensity, intensity.longer]
        self._windows = [RestartWindow(budget.restarts, budget.period_s) for budget in budgets]
        self._reports = ChildReports(name, reporter, conditions, self._windows[0])
        self._children: list[SupervisedChild] = []
        self._stops = ChildStops(self._children, self._reports)
        for spec in specs:
            self.append(spec)
        self._in_groups = strategy != "one_for_one"
        self._nursery: trio.Nursery | None = None
        self._task_status: trio.TaskStatus[None] | None = None
        self._booted = False
        self._ending = trio.Event()
        self._gave_up: GaveUp | None = None
        self._changed = trio.Event()

    # ------------------------------------------------------------------------------------------ life

    def append(self, spec: ChildSpec) -> None:
        """Add a child after the others, before :meth:`run`. Raises ValueError if its id is taken."""
        if any(child.spec.child_id == spec.child_id for child in self._children):
            raise ValueError(f"{self.path}: two children share an id")
        path = f"{self.path}/{spec.child_id}"
        self._children.append(SupervisedChild(spec, self.intensity, path, self._reporter.now()))

    def set_path(self, path: str) -> None:
        """Set the path, for a supervisor below another."""
        self._reports.path = path
        for child in self._children:
            child.path = f"{path}/{child.spec.child_id}"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the children, supervise them until stopped, then drain. Started once every child has been up.

        Raises :class:`GaveUp` when the restart budget is spent, or a child cannot serve. KeyboardInterrupt and
        SystemExit of a child are raised unwrapped, after the drain.
        """
        if self._nursery is not None:
            raise RuntimeError(f"{self.path}: a supervisor runs once")
        try:
            async with trio.open_nursery() as nursery:
                self._nursery, self._task_status = nursery, task_status
                try:
                    self._advance()
                    await self._ending.wait()
                finally:
                    self._begin_end()
                    await self._stops.drain(self.drain_timeout_s)
                    nursery.cancel_scope.cancel()  # ends the timers; children and their stoppers are shielded
        except BaseExceptionGroup as group:
            leaf = leaf_of(group)
            if isinstance(leaf, trio.Cancelled):
                raise
            raise leaf from None
        finally:
            self._pulse()
        if self._gave_up is not None:
            raise self._gave_up from self._gave_up.leaf

    async def stop(self) -> None:
        """Start the ordered drain and return at once; :meth:`run` returns when all children have stopped."""
        self._ending.set()

    def stop_at_once(self) -> None:
        """Kill what has not stopped, here and in the supervisors below."""
        self._ending.set()
        self._stops.end_drain()
        for child in self._children:
            instance: object = child.run.instance
            if isinstance(instance, StopsAtOnce):
                instance.stop_at_once()

    # ---------------------------------------------------------------------------------- introspection

    @property
    def path(self) -> str:
        """Its path in the tree."""
        return self._reports.path

    @property
    def is_stopping(self) -> bool:
        """Whether it is stopping: it was asked to, or has given up."""
        return self._ending.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether all children have been up once and every permanent one that is required is ready."""
        return (
            self._booted
            and not self._ending.is_set()
            and all(
                child.ready for child in self._children if child.spec.required and child.spec.restart == "permanent"
            )
        )

    async def wait_ready(self) -> None:
        """Wait until :attr:`is_ready`. Raises :class:`NotRunning` if it ends before."""
        while not self.is_ready:
            self._require_not_ending()
            with trio.move_on_after(READY_POLL_S):
                await self._changed.wait()

    def children(self) -> tuple[ChildStatus, ...]:
        """Return the status of each child in start order, with the children of supervisors nested."""
        now = trio.current_time() if trio.lowlevel.in_trio_run() else None
        return tuple(child.status(now, self._ending.is_set()) for child in self._children)

    def state_of(self, child_id: str) -> ChildState:
        """Return one child's state. Raises KeyError for an unknown id."""
        return self._child(child_id).state(self._ending.is_set())

    def below(self, child_id: str) -> Supervisor | None:
        """Return the supervisor that runs as this child, if one does. Raises KeyError for an unknown id."""
        instance: object = self._child(child_id).run.instance
        return instance if isinstance(instance, Supervisor) else None

    async def restart_child(self, child_id: str, reason: str | None = None) -> None:
        """Restart a child and the siblings that its strategy includes, regardless of its restart type and history.

        It does not count against the restart budget. Returns when the child is up, or has finished since. Raises
        KeyError, and :class:`NotRunning` if the supervisor ends or another caller stops the child meanwhile.
        """
        child = self._child(child_id)
        self._require_running()
        self._mark_siblings(child)
        child.ended_as, child.failures_in_row, child.asked = None, 0, reason
        child.clear_timer()
        child.must_stop = child.live
        before = child.incarnation
        self._advance()
        await self._wait_until(
            lambda: child.ended_as is not None or (child.incarnation > before and child.phase == "running")
        )
        if child.ended_as == "stopped":
            raise NotRunning(child.path)

    async def stop_child(self, child_id: str, reason: str | None = None) -> None:
        """Stop one child until :meth:`restart_child`. Raises KeyError, :class:`NotRunning`."""
        child = self._child(child_id)
        self._require_running()
        child.asked = reason
        child.end_as("stopped")
        child.must_stop = child.live
        self._advance()
        await self._wait_until(lambda: not child.live)

    def _child(self, child_id: str) -> SupervisedChild:
        for child in self._children:
            if child.spec.child_id == child_id:
                return child
        raise KeyError(child_id)

    def _require_not_ending(self) -> None:
        if self._ending.is_set():
            raise NotRunning(self.path)

    def _require_running(self) -> None:
        self._require_not_ending()
        if self._nursery is None:
            raise NotRunning(self.path)

    # ------------------------------------------------------------------------------ what is due now

    def _advance(self) -> None:
        """Stop and start what is due. Called after every change; never waits."""
        if not self._ending.is_set() and self._nursery is not None:
            if not self._stop_marked():
                self._start_due()
            if not self._booted and all(child.was_up or child.ended_as for child in self._children):
                self._booted = True
                if "/" not in self.path:
                    self._reports.report("start", None, reason=f"{len(self._children)} children")
                assert self._task_status is not None
                self._task_status.started()
        self._pulse()

    def _stop_marked(self) -> bool:
        """Stop marked children: in groups one at a time, the last first. Returns True if starts have to wait."""
        marked = [child for child in self._children if child.must_stop and child.live]
        for child in marked[-1:] if self._in_groups else marked:
            if child.phase != "stopping":
                assert self._nursery is not None
                child.phase, child.since = "stopping", self._reporter.now()
                self._nursery.start_soon(self._stops.stop, child, child.run, name=f"stop {child.path}")
        return self._in_groups and bool(marked)

    def _start_due(self) -> None:
        """Start in order. In groups a child waits for those before it; otherwise only for their first start."""
        for child in self._children:
            if child.ended_as or child.phase == "running":
                continue
            if not child.live and child.timer is None:
                self._launch(child)
            if self._in_groups or not child.was_up:
                break

    def _launch(self, child: SupervisedChild) -> None:
        assert self._nursery is not None
        child.incarnation += 1
        child.phase, child.since, child.run = "starting", self._reporter.now(), Run()
        # In a context of its own: a child that an operator starts does not run within the trace of that request.
        name = f"{child.path}#{child.incarnation}"
        contextvars.Context().run(partial(self._nursery.start_soon, self._live, child, child.run, name=name))

    async def _live(self, child: SupervisedChild, run: Run) -> None:
        """Run one incarnation. Of a child's exceptions, only those that end the process are raised."""
        fault: Exception | None = None
        run.scope.deadline = trio.current_time() + self.start_timeout_s
        try:
            with run.scope:
                run.instance = instance = child.spec.start()
                if isinstance(instance, HasPath):
                    instance.set_path(child.path)
                await instance.run(task_status=StartSignal(partial(self._on_started, child, run)))
        except BaseException as exc:
            fault = fault_of(exc)
            if fault is None:
                child.phase, run.instance = "down", None
                run.done.set()
                raise
        if fault is None and child.phase in ("starting", "running"):
            if run.scope.cancelled_caught:
                fault = StartFailed(f"not up within {self.start_timeout_s:g} s")
            elif child.phase == "starting":
                fault = StartFailed("returned before it reported that it was up")
        self._on_exit(child, run, fault)

    def _on_started(self, child: SupervisedChild, run: Run) -> None:
        if run is not child.run or child.phase != "starting":
            return  # it is being stopped
        child.phase, child.since, child.was_up = "running", self._reporter.now(), True
        run.up_at = trio.current_time()
        run.scope.deadline = math.inf
        self._reports.up(child)
        self._advance()

    # ------------------------------------------------------------------------------ when a child ends

    def _on_exit(self, child: SupervisedChild, run: Run, fault: Exception | None) -> None:
        if run is not child.run:
            return  # the end of an earlier incarnation must not affect the present one
        asked = child.must_stop or child.phase == "stopping" or self._ending.is_set()
        context: Context = "start_error" if child.phase == "starting" else "child_terminated"
        child.phase, child.must_stop, child.since = "down", False, self._reporter.now()
        last: object = getattr(run.instance, "last_message", None)
        child.last_message_type = last.__name__ if isinstance(last, type) else None
        run.instance = None
        run.done.set()
        cause = None if fault is None else describe(fault)
        if cause is not None:
            child.last_fault = cause.text
        if asked:
            if cause is not None:
                self._reports.report("drain", child, "shutdown_error", cause)
            else:
                self._reports.stopped(child, in_drain=self._ending.is_set())
        elif child.spec.restart == "permanent" or (child.spec.restart == "transient" and cause is not None):
            self._restart_later(child, run, context, cause)
        else:
            child.end_as("finished" if cause is None else "failed")
            if cause is not None:
                self._reports.crash(child, context, cause, decision="none")
        self._advance()

    def _restart_later(self, child: SupervisedChild, run: Run, context: Context, cause: Cause | None) -> None:
        now = trio.current_time()
        child.window.record(now)
        if run.up_at is not None and now - run.up_at >= child.spec.backoff.max_s:
            child.failures_in_row = 0
        child.failures_in_row += 1
        spent = [window for window in self._windows if not window.record(now)]
        leaf = None if cause is None else root_cause(cause.fault)
        if spent or isinstance(leaf, CannotServe):
            self._reports.window = window = (spent or self._windows)[0]
            self._reports.crash(child, context, cause, decision="escalate")
            self._gave_up = GaveUp(self.path, child.spec.child_id, window.restarts, window.period_s, leaf)
            self._reports.report("escalation", child, "shutdown", describe(self._gave_up), decision="escalate")
            self._ending.set()
            return
        delay_s = child.spec.backoff.delay(child.failures_in_row, self._rng)
        decision: Decision = "backoff" if delay_s else "restart"
        self._reports.crash(child, context, cause, decision=decision, delay_s=delay_s)
        self._mark_siblings(child)
        if delay_s > 0:
            assert self._nursery is not None
            child.timer, child.due_at = trio.CancelScope(), now + delay_s
            self._nursery.start_soon(self._wait_backoff, child, child.timer, delay_s)

    async def _wait_backoff(self, child: SupervisedChild, timer: trio.CancelScope, delay_s: float) -> None:
        with timer:
            await trio.sleep(delay_s)
        if child.timer is timer:
            child.timer = None
            self._advance()

    def _mark_siblings(self, child: SupervisedChild) -> None:
        """Mark the siblings to restart too. Temporary ones stay down; finished ones run again, as in OTP."""
        if not self._in_groups:
            return
        first = 0 if self.strategy == "one_for_all" else self._children.index(child)
        for other in self._children[first:]:
            if other is child or other.spec.independent:
                continue
            other.must_stop = other.live
            if other.spec.restart == "temporary" and other.incarnation and other.ended_as is None:
                other.end_as("stopped")
            elif other.ended_as == "finished" and other.spec.restart != "temporary":
                other.ended_as = None

    # ------------------------------------------------------------------------------------------ changes

    def _begin_end(self) -> None:
        self._ending.set()
        self._pulse()
        for child in self._children:
            child.clear_timer()

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._require_not_ending()
            await self._changed.wait()

    def _pulse(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
