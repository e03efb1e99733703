"""The mailbox: bounded, one reader, and a lane of its own for what the supervisor has to say.

It belongs to an actor's key, not to an incarnation, so a restart or a sleep loses nothing of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any

import trio
from pykka._envelope import Envelope as PykkaEnvelope

from holdfast.actors.runtime.future import TrioFuture


class Order(Enum):
    """What a supervisor tells an actor, ahead of its mail."""

    PASSIVATE = "passivate"
    STOP = "stop"


class MailboxFull(Exception):
    """The mailbox holds as many messages as it may."""


class Envelope(PykkaEnvelope[Any]):
    """A message with what travels beside it: the reply's future, a deadline (trio time), a trace id."""

    __slots__ = ("deadline", "sent_at", "trace_id")

    def __init__(
        self,
        message: Any,
        reply_to: TrioFuture[Any] | None = None,
        *,
        deadline: float = float("inf"),
        sent_at: float = 0.0,
        trace_id: str | None = None,
    ) -> None:
        super().__init__(message, reply_to)
        self.deadline = deadline
        self.sent_at = sent_at
        self.trace_id = trace_id

    def reply(self, value: Any) -> bool:
        """Answer the asker. False where nobody asked, or an answer had been given."""
        if not isinstance(self.reply_to, TrioFuture) or self.reply_to.is_set:
            return False
        self.reply_to.set(value)
        return True

    def fail(self, exception: BaseException) -> bool:
        """Answer the asker with a fault. False where nobody asked, or an answer had been given."""
        if not isinstance(self.reply_to, TrioFuture) or self.reply_to.is_set:
            return False
        self.reply_to.fail(exception)
        return True


class Mailbox:
    """Envelopes in order of arrival, and orders ahead of them. Satisfies pykka's inbox protocol."""

    __slots__ = ("_mail", "_orders", "_reader", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._mail: deque[Envelope] = deque()
        self._orders: list[Order] = []  # hardly ever more than one; a deque would cost every sleeper 760 bytes
        self._reader: trio.lowlevel.Task | None = None

    def __len__(self) -> int:
        return len(self._mail)

    def put(self, envelope: PykkaEnvelope[Any], /) -> None:
        """Add mail. Raises :class:`MailboxFull`; never blocks the sender."""
        if len(self._mail) >= self.capacity:
            raise MailboxFull(f"the mailbox holds {self.capacity} messages")
        if not isinstance(envelope, Envelope):
            envelope = Envelope(envelope.message, envelope.reply_to)  # type: ignore[arg-type]  # pykka's own
        self._mail.append(envelope)
        self.wake()

    def requeue(self, envelopes: Iterable[Envelope]) -> None:
        """Put mail back in front, in its old order; a bound does not hold for what had been let in."""
        self._mail.extendleft(reversed(list(envelopes)))
        self.wake()

    def order(self, order: Order) -> None:
        """Add an order: never refused, read before any mail."""
        self._orders.append(order)
        self.wake()

    def next_order(self) -> Order | None:
        """Take the oldest order, if there is one."""
        return self._orders.pop(0) if self._orders else None

    def forget_orders(self) -> None:
        """Drop orders meant for an incarnation that has ended."""
        self._orders.clear()

    def get(self) -> Envelope:
        """Take the oldest mail; the reader has seen that there is some."""
        return self._mail.popleft()

    def take_all(self) -> list[Envelope]:
        """Take all mail there is, the oldest first."""
        taken = list(self._mail)
        self._mail.clear()
        return taken

    def empty(self) -> bool:
        """Whether there is no mail."""
        return not self._mail

    @property
    def has_orders(self) -> bool:
        """Whether an order waits."""
        return bool(self._orders)

    def oldest_sent_at(self) -> float | None:
        """When the oldest mail was sent (trio time)."""
        return self._mail[0].sent_at if self._mail else None

    def wake(self) -> None:
        """Wake the reader, if one sleeps here."""
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    async def wait(self) -> None:
        """Sleep until something arrives (or :meth:`wake`). One reader at a time."""
        assert self._reader is None, "a mailbox has one reader"
        self._reader = trio.lowlevel.current_task()

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
