"""The pace of work that nothing waits for: at most a share of the time, and less while the journal is busy."""

from __future__ import annotations

from typing import Protocol

QUEUE_UNITS_MAX = 32
"""More units than this in the journal's queue: commits do not keep up with the decisions."""
COMMIT_RATIO_MAX = 3.0
COMMIT_S_MIN = 0.005
"""A commit this much longer than usual, and at least this long, is a slow one."""
USUAL_WEIGHT = 0.05
SLOWER_MAX = 16.0
"""How many times longer the pauses become at most."""


class Journaling(Protocol):
    """The journal's load."""

    commit_s: float

    @property
    def queued_units(self) -> int: ...


class Pace:
    """Says how long to pause after each piece of work. ``share`` is above 0 and at most 1."""

    def __init__(self, share: float, journal: Journaling) -> None:
        self._rest = 1.0 / share - 1.0
        self._journal = journal
        self._usual_s = 0.0
        self._slower = 1.0

    def pause_s(self, took_s: float) -> float:
        """Return the pause after work that took ``took_s``. Doubles while the journal is busy, and halves again."""
        if self._is_busy():
            self._slower = min(self._slower * 2, SLOWER_MAX)
        else:
            self._slower = max(self._slower / 2, 1.0)
        return took_s * self._rest * self._slower

    def _is_busy(self) -> bool:
        commit_s = self._journal.commit_s
        is_slow = self._usual_s > 0 and commit_s > max(self._usual_s * COMMIT_RATIO_MAX, COMMIT_S_MIN)
        # A slow commit moves what is usual only a little, and one that is never followed by another does in time.
        self._usual_s += (commit_s - self._usual_s) * (USUAL_WEIGHT if self._usual_s else 1.0)
        return is_slow or self._journal.queued_units > QUEUE_UNITS_MAX
