"""Threads for CPU-bound work, bounded in total and per caller, so that no caller can block the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio

from holdfast.actors.runtime.faults import Overloaded

T = TypeVar("T")

THREADS_MAX: Final = 2
WAITING_PER_CALLER_MAX: Final = 8
"""How many jobs of one caller may wait or run."""


@dataclass(slots=True)
class _Share:
    """One caller's jobs: the limiter that runs one at a time, and the number that wait or run."""

    turn: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))
    count: int = 0


class FairThreads:
    """A few threads. Each caller has one job in the common queue at a time, so callers take turns."""

    def __init__(
        self, *, threads_max: int = THREADS_MAX, waiting_per_caller_max: int = WAITING_PER_CALLER_MAX
    ) -> None:
        self._threads = trio.CapacityLimiter(threads_max)
        self._waiting_per_caller_max = waiting_per_caller_max
        self._shares: dict[str, _Share] = {}

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread in its turn. Raises :class:`Overloaded` if the caller has too many jobs."""
        share = self._shares.setdefault(caller, _Share())
        if share.count >= self._waiting_per_caller_max:
            raise Overloaded(f"the caller has {share.count} jobs already")
        share.count += 1
        try:
            async with share.turn:
                return await trio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            share.count -= 1
            if not share.count:
                del self._shares[caller]
