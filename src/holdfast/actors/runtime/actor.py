"""The actor on trio: a pykka actor whose loop is a trio task.

From pykka: the class, references, futures, envelopes, lifecycle hooks (``on_start``, ``on_receive``, ``on_stop``,
``on_failure``) and message handling. This is overridden, here and in the modules beside this one:

- the loop (``serve``): pykka's is a thread, 22 KB an actor instead of 5.5 and 70 µs an ask from trio instead of 11,
  and takes a cancellation for a reason to stop all actors of the process;
- ``__init__``, ``actor_urn``, ``actor_ref``, ``actor_stopped``: pykka's draws a random urn, and creates an event
  and a reference for each incarnation, which are 1.5 KB of an actor;
- ``start``, ``_start_actor_loop``, ``_stop``: a supervisor starts and stops actors, and pykka's registry is a list
  that is searched in 3 ms with 50,000 actors;
- ``ActorRef.ask`` and ``Future.get``, which would block the event loop;
- the reference (:mod:`~holdfast.actors.runtime.refs`), which names a mailbox: it outlives incarnations.

Private names of pykka used: here ``_handle_receive``, and ``ActorRef._actor_weakref`` through its ``__init__``; in
the mailbox ``_envelope.Envelope``, in the future ``Future._get_hook``.
"""

from __future__ import annotations

import functools
from enum import Enum
from types import CoroutineType, TracebackType
from typing import ClassVar, Literal, NoReturn, Protocol

import pykka
import structlog
import trio
from msgspec import Struct

from holdfast.actors.runtime.faults import Crashed, EndedByOperator, OutcomeUnknown
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, SystemMessage, TrioFuture
from holdfast.actors.runtime.refs import StoppedFlag
from holdfast.telemetry import metrics
from holdfast.telemetry.costs import TURNS_FOR_ONE_TIMED, TimedTurn, costs
from holdfast.telemetry.logs import levels, log_raised
from holdfast.telemetry.logs.raised import about
from holdfast.telemetry.metrics.batched_histogram import BatchedHistogram
from holdfast.telemetry.slow_turns import turns_of
from holdfast.telemetry.traces import start_span, traceparent

log = structlog.get_logger(__name__)


class Ending(Enum):
    """How an incarnation ended, if it did not crash."""

    PASSIVATED = "passivated"
    STOPPED = "stopped"
    VOIDED = "voided"
    ENDED = "ended"
    """By an operator, with messages left in the mailbox."""


class Records(Protocol):
    """What is recorded of an actor and its messages."""

    def turn_ended(self, at: float) -> None:
        """Count a turn that ended at a time (trio's clock)."""
        ...

    def dead_letter(self, reason: Literal["expired", "orphan_reply"], envelope: Envelope) -> None:
        """Record a message whose deadline passed before its turn, or whose sender does not wait for the reply."""
        ...


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

    records: Records | None = None
    """Where its turns and messages are recorded, if its supervisor does that."""

    is_serving = False
    """Whether it has started, and handles messages."""

    def __init__(self, mailbox: Mailbox | None = None) -> None:
        # Not super().__init__(): it draws a random urn and creates a threading.Event for each incarnation.
        self.actor_inbox: Mailbox = mailbox if mailbox is not None else self._create_actor_inbox()
        self.actor_stopped = StoppedFlag()  # type: ignore[assignment]  # the same two methods
        self.last_message: type[object] | None = None
        self.turn: Envelope | None = None
        """The message that it handles now."""

    @property
    def actor_urn(self) -> str:  # type: ignore[override]  # computed: it is rarely used
        """The class and the address in memory."""
        return f"urn:holdfast:{type(self).__name__}:{id(self):x}"

    @property
    def actor_ref(self) -> IncarnationRef:  # type: ignore[override]  # as an attribute it would cost each actor 300 bytes
        """A new reference to this incarnation; actors are usually addressed by key."""
        return IncarnationRef(self)

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
            if self.is_void or mailbox.system:
                ending = await self._ending()
                if ending is not None:
                    return ending
            if not mailbox.messages:
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
        self.turn, envelope.began_at = envelope, now
        trace = self.trace_of(envelope)
        link = envelope.traceparent if envelope.traceparent != trace else None
        span = start_span(f"turn {self.last_message.__name__}", trace, link=link)
        traceparent.set(trace if span is None else span.traceparent)
        if levels.any:
            about.set((self.kind, *self.log_ids().values()))
        timed = costs.time_turn()
        try:
            message = envelope.message
            # The others are pykka's own, of its proxies.
            result: object = (
                self.on_receive(message) if isinstance(message, Struct) else self._handle_receive(message)
            )
            if type(result) is CoroutineType:
                result = await (result if timed is None else timed.awaiting(result))
        except trio.Cancelled:
            envelope.fail(OutcomeUnknown("the actor was stopped while handling the command"))
            raise
        except Exception as exc:
            self._on_exception(envelope, exc)
        else:
            self._finish(envelope, result)
        finally:
            ended_at = trio.current_time()
            turns.observe(ended_at - now)
            self._count_turn(envelope, timed, ended_at)
            if levels.any:
                self._log_turn(envelope, ended_at)
            if self.records is not None:
                self.records.turn_ended(ended_at)
            if span is not None:
                span.end()
        self.turn = None

    def _count_turn(self, envelope: Envelope, timed: TimedTurn | None, ended_at: float) -> None:
        """Count its CPU, and remember it if it is the slowest of its kind."""
        if timed is not None:
            costs.add("turns", self.log_ids().get("account_id", self.kind), timed.end() * TURNS_FOR_ONE_TIMED)
        duration_s, slow = ended_at - envelope.began_at, turns_of(self.kind, type(envelope.message).__name__)
        if duration_s > slow.slowest_s or ended_at >= slow.until:
            slow.note(duration_s, ended_at, self.log_ids().values(), envelope.trace_id)

    def trace_of(self, envelope: Envelope) -> str | None:
        """Return the trace that the handling of a message belongs to."""
        return envelope.traceparent

    def log_ids(self) -> dict[str, str]:
        """Return the ids that its lines have: its own, and its account's."""
        return {}

    def _log_turn(self, envelope: Envelope, ended_at: float) -> None:
        waited_s = envelope.began_at - envelope.sent_at if envelope.sent_at else 0.0
        fields = {
            **self.log_ids(),
            "actor": self.kind,
            "message": type(envelope.message).__name__,
            "waited_s": round(waited_s, 6),
            "took_s": round(ended_at - envelope.began_at, 6),
        }
        log_raised("turn", (self.kind, *self.log_ids().values()), fields)

    def _on_exception(self, envelope: Envelope, exc: Exception) -> None:
        """End the incarnation, for an ask as for a tell: its state may be ahead of the rows."""
        crash = Crashed(f"{type(self).__name__} crashed while handling {type(envelope.message).__name__}")
        crash.__cause__ = exc
        envelope.fail(crash)
        raise exc

    def _finish(self, envelope: Envelope, result: object) -> None:
        self.send_reply(envelope, result)

    def send_reply(self, envelope: Envelope, value: object) -> None:
        """Send a reply to the sender of a message, if that waits for one."""
        is_sent = envelope.reply(value)
        if not is_sent and envelope.reply_to is not None and self.records is not None:
            self.records.dead_letter("orphan_reply", envelope)

    def on_expired(self, envelope: Envelope) -> None:
        """Skip a message whose deadline has passed."""
        if self.records is not None:
            self.records.dead_letter("expired", envelope)
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
