"""A keyed directory: the supervisor of the virtual actors of one kind, which are addressed by key.

A key's child owns the mailbox. The first message activates an incarnation, which loads its rows; an idle one is
passivated; a void one is replaced by one that decides the unanswered messages again. Two budgets limit restarts:

- a key whose incarnations keep crashing is **quarantined**: its messages are refused, and no other key is affected.
  After a while, longer each time, or when an operator releases it, its next message is a trial;
- when many keys crash together, the cause is not theirs: the group **pauses**, refuses asks and probes until it can
  resume.

A slow or unreachable database counts against no budget: asks are refused, and incarnations are started later.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, cast

import trio

from holdfast.actors.runtime.actor import Ending, JournaledActor, TrioActor
from holdfast.actors.runtime.faults import Overloaded, Unavailable
from holdfast.actors.runtime.future import TrioFuture
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, MailboxFull, SystemMessage
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import ASK_DEADLINE_S, TrioActorRef
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.reports.reporter import Reporter
from holdfast.supervision.ask_cycles import asking_from, refuse_cycle
from holdfast.supervision.ask_deadlines import AskDeadlines
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.group_pause import GroupPause
from holdfast.supervision.intensity import RestartWindow
from holdfast.supervision.keyed_child import KeyedChild, KeyedLimits, WriteGate
from holdfast.supervision.keyed_reports import KeyedReports
from holdfast.supervision.quarantine import Quarantine
from holdfast.traces import traceparent

R = TypeVar("R")


class KeyedRef(TrioActorRef):
    """The address of one virtual actor. ``tell`` records a dead letter where the message is not accepted."""

    def __init__(self, directory: KeyedDirectory, key: str) -> None:
        self._directory = directory
        self._key = key

    @property
    def actor_urn(self) -> str:  # type: ignore[override]  # computed: most addresses are used once
        """The directory and the key."""
        return f"urn:holdfast:{self._directory.name}:{self._key}"

    @property
    def actor_inbox(self) -> Mailbox:  # type: ignore[override]  # the same
        """The key's mailbox. To put into it starts no actor: send messages with ``ask`` and ``tell``."""
        return self._directory._child(self._key).mailbox

    def ask(  # type: ignore[override]  # as in TrioActorRef
        self, message: Command[R], *, deadline_s: float = ASK_DEADLINE_S
    ) -> Awaitable[R | Refusal]:
        """Send a command; await the returned object for its reply."""
        return self._directory._ask(self._key, message, deadline_s)

    def tell(self, message: Command[object]) -> None:
        """Send a command without waiting for a reply."""
        self._directory._tell(self._key, message)


