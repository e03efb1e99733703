"""A share of something bounded for each caller, so that no caller can block the others.

Shared are threads, database reads, and tries of a secret token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

from holdfast.actors.runtime.faults import Overloaded

T = TypeVar("T")

THREADS_MAX: Final = 2
JOBS_PER_CALLER_MAX: Final = 8
"""How many jobs for threads one caller may have, those that wait included."""
READS_PER_CALLER_MAX: Final = 4
"""Half of the connections for reads, by default."""
READS_WAITING_MAX: Final = 1000
READ_TURN_TIMEOUT_S: Final = 8.0
WRONG_TRIES_AT_ONCE: Final = 10
WRONG_TRY_S: Final = 0.02
TRIES_WAITING_MAX: Final = 1_000_000
"""Above the number of connections, which bound what waits."""


@dataclass(slots=True)
class _Share:
    """One caller's jobs: the limiter of those that do not wait here, and the number of all."""

    turns: trio.CapacityLimiter
    count: int = 0


class FairShares:
    """Turns: ``at_once_max`` of a caller's jobs have one at a time, so the others' jobs are queued behind so many.

    A caller has ``jobs_max`` at most, and one waits ``timeout_s`` at most for its turn.
    """

    def __init__(
        self,
        *,
        at_once_max: int = READS_PER_CALLER_MAX,
        jobs_max: int = READS_WAITING_MAX,
        timeout_s: float = READ_TURN_TIMEOUT_S,
    ) -> None:
        self._at_once_max = at_once_max
        self._jobs_max = jobs_max
        self._timeout_s = timeout_s
        self._shares: dict[str, _Share] = {}

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises :class:`Overloaded` if the caller has too many jobs."""
        share = self._shares.get(caller)
        if share is None:
            share = self._shares[caller] = _Share(trio.CapacityLimiter(self._at_once_max))
        if share.count >= self._jobs_max:
            raise Overloaded(f"the caller has {share.count} jobs already")
        share.count += 1
        job = object()
        try:
            with trio.move_on_after(self._timeout_s) as waiting:
                await share.turns.acquire_on_behalf_of(job)
            if waiting.cancelled_caught:
                raise Overloaded("the caller's other jobs take too long")
            try:
                yield
            finally:
                share.turns.release_on_behalf_of(job)
        finally:
            share.count -= 1
            if not share.count:
                del self._shares[caller]


class TokenTries:
    """Tries of a secret token, all callers together: after the first few wrong ones, one each ``WRONG_TRY_S``.

    So guessing is bounded from however many origins it comes, and the right token always works: it uses up nothing,
    and waits for one try of each other caller at most, and for those of its own that came before.
    """

    def __init__(self) -> None:
        self._shares = FairShares(at_once_max=1, jobs_max=TRIES_WAITING_MAX, timeout_s=float("inf"))
        self._next = trio.Lock()
        self._used_until = 0.0

    async def try_once(self, caller: str, is_right: Callable[[], bool]) -> bool:
        """Wait for the caller's turn, and return what ``is_right`` does."""
        async with self._shares.turn(caller), self._next:
            await trio.sleep_until(self._used_until - WRONG_TRIES_AT_ONCE * WRONG_TRY_S)
            if is_right():
                return True
            self._used_until = max(self._used_until, trio.current_time()) + WRONG_TRY_S
            return False


class FairThreads:
    """A few threads for CPU-bound work. Each caller has one job in the common queue at a time."""

    def __init__(self, *, threads_max: int = THREADS_MAX, jobs_per_caller_max: int = JOBS_PER_CALLER_MAX) -> None:
        self._threads = trio.CapacityLimiter(threads_max)
        self._shares = FairShares(at_once_max=1, jobs_max=jobs_per_caller_max, timeout_s=float("inf"))

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread in its turn. Raises :class:`Overloaded` if the caller has too many jobs."""
        async with self._shares.turn(caller):
            return await trio.to_thread.run_sync(work, limiter=self._threads)
