"""What comes again and again: the first pass one by one; the others are counted, and are one at a period's end."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

KEYS_MAX: Final = 500
"""How many keys are remembered; beyond that the oldest is forgotten, and its next one passes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """Those of a key that did not pass in a period: the last, how many, and how long the period was."""

    last: T
    count: int
    lasted_s: float


@dataclass(slots=True)
class _Period(Generic[T]):
    begun_s: float
    length_s: float
    last: T
    passed: list[Hashable] = field(default_factory=list)
    count: int = 0

    def is_over(self, now_s: float) -> bool:
        return abs(now_s - self.begun_s) >= self.length_s


class Repetitions(Generic[T]):
    """Of each key, the first ``alone_max`` in ``period_s`` pass. ``clock`` counts seconds, and may be set back.

    With a ``growth``, a period in which some did not pass is followed by one that is so many times as long, up to
    ``period_max_s``, without room for as many to pass again, until one of these has no more than ``rest_max``.
    Not safe for threads.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        alone_max: int,
        period_s: float,
        growth: int = 0,
        period_max_s: float = 0.0,
        rest_max: int = 0,
    ) -> None:
        self._clock = clock
        self._alone_max = alone_max
        self._period_s = period_s
        self._growth = growth
        self._period_max_s = period_max_s
        self._rest_max = rest_max
        self._periods: dict[Hashable, _Period[T]] = {}
        self._forgotten: list[Held[T]] = []

    def admit(self, key: Hashable, one: T, *, name: Hashable = None) -> bool:
        """Whether this one passes; otherwise it is counted. Of each ``name`` only one passes.

        Once one is counted, none passes until :meth:`due` has returned it, so that they stay in order.
        """
        now_s = self._clock()
        period = self._periods.get(key)
        if period is None or (not period.count and period.is_over(now_s)):
            if len(self._periods) >= KEYS_MAX:
                self._end(next(iter(self._periods)), now_s, self._forgotten)
            period = self._periods[key] = _Period(now_s, self._period_s, one)
        if (
            not period.count
            and len(period.passed) < self._alone_max
            and (name is None or name not in period.passed)
        ):
            period.passed.append(name)
            return True
        period.count += 1
        period.last = one
        return False

    def due(self, *, at_once: bool = False) -> list[Held[T]]:
        """Return what was held in the periods that are over, or in all ``at_once``."""
        now_s = self._clock()
        held, self._forgotten = self._forgotten, []
        for key, period in list(self._periods.items()):
            if not at_once and not period.is_over(now_s):
                continue
            self._end(key, now_s, held)
            rest_max = self._rest_max if period.length_s > self._period_s else 0
            if self._growth and period.count > rest_max:
                length_s = min(period.length_s * self._growth, self._period_max_s)
                self._periods[key] = _Period(now_s, length_s, period.last, period.passed)
        return held

    def _end(self, key: Hashable, now_s: float, held: list[Held[T]]) -> None:
        period = self._periods.pop(key)
        if period.count:
            held.append(Held(period.last, period.count, abs(now_s - period.begun_s)))
