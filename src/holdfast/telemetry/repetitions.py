"""What comes again and again: the first pass one by one; the others are counted, and are one at a period's end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

KEYS_MAX: Final = 500
"""How many keys are remembered; beyond that the oldest is forgotten, and its next one passes."""

T = TypeVar("T")


@dataclass(slots=True)
class Period(Generic[T]):
    """A period of a key, after ``number`` others in a row: the names of those that passed, and of the others their
    ``count`` and the ``last``. :meth:`Repetitions.due` sets how long it ``lasted_s``.
    """

    begun_s: float
    last: T
    number: int = 0
    passed: list[Hashable] = field(default_factory=list)
    count: int = 0
    lasted_s: float = 0.0


@dataclass(slots=True)
class Repetitions(Generic[T]):
    """Of each key the first ``alone_max`` pass. ``clock`` counts seconds, and may be set back.

    ``periods_s`` are the lengths of a key's periods, the last for all further ones. The first one follows again
    after a period in which all passed, after a later one with no more than ``rest_max`` others, and always if there
    is one length. Not safe for threads.
    """

    clock: Callable[[], float]
    alone_max: int
    periods_s: Sequence[float]
    rest_max: int = 0
    _periods: dict[Hashable, Period[T]] = field(default_factory=dict, init=False)
    _forgotten: list[Period[T]] = field(default_factory=list, init=False)

    def admit(self, key: Hashable, one: T, *, name: Hashable = None) -> bool:
        """Whether this one passes; otherwise it is counted. Of each ``name`` only one passes.

        Once one is counted, none passes until :meth:`due` has returned it, so that they stay in order.
        """
        period = self._periods.get(key)
        if period is None or not period.count:
            now_s = self.clock()
            if period is None or self._is_over(period, now_s):
                if len(self._periods) >= KEYS_MAX:
                    oldest = self._periods.pop(next(iter(self._periods)))
                    self._forgotten += [oldest] if oldest.count else []
                period = self._periods[key] = Period(now_s, one)
            if len(period.passed) < self.alone_max and (name is None or name not in period.passed):
                period.passed.append(name)
                return True
        period.count += 1
        period.last = one
        return False

    def due(self, *, at_once: bool = False) -> list[Period[T]]:
        """Return the periods that are over, or all ``at_once``, in which some did not pass."""
        now_s = self.clock()
        ended, self._forgotten = self._forgotten, []
        for key, period in list(self._periods.items()):
            if at_once or self._is_over(period, now_s):
                ended.append(self._periods.pop(key))
                following = min(period.number + 1, len(self.periods_s) - 1)
                if following and period.count > (self.rest_max if period.number else 0):
                    self._periods[key] = Period(now_s, period.last, following, period.passed)
        for period in ended:
            period.lasted_s = abs(now_s - period.begun_s)
        return [period for period in ended if period.count]

    def _is_over(self, period: Period[T], now_s: float) -> bool:
        return abs(now_s - period.begun_s) >= self.periods_s[period.number]
