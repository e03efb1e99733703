"""The mailbox, and the future of a reply.

A mailbox is bounded, has one reader, and a separate queue for system messages. It belongs to an actor's key, not to
an incarnation, so restart and passivation lose no message.

A future is pykka's for one trio thread: awaited, never blocking. The deadlines of those that asks wait for have one
timer.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator, Iterable
from enum import Enum
from types import TracebackType
from typing import Final, TypeVar

import pykka
import trio
from pykka._envelope import Envelope as PykkaEnvelope

from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.telemetry.traces import trace_id_in

T = TypeVar("T")

NEVER: Final = float("inf")
GRAIN_S: Final = 0.02
"""The shortest time between two runs of the timer of deadlines, each of which scans the whole table."""


class NotReady(RuntimeError):
    """``get`` was called on a future that has no value yet. Await ``until_set()``, then call it again."""

    def __init__(self, until_set: Callable[[], Awaitable[None]]) -> None:
        super().__init__("the future has no value yet; await it")
        self.until_set = until_set


class TrioFuture(pykka.Future[T]):
    """A future that is set once and awaited by any number of trio tasks.

    pykka's combinators (``map``, ``join``, …) are hooks run by ``get``. Awaiting runs the hook; where that meets a
    future that is not ready, it waits for that one and runs the hook again.
    """

    __slots__ = ("_error", "_value", "_waiting", "is_set")

    def __init__(self) -> None:
        super().__init__()
        self.is_set = False
        """Whether it has a value or an exception."""
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiting: list[trio.lowlevel.Task] = []

    def get(self, *, timeout: float | None = None) -> T:
        """Return the value or raise the exception. Raises :class:`NotReady` if it has neither."""
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self.is_set:
            raise NotReady(self._until_set)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set to a T, or without a value for a future of None

    def set(self, value: T | None = None) -> None:
        """Set the value and wake all waiting tasks."""
        self._wake()
        self._value = value

    def set_exception(
        self,
        exc_info: tuple[type[BaseException] | None, BaseException | None, TracebackType | None] | None = None,
    ) -> None:
        """Set an exception: that of ``exc_info``, or the one being handled."""
        exception = (exc_info or sys.exc_info())[1]
        assert exception is not None
        self.fail(exception)

    def fail(self, exception: BaseException) -> None:
        """Set an exception, to be raised in all waiting tasks."""
        self._wake()
        self._error = exception

    def _wake(self) -> None:
        assert not self.is_set, "a future is set once"
        self.is_set = True
        for task in self._waiting:
            trio.lowlevel.reschedule(task)
        self._waiting = []

    async def wait(self) -> T:
        """Wait for the value. Cancelling the wait does not change the future."""
        if self._get_hook is None:
            # The usual case: one value, not set yet.
            while not self.is_set:
                await self._until_set()
            return self.get()
        while True:
            try:
                return self.get()
            except NotReady as missing:
                await missing.until_set()

    async def _until_set(self) -> None:
        task = trio.lowlevel.current_task()
        self._waiting.append(task)

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._waiting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def __await__(self) -> Generator[None, None, T]:
        return self.wait().__await__()


class AskDeadlines:
    """The deadlines (trio's clock) of asks, by their futures, with one timer.

    A cancel scope for each ask would cost as much as the ask. The timer is a system task of trio, since an ask
    outlives a restart of the directory it was sent to.
    """

    def __init__(self) -> None:
        self._waiting: dict[TrioFuture[object], tuple[float, float]] = {}
        self._alarm_at = NEVER
        self._sooner: trio.Event | None = None

    def add(self, future: TrioFuture[object], deadline: float, deadline_s: float) -> None:
        """Fail ``future`` with :class:`OutcomeUnknown` unless it is set or removed before ``deadline``.

        It fails then or a moment later (:data:`GRAIN_S`), never sooner.
        """
        self._waiting[future] = (deadline, deadline_s)
        if deadline < self._alarm_at:
            self._alarm_at = deadline
            if self._sooner is None:
                self._sooner = trio.Event()
                trio.lowlevel.spawn_system_task(self._run, name="ask deadlines")
            else:
                self._sooner.set()

    async def wait(self, future: TrioFuture[object], deadline: float, deadline_s: float) -> object:
        """Return what ``future`` is set to. Raises :class:`OutcomeUnknown` unless that is before ``deadline``."""
        self.add(future, deadline, deadline_s)
        try:
            return await future.wait()
        finally:
            self.remove(future)

    def remove(self, future: TrioFuture[object]) -> None:
        """Forget ``future``: its ask has ended."""
        self._waiting.pop(future, None)

    async def _run(self) -> None:
        # The timer is not moved when an ask ends: the next ask then finds one that is early enough.
        while True:
            self._sooner = trio.Event()
            with trio.move_on_at(self._alarm_at):
                await self._sooner.wait()
                continue
            now = trio.current_time()
            for future, (deadline, deadline_s) in list(self._waiting.items()):
                if deadline <= now:
                    del self._waiting[future]
                    if not future.is_set:
                        future.fail(OutcomeUnknown(f"no answer within {deadline_s:g} s"))
            earliest = min((deadline for deadline, _ in self._waiting.values()), default=NEVER)
            self._alarm_at = max(earliest, now + GRAIN_S)


class SystemMessage(Enum):
    """A supervisor's message to an actor, read before all others."""

    PASSIVATE = "passivate"
    """End once the mailbox is empty, unless something arrives meanwhile."""
    STOP = "stop"
    """End once the mailbox is empty."""
    END = "end"
    """End after the present turn; the mailbox stays for the next incarnation."""
    CRASH = "crash"
    """As END, in the way of a handler that raises."""


class MailboxFull(Exception):
    """The mailbox is at its capacity."""


class Envelope(PykkaEnvelope[object]):
    """A message with the future of its reply, its deadline (trio's clock), its trace and when its turn began."""

    __slots__ = ("began_at", "deadline", "sent_at", "traceparent")

    reply_to: TrioFuture[object] | None

    def __init__(
        self,
        message: object,
        reply_to: TrioFuture[object] | None = None,
        *,
        deadline: float = float("inf"),
        sent_at: float = 0.0,
        traceparent: str | None = None,
    ) -> None:
        super().__init__(message, reply_to)
        self.deadline = deadline
        self.sent_at = sent_at
        self.traceparent = traceparent
        self.began_at = 0.0

    @property
    def trace_id(self) -> str | None:
        """The id of its trace."""
        return trace_id_in(self.traceparent)

    def reply(self, value: object) -> bool:
        """Send the reply. Returns False if the message expects none (a tell), or if a reply was sent before."""
        if self.reply_to is None or self.reply_to.is_set:
            return False
        self.reply_to.set(value)
        return True

    def fail(self, exception: BaseException) -> bool:
        """Reply with a fault. Returns False if the message expects no reply, or if one was sent before."""
        if self.reply_to is None or self.reply_to.is_set:
            return False
        self.reply_to.fail(exception)
        return True


class Mailbox:
    """Messages in order of arrival, and system messages. Satisfies pykka's inbox protocol."""

    __slots__ = ("_reader", "capacity", "messages", "system")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # Lists, for there are rarely many: a deque would cost each mailbox 760 bytes.
        self.messages: list[Envelope] = []
        """The other messages, the oldest first."""
        self.system: list[SystemMessage] = []
        """The system messages."""
        self._reader: trio.lowlevel.Task | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def put(self, envelope: PykkaEnvelope[object], /) -> None:
        """Add a message without blocking. Raises :class:`MailboxFull`."""
        if len(self.messages) >= self.capacity:
            raise MailboxFull(f"the mailbox holds {self.capacity} messages")
        if not isinstance(envelope, Envelope):
            envelope = Envelope(envelope.message, envelope.reply_to)  # type: ignore[arg-type]  # pykka's own
        self.messages.append(envelope)
        self.wake()

    def requeue(self, envelopes: Iterable[Envelope]) -> None:
        """Put messages back at the front in their old order, even beyond the capacity."""
        self.messages[:0] = envelopes
        self.wake()

    def put_system(self, message: SystemMessage) -> None:
        """Add a system message. It is never refused."""
        self.system.append(message)
        self.wake()

    def get_system(self) -> SystemMessage | None:
        """Take the oldest system message, if any."""
        return self.system.pop(0) if self.system else None

    def clear_system(self) -> None:
        """Drop the system messages of an incarnation that has ended."""
        self.system.clear()

    def drop_orders(self) -> None:
        """Drop what an operator requested of an incarnation that has ended."""
        if self.system:
            self.system = [m for m in self.system if m not in {SystemMessage.END, SystemMessage.CRASH}]

    def get(self) -> Envelope:
        """Take the oldest message. Raises IndexError if there is none."""
        return self.messages.pop(0)

    def take_all(self) -> list[Envelope]:
        """Take all messages, the oldest first."""
        taken, self.messages = self.messages, []
        return taken

    def empty(self) -> bool:
        """Whether it has no messages, system messages aside."""
        return not self.messages

    def oldest_sent_at(self) -> float | None:
        """Return when the oldest message was sent (trio's clock)."""
        return self.messages[0].sent_at if self.messages else None

    def wake(self) -> None:
        """Wake the reader if it waits."""
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    async def wait(self) -> None:
        """Wait for a message of either kind, or for :meth:`wake`. One reader at a time."""
        assert self._reader is None, "a mailbox has one reader"
        self._reader = trio.lowlevel.current_task()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
