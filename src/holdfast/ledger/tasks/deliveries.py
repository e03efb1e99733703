"""Deliveries of events: what an attempt's answer means, and when the next attempt is due.

An event is tried at once, soon again, and then ever more seldom, for as long as the operator allows; the last
attempt falls on the end of that time. All pure: the caller brings the time and the randomness.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

DeliveryStatus = Literal["pending", "delivered", "given_up"]

PAUSES_S: Final = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""The pause behind each failed attempt: from seconds, for a server that restarts, to a day."""

RETRY_AFTER_MAX_S: Final = 86_400
GONE: Final = 410


@dataclass(frozen=True, slots=True)
class Answer:
    """How an attempt went: the receiver's status, or why there was none. ``retry_after_s`` is its own wish."""

    status_code: int | None
    error: str | None = None
    retry_after_s: float | None = None

    @property
    def is_taken(self) -> bool:
        """The receiver has the event; a redirect is no such answer."""
        return self.status_code is not None and 200 <= self.status_code < 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of an event behind an attempt. ``due_at`` is None exactly when nothing more is tried."""

    status: DeliveryStatus
    due_at: datetime | None = None
    reason: str | None = None


def judge(
    answer: Answer, now: datetime, *, tries: int, begun_at: datetime, give_up_s: float, jitter: float
) -> Outcome:
    """What follows from the answer to the ``tries``-th attempt (from 1) of a round begun at ``begun_at``.

    ``jitter`` (0 to 1) lengthens the pause by up to a quarter, so that a receiver's outage does not end in a rush.
    """
    assert tries >= 1
    assert 0.0 <= jitter <= 1.0
    if answer.is_taken:
        return Outcome("delivered")
    if answer.status_code == GONE:
        return Outcome("given_up", reason="the receiver wants no more of it (410)")
    end = begun_at + timedelta(seconds=give_up_s)
    if now >= end:
        return Outcome("given_up", reason="not taken in time")
    pause_s = pause_after(tries) * (1 + jitter / 4)
    if answer.retry_after_s is not None:
        pause_s = max(pause_s, min(answer.retry_after_s, RETRY_AFTER_MAX_S))
    return Outcome("pending", due_at=min(now + timedelta(seconds=pause_s), end))


def pause_after(tries: int) -> int:
    """The pause behind the ``tries``-th attempt, from 1, in seconds."""
    return PAUSES_S[min(tries, len(PAUSES_S)) - 1]
