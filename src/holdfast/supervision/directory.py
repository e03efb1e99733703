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

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

import trio

from holdfast.actors.runtime.faults import Deadlock, OutcomeUnknown, Overloaded, ShareExceeded, Unavailable
from holdfast.actors.runtime.mailbox import AskDeadlines, Envelope, Mailbox, MailboxFull, SystemMessage, TrioFuture
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import KeyedRef, WhileDown, until_accepted
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.keyed_child import KeyedChild, asking_from
from holdfast.supervision.keyed_group import KeyedGroup
from holdfast.telemetry.traces import traceparent

R = TypeVar("R")

SWEEPS_APART_S: Final = 0.25


@dataclass(eq=False)
class KeyedDirectory(KeyedGroup):
    """All virtual actors of one kind. As a child of the tree it may run again; its mailboxes outlive its runs."""

    by_key: OrderedDict[str, KeyedChild] = field(default_factory=OrderedDict, init=False)
    """The least recently used first."""
    _deadlines: AskDeadlines = field(default_factory=AskDeadlines, init=False)

    def ref(self, key: str) -> KeyedRef:
        """Return the address of the actor with this key."""
        return KeyedRef(self, key)

    def child(self, key: str) -> KeyedChild:
        """Return the child of a key; a new one is passivated."""
        child = self.by_key.get(key)
        if child is None:
            child = self.by_key[key] = self.new_child(key)
        return child

    def new_child(self, key: str) -> KeyedChild:
        """Return what the child of a key is before its first message."""
        return KeyedChild(key, self, self.by_key, Mailbox(self.limits.mailbox_max))

    # ------------------------------------------------------------------------------------------------- messages

    async def ask(self, key: str, message: Command[R], deadline_s: float, while_down: WhileDown) -> R | Refusal:
        """Ask the actor of a key. Raises as :meth:`AskRef.ask` does."""
        asker = asking_from.get()
        if asker is not None and key in self.by_key:
            _refuse_cycle(asker, self.by_key[key])
        now = trio.current_time()
        future: TrioFuture[object] = TrioFuture()
        envelope = Envelope(message, future, deadline=now + deadline_s, sent_at=now, traceparent=traceparent.get())
        if while_down == "wait":
            child = await until_accepted(lambda: self.accept(key, envelope), now + deadline_s)
        else:
            child = self.accept(key, envelope, fails_fast=while_down == "fail")
        if asker is not None:
            asker.waiting_on = child
        self._deadlines.add(future, now + deadline_s, deadline_s)
        try:
            # The actor's handler of a Command[R] replies with an R.
            return cast("R | Refusal", await future.wait())
        finally:
            self._deadlines.remove(future)
            if not future.is_set:
                future.fail(OutcomeUnknown("its sender no longer waits"))
            if asker is not None:
                asker.waiting_on = None

    def accept(self, key: str, envelope: Envelope, *, fails_fast: bool = False) -> KeyedChild:
        """Put an ask into its actor's mailbox; with ``fails_fast`` not while the actor waits to be restarted.

        Raises :class:`Unavailable` or :class:`Overloaded`.
        """
        if self.stopping.is_set() or self.nursery is None:
            raise Unavailable(f"{self.name} are not running")
        if not self.gate.is_open:
            raise Unavailable(self.gate.reason, retry_after_s=self.gate.retry_after_s)
        if self._pause_over is not None:
            raise Unavailable(f"{self.name} are paused", retry_after_s=self.limits.probe_backoff.max_s)
        child = self.child(key)
        if child.quarantine is not None and not child.begin_trial():
            raise child.refusal()
        if fails_fast and child.backoff is not None:
            left_s = max(child.backoff.deadline - trio.current_time(), 0.0)
            raise Unavailable(f"{self.name} {key} restarts", retry_after_s=left_s)
        self._put(child, envelope)
        return child

    def tell(self, key: str, message: Command[object]) -> None:
        """Tell the actor of a key; where the message is not accepted, it becomes a dead letter."""
        child = self.child(key)
        envelope = Envelope(message, sent_at=trio.current_time(), traceparent=traceparent.get())
        if child.quarantine is not None and not child.begin_trial():
            child.refuse(envelope)
            return
        try:
            self._put(child, envelope)
        except Overloaded:
            child.dead_letter("full", envelope)

    def _put(self, child: KeyedChild, envelope: Envelope) -> None:
        try:
            child.mailbox.put(envelope)
        except MailboxFull as full:
            raise ShareExceeded(f"{self.name} {child.key}: {full}") from full
        child.last_used = envelope.sent_at
        self.by_key.move_to_end(child.key)
        if child.scope is None:
            child.activate()

    # ---------------------------------------------------------------------------------------------- its state now

    def mailboxes(self) -> list[Mailbox]:
        """Return the mailboxes of all keys."""
        return [child.mailbox for child in self.by_key.values()]

    def quarantined(self) -> list[str]:
        """Return the keys in quarantine."""
        return [child.key for child in self.by_key.values() if child.quarantine is not None]

    def set_path(self, path: str) -> None:
        """Set the path in the tree."""
        self.path = path

    @property
    def is_ready(self) -> bool:
        """Whether asks are answered here: accepted, or refused because an operator paused the group."""
        is_paused = self.is_paused and self.operators_reason is None
        return self.nursery is not None and not self.stopping.is_set() and not is_paused

    # ----------------------------------------------------------------------------------------------------- the run

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run actors until :meth:`stop` has drained them. The next run handles the messages left over."""
        self.stopping = trio.Event()
        self.end_pause()
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            try:
                for child in list(self.by_key.values()):
                    if child.quarantine is None and not child.mailbox.empty():
                        child.activate()
                task_status.started()
                nursery.start_soon(self._sweep)
                await self.stopping.wait()
                await self._drain()
            finally:
                # Before the nursery closes: a late tell must not start a task in a closed one.
                self.nursery = None
            nursery.cancel_scope.cancel()

    async def _drain(self) -> None:
        """Let every actor handle its messages, await its commits and end."""
        while self.active_count:
            is_blocked = self.is_paused or not self.gate.is_open
            if is_blocked and all(child.actor is None for child in self.by_key.values()):
                # No actor works and none can start: the messages stay for the next run.
                return
            self.emptied = trio.Event()
            for child in self.by_key.values():
                if child.is_running:
                    child.mailbox.put_system(SystemMessage.STOP)
            with trio.move_on_after(0.5):
                await self.emptied.wait()

    async def _sweep(self) -> None:
        """Passivate idle actors, the longest idle first, and forget what need not be remembered.

        It is repeated soon after there are more than ``active_max``, not at once: it may look at every actor.
        """
        while True:
            with trio.move_on_after(max(self.limits.idle_s / 8, SWEEPS_APART_S)):
                await self.crowded.wait()
            self._sweep_once()
            await trio.sleep(SWEEPS_APART_S)
            if self.active_count <= self.limits.active_max:
                self.crowded = trio.Event()

    def _sweep_once(self) -> None:
        excess = self.active_count - self.limits.active_max
        idle_since = trio.current_time() - self.limits.idle_s
        for child in list(self.by_key.values()):
            is_long_idle = child.last_used <= idle_since
            if not is_long_idle and excess <= 0:
                break
            if child.is_running and child.mailbox.empty():
                child.mailbox.put_system(SystemMessage.PASSIVATE)
                excess -= 1
            elif is_long_idle:
                child.forget()

    async def stop(self) -> None:
        """Refuse further asks; every actor handles its messages and awaits its commits, then the run ends."""
        self.stopping.set()


def _refuse_cycle(asker: KeyedChild, target: KeyedChild) -> None:
    """Raise :class:`Deadlock` if ``target`` waits, directly or through others, for ``asker``."""
    chain = [asker.key, target.key]
    step: KeyedChild | None = target
    while step is not None:
        if step is asker:
            raise Deadlock(" -> ".join(chain))
        step = step.waiting_on
        if step is not None:
            chain.append(step.key)
