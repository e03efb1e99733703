"""The rate limit on one account's task creation: a token bucket in its actor's memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from holdfast.ledger.refusals import Refusal


class CreateRate:
    """Allows ``burst`` creates at once and ``per_s`` a second in the long run; ``per_s`` 0: no limit.

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
