"""The children of a keyed directory, each in a task that runs its incarnations one after the other.

What follows the end of an incarnation is decided here: another incarnation at once (its decisions were void), one
after a backoff (it crashed), one once the database is back, none (it is idle), or quarantine.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar
from functools import partial
from typing import Final

import trio

from holdfast.actors.runtime.actor import Ending, TrioActor
from holdfast.actors.runtime.faults import EndedByOperator, Quarantined
from holdfast.actors.runtime.journaled import JournaledActor
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, SystemMessage
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.keyed_child import KeyedChild, KeyedLimits, WriteGate
from holdfast.supervision.keyed_reports import KeyedReports
from holdfast.supervision.spec import RestartWindow
from holdfast.telemetry.reports.causes import describe
from holdfast.telemetry.traces import traceparent

SWEEPS_APART_S: Final = 0.25

asking_from: ContextVar[KeyedChild | None] = ContextVar("asking_from", default=None)
"""The child whose actor handles a message now. None in HTTP handlers and workers."""


class Quarantine:
    """The quarantine of one directory, whose name is ``name``.

    A key whose incarnations keep crashing accepts no messages for a while, longer each time. The first message
    after that time is a trial. If the key crashes again within the period of its restart budget, it returns to
    quarantine at once and for longer. If it does not, or ends normally, its budget starts over.
    """

    def __init__(self, name: str, limits: KeyedLimits, reports: KeyedReports, rng: random.Random) -> None:
        self._name = name
        self._limits = limits
        self._reports = reports
        self._rng = rng

    def put(self, child: KeyedChild, exc: Exception, *, for_s: float | None = None) -> None:
        """Quarantine a key: waiting messages and new ones are refused until its time is over.

        A child whose actor has not begun begins none.
        """
        child.state = "quarantined"
        child.quarantines += 1
        delay_s = self._limits.quarantine.delay(child.quarantines, self._rng) if for_s is None else for_s
        child.quarantined_until = trio.current_time() + delay_s
        child.refused_types = frozenset()
        self._reports.count("quarantined")
        child.quarantine_reason = self._reports.crash(child, exc, "quarantine", delay_s).reason
        self.clear_mailbox(child)
        if child.actor is None and child.scope is not None:
            child.scope.cancel(reason="its key was quarantined")

    def clear_mailbox(self, child: KeyedChild) -> None:
        """Refuse all waiting messages."""
        for envelope in child.mailbox.take_all():
            if not envelope.fail(self.refusal(child)):
                self.dead_letter(child, envelope)

    def dead_letter(self, child: KeyedChild, envelope: Envelope) -> None:
        """Record a message whose sender does not wait; the first of its type in a quarantine is reported."""
        name = type(envelope.message).__name__
        self._reports.dead_letter(child, "dead", envelope, is_reported=name not in child.refused_types)
        child.refused_types |= {name}

    def refusal(self, child: KeyedChild) -> Quarantined:
        """Return the fault for an ask; a retry may succeed when the key's time is over."""
        left_s = max(child.quarantined_until - trio.current_time(), 1.0)
        return Quarantined(f"{self._name} {child.key} is quarantined", retry_after_s=left_s)

    def begin_trial(self, child: KeyedChild) -> bool:
        """Let a quarantined key handle messages again if its time is over. Returns whether it is."""
        if trio.current_time() < child.quarantined_until:
            return False
        self._reports.count("tried")
        child.trial_at = trio.current_time()
        child.state = "passivated"
        return True

    def is_on_trial(self, child: KeyedChild) -> bool:
        """Whether a crash now fails a trial."""
        if child.trial_at is not None and trio.current_time() - child.trial_at > self._limits.child_period_s:
            self.recovered(child)
        return child.trial_at is not None

    def recovered(self, child: KeyedChild) -> None:
        """Record that a key has worked: after a trial its budget starts over."""
        if child.trial_at is not None:
            child.trial_at, child.window, child.quarantines = None, None, 0
            self._reports.released(child, "its trial succeeded")

    def release(self, child: KeyedChild, reason: str) -> None:
        """End a key's quarantine before its time, for an operator."""
        self._reports.count("released")
        self._reports.released(child, f"by an operator: {reason}")
        child.trial_at, child.window, child.quarantines = None, None, 0
        child.state = "passivated"

    def is_long_over(self, child: KeyedChild) -> bool:
        """Whether a quarantine ended so long ago, without a message since, that the key may be forgotten."""
        return trio.current_time() > child.quarantined_until + self._limits.quarantine.max_s


