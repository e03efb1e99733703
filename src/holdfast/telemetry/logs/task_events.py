"""Life events of tasks: one line each, until they are so many that only their counts are of use to a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from holdfast.telemetry.logs.lines import Fields

EVENTS_MAX: Final = 1_000
"""How many events of a period are written one by one, and from how many a period on the next is only counted."""
EVENTS_OF_PROCESS_MIN: Final = 100
"""The least number that each process writes one by one, however many processes there are."""
PERIOD_S: Final = 10.0
COUNTED_PERIOD_S: Final = 60.0
"""The length of a period whose events are only counted."""


class TaskEvents:
    """The events of the current period. ``clock`` counts seconds. Not safe for threads."""

    def __init__(self, clock: Callable[[], float], *, events_max: int = EVENTS_MAX) -> None:
        self._clock = clock
        self._events_max = events_max
        self._counted_only = False
        self._begin_period()

    def admit(self, event: str) -> bool:
        """Whether to write this event as a line of its own; otherwise it is counted."""
        if not self._counted_only and self._written < self._events_max:
            self._written += 1
            return True
        self._counts[event] += 1
        return False

    def due(self, *, at_once: bool = False) -> Fields | None:
        """Return the line of the events that were only counted, once their period has passed."""
        now_s = self._clock()
        if now_s < self._until_s and not at_once:
            return None
        counts, seconds = dict(self._counts), round(now_s - self._begun_s)
        self._counted_only = self._written + sum(counts.values()) > self._events_max
        self._begin_period()
        if not counts:
            return None
        return {"event": "task events", "text": "too many for a line each", "counts": counts, "seconds": seconds}

    def _begin_period(self) -> None:
        self._begun_s = self._clock()
        self._until_s = self._begun_s + (COUNTED_PERIOD_S if self._counted_only else PERIOD_S)
        self._written = 0
        self._counts: Counter[str] = Counter()
