"""The life of one key: its mailbox, and a task that runs its incarnations one after the other while it is used.

```
passivated ── message ──▶ starting ── loaded ──▶ active ── idle ──▶ passivated
                 ▲            ▲                     │
                 │            ├──── void, or restarted by an operator
                 │            └──── backing off ◀── crashed
              release                               │ too often
                 └── quarantined ◀──────────────────┘
```

What follows the end of an incarnation is decided here: another incarnation at once (its decisions were void), one
after a backoff (it crashed), one once the database is back, none (it is idle), or quarantine.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

import trio

from holdfast.actors.runtime.actor import Ending
from holdfast.actors.runtime.faults import Crashed, EndedByOperator, NotAccepted, Quarantined
from holdfast.actors.runtime.journaled import JournaledActor
from holdfast.actors.runtime.mailbox import Envelope, Mailbox
from holdfast.actors.workers.poison_writer import message_crashed_on
from holdfast.ledger.values import format_time
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.dead_letters import NOT_HANDLED, DeadReason
from holdfast.supervision.keyed_group import KeyedGroup, KeyRestart
from holdfast.supervision.spec import RestartWindow
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.causes import Cause, describe
from holdfast.telemetry.reports.report import Decision, Report, level_of_failure
from holdfast.telemetry.traces import trace_id, traceparent

RATE_PERIOD_S: Final = 60.0
VOIDS_UNDELAYED: Final = 3
"""So many void incarnations in a row are followed at once by the next."""

ActorState = Literal["passivated", "starting", "active", "backing_off", "quarantined"]
"""passivated: not active, but remembered. starting: it loads its rows, or waits until it may."""

asking_from: ContextVar[KeyedChild | None] = ContextVar("asking_from", default=None)
"""The child whose actor handles a message now. None in HTTP handlers and workers."""


@dataclass(frozen=True, slots=True)
class EndRequest:
    """Why an operator ends an incarnation, and within which trace. ``for_s``: how long a quarantine lasts."""

    kind: Literal["restart", "crash", "quarantine"]
    reason: str
    for_s: float | None = None
    done: trio.Event = field(default_factory=trio.Event)
    traceparent: str | None = field(default_factory=traceparent.get)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Until when (trio's clock) and why a key's messages are refused, and the types of those that were."""

    until: float
    reason: str
    refused_types: set[str] = field(default_factory=set)