class KeyedDirectory:
    """All virtual actors of one kind. As a child of the tree it may run again; its mailboxes outlive its runs."""

    def __init__(
        self,
        name: str,
        factory: Callable[[str, Mailbox], TrioActor],
        *,
        gate: WriteGate,
        probe: Callable[[], Awaitable[bool]],
        reporter: Reporter,
        dead_letters: DeadLetters,
        limits: KeyedLimits | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self.limits = limits if limits is not None else KeyedLimits()
        self._factory = factory
        self._gate = gate
        self._reports = KeyedReports(name, self.limits, reporter, dead_letters)
        self._rng = rng if rng is not None else random.Random()  # noqa: S311 - spreads waiting times
        self._quarantine = Quarantine(name, self.limits, self._reports, self._rng)
        self._children: OrderedDict[str, KeyedChild] = OrderedDict()
        self._nursery: trio.Nursery | None = None
        self._loading = trio.CapacityLimiter(self.limits.loading_max)
        self._pause = GroupPause(self.limits, self._reports, probe, self._rng)
        self._stopping = trio.Event()
        self._emptied = trio.Event()
        self.awake_count = 0
        self._deadlines = AskDeadlines()

    def ref(self, key: str) -> KeyedRef:
        """Return the address of the actor with this key."""
        return KeyedRef(self, key)

    async def _ask(self, key: str, message: Command[R], deadline_s: float) -> R | Refusal:
        asker = asking_from.get()
        if asker is not None and key in self._children:
            refuse_cycle(asker, self._children[key])
        now = trio.current_time()
        future: TrioFuture[object] = TrioFuture()
        envelope = Envelope(message, future, deadline=now + deadline_s, sent_at=now, traceparent=traceparent.get())
        child = self.accept(key, envelope)
        if asker is not None:
            asker.waiting_on = child
        self._deadlines.add(future, now + deadline_s, deadline_s)
        try:
            # The actor's handler of a Command[R] replies with an R.
            return cast("R | Refusal", await future.wait())
        finally:
            self._deadlines.remove(future)
            if asker is not None:
                asker.waiting_on = None

    def accept(self, key: str, envelope: Envelope) -> KeyedChild:
        """Put an ask into its actor's mailbox. Raises :class:`Unavailable` or :class:`Overloaded`."""
        self._refuse_if_unavailable()
        child = self._child(key)
        if child.state == "quarantined" and not self._quarantine.begin_trial(child):
            raise self._quarantine.refusal(child)
        self._put(child, envelope)
        return child

    def _tell(self, key: str, message: Command[object]) -> None:
        child = self._child(key)
        envelope = Envelope(message, sent_at=trio.current_time(), traceparent=traceparent.get())
        if child.state == "quarantined" and not self._quarantine.begin_trial(child):
            self._reports.dead_letter("dead", child, envelope)
            return
        try:
            self._put(child, envelope)
        except Overloaded:
            self._reports.dead_letter("full", child, envelope)

    def _refuse_if_unavailable(self) -> None:
        if self._stopping.is_set() or self._nursery is None:
            raise Unavailable(f"{self.name} are not running")
        if not self._gate.is_open:
            raise Unavailable(self._gate.reason, retry_after_s=self._gate.retry_after_s)
        if self._pause.is_on:
            raise Unavailable(f"{self.name} are paused", retry_after_s=self.limits.probe_backoff.max_s)

    def _child(self, key: str) -> KeyedChild:
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = KeyedChild(key, self.limits.mailbox_max)
        return child

    def _put(self, child: KeyedChild, envelope: Envelope) -> None:
        try:
            child.mailbox.put(envelope)
        except MailboxFull as full:
            raise Overloaded(f"{self.name} {child.key}: {full}") from full
        child.last_used = envelope.sent_at
        self._children.move_to_end(child.key)
        if child.state == "asleep":
            self._activate(child)

    def _activate(self, child: KeyedChild) -> None:
        """Start the child's next incarnation. The state is tested and set without an await in between."""
        if self._nursery is None:
            return
        child.state = "awake"
        self.awake_count += 1
        self._reports.awake(self.awake_count)
        self._nursery.start_soon(self._live, child, name=f"actor:{self.name}:{child.key}")
        if self.awake_count > self.limits.awake_max:
            oldest = next((each for each in self._children.values() if each.is_idle), None)
            if oldest is not None:
                oldest.mailbox.put_system(SystemMessage.PASSIVATE)

    async def _live(self, child: KeyedChild) -> None:
        """Run incarnation after incarnation until the child may sleep. Raises nothing but a cancellation."""
        asking_from.set(child)
        was_cancelled = True
        try:
            while await self._incarnate(child):
                pass
            was_cancelled = False
        except Exception as exc:
            # A bug in this module: quarantine this key rather than cancel all others.
            self._quarantine.put(child, exc)
        finally:
            self.awake_count -= 1
            self._reports.awake(self.awake_count)
            if was_cancelled and isinstance(child.actor, JournaledActor):
                # The journal may still return messages, perhaps during another run of the directory.
                child.actor.on_requeued = partial(self._on_requeued, child)
            child.actor = None
            if child.state != "quarantined":
                child.state = "asleep"
                if child.mailbox.empty():
                    # A cancelled one is retained, since the journal may still return its messages.
                    if not was_cancelled and not child.has_crashed_lately:
                        self._forget(child)
                elif not was_cancelled and not self._stopping.is_set():
                    self._activate(child)
            if not self.awake_count:
                self._emptied.set()

    def _on_requeued(self, child: KeyedChild) -> None:
        """Handle the messages that the journal returned to a child whose task had been cancelled."""
        current = self._child(child.key)
        if current is not child:  # it had been forgotten meanwhile
            current.mailbox.requeue(child.mailbox.take_all())
        if current.state == "quarantined":
            self._quarantine.clear_mailbox(current)
        elif current.state == "asleep" and not current.mailbox.empty():
            self._activate(current)

    def _forget(self, child: KeyedChild) -> None:
        if self._children.get(child.key) is child:
            del self._children[child.key]

    async def _incarnate(self, child: KeyedChild) -> bool:
        """Run one incarnation. Returns True if the next one is to follow at once."""
        child.actor = None
        await self._pause.wait_over()
        if not self._gate.is_open:
            await self._gate.wait_open()
        child.incarnation += 1
        actor: TrioActor | None = None
        try:
            async with self._loading:
                actor = child.actor = self._factory(child.key, child.mailbox)
                if isinstance(actor, JournaledActor) and child.learned:
                    actor.learn(child.learned)
                    child.learned = None
                await actor.on_start()
            child.postponed = 0
            self._reports.activated(child)
            ending = await actor.serve()
        except Exception as exc:
            if isinstance(actor, JournaledActor):
                await actor.wind_down()
            return await self._on_crash(child, exc)
        if ending is Ending.VOIDED:
            return await self._on_void(child, actor)
        self._quarantine.recovered(child)
        self._reports.count(ending.value)
        return False

    async def _on_void(self, child: KeyedChild, actor: TrioActor) -> bool:
        self._reports.count("voided")
        assert isinstance(actor, JournaledActor)
        child.learned = actor.learned
        # A reply found in rows is progress too: its message will be answered next.
        if actor.committed_any or actor.learned:
            child.voids_in_row = 0
            self._quarantine.recovered(child)
        elif actor.was_stale:
            child.voids_in_row += 1
        else:
            return await self._postpone(child)
        if child.voids_in_row > self.limits.voids_in_row_max:
            child.voids_in_row = 0
            return await self._on_crash(child, RuntimeError("its decisions were void too many times in a row"))
        if child.voids_in_row > 3:
            # Two processes that serve one key: a random wait lets one of them commit.
            await trio.sleep(self._rng.uniform(0, 0.002 * min(child.voids_in_row, 20)))
        return True

    async def _on_crash(self, child: KeyedChild, exc: Exception) -> bool:
        if isinstance(exc, DatabaseAway) or not self._gate.is_open:
            return await self._postpone(child)
        self._reports.crashed(child)
        now = trio.current_time()
        if isinstance(exc, UnreadableRow) or self._quarantine.is_on_trial(child):
            # An early retry would fail in the same way, and the cause is not the group's.
            self._quarantine.put(child, exc)
            return False
        if child.window is None:
            child.window = RestartWindow(self.limits.child_restarts, self.limits.child_period_s)
        within_budget = child.window.record(now)
        if not self._pause.note_crash():
            if self._nursery is not None:
                self._pause.begin(self._nursery, exc)
            self._reports.crash(child, exc, "pause")
            return not child.mailbox.empty()
        if not within_budget:
            self._quarantine.put(child, exc)
            return False
        child.crashes = child.window.count(now)
        delay_s = self.limits.backoff.delay(child.crashes, self._rng)
        self._reports.crash(child, exc, "backoff", delay_s)
        await self._back_off(child, delay_s)
        return not child.mailbox.empty()

    async def _postpone(self, child: KeyedChild) -> bool:
        """Start the next incarnation later, for the database ended this one. Its messages wait, or expire."""
        self._reports.count("put_off")
        if self._stopping.is_set():
            return False
        child.postponed += 1
        if self._gate.is_open and child.postponed > 1:
            await self._back_off(child, self.limits.backoff.delay(child.postponed - 1, self._rng))
        return not child.mailbox.empty()

    async def _back_off(self, child: KeyedChild, delay_s: float) -> None:
        child.state = "backing_off"
        with trio.move_on_after(delay_s):
            await self._stopping.wait()
        child.state = "awake"

    def release(self, key: str) -> bool:
        """End a key's quarantine, for an operator. Returns False if it is not quarantined."""
        child = self._children.get(key)
        if child is None or child.state != "quarantined":
            return False
        self._quarantine.release(child)
        if child.mailbox.empty():
            del self._children[key]
        else:
            self._activate(child)
        return True

    def mailboxes(self) -> list[Mailbox]:
        """Return the mailboxes of all keys."""
        return [child.mailbox for child in self._children.values()]

    def quarantined(self) -> list[str]:
        """Return the keys in quarantine."""
        return [child.key for child in self._children.values() if child.state == "quarantined"]

    def place(self, path: str) -> None:
        """Set the path in the tree."""
        self._reports.path = path

    @property
    def is_ready(self) -> bool:
        """Whether asks are accepted now."""
        return self._nursery is not None and not self._stopping.is_set() and not self._pause.is_on

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run actors until :meth:`stop` has drained them. Messages left over wake their actors in the next run."""
        self._stopping = trio.Event()
        self._pause.end()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for child in list(self._children.values()):
                    if child.state == "asleep" and not child.mailbox.empty():
                        self._activate(child)
                task_status.started()
                nursery.start_soon(self._sweep)
                await self._stopping.wait()
                await self._drain()
            finally:
                # Before the nursery closes: a late tell must not start a task in a closed one.
                self._nursery = None
            nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """Refuse further asks; every actor handles its messages and awaits its commits, then the run ends."""
        self._stopping.set()

    async def _drain(self) -> None:
        while self.awake_count:
            is_blocked = self._pause.is_on or not self._gate.is_open
            if is_blocked and all(child.actor is None for child in self._children.values()):
                # No actor works and none can start: the messages stay for the next run.
                return
            self._emptied = trio.Event()
            for child in self._children.values():
                if child.state == "awake" and not child.mailbox.has_system:
                    child.mailbox.put_system(SystemMessage.STOP)
            with trio.move_on_after(0.5):
                await self._emptied.wait()

    async def _sweep(self) -> None:
        """Passivate idle actors, the longest idle first, and forget what need not be remembered."""
        while True:
            await trio.sleep(max(self.limits.idle_s / 8, 0.05))
            oldest = trio.current_time() - self.limits.idle_s
            for child in list(self._children.values()):
                if child.last_used > oldest:
                    break
                if child.is_idle:
                    child.mailbox.put_system(SystemMessage.PASSIVATE)
                elif child.mailbox.empty() and self._is_forgettable(child):
                    self._forget(child)

    def _is_forgettable(self, child: KeyedChild) -> bool:
        if child.state == "quarantined":
            return self._quarantine.is_long_over(child)
        return child.state == "asleep" and not child.has_crashed_lately
