"""Who and what costs most in this process: the largest counts of requests, refusals and CPU, in bounded memory.

Counts are of minutes, ten of them, and of hours, 24. Each keeps the largest names, and counts a name that it does
not know from the largest count that it has dropped: one that comes late is found if it is large, and is shown with
by how much its count may be too large. A sum lacks what a name had in minutes in which it was among the smallest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from heapq import nlargest
from types import CoroutineType, FrameType
from typing import Any, Final, Literal, TypeAlias

import msgspec

CostOf: TypeAlias = Literal[
    "account", "key", "route", "model", "provider", "refused_code", "refused_caller", "turns"
]
"""Requests by account, key and route; creates by model and provider; refusals by code and caller; CPU seconds of
turns by account, or by the kind of an actor that is no account's."""
MINUTES: Final = 10
HOURS: Final = 24
NAMES_KEPT: Final = 64
"""How many names are kept of a minute or an hour that has ended."""
NAMES_MAX: Final = 1024
"""With more names than these, counts of a time that has not ended drop all but the largest."""
TURNS_FOR_ONE_TIMED: Final = 61
"""The CPU of one turn in so many is measured and stands for all of them: to measure it costs some microseconds. A
prime number, so that turns that come in a fixed order are all measured in time."""
SHOWN_MAX: Final = 20


class NameCount(msgspec.Struct, frozen=True):
    """A name and its count, too large by ``over_by`` at most."""

    name: str
    count: float
    over_by: float


class TopCount(msgspec.Struct, frozen=True):
    """The largest counts of a time, largest first, and the sum of all."""

    total: float
    largest: list[NameCount]


class Costs(msgspec.Struct, frozen=True):
    """What one process has counted in the last ten minutes, and in the last day, or since its start."""

    minutes: dict[CostOf, TopCount]
    day: dict[CostOf, TopCount]


class _Counts:
    """The counts of one time."""

    def __init__(self) -> None:
        self.total = 0.0
        self.of: dict[str, list[float]] = {}
        """The count of each name, and by how much that may be too large."""
        self._dropped = 0.0

    def add(self, name: str, count: float, over_by: float = 0.0) -> None:
        self.total += count - over_by
        had = self.of.get(name)
        if had is not None:
            had[0] += count
            had[1] += over_by
            return
        self.of[name] = [self._dropped + count, self._dropped + over_by]
        if len(self.of) > NAMES_MAX:
            self.drop_small()

    def drop_small(self) -> None:
        """Drop all but the largest counts."""
        largest = nlargest(NAMES_KEPT + 1, self.of.items(), key=lambda each: each[1][0])
        if len(largest) > NAMES_KEPT:
            _, (dropped, _) = largest.pop()
            self._dropped = max(self._dropped, dropped)
            self.of = dict(largest)


