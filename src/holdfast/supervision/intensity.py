"""Restart limits: a sliding window of restarts, and a backoff with jitter.

Time and randomness are passed in, so that tests are exact.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

_LARGEST_EXPONENT = 64


class RestartWindow:
    """Counts restarts in a sliding window of ``period_s`` seconds; more than ``restarts`` of them is too many."""

    __slots__ = ("_times", "period_s", "restarts")

    def __init__(self, restarts: int, period_s: float) -> None:
        if restarts < 0 or period_s <= 0:
            raise ValueError("a restart window needs restarts >= 0 and period_s > 0")
        self.restarts = restarts
        self.period_s = period_s
        # One more than the budget is enough to know that it is spent.
        self._times: deque[float] = deque(maxlen=restarts + 1)

    def record(self, now: float) -> bool:
        """Count one restart at ``now`` (seconds, monotonic). Returns whether the budget covers it."""
        self._times.append(now)
        return self.count(now) <= self.restarts

    def count(self, now: float) -> int:
        """Return the restarts in the window that ends at ``now``, at most the budget plus one."""
        while self._times and self._times[0] < now - self.period_s:
            self._times.popleft()
        return len(self._times)

    def clear(self) -> None:
        """Start over."""
        self._times.clear()


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times that grow from ``min_s`` by ``factor`` up to ``max_s``, each varied by ±``jitter`` (a share).

    The jitter is applied after the cap, so that many children at the cap do not start in the same instant.
    """

    min_s: float
    max_s: float
    factor: float = 2.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.min_s <= self.max_s or self.factor < 1 or not 0 <= self.jitter < 1:
            raise ValueError("a backoff needs 0 <= min_s <= max_s, factor >= 1 and 0 <= jitter < 1")

    def delay(self, n: int, rng: random.Random) -> float:
        """Return the seconds to wait after the ``n``-th failure in a row (the first is 1)."""
        exponent = min(max(n, 1) - 1, _LARGEST_EXPONENT)
        plain_s = min(self.max_s, self.min_s * self.factor**exponent)
        return plain_s * (1 + rng.uniform(-self.jitter, self.jitter)) if self.jitter else plain_s
