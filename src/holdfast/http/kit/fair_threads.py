"""Work that takes a thread: bounded in all and for each caller, so that no caller can hold up the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio

from holdfast.actors.runtime.faults import Overloaded

T = TypeVar("T")

THREADS_MAX: Final = 2
WAITING_PER_CALLER_MAX: Final = 8
"""How much work of one caller may be waiting or under way."""


@dataclass(slots=True)
class _Share:
    """What one caller has here: a turn, which one piece of its work has at a time, and how much waits for it."""

    turn: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))
    count: int = 0


class FairThreads:
    """A few threads. Each caller has one piece of work in the common queue at a time, so callers take turns."""

    def __init__(
        self, *, threads_max: int = THREADS_MAX, waiting_per_caller_max: int = WAITING_PER_CALLER_MAX
    ) -> None:
        self._threads = trio.CapacityLimiter(threads_max)
        self._waiting_per_caller_max = waiting_per_caller_max
        self._shares: dict[str, _Share] = {}

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Do the work in a thread when it is its turn.

        Raises :class:`Overloaded` where too much of the caller's work waits already.
        """
        share = self._shares.setdefault(caller, _Share())
        if share.count >= self._waiting_per_caller_max:
            raise Overloaded("too much work of this caller is waiting")
        share.count += 1
        try:
            async with share.turn:
                return await trio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            share.count -= 1
            if not share.count:
                del self._shares[caller]
