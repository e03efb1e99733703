"""Keyed supervision: one kind of virtual actor, addressable by key, awake only while there is something to do.

A key's slot owns the mailbox. The first message activates an incarnation, which loads its rows; an idle one is
passivated; a void one is replaced and decides its unanswered messages again. Two budgets guard the rest:

- a key whose incarnations keep crashing is **quarantined**: its asks are refused at once, and no other key notices.
  After a while, longer each time, or when an operator releases it, its next message is a trial
  (see :mod:`holdfast.supervision.quarantine`);
- when many keys crash together the trouble is not theirs: the group **pauses**, refuses at once, and probes
  until it may go on.

A database that is slow or away is nobody's crash: while the gate is closed asks are refused, and an actor that
could not read begins again later. Neither counts for anything.
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
from holdfast.actors.runtime.trace import trace_id
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.ask_cycles import asking_from, refuse_cycle
from holdfast.supervision.ask_deadlines import AskDeadlines
from holdfast.supervision.group_pause import GroupPause
from holdfast.supervision.intensity import RestartWindow
from holdfast.supervision.keyed_child import Gate, KeyedChild
from holdfast.supervision.keyed_reports import KeyedReports
from holdfast.supervision.keyed_slots import KeyedLimits, Slot
from holdfast.supervision.quarantine import Quarantine
from holdfast.supervision.reports import DeadLetters, Reporter

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
        return self._directory._slot(self._key).mailbox

    def ask(self, message: Command[R], *, deadline_s: float = ASK_DEADLINE_S) -> Awaitable[R | Refusal]:  # type: ignore[override]  # as above
        """Send a command and wait for its durable reply."""
        return self._directory._ask(self._key, message, deadline_s)

    def tell(self, message: Command[object]) -> None:
        """Send a command without waiting for a reply."""
        self._directory._tell(self._key, message)


class KeyedDirectory:
    """All virtual actors of one kind. Outlives the child of the tree that runs it, and so do the mailboxes."""

    def __init__(
        self,
        name: str,
        factory: Callable[[str, Mailbox], TrioActor],
        *,
        gate: Gate,
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
        self._notes = KeyedReports(name, self.limits, reporter, dead_letters)
        self._rng = rng if rng is not None else random.Random()  # noqa: S311 - spreads waiting times
        self._quarantine = Quarantine(name, self.limits, self._notes, self._rng)
        self._slots: OrderedDict[str, Slot] = OrderedDict()
        self._nursery: trio.Nursery | None = None
        self._loading = trio.CapacityLimiter(self.limits.loading_max)
        self._pause = GroupPause(self.limits, self._notes, probe, self._rng)
        self._stopping = trio.Event()
        self._emptied = trio.Event()
        self._awake_count = 0
        self._deadlines = AskDeadlines()

    # ------------------------------------------------------------------------------------------------ messages

    def ref(self, key: str) -> KeyedRef:
        """Return the address of the actor with this key."""
        return KeyedRef(self, key)

    async def _ask(self, key: str, message: Command[R], deadline_s: float) -> R | Refusal:
        self._refuse_if_unavailable()
        slot = self._slot(key)
        if slot.state == "quarantined" and not self._quarantine.begin_trial(slot):
            raise self._quarantine.refusal(slot)
        asker = asking_from.get()
        if asker is not None:
            refuse_cycle(asker, slot)
        now = trio.current_time()
        future: TrioFuture[object] = TrioFuture()
        self._put(slot, Envelope(message, future, deadline=now + deadline_s, sent_at=now, trace_id=trace_id.get()))
        if asker is not None:
            asker.waiting_on = slot
        self._deadlines.add(future, now + deadline_s, deadline_s)
        try:
            # The actor's handler of a Command[R] replies with an R.
            return cast("R | Refusal", await future.wait())
        finally:
            self._deadlines.remove(future)
            if asker is not None:
                asker.waiting_on = None

    def _tell(self, key: str, message: Command[object]) -> None:
        slot = self._slot(key)
        envelope = Envelope(message, sent_at=trio.current_time(), trace_id=trace_id.get())
        if slot.state == "quarantined" and not self._quarantine.begin_trial(slot):
            self._notes.bury("dead", slot, envelope)
            return
        try:
            self._put(slot, envelope)
        except Overloaded:
            self._notes.bury("full", slot, envelope)

    def _refuse_if_unavailable(self) -> None:
        if self._stopping.is_set() or self._nursery is None:
            raise Unavailable(f"{self.name} are not running")
        if not self._gate.is_open:
            raise Unavailable(self._gate.reason, retry_after_s=self._gate.retry_after_s)
        if self._pause.is_on:
            raise Unavailable(f"{self.name} are paused", retry_after_s=self.limits.probe_backoff.max_s)

    def _slot(self, key: str) -> Slot:
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot(key, self.limits.mailbox_max)
        return slot

    def _put(self, slot: Slot, envelope: Envelope) -> None:
        try:
            slot.mailbox.put(envelope)
        except MailboxFull as full:
            raise Overloaded(f"{self.name} {slot.key}: {full}") from full
        slot.last_used = envelope.sent_at
        self._slots.move_to_end(slot.key)
        if slot.state == "asleep":
            self._activate(slot)

    # ------------------------------------------------------------------------------------------- incarnations

    def _activate(self, slot: Slot) -> None:
        """Start the slot's next incarnation; one flag and no await between its test and its setting."""
        if self._nursery is None:
            return
        slot.state = "awake"
        self._awake_count += 1
        self._notes.awake(self._awake_count)
        self._nursery.start_soon(self._live, slot, name=f"actor:{self.name}:{slot.key}")
        if self._awake_count > self.limits.awake_max:
            self._passivate_oldest()

    async def _live(self, slot: Slot) -> None:
        """A slot's task: incarnation after incarnation until the slot may sleep. Nothing may escape from here."""
        asking_from.set(slot)
        was_cut = True
        try:
            while await self._incarnate(slot):
                pass
            was_cut = False
        except Exception as exc:
            # A fault of this very code. The slot is set aside rather than its siblings pulled down.
            self._quarantine.put(slot, exc)
        finally:
            self._awake_count -= 1
            self._notes.awake(self._awake_count)
            if was_cut and isinstance(slot.actor, JournaledActor):
                # The journal may yet hand mail back, at a time when another run of the directory is under way.
                slot.actor.on_requeued = partial(self._wake, slot)
            slot.actor = None
            if slot.state != "quarantined":
                slot.state = "asleep"
                if slot.mailbox.empty():
                    # One cut off may yet be handed back mail by the journal: its slot stays for the next run.
                    if not was_cut and not self._has_crashed_lately(slot):
                        self._forget(slot)
                elif not was_cut and not self._stopping.is_set():
                    self._activate(slot)
            if not self._awake_count:
                self._emptied.set()

    def _wake(self, slot: Slot) -> None:
        """Let somebody read what came back to the slot of an incarnation that had been cut off."""
        here = self._slot(slot.key)
        if here is not slot:
            # Nobody expected anything of it any more, and it was forgotten.
            here.mailbox.requeue(slot.mailbox.take_all())
        if here.state == "quarantined":
            self._quarantine.clear_mailbox(here)
        elif here.state == "asleep" and not here.mailbox.empty():
            self._activate(here)

    def _has_crashed_lately(self, slot: Slot) -> bool:
        """Whether a sleeping slot must be kept for its crash count: one crash a message is a crash loop too."""
        return slot.window is not None and slot.window.count(trio.current_time()) > 0

    def _is_forgettable(self, slot: Slot) -> bool:
        if slot.state == "quarantined":
            return self._quarantine.is_long_over(slot)
        return slot.state == "asleep" and not self._has_crashed_lately(slot)

    def _forget(self, slot: Slot) -> None:
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]

    async def _incarnate(self, slot: Slot) -> bool:
        """Live one incarnation. True where another one is to follow at once."""
        slot.actor = None
        await self._pause.wait_over()
        if not self._gate.is_open:
            await self._gate.wait_open()
        slot.incarnation += 1
        actor: TrioActor | None = None
        try:
            async with self._loading:
                actor = slot.actor = self._factory(slot.key, slot.mailbox)
                if isinstance(actor, JournaledActor) and slot.learned:
                    actor.learn(slot.learned)
                    slot.learned = None
                await actor.on_start()
            slot.put_off = 0
            self._notes.count("activated")
            ending = await actor.serve()
        except Exception as exc:
            if isinstance(actor, JournaledActor):
                await actor.wind_down()
            return await self._crashed(slot, exc)
        if ending is Ending.VOIDED:
            return await self._voided(slot, actor)
        self._quarantine.recovered(slot)
        self._notes.count(ending.value)
        return False

    async def _voided(self, slot: Slot, actor: TrioActor) -> bool:
        self._notes.count("voided")
        assert isinstance(actor, JournaledActor)
        slot.learned = actor.learned
        # An answer found in the rows is progress too: the message that asked for it will be answered next.
        if actor.committed_any or actor.learned:
            slot.voids_in_row = 0
            self._quarantine.recovered(slot)
        elif actor.was_stale:
            slot.voids_in_row += 1
        else:
            return await self._later(slot)
        if slot.voids_in_row > self.limits.voids_in_row_max:
            slot.voids_in_row = 0
            return await self._crashed(slot, RuntimeError("its decisions were void time after time"))
        if slot.voids_in_row > 3:
            # Two owners at odds over one row make way for each other.
            await trio.sleep(self._rng.uniform(0, 0.002 * min(slot.voids_in_row, 20)))
        return True

    async def _crashed(self, slot: Slot, exc: Exception) -> bool:
        if isinstance(exc, DatabaseAway) or not self._gate.is_open:
            return await self._later(slot)
        self._notes.count("crashed")
        now = trio.current_time()
        if isinstance(exc, UnreadableRow) or self._quarantine.is_on_trial(slot):
            # To try again soon would end the same way, and says nothing of the group.
            self._quarantine.put(slot, exc)
            return False
        if slot.window is None:
            slot.window = RestartWindow(self.limits.child_restarts, self.limits.child_period_s)
        within_budget = slot.window.record(now)
        if not self._pause.note_crash():
            if self._nursery is not None:
                self._pause.begin(self._nursery, exc)
            self._notes.crash(slot, exc, "pause")
            return not slot.mailbox.empty()
        if not within_budget:
            self._quarantine.put(slot, exc)
            return False
        slot.crashes = slot.window.count(now)
        delay_s = self.limits.backoff.delay(slot.crashes, self._rng)
        self._notes.crash(slot, exc, "backoff", delay_s)
        await self._back_off(slot, delay_s)
        return not slot.mailbox.empty()

    async def _later(self, slot: Slot) -> bool:
        """What befell the database ended an incarnation: nobody's crash. Its mail waits, or expires."""
        self._notes.count("put_off")
        if self._stopping.is_set():
            return False
        slot.put_off += 1
        if self._gate.is_open and slot.put_off > 1:
            await self._back_off(slot, self.limits.backoff.delay(slot.put_off - 1, self._rng))
        return not slot.mailbox.empty()

    async def _back_off(self, slot: Slot, delay_s: float) -> None:
        slot.state = "backing_off"
        with trio.move_on_after(delay_s):
            await self._stopping.wait()
        slot.state = "awake"

    # ------------------------------------------------------------------------------------------- the two budgets

    def release(self, key: str) -> bool:
        """Let a quarantined key try again; an operator's decision. False where it is not quarantined."""
        slot = self._slots.get(key)
        if slot is None or slot.state != "quarantined":
            return False
        self._quarantine.release(slot)
        if slot.mailbox.empty():
            del self._slots[key]
        else:
            self._activate(slot)
        return True

    def quarantined(self) -> list[str]:
        """The keys in quarantine."""
        return [slot.key for slot in self._slots.values() if slot.state == "quarantined"]

    # ------------------------------------------------------------------------------------- the tree's side of it

    def child(self) -> KeyedChild:
        """A fresh run of this directory, for its place in the tree."""
        return KeyedChild(self)

    def place(self, path: str) -> None:
        """Learn where in the tree it lives."""
        self._notes.path = path

    @property
    def is_ready(self) -> bool:
        """Whether asks are taken in now."""
        return self._nursery is not None and not self._stopping.is_set() and not self._pause.is_on

    @property
    def awake_count(self) -> int:
        """How many actors are awake."""
        return self._awake_count

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Run incarnations until :meth:`drain` is done; mail left over wakes its actors when run again."""
        self._stopping = trio.Event()
        self._pause.end()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for slot in list(self._slots.values()):
                    if slot.state == "asleep" and not slot.mailbox.empty():
                        self._activate(slot)
                task_status.started()
                nursery.start_soon(self._sweep)
                await self._stopping.wait()
                await self._drained()
            finally:
                # Before the nursery closes, not after: a late tell must find either room in it or none.
                self._nursery = None
            nursery.cancel_scope.cancel()

    async def drain(self) -> None:
        """Take no more asks, let every actor finish its mail and its decisions under way, then end."""
        self._stopping.set()

    async def _drained(self) -> None:
        while self._awake_count:
            is_held_up = self._pause.is_on or not self._gate.is_open
            if is_held_up and all(slot.actor is None for slot in self._slots.values()):
                # Nobody is at work, and nobody can begin: their mail stays for the next run.
                return
            self._emptied = trio.Event()
            for slot in self._slots.values():
                if slot.state == "awake" and not slot.mailbox.has_system:
                    slot.mailbox.put_system(SystemMessage.STOP)
            with trio.move_on_after(0.5):
                await self._emptied.wait()

    async def _sweep(self) -> None:
        """Put idle actors to sleep, the longest idle first."""
        while True:
            await trio.sleep(max(self.limits.idle_s / 8, 0.05))
            oldest = trio.current_time() - self.limits.idle_s
            for slot in list(self._slots.values()):
                if slot.last_used > oldest:
                    break
                if slot.mailbox.empty() and self._is_forgettable(slot):
                    self._forget(slot)
                elif slot.state == "awake" and slot.mailbox.empty() and not slot.mailbox.has_system:
                    slot.mailbox.put_system(SystemMessage.PASSIVATE)

    def _passivate_oldest(self) -> None:
        for slot in self._slots.values():
            if slot.state == "awake" and slot.mailbox.empty() and not slot.mailbox.has_system:
                slot.mailbox.put_system(SystemMessage.PASSIVATE)
                return
