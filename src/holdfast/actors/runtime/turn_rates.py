"""How many messages the actors of a group handle a second, by key."""

from __future__ import annotations

from collections import Counter, deque
from math import inf
from typing import Final

import trio

TURNS_MAX: Final = 10_000
"""Of a group in one process."""
RATE_PERIOD_S: Final = 60.0


class TurnRates:
    """The keys and times of a group's newest turns."""

    def __init__(self, *, turns_max: int = TURNS_MAX) -> None:
        self._turns: deque[tuple[str, float]] = deque(maxlen=turns_max)

    def add(self, key: str, ended_at: float) -> None:
        """Count a turn."""
        self._turns.append((key, ended_at))

    def rates(self) -> dict[str, float]:
        """Return each key's turns a second in the last minute, or in the part of it that a full record has."""
        now = trio.current_time()
        is_full = len(self._turns) == self._turns.maxlen
        since = max(now - RATE_PERIOD_S, self._turns[0][1] if is_full else -inf)
        counts = Counter(key for key, ended_at in self._turns if ended_at >= since)
        # A record that fills in less than a second does not make the rate infinite.
        period_s = max(now - since, 1.0)
        return {key: count / period_s for key, count in counts.items()}
