"""The messages that the actors of a group have handled: the newest, by type and outcome, never their content."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import inf
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import trio

from holdfast.actors.runtime.mailbox import Envelope, Mailbox
from holdfast.telemetry.traces import trace_id_in

RECORDS_MAX: Final = 10_000
"""Of a group in one process; some 350 bytes each."""

RATE_PERIOD_S: Final = 60.0

Outcome = Literal["replied", "refused", "done", "orphan_reply", "failed", "crashed", "cancelled"]
"""replied, refused: the reply was sent, once its unit was durable. done: its sender expects no reply.

orphan_reply: it was handled, but its sender no longer waited. failed: its sender got a fault. crashed: the actor
crashed on it. cancelled: the actor was ended in the turn.
"""


class RecordedChild(Protocol):
    """The key whose messages an actor handles, and which incarnation of it the actor is."""

    key: str
    mailbox: Mailbox
    incarnation: int


class HandledMessage(NamedTuple):
    """One message. ``number`` is its place in the order of outcomes, from 1 on; ``at`` is when it arrived.

    ``waited_s`` is the time until the turn that decided it, ``turn_s`` that of the turn, and ``total_s`` that from
    its arrival until its outcome.
    """

    number: int
    at: datetime
    key: str
    message_type: str
    outcome: Outcome
    waited_s: float
    turn_s: float
    total_s: float
    trace_id: str | None
    incarnation: int


_Record: TypeAlias = tuple[str, str, Outcome, float, float, float, float, float | None, str | None, int]


class HandledMessages:
    """A ring of records in memory. ``wall_clock`` returns the seconds since 1970."""

    def __init__(self, *, wall_clock: Callable[[], float] = time.time, records_max: int = RECORDS_MAX) -> None:
        self._wall_clock = wall_clock
        self._began_at = wall_clock()
        self._count = 0
        # Each message of the service comes here: a tuple costs less than a value of a class, and the garbage
        # collector leaves one of texts and numbers alone.
        self._records: deque[_Record] = deque(maxlen=records_max)

    @property
    def records_max(self) -> int:
        """How many it keeps."""
        return self._records.maxlen or 0

    @property
    def since(self) -> datetime:
        """From when on it has every message: since it began, or since the oldest of a full ring had its outcome."""
        is_full = len(self._records) == self._records.maxlen
        return _as_time(self._records[0][3] if is_full else self._began_at)

    def add(self, child: RecordedChild, envelope: Envelope, outcome: Outcome) -> None:
        """Record a message whose outcome is known now, in its turn or after it."""
        self._count += 1
        self._records.append(
            (
                child.key,
                type(envelope.message).__name__,
                outcome,
                self._wall_clock(),
                trio.current_time(),
                envelope.sent_at,
                envelope.began_at,
                envelope.turn_s,
                envelope.traceparent,
                child.incarnation,
            )
        )

    def known_keys(self) -> set[str]:
        """Return the keys of all records."""
        return {record[0] for record in self._records}

    def rates(self) -> dict[str, float]:
        """Return each key's outcomes a second in the last minute, or in the part of it that a full ring has."""
        now = trio.current_time()
        is_full = len(self._records) == self._records.maxlen
        since = max(now - RATE_PERIOD_S, self._records[0][4] if is_full else -inf)
        counts = Counter(record[0] for record in self._records if record[4] >= since)
        # A ring that fills in less than a second does not make the rate infinite.
        period_s = max(now - since, 1.0)
        return {key: count / period_s for key, count in counts.items()}

    def of(self, key: str) -> Iterator[HandledMessage]:
        """Return the messages of a key, in the order of their outcomes."""
        for number, record in enumerate(self._records, self._count - len(self._records) + 1):
            if record[0] == key:
                yield _message(number, record)


def _message(number: int, record: _Record) -> HandledMessage:
    key, message_type, outcome, ended_at, ended, sent, began, turn_s, traceparent, incarnation = record
    total_s = ended - (sent or began)
    return HandledMessage(
        number=number,
        at=_as_time(ended_at - total_s),
        key=key,
        message_type=message_type,
        outcome=outcome,
        waited_s=began - (sent or began),
        turn_s=ended - began if turn_s is None else turn_s,
        total_s=total_s,
        trace_id=trace_id_in(traceparent),
        incarnation=incarnation,
    )


def _as_time(seconds: float) -> datetime:
    """Return a time, truncated to milliseconds as all stored times are."""
    return datetime.fromtimestamp(int(seconds * 1000) / 1000, UTC)
