"""The slowest turns of the last hour, by actor and message: of each the slowest in every five minutes.

There are as many kinds of messages as the code has, so that this stays small whatever is handled. A turn that is
not the slowest of its kind so far costs two comparisons.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import msgspec
import trio

from holdfast.ledger.public_types import Time
from holdfast.ledger.values import format_time, utc_now

SPAN_S: Final = 300.0
SPANS: Final = 12
SINCE: Final = timedelta(seconds=SPAN_S * SPANS)


class SlowTurn(msgspec.Struct, frozen=True):
    """The slowest turn of an actor with a message in the last hour."""

    actor: str
    """The kind of actor, or the name of a worker."""
    message: str
    """The type of the message."""
    duration_s: float
    """How long the turn took, in seconds, with what it waited for."""
    ended_at: Time
    """When it ended."""
    about: list[str]
    """The ids of the task and the account; those of sign-ins are not shown."""
    trace_id: str | None
    """The trace that it belonged to; null without one."""


class TurnsOf:
    """The slowest turns of one kind of actor with one type of message.

    ``slowest_s`` is that of the present five minutes, which end at ``until`` (trio's clock).
    """

    __slots__ = ("actor", "kept", "message", "slowest_s", "until")

    def __init__(self, actor: str, message: str) -> None:
        self.actor, self.message = actor, message
        self.slowest_s, self.until = 0.0, float("-inf")
        self.kept: deque[tuple[float, SlowTurn]] = deque(maxlen=SPANS)
        """When each span ended, and its slowest turn."""

    def note(self, duration_s: float, now: float, about: Iterable[str], trace_id: str | None) -> None:
        """Remember a turn that is the slowest of its five minutes, or the first."""
        turn = SlowTurn(self.actor, self.message, round(duration_s, 6), format_time(utc_now()), [*about], trace_id)
        if now >= self.until:
            self.until = now + SPAN_S
            self.kept.append((self.until, turn))
        else:
            self.kept[-1] = (self.until, turn)
        self.slowest_s = duration_s


@functools.cache
def turns_of(actor: str, message: str) -> TurnsOf:
    """Return where the turns of an actor with a message are noted."""
    found = TurnsOf(actor, message)
    _known.append(found)
    return found


_known: Final[list[TurnsOf]] = []


def slowest_turns(limit: int) -> list[SlowTurn]:
    """Return the slowest turn of each actor with each message in the last hour, the slowest first."""
    oldest = trio.current_time() - SPAN_S * (SPANS - 1)
    recent = [[turn for until, turn in each.kept if until >= oldest] for each in _known]
    slowest = [max(turns, key=lambda turn: turn.duration_s) for turns in recent if turns]
    return sorted(slowest, key=lambda turn: (-turn.duration_s, turn.actor, turn.message))[:limit]
