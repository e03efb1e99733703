"""A share of something bounded for each caller, so that no caller can block the others.

Shared are threads, database reads, calls to the card provider, tries of a secret token, requests that wait,
and events that are sent on demand.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import trio

from holdfast.actors.runtime.faults import ShareExceeded
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal.changes import Watch
from holdfast.telemetry import metrics

T = TypeVar("T")

THREADS_MAX: Final = 2
READS_PER_CALLER_MAX: Final = 4
"""Half of the connections for reads, by default."""
STREAM_READS_MAX: Final = 2
"""Of a caller's streams together, beside those: its requests do not wait for what hundreds of streams read."""
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


class Wait:
    """A request that waits, or a stream, until it is ended for another caller."""

    __slots__ = ("_watch", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._watch: Watch | None = None

    def end_with(self, watch: Watch) -> None:
        """Have the watch end when this does."""
        self._watch = watch
        if self.is_over:
            watch.end()

    def end(self) -> None:
        """End it for another caller."""
        self.is_over = True
        if self._watch is not None:
            self._watch.end()


class WaitingCalls:
    """Counts the requests that wait and the streams: at most ``per_account_max`` of an account, ``all_max`` in all.

    They are apart from the requests that work: one that waits holds its connection, and nothing else. When there
    are ``all_max``, the account or the origin with the most loses its oldest to a caller with fewer: a request is
    answered as if its time were over, and a stream ends.
    """

    def __init__(self, *, per_account_max: int, all_max: int) -> None:
        self._per_account_max = per_account_max
        self._all_max = all_max
        self._counts: Counter[str] = Counter()
        """How many each account and each origin has."""
        self._waits: dict[tuple[str, str], dict[Wait, None]] = {}
        """By account and origin, the oldest first."""
        self.count = 0

    @contextmanager
    def counted(self, account_id: str, origin: str) -> Iterator[Wait | Refusal]:
        """Count one more within this context, unless that is refused.

        Refuses: 1. ``rate_limit_exceeded``; 2. ``overloaded``.
        """
        caller, wait = (account_id, f"origin:{origin}"), Wait()
        if self._counts[account_id] >= self._per_account_max:
            yield Refusal(
                code="rate_limit_exceeded",
                message=f"{self._per_account_max} requests of this account wait or stream at this process, "
                "the most allowed; end one of them first.",
            )
            return
        if self.count >= self._all_max and not self._end_one_for(caller):
            yield Refusal(code="overloaded", message=f"{self._all_max} requests wait already; try again later.")
            return
        self._waits.setdefault(caller, {})[wait] = None
        self._count(caller, 1)
        try:
            yield wait
        finally:
            if not wait.is_over:
                self._drop(caller, wait)

    def _end_one_for(self, caller: tuple[str, str]) -> bool:
        """End the oldest of who has the most, unless the caller would then have as many."""
        most = max(self._waits, key=self._weight)
        then = [self._counts[mine] + (mine != theirs) for mine, theirs in zip(caller, most, strict=True)]
        if sorted(then, reverse=True) >= self._weight(most):
            return False
        wait = next(iter(self._waits[most]))
        self._drop(most, wait)
        wait.end()
        return True

    def _weight(self, caller: tuple[str, str]) -> list[int]:
        """How much an account has at an origin: by whichever of the two has more, then by the other."""
        return sorted((self._counts[each] for each in caller), reverse=True)

    def _drop(self, caller: tuple[str, str], wait: Wait) -> None:
        waits = self._waits[caller]
        del waits[wait]
        if not waits:
            del self._waits[caller]
        self._count(caller, -1)

    def _count(self, caller: tuple[str, str], change: int) -> None:
        for each in caller:
            self._counts[each] += change
            if not self._counts[each]:
                del self._counts[each]
        self.count += change
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
