"""The limits of one account that are settings, and its rate of creating tasks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import trio

from holdfast.ledger.refusals import Refusal


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """The limits of one account. ``task_creates_per_s`` 0: no limit. ``paid_credit_days`` 0: it never expires.

    ``idempotency_ttl_s``: how long stored replies count.
    """

    tasks_in_flight_max: int = 1000
    task_creates_per_s: float = 0
    task_creates_burst: int = 20_000
    live_keys_max: int = 100
    webhooks_max: int = 16
    replies_max: int = 128
    idempotency_ttl_s: int = 86_400
    orders_pending_max: int = 1000
    paid_credit_days: int = 0


class CreateRate:
    """The rate limit on one account's task creation: a token bucket in its actor's memory.

    It allows ``burst`` creates at once and ``per_s`` a second in the long run; ``per_s`` 0: no limit.

    It starts full, and an actor's next incarnation inherits it. A bucket of the default size fills before its idle
    actor is passivated, so passivation gains a client little.
    """

    def __init__(self, per_s: float, burst: int, *, counter: Callable[[], float] = trio.current_time) -> None:
        self._per_s = per_s
        self._burst = burst
        self._counter = counter
        self._left = float(burst)
        self._counted_at: float | None = None

    def refuse(self) -> Refusal | None:
        """Return a refusal if the bucket is empty."""
        if not self._per_s:
            return None
        now = self._counter()
        if self._counted_at is not None:
            self._left = min(self._burst, self._left + (now - self._counted_at) * self._per_s)
        self._counted_at = now
        if self._left >= 1:
            return None
        return Refusal(
            code="rate_limit_exceeded",
            message="This account creates tasks faster than its limit.",
            retry_after_s=math.ceil((1 - self._left) / self._per_s),
        )

    def take(self) -> None:
        """Take one token."""
        self._left -= 1

    def give_back(self) -> None:
        """Return the token of a create that was not committed."""
        self._left += 1
