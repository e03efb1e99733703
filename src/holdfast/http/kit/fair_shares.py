"""A share of something bounded for each caller, so that no caller can block the others.

Shared are threads, database reads and tries of a secret token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from holdfast.actors.runtime.faults import ShareExceeded

T = TypeVar("T")

THREADS_MAX: Final = 2
READS_PER_CALLER_MAX: Final = 4
"""Half of the connections for reads, by default."""
READS_WAITING_MAX: Final = 1000
READ_TURN_TIMEOUT_S: Final = 8.0
WRONG_TRIES_AT_ONCE: Final = 10
WRONG_TRY_S: Final = 0.02
WAITING_MAX: Final = 1_000_000
"""Above the number of connections, which bound what waits."""


class _Share:
    """One caller's jobs: how many have a turn, and the others in the order of their coming."""

    __slots__ = ("turns", "waiting")

    def __init__(self) -> None:
        self.turns = 0
        self.waiting: deque[trio.Event] = deque()


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

    async def run(self, caller: str, job: Callable[[], Awaitable[T]]) -> T:
        """Run a job in its turn. Raises as :meth:`begin`."""
        await self.begin(caller)
        try:
            return await job()
        finally:
            self.end(caller)

    async def begin(self, caller: str) -> None:
        """Wait for a turn, which :meth:`end` ends. Raises :class:`ShareExceeded` if the caller has too many."""
        share = self._shares.get(caller)
        if share is None:
            share = self._shares[caller] = _Share()
        if share.turns < self._at_once_max:
            share.turns += 1
        else:
            await self._wait(caller, share)

    async def _wait(self, caller: str, share: _Share) -> None:
        """Wait until another job passes its turn on."""
        if share.turns + len(share.waiting) >= self._jobs_max:
            raise ShareExceeded(f"the caller has {share.turns + len(share.waiting)} jobs already")
        turn = trio.Event()
        share.waiting.append(turn)
        try:
            with trio.move_on_after(self._timeout_s):
                await turn.wait()
        except trio.Cancelled:
            if turn.is_set():  # it was given the turn when it was cancelled already
                self.end(caller)
            raise
        finally:
            if not turn.is_set():
                share.waiting.remove(turn)
        if not turn.is_set():
            raise ShareExceeded("the caller's other jobs take too long")

    def end(self, caller: str) -> None:
        """End a turn: pass it on to the caller's next waiting job."""
        share = self._shares[caller]
        if share.waiting:
            share.waiting.popleft().set()
            return
        share.turns -= 1
        if not share.turns:
            del self._shares[caller]


class TokenTries:
    """Tries of a secret token, all callers together: after the first few wrong ones, one each ``WRONG_TRY_S``.

    So guessing is bounded from however many origins it comes, and the right token always works: it uses up nothing,
    and waits for one try of each other caller at most, and for those of its own that came before.
    """

    def __init__(self) -> None:
        self._shares = FairShares(at_once_max=1, jobs_max=WAITING_MAX, timeout_s=float("inf"))
        self._next = trio.Lock()
        self._used_until = 0.0

    async def try_once(self, caller: str, is_right: Callable[[], bool]) -> bool:
        """Wait for the caller's turn, and return what ``is_right`` does."""
        return await self._shares.run(caller, lambda: self._try(is_right))

    async def _try(self, is_right: Callable[[], bool]) -> bool:
        async with self._next:
            await trio.sleep_until(self._used_until - WRONG_TRIES_AT_ONCE * WRONG_TRY_S)
            if is_right():
                return True
            self._used_until = max(self._used_until, trio.current_time()) + WRONG_TRY_S
            return False


class FairThreads:
    """A few threads for CPU-bound work. Each caller has one job in the common queue at a time.

    A caller's other jobs wait, as many as it has connections and for as long as its reads.
    """

    def __init__(self, *, threads_max: int = THREADS_MAX, jobs_per_caller_max: int = READS_WAITING_MAX) -> None:
        self._threads = trio.CapacityLimiter(threads_max)
        self._shares = FairShares(at_once_max=1, jobs_max=jobs_per_caller_max)

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread in its turn. Raises as :meth:`FairShares.begin`."""
        return await self._shares.run(caller, lambda: trio.to_thread.run_sync(work, limiter=self._threads))
