"""The actor that writes through the journal.

It decides the next message without waiting for the disk. Its undurable decisions wait in a queue, each with its
envelope, and their replies are sent in that order as the units end. If a unit is void, every later
decision is void too: the incarnation ends, its unanswered messages return to the front of the mailbox, and a new
incarnation reloads the rows and decides them again.

The handler of a message returns a reply, or a unit of work and the reply that follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, Generic, Literal, Self, TypeAlias, TypeVar

import msgspec
import structlog

from holdfast.actors.runtime.actor import Ending, TrioActor
from holdfast.actors.runtime.faults import AskFault, Crashed, OutcomeUnknown, StaleFence
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, SystemMessage
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import TellRef
from holdfast.ledger.refusals import Refusal
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
from holdfast.persistence.records.rows import IdempotencyProbe, StoredReply
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry.logs import log_event
from holdfast.telemetry.traces import Span, start_span, traceparent

log = structlog.get_logger(__name__)


R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Tell(msgspec.Struct, frozen=True):
    """A message to send once the unit is durable."""

    to: TellRef
    message: Command[object]


LogFields: TypeAlias = dict[str, str | int | None]


class LogEvent(msgspec.Struct, frozen=True):
    """An event in the life of a task or a payment, logged once it is durable.

    The fields are our own ids, names of the catalog, codes and numbers, never a text from outside.
    """

    event: str
    fields: LogFields


class Commit(msgspec.Struct, Generic[R_co], frozen=True, eq=False):
    """Write ``unit``; once it is durable send ``reply`` and ``tells``, and log its event.

    ``tells_if_void`` are sent instead once it is certain that it was not written.
    """

    unit: Unit
    reply: R_co
    tells: tuple[Tell, ...] = ()
    log_event: LogEvent | None = None
    tells_if_void: tuple[Tell, ...] = ()


Turn: TypeAlias = Commit[R | Refusal] | R | Refusal
"""What the handler of a ``Command[R]`` returns."""


RELOADS_IN_ROW_MAX: Final = 5
"""Rows read again so often without a commit say the same the next time too."""


class Reload(Exception):
    """Raised by a handler that found its state older than the rows: reload and decide the message again.

    After :data:`RELOADS_IN_ROW_MAX` of them it is a crash.
    """


class JournaledActor(TrioActor):
    """An actor that writes through the journal, as an :class:`~holdfast.persistence.journal.units.Author`."""

    own_fences: ClassVar[frozenset[FenceKind]]
    """The kinds of rows that it reads by itself: what was decided on an older one is decided again."""

    crashed_on: Envelope | None = None
    """The message that it crashed on."""

    def __init__(self, mailbox: Mailbox, journal: Journal) -> None:
        super().__init__(mailbox)
        self.learned: list[tuple[IdempotencyProbe, StoredReply]] = []
        self._journal = journal
        self._undurable: list[tuple[Envelope, object]] = []  # a deque would cost each actor 760 bytes
        self._units_open = 0
        self._commits: dict[Unit, Span] = {}
        self._void: list[Envelope] = []
        self._broken: Exception | None = None
        self.committed_any = False
        self.void_cause: Literal["stale", "database"] | None = None
        """Why it became void: by a newer version of a row, or by the database. None: by a fault its sender got."""
        self.reloads_in_row = 0
        """How many times in a row, in this incarnation and those before it, a handler raised :class:`Reload`."""
        self.on_requeued: Callable[[], None] | None = None
        """Called when messages return to the mailbox after this incarnation has ended, to start the next one."""
        self._awaits_units = False

    def state(self) -> tuple[int | None, object]:
        """Return the version of its rows and what it decides on, for the record of a crash."""
        return None, None

    def inherit(self, before: Self) -> None:
        """Take over what the incarnation before this one found out, if that did not end in order."""
        self.reloads_in_row = before.reloads_in_row

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
        if isinstance(exc, DatabaseAway):
            # A read that failed because the database is away is not a crash.
            self._become_void("database")
            self._decide_again(envelope)
        elif isinstance(exc, Reload) and (self.is_void or self.reloads_in_row < RELOADS_IN_ROW_MAX):
            if not self.is_void:
                self.reloads_in_row += 1
            self._become_void("stale")
            self._decide_again(envelope)
        elif isinstance(exc, UnreadableRow):
            # The actor reads several rows, and its state may already depend on others of them, so it is reloaded.
            envelope.fail(exc)
            self.is_void = True
        elif isinstance(exc, AskFault):
            # Another actor did not reply to this turn's ask. If it may have acted, this actor's state is in doubt.
            envelope.fail(exc)
            self.is_void = self.is_void or isinstance(exc, OutcomeUnknown)
        else:
            self.crashed_on = envelope
            super()._on_exception(envelope, exc)

    def _become_void(self, cause: Literal["stale", "database"]) -> None:
        if not self.is_void:
            self.is_void, self.void_cause = True, cause

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
            # One span for each unit, although a batch commits many: each belongs to its own trace.
            span = start_span("commit", traceparent.get())
            if span is not None:
                self._commits[result.unit] = span
            self._journal.submit(result.unit, self)
        elif self._undurable:
            self._undurable.append((envelope, result))
        else:
            self.send_reply(envelope, result)

    def unit_ended(self, unit: Unit, result: UnitResult) -> None:
        """Take the journal's result for a unit: send the reply, or mark all undurable decisions as void."""
        self._units_open -= 1
        envelope, commit = self._undurable.pop(0)
        assert isinstance(commit, Commit)
        assert commit.unit is unit
        span = self._commits.pop(unit, None)
        if span is not None:
            span.end(failed=not isinstance(result, Committed))
        if isinstance(result, Committed):
            self.committed_any, self.reloads_in_row = True, 0
            self.send_reply(envelope, commit.reply)
            if commit.tells or commit.log_event is not None:
                self._follow_up(commit, envelope)
            if self._undurable:
                self._flush_replies()
        else:
            self._on_not_committed(envelope, result)
            if not isinstance(result, Unknown):
                for tell in commit.tells_if_void:
                    tell.to.tell(tell.message)
        if not self._units_open and self.actor_stopped.is_set():
            # It was killed or crashed while units were open, so no loop returns its messages.
            self._requeue()
        if self.is_void or self._awaits_units:
            self.actor_inbox.wake()

    def _follow_up(self, commit: Commit[object], envelope: Envelope) -> None:
        """Log the event and send the tells within the trace of their cause: this runs in the journal's task."""
        # As within_trace, which costs several times as much: each commit comes here.
        token = traceparent.set(self.trace_of(envelope))
        try:
            if commit.log_event is not None:
                log_event(commit.log_event.event, commit.log_event.fields)
            for tell in commit.tells:
                tell.to.tell(tell.message)
        finally:
            traceparent.reset(token)

    def _flush_replies(self) -> None:
        while self._undurable and not isinstance(self._undurable[0][1], Commit):
            envelope, reply = self._undurable.pop(0)
            if self.is_void:
                self._void.append(envelope)
            else:
                self.send_reply(envelope, reply)

    def _on_not_committed(self, envelope: Envelope, result: UnitResult) -> None:
        if isinstance(result, Unknown):
            envelope.fail(OutcomeUnknown(result.reason))
        elif isinstance(result, Broken):
            why = f"{type(result.cause).__name__}: {result.cause}"
            crash = Crashed(f"the database refuses the unit of work of {type(envelope.message).__name__}: {why}")
            crash.__cause__ = result.cause
            envelope.fail(crash)
            self._broken, self.crashed_on = crash, envelope
        elif isinstance(result, Stale) and all(fence.kind not in self.own_fences for fence in result.fences):
            # Deciding again would not help: the row with the newer version is the asking actor's.
            stale = ", ".join(f"{fence.kind} {fence.key}" for fence in result.fences)
            envelope.fail(StaleFence(stale))
        else:
            self._become_void("database" if isinstance(result, NotWritten) else "stale")
            if isinstance(result, AlreadyReplied):
                self.learned.append((result.probe, result.stored))
            self._void.append(envelope)
        self.is_void = True
        self._flush_replies()
