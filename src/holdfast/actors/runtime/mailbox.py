"""The mailbox: bounded, with one reader, and a separate queue for system messages.

It belongs to an actor's key, not to an incarnation, so restart and passivation lose no message.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import trio
from pykka._envelope import Envelope as PykkaEnvelope

from holdfast.actors.runtime.future import TrioFuture
from holdfast.telemetry.traces import trace_id_in


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