class CostCounts:
    """The counts of one process. ``counter`` is in seconds."""

    def __init__(self, counter: Callable[[], float] = time.monotonic) -> None:
        self._counter = counter
        self._turns = 0
        self._minute = int(counter() // 60)
        self._minute_ends_s = (self._minute + 1) * 60.0
        self._minutes: deque[dict[CostOf, _Counts]] = deque([{}], maxlen=MINUTES)
        self._hours: deque[dict[CostOf, _Counts]] = deque([{}], maxlen=HOURS)
        self._together: dict[tuple[tuple[CostOf, ...], tuple[str | None, ...]], int] = {}
        """How often names were counted together in the minute that has not ended, and not yet each by itself."""

    def add(self, of: CostOf, name: str, count: float = 1.0) -> None:
        """Count something of a name now."""
        if self._counter() >= self._minute_ends_s:
            self._begin_minute()
        self._add(of, name, count)

    def add_each(self, of: tuple[CostOf, ...], names: tuple[str | None, ...]) -> None:
        """Count something of several names now, each of its kind; None is no name.

        The same names come together again and again: until the minute ends, they are counted at the cost of one.
        """
        if self._counter() >= self._minute_ends_s:
            self._begin_minute()
        self._together[of, names] = self._together.get((of, names), 0) + 1
        if len(self._together) > NAMES_MAX:
            self._separate()

    def _add(self, of: CostOf, name: str, count: float) -> None:
        counts = self._minutes[-1]
        (counts.get(of) or counts.setdefault(of, _Counts())).add(name, count)

    def _separate(self) -> None:
        """Count by itself each name of those that were counted together."""
        together, self._together = self._together, {}
        for (kinds, names), count in together.items():
            for of, name in zip(kinds, names, strict=True):
                if name is not None:
                    self._add(of, name, count)

    def time_turn(self) -> TimedTurn | None:
        """Begin to measure the CPU of the turn that begins, if it is one that stands for others."""
        self._turns += 1
        return TimedTurn() if self._turns % TURNS_FOR_ONE_TIMED == 1 else None

    def _begin_minute(self) -> None:
        self._separate()
        now = int(self._counter() // 60)
        while self._minute < now:
            _add_all(self._hours[-1], self._minutes[-1])
            _end(self._minutes)
            self._minute += 1
            if self._minute % 60 == 0:
                _end(self._hours)
            if now - self._minute > HOURS * 60:
                # Nothing was counted for so long.
                self._minute = now - HOURS * 60
        self._minute_ends_s = (now + 1) * 60.0

    def read(self) -> Costs:
        """Return the largest counts."""
        self._begin_minute()
        return Costs(_largest(self._minutes), _largest([*self._hours, self._minutes[-1]]))


def _end(times: deque[dict[CostOf, _Counts]]) -> None:
    """End the newest minute or hour, which keeps its largest counts, and begin the next."""
    for counts in times[-1].values():
        counts.drop_small()
    times.append({})


def _add_all(to: dict[CostOf, _Counts], added: dict[CostOf, _Counts]) -> None:
    for of, counts in added.items():
        into = to.setdefault(of, _Counts())
        for name, (count, over_by) in counts.of.items():
            into.add(name, count, over_by)
        # What was dropped of the minute is in no name.
        into.total += counts.total - sum(count - over_by for count, over_by in counts.of.values())


def _largest(times: Iterable[dict[CostOf, _Counts]]) -> dict[CostOf, TopCount]:
    found: dict[CostOf, list[_Counts]] = {}
    for each in times:
        for of, counts in each.items():
            found.setdefault(of, []).append(counts)
    return {
        of: top_of(
            sum(each.total for each in counted),
            (NameCount(name, *count) for each in counted for name, count in each.of.items()),
        )
        for of, counted in found.items()
    }


def top_of(total: float, counts: Iterable[NameCount]) -> TopCount:
    """Return the largest of counts; those of the same name are added up."""
    names: dict[str, tuple[float, float]] = {}
    for each in counts:
        had, had_over = names.get(each.name, (0.0, 0.0))
        names[each.name] = had + each.count, had_over + each.over_by
    found = [NameCount(name, *count) for name, count in names.items()]
    return TopCount(total, sorted(found, key=lambda each: (-each.count, each.name))[:SHOWN_MAX])


class TimedTurn(Generator[Any, Any, object]):
    """Measures the CPU of a turn, from when it is made. What the turn awaits is found through it."""

    def __init__(self) -> None:
        self._coroutine: CoroutineType[Any, Any, object] | None = None
        self._cpu_s = 0.0
        self._began_s = time.thread_time()

    def awaiting(self, coroutine: CoroutineType[Any, Any, object]) -> TimedTurn:
        """Return itself, which now awaits the turn's coroutine and measures its steps alone."""
        self._cpu_s = time.thread_time() - self._began_s
        self._coroutine = coroutine
        return self

    def end(self) -> float:
        """Return the CPU seconds of the turn."""
        return self._cpu_s if self._coroutine is not None else time.thread_time() - self._began_s

    def __await__(self) -> Generator[Any, Any, object]:
        """Run the coroutine's steps."""
        return self

    def send(self, value: Any) -> Any:
        """Do the next step."""
        assert self._coroutine is not None
        return self._timed(self._coroutine.send, value)

    def throw(self, *fault: Any) -> Any:
        """Do the next step with an exception."""
        assert self._coroutine is not None
        return self._timed(self._coroutine.throw, *fault)

    def _timed(self, step: Callable[..., Any], *given: Any) -> Any:
        began_s = time.thread_time()
        try:
            return step(*given)
        finally:
            self._cpu_s += time.thread_time() - began_s

    @property
    def cr_frame(self) -> FrameType | None:
        """The coroutine's frame."""
        return self._coroutine and self._coroutine.cr_frame

    @property
    def cr_await(self) -> Any:
        """What the coroutine awaits."""
        return self._coroutine and self._coroutine.cr_await


costs: Final = CostCounts()
"""Those of this process."""