@dataclass(eq=False, repr=False, slots=True)
class KeyedChild:
    """One key. It is in the ``table`` of its directory as long as something must be remembered of it."""

    key: str
    group: KeyedGroup
    table: MutableMapping[str, KeyedChild]
    mailbox: Mailbox
    actor: JournaledActor | None = None
    """The present incarnation, once it begins to load."""
    before: JournaledActor | None = None
    """The last incarnation, unless it ended in order: the next one inherits from it."""
    task: trio.lowlevel.Task | None = None
    """The task of its incarnations, once it has begun."""
    scope: trio.CancelScope | None = None
    """The scope of its present incarnation, and of the wait for it; None if the child has no task."""
    backoff: trio.CancelScope | None = None
    """The scope of the wait between a crash and the next incarnation."""
    end_request: EndRequest | None = None
    incarnation: int = 0
    began_at: float = 0.0
    """When the present incarnation began to load (trio's clock)."""
    last_used: float = 0.0
    turn_rate: float = 0.0
    """Turns a second at ``turned_at``, an average over about a minute: a turn counts less with its age."""
    turned_at: float = 0.0
    window: RestartWindow | None = None
    crashed: bool = False
    """Whether the last incarnation crashed, or an operator ended it."""
    voids_in_row: int = 0
    postponed: int = 0
    """How many incarnations in a row the database ended although the gate was open."""
    quarantine: Quarantine | None = None
    quarantines: int = 0
    """How many there were since its budget last started over."""
    trial_at: float | None = None
    """When a message ended its quarantine, until it is known whether that succeeded."""
    waiting_on: KeyedChild | None = None

    @property
    def state(self) -> ActorState:
        """What operators see of its life."""
        if self.quarantine is not None:
            return "quarantined"
        if self.backoff is not None:
            return "backing_off"
        if self.scope is None:
            return "passivated"
        return "active" if self.actor is not None and self.actor.is_serving else "starting"

    @property
    def is_running(self) -> bool:
        """Whether it has an incarnation, or waits until one may start, and nothing has asked it to end."""
        return self.state in {"starting", "active"} and not self.mailbox.system

    def crashes(self, now: float) -> int:
        """Return how many crashes count against its budget."""
        return 0 if self.window is None else self.window.count(now)

    def forget(self) -> None:
        """Leave the table if nothing need be remembered: no task, message, quarantine, or crash of late.

        One crash a message is a crash loop too. A quarantine that has long been over is forgotten.
        """
        if self.scope is not None or not self.mailbox.empty():
            return
        now = trio.current_time()
        if self.quarantine is not None:
            is_remembered = now <= self.quarantine.until + self.group.limits.quarantine.max_s
        else:
            is_remembered = self.crashes(now) > 0
        if not is_remembered and self.table.get(self.key) is self:
            del self.table[self.key]

    # --------------------------------------------------------------------------------------------------- its task

    def activate(self) -> None:
        """Start its task. One that runs handles its messages, or starts the next.

        The scope, which tells whether there is a task, is tested and set without an await in between.
        """
        group = self.group
        if group.nursery is None or self.scope is not None:
            return
        self.scope = trio.CancelScope()
        group.task_started()
        # In a context of its own: the ids and the trace of its first message are not those of all that follow.
        Context().run(partial(group.nursery.start_soon, self._live, name=f"actor:{group.name}:{self.key}"))

    async def _live(self) -> None:
        """Run incarnation after incarnation until none follows. Raises nothing but a cancellation."""
        asking_from.set(self)
        self.task = trio.lowlevel.current_task()
        assert self.scope is not None
        was_cancelled = True
        try:
            delay_s = await self._incarnate(self.scope, 0.0)
            while delay_s is not None:
                self._finish_end_request()
                self.scope = trio.CancelScope()
                delay_s = await self._incarnate(self.scope, delay_s)
            was_cancelled = False
        except Exception as exc:
            # A bug in this module: quarantine this key rather than cancel all others.
            self.put_in_quarantine(describe(exc))
        finally:
            self.group.task_ended()
            if was_cancelled and self.actor is not None:
                # The journal may still return messages, perhaps during another run of the directory.
                self.actor.on_requeued = self._on_requeued
            self.actor = self.task = self.scope = None
            self._finish_end_request()
            # A cancelled one is retained, since the journal may still return its messages.
            if self.quarantine is None and not was_cancelled:
                if self.mailbox.empty():
                    self.forget()
                elif not self.group.stopping.is_set():
                    self.activate()

    def _on_requeued(self) -> None:
        """Handle the messages that the journal returned after the task was cancelled."""
        current = self.table.setdefault(self.key, self)
        if current is not self:  # it had been forgotten meanwhile
            current.mailbox.requeue(self.mailbox.take_all())
        if current.quarantine is not None:
            current.refuse_all()
        elif not current.mailbox.empty():
            current.activate()

    def _finish_end_request(self) -> None:
        request, self.end_request = self.end_request, None
        if request is not None:
            request.done.set()

    # --------------------------------------------------------------------------------------------- an incarnation

    async def _incarnate(self, scope: trio.CancelScope, delay_s: float) -> float | None:
        """Run one incarnation, after a backoff of ``delay_s`` if that is above 0.

        All waiting is done in ``scope``: what ends it while there is no actor is a quarantine. Returns the next
        incarnation's backoff, or None if none follows.
        """
        self.actor = actor = None
        ending = Ending.ENDED
        fault: Exception | None = None
        try:
            with scope:
                if not await self._may_start(delay_s):
                    return None
                loading = self.group.loading
                try:
                    loading.acquire_nowait()
                except trio.WouldBlock:
                    await loading.acquire()
                try:
                    # Its turn may have come in the same instant as a quarantine.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    actor = self._new_actor()
                    await actor.on_start()
                finally:
                    loading.release()
                self._record_start()
                ending = await actor.serve()
        except Exception as exc:
            fault = exc
        if actor is None:
            return None if fault is None else self._after_crash(fault)
        if fault is not None or scope.cancelled_caught:
            await actor.wind_down()
        return self._after(actor, ending, fault)

    async def _may_start(self, delay_s: float) -> bool:
        """Wait for all that holds up the next incarnation. Returns False if a backoff ends without a message."""
        group = self.group
        if delay_s:
            try:
                with trio.move_on_after(delay_s) as self.backoff:
                    await group.stopping.wait()
            finally:
                self.backoff = None
            if self.mailbox.empty():
                return False
        elif self.voids_in_row > VOIDS_UNDELAYED:
            # Two processes that serve one key: a random wait lets one of them commit.
            await trio.sleep(group.rng.uniform(0, 0.002 * min(self.voids_in_row, 20)))
        while group.is_paused or not group.gate.is_open:
            await group.wait_resumed()
            if not group.gate.is_open:
                await group.gate.wait_open()
        return True

    def _new_actor(self) -> JournaledActor:
        self.mailbox.drop_orders()
        self.incarnation += 1
        self.began_at = trio.current_time()
        actor = self.actor = self.group.factory(self.key, self.mailbox)
        actor.records = self
        if self.before is not None:
            actor.inherit(self.before)
            self.before = None
        return actor

    # --------------------------------------------------------------------------- what follows it: a backoff or None

    def _after(self, actor: JournaledActor, ending: Ending, fault: Exception | None) -> float | None:
        request = self.end_request
        is_by_operator = isinstance(fault, EndedByOperator)
        has_ended = fault is None and ending in {Ending.ENDED, Ending.VOIDED}
        self.before = actor
        if request is not None and (request.kind == "quarantine" or is_by_operator or has_ended):
            if fault is not None and not is_by_operator and not isinstance(fault, DatabaseAway):
                self._record_crash(describe(fault))
            return self._after_request(request)
        if fault is not None:
            return self._after_crash(fault)
        if ending is Ending.VOIDED:
            return self._after_void(actor)
        self.before = None
        self.postponed = 0
        self._recover()
        self.group.count(ending.value)
        return None

    def _after_request(self, request: EndRequest) -> float | None:
        traceparent.set(request.traceparent)
        ended = EndedByOperator(request.reason)
        if request.kind == "crash":
            return self._after_crash(ended)
        cause = describe(ended)
        if request.kind == "quarantine":
            self.put_in_quarantine(cause, for_s=request.for_s)
            return None
        self.group.count("restarted")
        self._remember(cause, "restart", None)
        self.crashed = True
        return 0.0

    def _after_void(self, actor: JournaledActor) -> float | None:
        self.group.count("voided")
        # A reply found in rows is progress too: its message will be answered next.
        if actor.committed_any or actor.learned:
            self.voids_in_row = self.postponed = 0
            self._recover()
        elif actor.void_cause == "database":
            return self._postpone()
        elif actor.void_cause == "stale":
            self.voids_in_row += 1
            if self.voids_in_row > VOIDS_UNDELAYED and self.group.is_elsewhere(self.key):
                self._give_back()
                if self.mailbox.empty():
                    self.voids_in_row = 0
                    return None
        if self.voids_in_row > self.group.limits.voids_in_row_max:
            self.voids_in_row = 0
            return self._after_crash(RuntimeError("its decisions were void too many times in a row"))
        return 0.0

    def _give_back(self) -> None:
        """Have asks sent to the process that serves the key: while it has many, its writes come first."""
        fault = NotAccepted(f"{self.group.name} {self.key} is served by another process")
        self.mailbox.requeue([each for each in self.mailbox.take_all() if not each.fail(fault)])

    def _after_crash(self, exc: Exception) -> float | None:
        if isinstance(exc, DatabaseAway):
            return self._postpone()
        group, limits, cause = self.group, self.group.limits, describe(exc)
        self._record_crash(cause)
        now = trio.current_time()
        # While the gate is closed, the database may be the cause, which costs no key its budget.
        is_own_fault = group.gate.is_open
        if isinstance(exc, UnreadableRow) or (is_own_fault and self._is_on_trial(now)):
            # An early retry would fail in the same way, and the cause is not the group's.
            self.put_in_quarantine(cause)
            return None
        if self.window is None:
            self.window = RestartWindow(limits.child_restarts, limits.child_period_s)
        within_budget = self.window.record(now) if is_own_fault else True
        if not group.covers_crash():
            if group.is_paused:
                # Of many at once, neither the crash nor the restart is reported for each.
                group.more_crashes += 1
                self.crashed = False
            else:
                group.pause_after(cause)
                self._report_crash(cause, "pause", None)
            return self._at_once()
        if not within_budget:
            self.put_in_quarantine(cause)
            return None
        delay_s = limits.backoff.delay(self.crashes(now), group.rng)
        self._report_crash(cause, "backoff", delay_s)
        return delay_s

    def _postpone(self) -> float | None:
        """Start the next incarnation later, for the database ended this one. Its messages wait, or expire."""
        self.group.count("postponed")
        if self.group.stopping.is_set():
            return None
        if self.group.gate.is_open:
            self.postponed += 1
            if self.postponed > 1:
                return self.group.limits.backoff.delay(self.postponed - 1, self.group.rng)
        return self._at_once()

    def _at_once(self) -> float | None:
        """The next incarnation follows without a backoff, if there is a message for it."""
        return None if self.mailbox.empty() else 0.0

    # ------------------------------------------------------------------------------------------------ quarantine

    # A key whose incarnations keep crashing accepts no messages for a while, longer each time. The first message
    # after that time is a trial. If the key crashes again within the period of its restart budget, it returns to
    # quarantine at once and for longer. If it does not, or ends normally, its budget starts over.

    def put_in_quarantine(self, cause: Cause, *, for_s: float | None = None) -> None:
        """Refuse waiting messages and new ones until its time is over. No actor that has not begun will begin."""
        group = self.group
        self.quarantines += 1
        delay_s = group.limits.quarantine.delay(self.quarantines, group.rng) if for_s is None else for_s
        self.quarantine = Quarantine(trio.current_time() + delay_s, cause.reason)
        group.count("quarantined")
        self._report_crash(cause, "quarantine", delay_s)
        self.refuse_all()
        if self.actor is None and self.scope is not None:
            self.scope.cancel(reason="its key was quarantined")

    def begin_trial(self) -> bool:
        """Let the key handle messages again if the time of its quarantine is over. Returns whether it is."""
        now = trio.current_time()
        assert self.quarantine is not None
        if now < self.quarantine.until:
            return False
        self.group.count("tried")
        self.trial_at, self.quarantine = now, None
        return True

    def refusal(self) -> Quarantined:
        """Return the fault for an ask; a retry may succeed when the quarantine's time is over."""
        assert self.quarantine is not None
        left_s = max(self.quarantine.until - trio.current_time(), 1.0)
        return Quarantined(f"{self.group.name} {self.key} is quarantined", retry_after_s=left_s)

    def refuse(self, envelope: Envelope) -> None:
        """Refuse a message. Of those whose sender does not wait, the first of a type is reported."""
        assert self.quarantine is not None
        if not envelope.fail(self.refusal()):
            name = type(envelope.message).__name__
            self.dead_letter("dead", envelope, is_reported=name not in self.quarantine.refused_types)
            self.quarantine.refused_types.add(name)

    def refuse_all(self) -> None:
        """Refuse all waiting messages."""
        for envelope in self.mailbox.take_all():
            self.refuse(envelope)

    def release(self, reason: str) -> None:
        """End a quarantine before its time, for an operator."""
        self.group.count("released")
        self.quarantine = None
        self._start_over(f"by an operator; reason: {reason}")
        if self.mailbox.empty():
            self.forget()
        else:
            self.activate()

    def _is_on_trial(self, now: float) -> bool:
        """Whether a crash now fails a trial."""
        if self.trial_at is not None and now - self.trial_at > self.group.limits.child_period_s:
            self._recover()
        return self.trial_at is not None

    def _recover(self) -> None:
        """Record that the key has worked."""
        if self.trial_at is not None:
            self._start_over("its trial succeeded")

    def _start_over(self, reason: str) -> None:
        """Renew the budget after a quarantine, and report that it is over, and why."""
        self.trial_at, self.window, self.quarantines = None, None, 0
        self.group.reporter.report(Report(kind="release", path=self.group.path, key=self.key, reason=reason))

    # ------------------------------------------------------------------------------------------- what is recorded

    def turn_ended(self, at: float) -> None:
        """Count a turn."""
        self.turn_rate = self.turns_per_s(at) + 1 / RATE_PERIOD_S
        self.turned_at = at

    def turns_per_s(self, now: float) -> float:
        """Return the rate of its turns of late."""
        return self.turn_rate * math.exp((self.turned_at - now) / RATE_PERIOD_S)

    def dead_letter(self, reason: DeadReason, envelope: Envelope, *, is_reported: bool = True) -> None:
        """Record a message that was not handled, or whose sender no longer waits."""
        group = self.group
        name = type(envelope.message).__name__
        metrics.DEAD_LETTERS.labels(reason).inc()
        group.dead_letters.record(
            reason, path=group.path, key=self.key, message_type=name, trace_id=envelope.trace_id
        )
        if reason == "orphan_reply" or not is_reported:
            # The message was handled: a client that hangs up is counted, but is nothing to look into.
            return
        group.reporter.report(
            Report(
                kind="dead_letter",
                # What made it late is a warning of its own, and its sender was answered at the deadline.
                level="info" if reason == "expired" else None,
                path=group.path,
                key=self.key,
                reason=f"{name}, {NOT_HANDLED[reason]}",
                mailbox_depth=len(self.mailbox),
                trace_id=envelope.trace_id,
            )
        )

    def _record_start(self) -> None:
        """Count an incarnation that has loaded its rows, and report it if the one before had crashed."""
        self.group.count("activated")
        if self.crashed:
            self.crashed = False
            self.group.reporter.report(
                Report(
                    kind="restart",
                    path=self.group.path,
                    key=self.key,
                    incarnation=self.incarnation,
                    trace_id=trace_id(),
                )
            )

    def _record_crash(self, cause: Cause) -> None:
        """Count a crash; the next incarnation is then a restart. The message that caused it is kept."""
        group = self.group
        group.count("crashed")
        self.crashed = True
        if group.poison is not None and self.actor is not None:
            fault = cause.fault
            message = message_crashed_on(
                group.path,
                group.name,
                self.key,
                self.actor,
                describe(fault.__cause__) if isinstance(fault, Crashed) and fault.__cause__ else cause,
                incarnation=self.incarnation,
                at=group.reporter.now(),
            )
            if message is not None:
                group.poison(message)

    def _report_crash(self, cause: Cause, decision: Decision, delay_s: float | None) -> None:
        """Report a crash, the state of the mailbox, and the decision."""
        now = trio.current_time()
        oldest = self.mailbox.oldest_sent_at()
        failures = self.crashes(now)
        self.group.reporter.report(
            Report(
                kind="quarantine" if decision == "quarantine" else "crash",
                level=None if decision == "quarantine" else level_of_failure(failures),
                path=self.group.path,
                key=self.key,
                incarnation=self.incarnation,
                context="child_terminated",
                last_message_type=self._remember(cause, decision, delay_s).last_message_type,
                mailbox_depth=len(self.mailbox),
                oldest_age_s=round(now - oldest, 3) if oldest is not None else None,
                restarts=failures,
                budget=self.group.limits.child_restarts,
                decision=decision,
                delay_s=delay_s,
                trace_id=trace_id(),
            ),
            cause,
        )

    def _remember(self, cause: Cause, decision: Decision, delay_s: float | None) -> KeyRestart:
        """Add the end of an incarnation to what is known of the key, and return it."""
        last = self.actor.last_message if self.actor is not None else None
        restart = KeyRestart(
            at=format_time(self.group.reporter.now()),
            incarnation=self.incarnation,
            reason_type=cause.reason_type,
            reason=cause.reason,
            location=cause.location,
            last_message_type=last.__name__ if last is not None else None,
            decision=decision,
            delay_s=delay_s,
        )
        self.group.remember(self.key, restart)
        return restart
