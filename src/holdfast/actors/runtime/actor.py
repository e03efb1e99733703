"""The trio actor: pykka's actor, with a loop that is a trio task and a memory that never outlives a void decision.

What is pykka's: the class, its refs, envelopes, lifecycle hooks (``on_start``, ``on_receive``, ``on_stop``,
``on_failure``) and message dispatch. What is ours: the mailbox, an awaitable future, the loop, and the bond with
the journal. Private members of pykka used here: ``_handle_receive``, ``_actor_ref``, ``ActorRef._actor_weakref``
(through ``ActorRef.__init__``) and ``_envelope.Envelope``.

An actor decides its next message without waiting for the disk. What it decided and is not yet durable stands in
a queue, each entry with its envelope; replies leave in that order as the journal settles the units. When a unit
is void, everything decided after it is void too: the incarnation ends, its unanswered messages go back to the
front of the mailbox, and a new incarnation reloads the rows and decides them again.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Any, ClassVar, NoReturn

import pykka
import structlog
import trio

from holdfast.actors.runtime.faults import AskFault, Crashed, OutcomeUnknown, StaleFence, Unavailable
from holdfast.actors.runtime.future import TrioFuture
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, Order
from holdfast.actors.runtime.refs import StoppedFlag
from holdfast.actors.runtime.trace import trace_id
from holdfast.actors.runtime.turns import Commit
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import (
    AlreadyReplied,
    Broken,
    Committed,
    FenceKind,
    NotWritten,
    Stale,
    Unit,
    UnitResult,
    Unknown,
)
from holdfast.persistence.records.accounts import IdempotencyProbe, RememberedReply
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway

log = structlog.get_logger(__name__)


class Ending(Enum):
    """How an incarnation came to its end, crashes aside."""

    PASSIVATED = "passivated"
    STOPPED = "stopped"
    VOIDED = "voided"


class Reload(Exception):
    """Raised by a handler whose memory turned out to be behind the rows: reload, and decide the message again."""


class IncarnationRef(pykka.ActorRef[Any]):
    """A reference to one incarnation. ``ask`` returns an awaitable; its blocking form raises RuntimeError."""

    def ask(self, message: Any, *, block: bool = False, timeout: float | None = None) -> Any:
        """Send a message; await the returned future for the reply."""
        if block or timeout is not None:
            raise RuntimeError("a trio actor is asked without blocking: await the future, under a deadline")
        return super().ask(message, block=False)


class TrioActor(pykka.Actor):
    """One incarnation of an actor. Its mailbox is given to it and outlives it."""

    mailbox_max: ClassVar[int] = 1000
    turns_between_checkpoints: ClassVar[int] = 32

    is_void = False
    """Whether its memory no longer stands, so that it must end before its next turn."""

    def __init__(self, mailbox: Mailbox | None = None) -> None:
        # Not super().__init__(): it would draw a random urn and build a threading.Event for each incarnation.
        self.actor_urn = f"urn:holdfast:{type(self).__name__}:{id(self):x}"
        self.actor_inbox: Mailbox = mailbox if mailbox is not None else self._create_actor_inbox()
        self.actor_stopped = StoppedFlag()  # type: ignore[assignment]  # the same two methods
        self._actor_ref = IncarnationRef(self)
        self.last_message: type[Any] | None = None

    @classmethod
    def _create_actor_inbox(cls) -> Mailbox:
        return Mailbox(cls.mailbox_max)

    @staticmethod
    def _create_future() -> TrioFuture[Any]:
        return TrioFuture()

    @classmethod
    def start(cls, *_: Any, **__: Any) -> NoReturn:
        """Refused, before pykka's registry would keep what never ran."""
        raise RuntimeError("a trio actor is started by its supervisor, never by start()")

    def _start_actor_loop(self) -> NoReturn:
        raise RuntimeError("a trio actor is started by its supervisor, never by start()")

    def _stop(self) -> None:
        """What pykka's ``stop()`` comes to: end when the mail is read, by the loop's own way out."""
        self.actor_inbox.order(Order.STOP)

    async def serve(self) -> Ending:
        """Handle messages until the actor is to end. Raises what a handler raised: the incarnation is over.

        Whoever runs the actor has awaited ``on_start`` before, which may read rows. ``on_stop`` runs last,
        except after a crash, when ``on_failure`` does.
        """
        try:
            ending = await self._turns()
            await _awaited(self.on_stop())
        except Exception as exc:
            self.on_failure(type(exc), exc, exc.__traceback__)
            raise
        finally:
            self.actor_stopped.set()
        return ending

    async def _turns(self) -> Ending:
        mailbox = self.actor_inbox
        turns_left = self.turns_between_checkpoints
        while True:
            if self.is_void or mailbox.has_orders:
                ending = await self._ending()
                if ending is not None:
                    return ending
            if mailbox.empty():
                await mailbox.wait()
                turns_left = self.turns_between_checkpoints
            elif turns_left == 0:
                await trio.lowlevel.checkpoint()
                turns_left = self.turns_between_checkpoints
            else:
                turns_left -= 1
                await self._turn(mailbox.get())

    async def _ending(self) -> Ending | None:
        """Whether it is time to end: ordered to, and no mail left."""
        order = self.actor_inbox.next_order()
        if order is None:
            return None
        if not self.actor_inbox.empty():
            if order is Order.STOP:
                self.actor_inbox.order(order)
            return None
        return Ending.STOPPED if order is Order.STOP else Ending.PASSIVATED

    async def _turn(self, envelope: Envelope) -> None:
        if envelope.deadline < trio.current_time():
            self.on_expired(envelope)
            return
        self.last_message = type(envelope.message)
        trace_id.set(envelope.trace_id)
        try:
            result = self._handle_receive(envelope.message)
            if inspect.iscoroutine(result):
                result = await result
        except trio.Cancelled:
            envelope.fail(OutcomeUnknown("the actor was stopped while handling the command"))
            raise
        except Exception as exc:
            self._break(envelope, exc)
            return
        self._finish(envelope, result)

    def _break(self, envelope: Envelope, exc: Exception) -> None:
        """An exception, in an ask as in a tell, ends the incarnation: its memory may be ahead of the rows."""
        if isinstance(exc, DatabaseAway):
            envelope.fail(Unavailable(str(exc), retry_after_s=exc.retry_after_s))
            raise exc
        crash = Crashed(f"{type(self).__name__} broke while handling {type(envelope.message).__name__}")
        crash.__cause__ = exc
        envelope.fail(crash)
        raise exc

    def _finish(self, envelope: Envelope, result: Any) -> None:
        envelope.reply(result)

    def on_expired(self, envelope: Envelope) -> None:
        """A message whose asker has stopped waiting is skipped before it is begun."""
        envelope.fail(OutcomeUnknown("the command's deadline passed before its turn"))

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        """Load what the actor needs; a fault here ends the incarnation before its first message."""

    async def on_stop(self) -> None:  # type: ignore[override]  # may await
        """Clean up after a proper end."""

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Clean up after a crash."""


class JournaledActor(TrioActor):
    """An actor that writes its changes through the journal, as an
    :class:`~holdfast.persistence.journal.units.Author`.
    """

    own_fence: ClassVar[FenceKind]

    def __init__(self, mailbox: Mailbox, journal: Journal) -> None:
        super().__init__(mailbox)
        self.learned: list[tuple[IdempotencyProbe, RememberedReply]] = []
        self._journal = journal
        self._undurable: deque[tuple[Envelope, Any]] = deque()
        self._units_open = 0
        self._again: list[Envelope] = []
        self._broken: Exception | None = None
        self.committed_any = False
        self.was_overtaken = False
        """Whether it is void because a row had moved on, and not for what befell the database."""
        self.on_handed_back: Callable[[], None] | None = None
        """Called when mail has gone back after the end of this incarnation, for somebody must wake the next."""
        self._is_winding_down = False

    def learn(self, learned: list[tuple[IdempotencyProbe, RememberedReply]]) -> None:
        """Take over answers that an earlier incarnation found to have been given already."""

    async def wind_down(self) -> None:
        """Wait out the decisions under way, then hand void ones back to the mailbox."""
        await self._wait_out()
        self._hand_back()

    async def await_durable(self) -> None:
        """Inside a turn: wait until all decided before is durable. Raises :class:`Reload` where it is void.

        Needed before another actor is asked to write what stands on it. That other's unit would not fall with ours:
        should a third have moved the row to a version of the same number, its fence would even hold.
        """
        await self._wait_out()
        if self.is_void:
            raise Reload("an earlier decision is void")

    async def _wait_out(self) -> None:
        self._is_winding_down = True
        try:
            while self._units_open:
                await self.actor_inbox.wait()
        finally:
            self._is_winding_down = False

    def _hand_back(self) -> None:
        if self._again:
            self.actor_inbox.requeue(self._again)
            self._again = []
            if self.on_handed_back is not None:
                self.on_handed_back()

    async def _ending(self) -> Ending | None:
        ending = None if self.is_void else await super()._ending()
        if ending is not None:
            await self.wind_down()
        if self.is_void:
            await self.wind_down()
            if self._broken is not None:
                raise self._broken
            return Ending.VOIDED
        if ending is not None and not self.actor_inbox.empty():
            if ending is Ending.STOPPED:
                self.actor_inbox.order(Order.STOP)
            return None
        return ending

    def _break(self, envelope: Envelope, exc: Exception) -> None:
        if isinstance(exc, Reload | DatabaseAway):
            # A read in the middle of a turn that the database could not answer is nobody's crash.
            self.is_void = True
            self._finish_again(envelope)
        elif isinstance(exc, UnreadableRow):
            # One of the many rows it may read. What it knows of the others is read again, to be sure.
            log.error("a row cannot be read", table=exc.table, key=exc.key, reason=str(exc))
            envelope.fail(exc)
            self.is_void = True
        elif isinstance(exc, AskFault):
            # Somebody asked in turn could not answer. Only where it may have acted is our memory in doubt.
            envelope.fail(exc)
            self.is_void = self.is_void or isinstance(exc, OutcomeUnknown)
        else:
            super()._break(envelope, exc)

    def _finish_again(self, envelope: Envelope) -> None:
        """Keep a message for the next incarnation, behind those decided before it."""
        if self._undurable:
            self._undurable.append((envelope, None))
        else:
            self._again.append(envelope)

    def _finish(self, envelope: Envelope, result: Any) -> None:
        if isinstance(result, Commit):
            self._undurable.append((envelope, result))
            self._units_open += 1
            self._journal.submit(result.unit, self)
        elif self._undurable:
            self._undurable.append((envelope, result))
        else:
            envelope.reply(result)

    def settle(self, unit: Unit, unit_result: UnitResult) -> None:
        """Hear the journal: answer what has become durable, or give up everything that has not."""
        self._units_open -= 1
        envelope, result = self._undurable.popleft()
        assert isinstance(result, Commit)
        assert result.unit is unit
        if isinstance(unit_result, Committed):
            self.committed_any = True
            envelope.reply(result.reply)
            if result.tells:
                self._tell(result, envelope.trace_id)
            self._flush_replies()
        else:
            self._give_up(envelope, unit, unit_result)
        if not self._units_open and self.actor_stopped.is_set():
            # It was killed or crashed while this was under way: nobody else is left to hand its mail back.
            self._hand_back()
        if self.is_void or self._is_winding_down:
            self.actor_inbox.wake()

    @staticmethod
    def _tell(result: Commit, trace: str | None) -> None:
        """Send the news under the trace of the message that caused it: this runs in the journal's task."""
        token = trace_id.set(trace)
        try:
            for tell in result.tells:
                tell.to.tell(tell.message)
        finally:
            trace_id.reset(token)

    def _flush_replies(self) -> None:
        while self._undurable and not isinstance(self._undurable[0][1], Commit):
            envelope, reply = self._undurable.popleft()
            if self.is_void:
                self._again.append(envelope)
            else:
                envelope.reply(reply)

    def _give_up(self, envelope: Envelope, unit: Unit, unit_result: UnitResult) -> None:
        self.is_void = True
        if isinstance(unit_result, Unknown):
            envelope.fail(OutcomeUnknown(unit_result.reason))
        elif isinstance(unit_result, Broken):
            crash = Crashed(f"the database refuses what {type(envelope.message).__name__} wants written")
            crash.__cause__ = unit_result.cause
            envelope.fail(crash)
            self._broken = crash
        elif isinstance(unit_result, Stale) and all(fence.kind != self.own_fence for fence in unit_result.fences):
            # Deciding again here would change nothing: it is the asker whose row had moved.
            envelope.fail(StaleFence(", ".join(f"{fence.kind} {fence.key}" for fence in unit_result.fences)))
        else:
            self.was_overtaken = self.was_overtaken or not isinstance(unit_result, NotWritten)
            if isinstance(unit_result, AlreadyReplied) and unit.probe is not None:
                self.learned.append((unit.probe, unit_result.stored))
            self._again.append(envelope)
        self._flush_replies()


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
