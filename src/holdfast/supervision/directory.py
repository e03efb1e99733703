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
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import trio

from holdfast.actors.runtime.actor import TrioActor
from holdfast.actors.runtime.faults import Deadlock, OutcomeUnknown, Overloaded, Unavailable
from holdfast.actors.runtime.future import AskDeadlines, TrioFuture
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, MailboxFull
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import KeyedRef, WhileDown, until_accepted
from holdfast.actors.workers.poison_writer import PoisonedMessage
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.keyed_child import KeyedChild, KeyedLimits, WriteGate
from holdfast.supervision.keyed_lives import KeyedLives, asking_from
from holdfast.supervision.keyed_reports import KeyedReports
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.telemetry.traces import traceparent

R = TypeVar("R")


class KeyedDirectory:
    """All virtual actors of one kind. As a child of the tree it may run again; its mailboxes outlive its runs.

    ``poison`` is called with each message that crashed its actor.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[str, Mailbox], TrioActor],
        *,
        gate: WriteGate,
        probe: Callable[[], Awaitable[bool]],
        reporter: Reporter,
        dead_letters: DeadLetters,
        poison: Callable[[PoisonedMessage], None] | None = None,
        limits: KeyedLimits | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        limits = limits if limits is not None else KeyedLimits()
        rng = rng if rng is not None else random.Random()  # noqa: S311 - spreads waiting times
        self.reports = KeyedReports(name, limits, reporter, dead_letters, poison)
        self.lives = KeyedLives(name, factory, gate=gate, probe=probe, reports=self.reports, limits=limits, rng=rng)
        self._deadlines = AskDeadlines()

    def ref(self, key: str) -> KeyedRef:
        """Return the address of the actor with this key."""
        return KeyedRef(self, key)

    async def ask(self, key: str, message: Command[R], deadline_s: float, while_down: WhileDown) -> R | Refusal:
        """Ask the actor of a key. Raises as :meth:`AskRef.ask` does."""
        asker = asking_from.get()
        if asker is not None and key in self.lives.children:
            _refuse_cycle(asker, self.lives.children[key])
        now = trio.current_time()
        future: TrioFuture[object] = TrioFuture()
        envelope = Envelope(message, future, deadline=now + deadline_s, sent_at=now, traceparent=traceparent.get())
        if while_down == "wait":
            child = await until_accepted(lambda: self.accept(key, envelope), now + deadline_s)
        else:
            child = self.accept(key, envelope, fails_fast=while_down == "fail")
        if asker is not None:
            asker.waiting_on = child
        try:
            # The actor's handler of a Command[R] replies with an R.
            return cast("R | Refusal", await self._deadlines.wait(future, now + deadline_s, deadline_s))
        finally:
            if not future.is_set:
                future.fail(OutcomeUnknown("its sender no longer waits"))
            if asker is not None:
                asker.waiting_on = None

    def accept(self, key: str, envelope: Envelope, *, fails_fast: bool = False) -> KeyedChild:
        """Put an ask into its actor's mailbox; with ``fails_fast`` not while the actor waits to be restarted.

        Raises :class:`Unavailable` or :class:`Overloaded`.
        """
        self._refuse_if_unavailable()
        child = self.lives.child(key)
        if child.state == "quarantined" and not self.lives.quarantine.begin_trial(child):
            raise self.lives.quarantine.refusal(child)
        if fails_fast and child.backoff is not None:
            left_s = max(child.backoff.deadline - trio.current_time(), 0.0)
            raise Unavailable(f"{self.name} {key} restarts", retry_after_s=left_s)
        self._put(child, envelope)
        return child

    def tell(self, key: str, message: Command[object]) -> None:
        """Tell the actor of a key; where the message is not accepted, it becomes a dead letter."""
        child = self.lives.child(key)
        envelope = Envelope(message, sent_at=trio.current_time(), traceparent=traceparent.get())
        if child.state == "quarantined" and not self.lives.quarantine.begin_trial(child):
            self.lives.quarantine.dead_letter(child, envelope)
            return
        try:
            self._put(child, envelope)
        except Overloaded:
            self.reports.dead_letter(child, "full", envelope)

    def _refuse_if_unavailable(self) -> None:
        if self.lives.stopping.is_set() or self.lives.nursery is None:
            raise Unavailable(f"{self.name} are not running")
        if not self.lives.gate.is_open:
            raise Unavailable(self.lives.gate.reason, retry_after_s=self.lives.gate.retry_after_s)
        if self.lives.pause.is_on:
            raise Unavailable(f"{self.name} are paused", retry_after_s=self.lives.limits.probe_backoff.max_s)

    def _put(self, child: KeyedChild, envelope: Envelope) -> None:
        try:
            child.mailbox.put(envelope)
        except MailboxFull as full:
            raise Overloaded(f"{self.name} {child.key}: {full}") from full
        child.last_used = envelope.sent_at
        self.lives.children.move_to_end(child.key)
        if child.state == "passivated":
            self.lives.activate(child)

    def pause(self, reason: str) -> None:
        """Refuse asks until :meth:`resume`, for an operator; actors that are active finish what they have."""
        self.lives.pause.begin_by_operator(reason)
        self.reports.paused(reason)

    def resume(self, reason: str) -> None:
        """End a pause, for an operator."""
        if self.lives.pause.is_on:
            self.lives.pause.end_by_operator()
            self.reports.resumed(reason)

    @property
    def active_count(self) -> int:
        """How many actors are active."""
        return self.lives.active_count

    def mailboxes(self) -> list[Mailbox]:
        """Return the mailboxes of all keys."""
        return [child.mailbox for child in self.lives.children.values()]

    def quarantined(self) -> list[str]:
        """Return the keys in quarantine."""
        return [child.key for child in self.lives.children.values() if child.state == "quarantined"]

    def place(self, path: str) -> None:
        """Set the path in the tree."""
        self.reports.path = path

    @property
    def is_ready(self) -> bool:
        """Whether asks are answered here: accepted, or refused because an operator paused the group."""
        lives = self.lives
        is_paused = lives.pause.is_on and lives.pause.operators_reason is None
        return lives.nursery is not None and not lives.stopping.is_set() and not is_paused

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run actors until :meth:`stop` has drained them. The next run handles the messages left over."""
        self.lives.stopping = trio.Event()
        self.lives.pause.end()
        async with trio.open_nursery() as nursery:
            self.lives.nursery = nursery
            try:
                for child in list(self.lives.children.values()):
                    if child.state == "passivated" and not child.mailbox.empty():
                        self.lives.activate(child)
                task_status.started()
                nursery.start_soon(self.lives.sweep)
                await self.lives.stopping.wait()
                await self.lives.drain()
            finally:
                # Before the nursery closes: a late tell must not start a task in a closed one.
                self.lives.nursery = None
            nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """Refuse further asks; every actor handles its messages and awaits its commits, then the run ends."""
        self.lives.stopping.set()


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
