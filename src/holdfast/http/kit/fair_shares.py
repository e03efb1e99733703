"""A share of something bounded for each caller, so that no caller can block the others.

Shared are threads, database reads, calls to the card provider, tries of a secret token, uploads, requests that
wait, and events that are sent on demand.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeVar

import trio

from holdfast.actors.runtime.faults import Overloaded
from holdfast.ledger.refusals import Refusal
from holdfast.telemetry import metrics

T = TypeVar("T")

THREADS_MAX: Final = 2
JOBS_PER_CALLER_MAX: Final = 8
"""How many jobs for threads one caller may have, those that wait included."""
READS_PER_CALLER_MAX: Final = 4
"""Half of the connections for reads, by default."""
STREAM_READS_MAX: Final = 2
"""Of a caller's streams together, beside those: its requests do not wait for what hundreds of streams read."""
READS_WAITING_MAX: Final = 1000
READ_TURN_TIMEOUT_S: Final = 8.0
UPLOADS_MAX: Final = 256
"""How many uploads a process receives at once; each has a few hundred KiB of memory."""
UPLOADS_PER_ACCOUNT_MAX: Final = 32
UPLOADS_WAITING_MAX: Final = 256
UPLOAD_TURN_TIMEOUT_S: Final = 30.0
CARD_CALLS_MAX: Final = 2
CARD_CALLS_WAITING_MAX: Final = 8
"""With those that are made: each may take as long as the provider's timeouts allow."""
WRONG_TRIES_AT_ONCE: Final = 10
WRONG_TRY_S: Final = 0.02
TRIES_WAITING_MAX: Final = 1_000_000
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
        """Wait for a turn, which :meth:`end` ends. Raises :class:`Overloaded` if the caller has too many jobs."""
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
            raise Overloaded(f"the caller has {share.turns + len(share.waiting)} jobs already")
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
            raise Overloaded("the caller's other jobs take too long")

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
        self._shares = FairShares(at_once_max=1, jobs_max=TRIES_WAITING_MAX, timeout_s=float("inf"))
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
    """A few threads for CPU-bound work. Each caller has one job in the common queue at a time."""

    def __init__(self, *, threads_max: int = THREADS_MAX, jobs_per_caller_max: int = JOBS_PER_CALLER_MAX) -> None:
        self._threads = trio.CapacityLimiter(threads_max)
        self._shares = FairShares(at_once_max=1, jobs_max=jobs_per_caller_max, timeout_s=float("inf"))

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread in its turn. Raises :class:`Overloaded` if the caller has too many jobs."""
        return await self._shares.run(caller, lambda: trio.to_thread.run_sync(work, limiter=self._threads))


class Uploads:
    """Turns of uploads: at most ``UPLOADS_MAX`` in all, ``UPLOADS_PER_ACCOUNT_MAX`` of an account."""

    def __init__(self) -> None:
        self._turns = trio.CapacityLimiter(UPLOADS_MAX)
        self._shares = FairShares(
            at_once_max=UPLOADS_PER_ACCOUNT_MAX, jobs_max=UPLOADS_WAITING_MAX, timeout_s=UPLOAD_TURN_TIMEOUT_S
        )

    @asynccontextmanager
    async def turn(self, account_id: str) -> AsyncIterator[None]:
        """Wait until the account may upload within this context. Raises :class:`Overloaded` if that takes long."""
        await self._shares.begin(account_id)
        try:
            with trio.move_on_after(UPLOAD_TURN_TIMEOUT_S) as waiting:
                await self._turns.acquire()
            if waiting.cancelled_caught:
                raise Overloaded("too many uploads are in progress")
            try:
                yield
            finally:
                self._turns.release()
        finally:
            self._shares.end(account_id)


class WaitingCalls:
    """Counts the requests that wait and the streams: at most ``per_account_max`` of an account, ``all_max`` in all.

    They are apart from the requests that work: one that waits holds its connection, and nothing else.
    """

    def __init__(self, *, per_account_max: int, all_max: int) -> None:
        self._per_account_max = per_account_max
        self._all_max = all_max
        self._of_account: Counter[str] = Counter()
        self.count = 0

    @contextmanager
    def counted(self, account_id: str) -> Iterator[Refusal | None]:
        """Count one more within this context, unless that is refused.

        Refuses: 1. ``rate_limit_exceeded``; 2. ``overloaded``.
        """
        if self._of_account[account_id] >= self._per_account_max:
            yield Refusal(
                code="rate_limit_exceeded",
                message=f"{self._per_account_max} requests of this account wait or stream at this process, "
                "the most allowed; end one of them first.",
            )
            return
        if self.count >= self._all_max:
            yield Refusal(code="overloaded", message=f"{self._all_max} requests wait already; try again later.")
            return
        self._of_account[account_id] += 1
        self.count += 1
        metrics.HTTP_WAITING.set(self.count)
        try:
            yield None
        finally:
            self.count -= 1
            self._of_account[account_id] -= 1
            if not self._of_account[account_id]:
                del self._of_account[account_id]
            metrics.HTTP_WAITING.set(self.count)


class SendRate:
    """How often a caller may have an event sent: ``burst`` times at once, in the long run once each ``every_s``."""

    def __init__(self, burst: int, every_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        # Until when each caller has used its turns, the one that came last at the end.
        self._used_until: dict[str, float] = {}

    def refuse(self, caller: str) -> Refusal | None:
        """Use one turn. Refuses: 1. ``rate_limit_exceeded``."""
        now = trio.current_time()
        used_until = max(now, self._used_until.get(caller, now))
        late_s = used_until - now - (self._burst - 1) * self._every_s
        if late_s > 0:
            return Refusal(
                code="rate_limit_exceeded",
                message=f"{self._burst} events were sent on demand lately, the most allowed; wait before the next.",
                retry_after_s=math.ceil(late_s),
            )
        self._used_until.pop(caller, None)
        self._used_until[caller] = used_until + self._every_s
        while self._used_until and next(iter(self._used_until.values())) <= now:
            del self._used_until[next(iter(self._used_until))]
        return None
