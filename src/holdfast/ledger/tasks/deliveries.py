"""Delivery of events by webhook: what a receiver's response means, and when the next attempt is due.

Attempts are made at growing intervals for as long as the operator allows; the last one is made when that time ends.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

DeliveryStatus = Literal["pending", "delivered", "given_up"]

PAUSES_S: Final = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""The pause after each failed attempt: from seconds, for a server that restarts, to a day."""

RETRY_AFTER_MAX_S: Final = 86_400
GONE: Final = 410


class DeliveryResponse(msgspec.Struct, frozen=True):
    """The receiver's status and its ``Retry-After``, or why there was no response."""

    status_code: int | None
    error: str | None = None
    retry_after_s: float | None = None

    @property
    def is_success(self) -> bool:
        """Whether the receiver accepted the event; a redirect is a failure."""
        return self.status_code is not None and 200 <= self.status_code < 300


class DeliveryState(msgspec.Struct, frozen=True):
    """An event's status after an attempt. ``due_at`` is the next attempt, None exactly if there is none."""

    status: DeliveryStatus
    due_at: datetime | None = None
    reason: str | None = None


def after_attempt(
    response: DeliveryResponse, now: datetime, *, tries: int, round_at: datetime, give_up_s: float, jitter: float
) -> DeliveryState:
    """Return the state after the ``tries``-th attempt (from 1) of a round of attempts that began at ``round_at``.

    ``jitter`` (0 to 1) lengthens the pause by up to a quarter, so that retries after an outage are spread.
    """
    assert tries >= 1
    assert 0.0 <= jitter <= 1.0
    if response.is_success:
        return DeliveryState("delivered")
    if response.status_code == GONE:
        return DeliveryState("given_up", reason="the receiver answered 410 (Gone)")
    end = round_at + timedelta(seconds=give_up_s)
    if now >= end:
        return DeliveryState("given_up", reason="not delivered in time")
    pause_s = pause_after(tries) * (1 + jitter / 4)
    if response.retry_after_s is not None:
        pause_s = max(pause_s, min(response.retry_after_s, RETRY_AFTER_MAX_S))
    return DeliveryState("pending", due_at=min(now + timedelta(seconds=pause_s), end))


def pause_after(tries: int) -> int:
    """Return the pause after the ``tries``-th attempt (from 1) in seconds."""
    return PAUSES_S[min(tries, len(PAUSES_S)) - 1]
