"""The supervisor: starts children in order, restarts them by strategy, gives up in time, stops them in reverse.

How it works: nothing waits in a loop. Each incarnation of a child runs in a task of its own, and what happens to it
(up, gone, back-off over) calls straight into the supervisor, which notes the fact and lets ``_advance`` start and
stop whatever is due. So a slow start, stop or back-off of one child never delays the handling of another.

Children run in shielded scopes that only their supervisor cancels: a cancellation from outside becomes the same
ordered drain as :meth:`Supervisor.stop`, bounded by ``drain_timeout_s``. What no supervisor can do on trio is
to end a child that swallows its own cancellation: it is reported as stuck; only the end of the process ends it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

import trio

from holdfast.supervision.child_reports import ChildReports
from holdfast.supervision.faults import GaveUp, NotRunning, StartFailed, fault_of, leaf_of, root_cause
from holdfast.supervision.intensity import RestartWindow
from holdfast.supervision.reports import Context, Reporter, ReportKind, describe
from holdfast.supervision.slots import Life, Slot, StartSignal
from holdfast.supervision.spec import AutoShutdown, ChildSpec, Hurried, Intensity, Placed, Strategy
from holdfast.supervision.status import ChildState, ChildStatus

KILL_GRACE_S = 1.0
"""How long a killed child may take to unwind before it is called stuck."""


READY_POLL_S = 0.1
"""How often the readiness of supervisors below is looked at by one who waits for it."""


class Supervisor:
    """A supervisor, itself a child for a supervisor above it. One object runs once.

    A start that fails counts as a restart would and is tried again after the child's back-off, the first start too.
    ``drain_timeout_s`` bounds the whole way down; the default adds up the children's patience.
    """

    def __init__(
        self,
        name: str,
        specs: Sequence[ChildSpec],
        *,
        strategy: Strategy,
        intensity: Intensity,
        reporter: Reporter,
        auto_shutdown: AutoShutdown = "never",
        start_timeout_s: float = 30.0,
        drain_timeout_s: float | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.path = name
        self.strategy = strategy
        self.intensity = intensity
        self.auto_shutdown = auto_shutdown
        self.start_timeout_s = start_timeout_s
        if drain_timeout_s is None:
            drain_timeout_s = sum(spec.shutdown_s + KILL_GRACE_S for spec in specs)
        self.drain_timeout_s = drain_timeout_s
        self._reporter = reporter
        self._rng = rng if rng is not None else random.Random()  # noqa: S311 - spreads waiting times, guards nothing
        self._window = RestartWindow(intensity.restarts, intensity.period_s)
        self._child_reports = ChildReports(reporter, self._window)
        self._slots: list[Slot] = []
        for spec in specs:
            self.append(spec)
        self._in_groups = strategy != "one_for_one"
        self._nursery: trio.Nursery | None = None
        self._task_status: trio.TaskStatus[None] | None = None
        self._booted = False
        self._ending = trio.Event()
        self._patience = trio.CancelScope(shield=True)
        self._gave_up: GaveUp | None = None
        self._cut: list[str] = []
        self._changed = trio.Event()

    # ------------------------------------------------------------------------------------------ life

    def append(self, spec: ChildSpec) -> None:
        """Add a child after the others, before :meth:`run`. Raises ValueError if its id is taken."""
        if any(slot.spec.child_id == spec.child_id for slot in self._slots):
            raise ValueError(f"{self.path}: two children share an id")
        self._slots.append(Slot(spec, self.intensity, f"{self.path}/{spec.child_id}", self._reporter.now()))

    def place(self, path: str) -> None:
        """Take the path given by the supervisor above."""
        self.path = path
        for slot in self._slots:
            slot.path = f"{path}/{slot.spec.child_id}"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the children, supervise until stopped, drain. Reports started once every child has been up.

        Raises :class:`GaveUp` when the restarts are spent. KeyboardInterrupt and SystemExit of a child come out
        bare, after the drain.
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
                    await self._drain()
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
        """Ask for the ordered drain; returns at once, :meth:`run` returns when all is down."""
        self._ending.set()

    def stop_at_once(self) -> None:
        """End the patience of a drain, here and in the supervisors below: what has not stopped is killed."""
        self._ending.set()
        self._patience.cancel(reason=f"{self.path} is stopped at once")
        for slot in self._slots:
            child: object = slot.life.child
            if isinstance(child, Hurried):
                child.stop_at_once()

    # ---------------------------------------------------------------------------------- introspection

    @property
    def is_stopping(self) -> bool:
        """Whether it goes down for good: it was asked to, or has given up."""
        return self._ending.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether all have been up once and every permanent child runs (and is ready, if it can tell)."""
        return (
            self._booted
            and not self._ending.is_set()
            and all(slot.ready for slot in self._slots if slot.spec.restart == "permanent")
        )

    async def wait_ready(self) -> None:
        """Wait until :attr:`is_ready`. Raises :class:`NotRunning` if it ends before."""
        while not self.is_ready:
            self._require_not_ending()
            with trio.move_on_after(READY_POLL_S):
                await self._changed.wait()

    def children(self) -> tuple[ChildStatus, ...]:
        """How each child stands, in start order, with the children of supervisors nested."""
        now = trio.current_time() if trio.lowlevel.in_trio_run() else None
        return tuple(slot.status(now, self._ending.is_set()) for slot in self._slots)

    def state_of(self, child_id: str) -> ChildState:
        """One child's state. Raises KeyError for an unknown id."""
        return self._slot(child_id).state(self._ending.is_set())

    async def restart_child(self, child_id: str) -> None:
        """Stop a child (and those who fall with it) and start it anew, whatever its restart type or history.

        Costs nothing of the restart budget. Returns when it is up (or was, and has finished). Raises KeyError, and
        :class:`NotRunning` when the supervisor ends or another caller stops the child meanwhile.
        """
        slot = self._slot(child_id)
        self._require_running()
        self._doom_group(slot)
        slot.settled, slot.fails_in_a_row = None, 0
        slot.clear_timer()
        slot.doomed = slot.live
        before = slot.incarnation
        self._advance()
        await self._wait_until(
            lambda: slot.settled is not None or (slot.incarnation > before and slot.phase == "running")
        )
        if slot.settled == "stopped":
            raise NotRunning(slot.path)

    async def stop_child(self, child_id: str) -> None:
        """Stop one child and leave it down until :meth:`restart_child`. Raises KeyError, :class:`NotRunning`."""
        slot = self._slot(child_id)
        self._require_running()
        slot.settle("stopped")
        slot.doomed = slot.live
        self._advance()
        await self._wait_until(lambda: not slot.live)

    def _slot(self, child_id: str) -> Slot:
        for slot in self._slots:
            if slot.spec.child_id == child_id:
                return slot
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
        """Stop what must come down and start what may come up. Called after every change; never waits."""
        if not self._ending.is_set() and self._nursery is not None:
            if not self._stop_doomed():
                self._start_due()
            if not self._booted and all(slot.once_up or slot.settled for slot in self._slots):
                self._booted = True
                assert self._task_status is not None
                self._task_status.started()
        self._pulse()

    def _stop_doomed(self) -> bool:
        """Take doomed children down: in groups one at a time, the last first. True if starts have to wait."""
        doomed = [slot for slot in self._slots if slot.doomed and slot.live]
        for slot in doomed[-1:] if self._in_groups else doomed:
            if slot.phase != "stopping":
                assert self._nursery is not None
                slot.phase, slot.since = "stopping", self._reporter.now()
                self._nursery.start_soon(self._take_down_shielded, slot, slot.life, name=f"stop {slot.path}")
        return self._in_groups and bool(doomed)

    def _start_due(self) -> None:
        """Start in order. In groups nobody starts before all ahead are up; alone, only a first start waits so."""
        for slot in self._slots:
            if slot.settled or slot.phase == "running":
                continue
            if not slot.live and slot.timer is None:
                self._launch(slot)
            if self._in_groups or not slot.once_up:
                break

    def _launch(self, slot: Slot) -> None:
        assert self._nursery is not None
        slot.incarnation += 1
        slot.phase, slot.since, slot.life = "starting", self._reporter.now(), Life()
        self._nursery.start_soon(self._live, slot, slot.life, name=f"{slot.path}#{slot.incarnation}")

    async def _live(self, slot: Slot, life: Life) -> None:
        """One incarnation, from making to end. Nothing a child raises passes, but what ends the process."""
        fault: Exception | None = None
        life.scope.deadline = trio.current_time() + self.start_timeout_s
        try:
            with life.scope:
                life.child = child = slot.spec.start()
                if isinstance(child, Placed):
                    child.place(slot.path)
                await child.run(task_status=StartSignal(partial(self._on_started, slot, life)))
        except BaseException as exc:
            fault = fault_of(exc)
            if fault is None:
                slot.phase, life.child = "down", None
                life.done.set()
                raise
        if fault is None and slot.phase in ("starting", "running"):
            if life.scope.cancelled_caught:
                fault = StartFailed(f"not up within {self.start_timeout_s:g} s")
            elif slot.phase == "starting":
                fault = StartFailed("returned before it reported that it was up")
        self._on_exit(slot, life, fault)

    def _on_started(self, slot: Slot, life: Life) -> None:
        if life is not slot.life or slot.phase != "starting":
            return  # too late: it is being stopped
        slot.phase, slot.since, slot.once_up = "running", self._reporter.now(), True
        life.up_at = trio.current_time()
        life.scope.deadline = math.inf
        self._child_reports.announce("progress", self.path, slot)
        self._advance()

    # ------------------------------------------------------------------------------ when a child ends

    def _on_exit(self, slot: Slot, life: Life, fault: Exception | None) -> None:
        if life is not slot.life:
            return  # an exit names its incarnation; a stale one must not hurt the child that lives now
        asked = slot.doomed or slot.phase == "stopping" or self._ending.is_set()
        context: Context = "start_error" if slot.phase == "starting" else "child_terminated"
        slot.phase, slot.doomed, slot.since = "down", False, self._reporter.now()
        life.child = None
        life.done.set()
        if fault is not None:
            cause = describe(fault)
            slot.last_fault = f"{cause.reason_type}: {cause.reason}"
        if asked:
            if fault is not None:
                self._child_reports.announce("drain", self.path, slot, "shutdown_error", fault)
        elif slot.spec.restart == "permanent" or (slot.spec.restart == "transient" and fault is not None):
            self._restart_later(slot, life, context, fault)
        else:
            slot.settle("finished" if fault is None else "failed")
            if fault is not None:
                self._child_reports.announce("crash", self.path, slot, context, fault, decision="none")
            self._consider_auto_shutdown(slot)
        self._advance()

    def _restart_later(self, slot: Slot, life: Life, context: Context, fault: Exception | None) -> None:
        now = trio.current_time()
        slot.window.record(now)
        if life.up_at is not None and now - life.up_at >= slot.spec.backoff.max_s:
            slot.fails_in_a_row = 0
        slot.fails_in_a_row += 1
        kind: ReportKind = "supervisor" if fault is None else "crash"
        if not self._window.record(now):
            self._child_reports.announce(kind, self.path, slot, context, fault, decision="escalate")
            leaf = None if fault is None else root_cause(fault)
            self._gave_up = GaveUp(
                self.path, slot.spec.child_id, self.intensity.restarts, self.intensity.period_s, leaf
            )
            self._child_reports.announce(
                "escalation", self.path, slot, "shutdown", self._gave_up, decision="escalate"
            )
            self._ending.set()
            return
        delay_s = slot.spec.backoff.delay(slot.fails_in_a_row, self._rng)
        self._child_reports.announce(
            kind, self.path, slot, context, fault, decision="backoff" if delay_s else "restart", delay_s=delay_s
        )
        self._doom_group(slot)
        if delay_s > 0:
            assert self._nursery is not None
            slot.timer, slot.due_at = trio.CancelScope(), now + delay_s
            self._nursery.start_soon(self._wait_backoff, slot, slot.timer, delay_s)

    async def _wait_backoff(self, slot: Slot, timer: trio.CancelScope, delay_s: float) -> None:
        with timer:
            await trio.sleep(delay_s)
        if slot.timer is timer:
            slot.timer = None
            self._advance()

    def _doom_group(self, slot: Slot) -> None:
        """Mark who falls with ``slot``. Temporary ones do not come back; finished ones run again, as in OTP."""
        if not self._in_groups:
            return
        first = 0 if self.strategy == "one_for_all" else self._slots.index(slot)
        for other in self._slots[first:]:
            if other is slot or other.spec.independent:
                continue
            other.doomed = other.live
            if other.spec.restart == "temporary" and other.incarnation and other.settled is None:
                other.settle("stopped")
            elif other.settled == "finished" and other.spec.restart != "temporary":
                other.settled = None

    def _consider_auto_shutdown(self, slot: Slot) -> None:
        if self.auto_shutdown == "never" or not slot.spec.significant:
            return
        others_go_on = any(other.spec.significant and other.settled is None for other in self._slots)
        if self.auto_shutdown == "any_significant" or not others_go_on:
            self._child_reports.announce("supervisor", self.path, slot, "shutdown", decision="stop")
            self._ending.set()

    # ------------------------------------------------------------------------------------- going down

    async def _take_down_shielded(self, slot: Slot, life: Life) -> None:
        with trio.CancelScope(shield=True):
            await self._take_down(slot, life)

    async def _take_down(self, slot: Slot, life: Life) -> None:
        """Stop one child: politely if it is up, then by killing it. Returns when it is gone, or stuck."""
        patience_s = slot.spec.shutdown_s
        if life.up_at is None or life.child is None:
            life.scope.cancel(reason=f"{slot.path} is stopped while starting")
            with trio.move_on_after(patience_s):
                await life.done.wait()
        elif patience_s > 0:
            with trio.move_on_after(patience_s):
                try:
                    await life.child.stop()
                    await life.done.wait()
                except Exception as exc:
                    self._child_reports.announce("drain", self.path, slot, "shutdown_error", exc, decision="stop")
        if life.done.is_set():
            return
        self._kill(slot, life, f"did not stop within {patience_s:g} s")
        with trio.move_on_after(KILL_GRACE_S):
            await life.done.wait()
        if not life.done.is_set():
            self._child_reports.announce(
                "drain", self.path, slot, "stuck", reason=f"killed, and still there {KILL_GRACE_S:g} s later"
            )

    def _kill(self, slot: Slot, life: Life, reason: str) -> None:
        if self._ending.is_set():
            self._cut.append(slot.spec.child_id)
        life.scope.cancel(reason=f"{slot.path} {reason}")
        self._child_reports.announce("drain", self.path, slot, "killed", reason=reason, decision="stop")

    async def _drain(self) -> None:
        """Take all children down, the last first, within the hard deadline; then kill what is left at once."""
        self._ending.set()
        self._pulse()
        for slot in self._slots:
            slot.clear_timer()
        self._patience.deadline = trio.current_time() + self.drain_timeout_s
        with self._patience:
            for slot in reversed(self._slots):
                if slot.phase == "stopping":  # its stopper is at work, and kills it in time
                    with trio.move_on_after(slot.spec.shutdown_s + KILL_GRACE_S):
                        await slot.life.done.wait()
                elif slot.live:
                    slot.phase = "stopping"
                    await self._take_down(slot, slot.life)
        for slot in reversed(self._slots):
            if slot.live and slot.spec.child_id not in self._cut:
                self._kill(slot, slot.life, f"cut by the hard deadline of {self.drain_timeout_s:g} s")
        summary = f"cut: {', '.join(self._cut)}" if self._cut else "every child stopped in time"
        context: Context = "killed" if self._cut else "shutdown"
        self._child_reports.announce("drain", self.path, None, context, reason=summary, decision="stop")

    # ------------------------------------------------------------------------------------------ small

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._require_not_ending()
            await self._changed.wait()

    def _pulse(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