class GroupPause:
    """The restart budget of one directory: when many keys crash together, the group pauses and probes.

    ``probe`` returns whether the group may resume, and may raise if not.
    """

    def __init__(
        self, limits: KeyedLimits, reports: KeyedReports, probe: Callable[[], Awaitable[bool]], rng: random.Random
    ) -> None:
        self._limits = limits
        self._reports = reports
        self._probe = probe
        self._rng = rng
        self._crashes = RestartWindow(limits.group_crashes, limits.group_period_s)
        self._over: trio.Event | None = None
        self._reason: str | None = None
        self.more_crashes = 0
        """Crashes during the pause, which are not reported one by one."""
        self.operators_reason: str | None = None
        """Why an operator paused the group; None if none did."""

    @property
    def reason(self) -> str | None:
        """Why the group is paused; None if it is not."""
        return (self.operators_reason or self._reason) if self.is_on else None

    @property
    def is_on(self) -> bool:
        """Whether the group is paused."""
        return self._over is not None

    def note_crash(self) -> bool:
        """Count a key's crash. Returns whether the group's budget covers it."""
        return self._crashes.record(trio.current_time())

    def begin(self, nursery: trio.Nursery, exc: Exception) -> None:
        """Pause because of ``exc``, and probe in ``nursery``. Has no effect during a pause."""
        if self._over is None:
            self._over = trio.Event()
            self.more_crashes = 0
            self._reason = describe(exc).reason
            nursery.start_soon(self._probe_until_ok, self._over)
            self._reports.paused(exc, self._crashes.count(trio.current_time()))

    def begin_by_operator(self, reason: str) -> None:
        """Pause until :meth:`end_by_operator`, also through restarts of the directory and successful probes."""
        if self._over is None:
            self._over = trio.Event()
        self.operators_reason = reason

    def end_by_operator(self) -> None:
        """Resume, whatever the pause began with."""
        self.operators_reason = None
        self._crashes.clear()
        self.end()

    def end(self) -> None:
        """Resume, unless an operator paused the group."""
        if self.operators_reason is None:
            over, self._over = self._over, None
            if over is not None:
                over.set()

    async def wait_over(self) -> None:
        """Wait until the group is not paused."""
        while self._over is not None:
            await self._over.wait()

    async def _probe_until_ok(self, over: trio.Event) -> None:
        tries = 0
        while True:
            tries += 1
            await trio.sleep(self._limits.probe_backoff.delay(tries, self._rng))
            try:
                if await self._probe():
                    break
            except Exception as exc:
                self._reports.paused(exc)
        if self._over is over and self.operators_reason is None:
            self._crashes.clear()
            self.end()
            self._reports.resumed(more_crashes=self.more_crashes)


