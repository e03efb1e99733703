"""The actor on trio: a pykka actor whose loop is a trio task, and one that writes through the journal.

From pykka: the class, its references, envelopes, lifecycle hooks (``on_start``, ``on_receive``, ``on_stop``,
``on_failure``) and message handling. Private members used here: ``_handle_receive``, ``_actor_ref``,
``ActorRef._actor_weakref`` (through ``ActorRef.__init__``) and ``_envelope.Envelope``.

A journaled actor decides the next message without waiting for the disk. Its undurable decisions wait in a queue,
each with its envelope, and their replies are sent in that order as the journal settles the units. If a unit is
void, every later decision is void too: the incarnation ends, its unanswered messages return to the front of the
mailbox, and a new incarnation reloads the rows and decides them again.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import ClassVar, NoReturn

import pykka
import structlog
import trio

from holdfast import metrics
from holdfast.actors.runtime.faults import (
    AskFault,
    Crashed,
    EndedByOperator,
    OutcomeUnknown,
    StaleFence,
    Unavailable,
)
from holdfast.actors.runtime.future import TrioFuture
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, SystemMessage
from holdfast.actors.runtime.refs import StoppedFlag
from holdfast.actors.runtime.turns import Commit
from holdfast.metrics.batched_histogram import BatchedHistogram
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
from holdfast.persistence.records.accounts import IdempotencyProbe, StoredReply
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.traces import traceparent, within_trace

log = structlog.get_logger(__name__)


class Ending(Enum):
    """How an incarnation ended, if it did not crash."""

    PASSIVATED = "passivated"
    STOPPED = "stopped"
    VOIDED = "voided"
    ENDED = "ended"
    """By an operator, with messages left in the mailbox."""


class Reload(Exception):
    """Raised by a handler that found its state older than the rows: reload and decide the message again."""


class IncarnationRef(pykka.ActorRef[pykka.Actor]):
    """A reference to one incarnation. ``ask`` returns an awaitable; its blocking form raises RuntimeError."""

    def ask(self, message: object, *, block: bool = False, timeout: float | None = None) -> pykka.Future[object]:
        """Send a message; await the returned future for the reply."""
        if block or timeout is not None:
            raise RuntimeError("a trio actor must be asked without blocking: await the future, with a deadline")
        return super().ask(message, block=False)


class TrioActor(pykka.Actor):
    """One incarnation of an actor. Its mailbox is passed in and outlives it."""

    kind: ClassVar[str] = "actors"
    """The kind of actor in metrics, the name of its directory or worker."""
    mailbox_max: ClassVar[int] = 1000
    turns_between_checkpoints: ClassVar[int] = 32

    is_void = False
    """Whether its state is void, so that it must end before the next turn."""

    is_serving = False
    """Whether it has started, and handles messages."""

    def __init__(self, mailbox: Mailbox | None = None) -> None:
        # Not super().__init__(): it draws a random urn and creates a threading.Event for each incarnation.
        self.actor_urn = f"urn:holdfast:{type(self).__name__}:{id(self):x}"
        self.actor_inbox: Mailbox = mailbox if mailbox is not None else self._create_actor_inbox()
        self.actor_stopped = StoppedFlag()  # type: ignore[assignment]  # the same two methods
        self._actor_ref = IncarnationRef(self)
        self.last_message: type[object] | None = None
        self.turn: Envelope | None = None
        """The message that it handles now, or that it crashed on."""
        self.turn_began_at = 0.0

    @classmethod
    def _create_actor_inbox(cls) -> Mailbox:
        return Mailbox(cls.mailbox_max)

    @staticmethod
    def _create_future() -> TrioFuture[object]:
        return TrioFuture()

    @classmethod
    def start(cls, *_: object, **__: object) -> NoReturn:
        """Raise RuntimeError: a supervisor starts an actor, and pykka's registry would retain it."""
        raise RuntimeError("a trio actor is started by its supervisor, never by start()")

    def _start_actor_loop(self) -> NoReturn:
        raise RuntimeError("a trio actor is started by its supervisor, never by start()")

    def _stop(self) -> None:
        """End once the mailbox is empty: pykka's ``stop()``."""
        self.actor_inbox.put_system(SystemMessage.STOP)

    async def serve(self) -> Ending:
        """Handle messages until the actor ends. Raises what a handler raised.

        ``on_start``, which may read rows, has been awaited by the caller. The last call is ``on_stop``, or
        ``on_failure`` after a crash.
        """
        self.is_serving = True
        try:
            ending = await self._turns()
            await self.on_stop()
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
            if self.is_void or mailbox.has_system:
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
        """Return how to end, if a system message says so and, for most of them, the mailbox is empty."""
        message = self.actor_inbox.get_system()
        if message is None:
            return None
        if message is SystemMessage.CRASH:
            raise EndedByOperator("an operator crashed it")
        if message is SystemMessage.END:
            return Ending.ENDED
        if not self.actor_inbox.empty():
            if message is SystemMessage.STOP:
                self.actor_inbox.put_system(message)
            return None
        return Ending.STOPPED if message is SystemMessage.STOP else Ending.PASSIVATED

    async def _turn(self, envelope: Envelope) -> None:
        now = trio.current_time()
        waits, turns = _measured(self.kind)
        if envelope.sent_at:
            waits.observe(now - envelope.sent_at)
        if envelope.deadline < now:
            self.on_expired(envelope)
            return
        self.last_message = type(envelope.message)
        self.turn, self.turn_began_at = envelope, now
        traceparent.set(envelope.traceparent)
        try:
            result: object = self._handle_receive(envelope.message)
            if inspect.iscoroutine(result):
                result = await result
        except trio.Cancelled:
            envelope.fail(OutcomeUnknown("the actor was stopped while handling the command"))
            raise
        except Exception as exc:
            self._on_exception(envelope, exc)
        else:
            self._finish(envelope, result)
        finally:
            turns.observe(trio.current_time() - now)
        self.turn = None

    def _on_exception(self, envelope: Envelope, exc: Exception) -> None:
        """End the incarnation, for an ask as for a tell: its state may be ahead of the rows."""
        if isinstance(exc, DatabaseAway):
            envelope.fail(Unavailable(str(exc), retry_after_s=exc.retry_after_s))
            raise exc
        crash = Crashed(f"{type(self).__name__} crashed while handling {type(envelope.message).__name__}")
        crash.__cause__ = exc
        envelope.fail(crash)
        raise exc

    def _finish(self, envelope: Envelope, result: object) -> None:
        envelope.reply(result)

    def on_expired(self, envelope: Envelope) -> None:
        """Skip a message whose deadline has passed."""
        envelope.fail(OutcomeUnknown("the command's deadline passed before its turn"))

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        """Load the actor's state. An exception ends the incarnation before its first message."""

    async def on_stop(self) -> None:  # type: ignore[override]  # may await
        """Clean up after a normal end."""

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Clean up after a crash."""


@functools.cache
def _measured(kind: str) -> tuple[BatchedHistogram, BatchedHistogram]:
    return metrics.MAILBOX_WAIT_S.labels(kind), metrics.TURN_S.labels(kind)


class JournaledActor(TrioActor):
    """An actor that writes through the journal, as an :class:`~holdfast.persistence.journal.units.Author`."""

    own_fence: ClassVar[FenceKind]

    def __init__(self, mailbox: Mailbox, journal: Journal) -> None:
        super().__init__(mailbox)
        self.learned: list[tuple[IdempotencyProbe, StoredReply]] = []
        self._journal = journal
        self._undurable: deque[tuple[Envelope, object]] = deque()
        self._units_open = 0
        self._void: list[Envelope] = []
        self._broken: Exception | None = None
        self.committed_any = False
        self.was_stale = False
        """Whether it is void because a row had a newer version, not because of the database."""
        self.on_requeued: Callable[[], None] | None = None
        """Called when messages return to the mailbox after this incarnation has ended, to start the next one."""
        self._awaits_units = False

    def learn(self, learned: list[tuple[IdempotencyProbe, StoredReply]]) -> None:
        """Take over the stored replies that an earlier incarnation found."""

    async def wind_down(self) -> None:
        """Wait for all open units, then return the messages of void ones to the mailbox."""
        await self._await_units()
        self._requeue()

    async def await_durable(self) -> None:
        """Inside a turn: wait until all earlier decisions are durable. Raises :class:`Reload` if one is void.

        Required before asking another actor to write something that depends on them: if one is void, the other
        actor's unit would still be written, even past its fence if another process has written the same version.
        """
        await self._await_units()
        if self.is_void:
            raise Reload("an earlier decision is void")

    async def _await_units(self) -> None:
        self._awaits_units = True
        try:
            while self._units_open:
                await self.actor_inbox.wait()
        finally:
            self._awaits_units = False

    def _requeue(self) -> None:
        if self._void:
            self.actor_inbox.requeue(self._void)
            self._void = []
            if self.on_requeued is not None:
                self.on_requeued()

    async def _ending(self) -> Ending | None:
        ending = None if self.is_void else await super()._ending()
        if ending is not None:
            await self.wind_down()
        if self.is_void:
            await self.wind_down()
            if self._broken is not None:
                raise self._broken
            return Ending.VOIDED
        if ending in {Ending.STOPPED, Ending.PASSIVATED} and not self.actor_inbox.empty():
            if ending is Ending.STOPPED:
                self.actor_inbox.put_system(SystemMessage.STOP)
            return None
        return ending

    def _on_exception(self, envelope: Envelope, exc: Exception) -> None:
        if isinstance(exc, Reload | DatabaseAway):
            # A read that failed because the database is away is not a crash.
            self.is_void = True
            self._decide_again(envelope)
        elif isinstance(exc, UnreadableRow):
            # The actor reads several rows, and its state may already depend on others of them, so it is reloaded.
            log.error("row is unreadable", table=exc.table, key=exc.key, reason=str(exc))
            envelope.fail(exc)
            self.is_void = True
        elif isinstance(exc, AskFault):
            # Another actor did not reply to this turn's ask. If it may have acted, this actor's state is in doubt.
            envelope.fail(exc)
            self.is_void = self.is_void or isinstance(exc, OutcomeUnknown)
        else:
            super()._on_exception(envelope, exc)

    def _decide_again(self, envelope: Envelope) -> None:
        """Leave a message to the next incarnation, after those decided before it."""
        if self._undurable:
            self._undurable.append((envelope, None))
        else:
            self._void.append(envelope)

    def _finish(self, envelope: Envelope, result: object) -> None:
        if isinstance(result, Commit):
            self._undurable.append((envelope, result))
            self._units_open += 1
            self._journal.submit(result.unit, self)
        elif self._undurable:
            self._undurable.append((envelope, result))
        else:
            envelope.reply(result)

    def settle(self, unit: Unit, result: UnitResult) -> None:
        """Take the journal's result for a unit: send the reply, or mark all undurable decisions as void."""
        self._units_open -= 1
        envelope, commit = self._undurable.popleft()
        assert isinstance(commit, Commit)
        assert commit.unit is unit
        if isinstance(result, Committed):
            self.committed_any = True
            envelope.reply(commit.reply)
            if commit.tells:
                self._send(commit, envelope.traceparent)
            self._flush_replies()
        else:
            self._on_not_committed(envelope, unit, result)
        if not self._units_open and self.actor_stopped.is_set():
            # It was killed or crashed while units were open, so no loop returns its messages.
            self._requeue()
        if self.is_void or self._awaits_units:
            self.actor_inbox.wake()

    @staticmethod
    def _send(commit: Commit[object], trace: str | None) -> None:
        """Send the tells within the trace of their cause: this runs in the journal's task."""
        with within_trace(trace):
            for tell in commit.tells:
                tell.to.tell(tell.message)

    def _flush_replies(self) -> None:
        while self._undurable and not isinstance(self._undurable[0][1], Commit):
            envelope, reply = self._undurable.popleft()
            if self.is_void:
                self._void.append(envelope)
            else:
                envelope.reply(reply)

    def _on_not_committed(self, envelope: Envelope, unit: Unit, result: UnitResult) -> None:
        self.is_void = True
        if isinstance(result, Unknown):
            envelope.fail(OutcomeUnknown(result.reason))
        elif isinstance(result, Broken):
            crash = Crashed(f"the database refuses the unit of work of {type(envelope.message).__name__}")
            crash.__cause__ = result.cause
            envelope.fail(crash)
            self._broken = crash
        elif isinstance(result, Stale) and all(fence.kind != self.own_fence for fence in result.fences):
            # Deciding again would not help: the row with the newer version is the asking actor's.
            envelope.fail(StaleFence(", ".join(f"{fence.kind} {fence.key}" for fence in result.fences)))
        else:
            self.was_stale = self.was_stale or not isinstance(result, NotWritten)
            if isinstance(result, AlreadyReplied) and unit.probe is not None:
                self.learned.append((unit.probe, result.stored))
            self._void.append(envelope)
        self._flush_replies()