class KeyedLives:
    """The children of the directory ``name``. They outlive its runs; their tasks are of the run's nursery."""

    def __init__(
        self,
        name: str,
        factory: Callable[[str, Mailbox], TrioActor],
        *,
        gate: WriteGate,
        probe: Callable[[], Awaitable[bool]],
        reports: KeyedReports,
        limits: KeyedLimits,
        rng: random.Random,
    ) -> None:
        self.limits = limits
        self.gate = gate
        self.pause = GroupPause(limits, reports, probe, rng)
        self.quarantine = Quarantine(name, limits, reports, rng)
        self.children: OrderedDict[str, KeyedChild] = OrderedDict()
        """By key, the least recently used first."""
        self.nursery: trio.Nursery | None = None
        self.stopping = trio.Event()
        self.active_count = 0
        self._name = name
        self._factory = factory
        self._reports = reports
        self._on_dead_letter = reports.dead_letter
        self._rng = rng
        self._loading = trio.CapacityLimiter(limits.loading_max)
        self._emptied = trio.Event()
        self._crowded = trio.Event()

    def child(self, key: str) -> KeyedChild:
        """Return the child of a key; a new one is passivated."""
        child = self.children.get(key)
        if child is None:
            child = self.children[key] = self.new_child(key)
        return child

    def new_child(self, key: str) -> KeyedChild:
        """Return what the child of a key is before its first message."""
        return KeyedChild(key, self.limits.mailbox_max, self._on_dead_letter)

    def forget(self, child: KeyedChild) -> None:
        """Remove a child that nothing need be remembered of, unless it has a task: one of its key could start."""
        if child.scope is None and self.children.get(child.key) is child:
            del self.children[child.key]

    def activate(self, child: KeyedChild) -> None:
        """Start the child's task. One that has a task is left to it: it handles its messages, or starts the next.

        The scope, which tells whether there is a task, is tested and set without an await in between.
        """
        if self.nursery is None or child.scope is not None:
            return
        child.state, child.scope = "active", trio.CancelScope()
        self.active_count += 1
        self._reports.active(self.active_count)
        # In a context of its own: the ids and the trace of its first message are not those of all that follow.
        name = f"actor:{self._name}:{child.key}"
        Context().run(partial(self.nursery.start_soon, self._live, child, name=name))
        if self.active_count > self.limits.active_max:
            self._crowded.set()

    def release(self, child: KeyedChild, reason: str) -> None:
        """End a child's quarantine, for an operator."""
        self.quarantine.release(child, reason)
        if child.mailbox.empty():
            self.forget(child)
        else:
            self.activate(child)

    async def drain(self) -> None:
        """Let every actor handle its messages, await its commits and end."""
        while self.active_count:
            is_blocked = self.pause.is_on or not self.gate.is_open
            if is_blocked and all(child.actor is None for child in self.children.values()):
                # No actor works and none can start: the messages stay for the next run.
                return
            self._emptied = trio.Event()
            for child in self.children.values():
                if child.state == "active" and not child.mailbox.system:
                    child.mailbox.put_system(SystemMessage.STOP)
            with trio.move_on_after(0.5):
                await self._emptied.wait()

    async def sweep(self) -> None:
        """Passivate idle actors, the longest idle first, and forget what need not be remembered.

        It is repeated soon after there are more than ``active_max``, not at once: it may look at every actor.
        """
        while True:
            with trio.move_on_after(max(self.limits.idle_s / 8, SWEEPS_APART_S)):
                await self._crowded.wait()
            self._sweep_once()
            await trio.sleep(SWEEPS_APART_S)
            if self.active_count <= self.limits.active_max:
                self._crowded = trio.Event()

    def _sweep_once(self) -> None:
        excess = self.active_count - self.limits.active_max
        idle_since = trio.current_time() - self.limits.idle_s
        for child in list(self.children.values()):
            is_long_idle = child.last_used <= idle_since
            if not is_long_idle and excess <= 0:
                break
            if child.is_idle:
                child.mailbox.put_system(SystemMessage.PASSIVATE)
                excess -= 1
            elif is_long_idle and child.mailbox.empty() and self._is_forgettable(child):
                self.forget(child)

    def _is_forgettable(self, child: KeyedChild) -> bool:
        if child.state == "quarantined":
            return self.quarantine.is_long_over(child)
        return child.state == "passivated" and not child.has_crashed_lately

    # ------------------------------------------------------------------------------------------- incarnations

    async def _live(self, child: KeyedChild) -> None:
        """Run incarnation after incarnation until none follows. Raises nothing but a cancellation."""
        asking_from.set(child)
        child.task = trio.lowlevel.current_task()
        was_cancelled = True
        try:
            delay_s: float | None = 0.0
            while delay_s is not None:
                assert child.scope is not None
                delay_s = await self._incarnate(child, child.scope, delay_s)
                child.finish_end_request()
                child.scope = trio.CancelScope()
            was_cancelled = False
        except Exception as exc:
            # A bug in this module: quarantine this key rather than cancel all others.
            self.quarantine.put(child, exc)
        finally:
            self.active_count -= 1
            self._reports.active(self.active_count)
            if was_cancelled and isinstance(child.actor, JournaledActor):
                # The journal may still return messages, perhaps during another run of the directory.
                child.actor.on_requeued = partial(self._on_requeued, child)
            child.actor = child.task = child.scope = None
            child.finish_end_request()
            if child.state != "quarantined":
                child.state = "passivated"
                if child.mailbox.empty():
                    # A cancelled one is retained, since the journal may still return its messages.
                    if not was_cancelled and not child.has_crashed_lately:
                        self.forget(child)
                elif not was_cancelled and not self.stopping.is_set():
                    self.activate(child)
            if not self.active_count:
                self._emptied.set()

    def _on_requeued(self, child: KeyedChild) -> None:
        """Handle the messages that the journal returned to a child whose task had been cancelled."""
        current = self.child(child.key)
        if current is not child:  # it had been forgotten meanwhile
            current.mailbox.requeue(child.mailbox.take_all())
        if current.state == "quarantined":
            self.quarantine.clear_mailbox(current)
        elif current.state == "passivated" and not current.mailbox.empty():
            self.activate(current)

    async def _incarnate(self, child: KeyedChild, scope: trio.CancelScope, delay_s: float) -> float | None:
        """Run one incarnation, after a backoff of ``delay_s`` if that is above 0.

        All waiting is done in ``scope``: what ends it while there is no actor is a quarantine. Returns the next
        incarnation's backoff, or None if none follows.
        """
        child.actor = actor = None
        ending = Ending.ENDED
        try:
            with scope:
                if not await self._may_start(child, delay_s):
                    return None
                async with self._loading:
                    # The place may have come in the same instant as a quarantine.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    actor = self._new_actor(child)
                    await actor.on_start()
                self._reports.activated(child)
                ending = await actor.serve()
            if actor is None:
                return None
            if scope.cancelled_caught and isinstance(actor, JournaledActor):
                await actor.wind_down()
            request = child.end_request
            if request is not None and (ending in {Ending.ENDED, Ending.VOIDED} or request.kind == "quarantine"):
                return self._end_as_requested(child, actor)
        except Exception as exc:
            if isinstance(actor, JournaledActor):
                await actor.wind_down()
                child.before = actor
            request = child.end_request
            if request is not None and (isinstance(exc, EndedByOperator) or request.kind == "quarantine"):
                if not isinstance(exc, EndedByOperator | DatabaseAway):
                    self._reports.crashed(child, exc)
                return self._end_as_requested(child, actor)
            return self._on_crash(child, exc)
        if ending is Ending.VOIDED:
            assert isinstance(actor, JournaledActor)
            return self._on_void(child, actor)
        child.postponed = 0
        child.before = None
        self.quarantine.recovered(child)
        self._reports.count(ending.value)
        return None

    async def _may_start(self, child: KeyedChild, delay_s: float) -> bool:
        """Wait for all that holds up the next incarnation. Returns False if a backoff ends without a message."""
        if delay_s:
            await self._back_off(child, delay_s)
            if child.mailbox.empty():
                return False
        elif child.voids_in_row > 3:
            # Two processes that serve one key: a random wait lets one of them commit.
            await trio.sleep(self._rng.uniform(0, 0.002 * min(child.voids_in_row, 20)))
        while self.pause.is_on or not self.gate.is_open:
            await self.pause.wait_over()
            if not self.gate.is_open:
                await self.gate.wait_open()
        return True

    async def _back_off(self, child: KeyedChild, delay_s: float) -> None:
        child.state = "backing_off"
        try:
            with trio.move_on_after(delay_s) as child.backoff:
                await self.stopping.wait()
            child.state = "active"
        finally:
            child.backoff = None

    def _new_actor(self, child: KeyedChild) -> TrioActor:
        child.mailbox.drop_orders()
        child.incarnation += 1
        child.began_at = trio.current_time()
        actor = child.actor = self._factory(child.key, child.mailbox)
        actor.records = child
        if child.before is not None and isinstance(actor, JournaledActor):
            actor.inherit(child.before)
            child.before = None
        return actor

    # ------------------------------------------------------------------------------ the end of an incarnation

    def _end_as_requested(self, child: KeyedChild, actor: TrioActor | None) -> float | None:
        """Do what an operator has ended the incarnation for."""
        request = child.end_request
        assert request is not None
        traceparent.set(request.traceparent)
        if isinstance(actor, JournaledActor):
            child.before = actor
        cause = EndedByOperator(request.reason)
        if request.kind == "crash":
            return self._on_crash(child, cause)
        if request.kind == "quarantine":
            self.quarantine.put(child, cause, for_s=request.for_s)
            return None
        self._reports.ended(child, cause)
        return 0.0

    def _on_void(self, child: KeyedChild, actor: JournaledActor) -> float | None:
        self._reports.count("voided")
        child.before = actor
        # A reply found in rows is progress too: its message will be answered next.
        if actor.committed_any or actor.learned:
            child.voids_in_row = child.postponed = 0
            self.quarantine.recovered(child)
        elif actor.void_cause == "database":
            return self._postpone(child)
        elif actor.void_cause == "stale":
            child.voids_in_row += 1
        if child.voids_in_row > self.limits.voids_in_row_max:
            child.voids_in_row = 0
            return self._on_crash(child, RuntimeError("its decisions were void too many times in a row"))
        return 0.0

    def _on_crash(self, child: KeyedChild, exc: Exception) -> float | None:
        if isinstance(exc, DatabaseAway):
            return self._postpone(child)
        self._reports.crashed(child, exc)
        now = trio.current_time()
        # While the gate is closed, the database may be the cause, which costs no key its budget.
        is_own_fault = self.gate.is_open
        if isinstance(exc, UnreadableRow) or (is_own_fault and self.quarantine.is_on_trial(child)):
            # An early retry would fail in the same way, and the cause is not the group's.
            self.quarantine.put(child, exc)
            return None
        if child.window is None:
            child.window = RestartWindow(self.limits.child_restarts, self.limits.child_period_s)
        within_budget = child.window.record(now) if is_own_fault else True
        if not self.pause.note_crash():
            if self.pause.is_on:
                # Of many at once, neither the crash nor the restart is reported for each.
                self.pause.more_crashes += 1
                child.crashed = False
            else:
                if self.nursery is not None:
                    self.pause.begin(self.nursery, exc)
                self._reports.crash(child, exc, "pause")
            return _at_once(child)
        if not within_budget:
            self.quarantine.put(child, exc)
            return None
        delay_s = self.limits.backoff.delay(child.window.count(now), self._rng)
        self._reports.crash(child, exc, "backoff", delay_s)
        return delay_s

    def _postpone(self, child: KeyedChild) -> float | None:
        """Start the next incarnation later, for the database ended this one. Its messages wait, or expire."""
        self._reports.count("postponed")
        if self.stopping.is_set():
            return None
        if self.gate.is_open:
            child.postponed += 1
            if child.postponed > 1:
                return self.limits.backoff.delay(child.postponed - 1, self._rng)
        return _at_once(child)


def _at_once(child: KeyedChild) -> float | None:
    """The next incarnation follows without a backoff, if there is a message for it."""
    return None if child.mailbox.empty() else 0.0
