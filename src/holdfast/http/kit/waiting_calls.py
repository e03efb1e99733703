"""The requests that wait for something to change, and the streams: counted, so that none of them blocks others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from holdfast.http.kit.fair_shares import FairShares
from holdfast.ledger.public_types import counted
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal.changes import Changes, Watch
from holdfast.persistence.server.lookups import GroupedLookups
from holdfast.telemetry import metrics

STREAM_READS_MAX: Final = 2
"""Of a caller's streams together, beside its other reads: those do not wait for what hundreds of streams read."""
STREAMS_PER_READ_MAX: Final = 16
"""For how many streams of accounts one query reads: each may be sent many rows, and a row may have megabytes."""


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
            waits = counted(self._per_account_max, "waiting request")
            message = f"This account has {waits} or streams at this process, the most allowed; end one first."
            yield Refusal(code="rate_limit_exceeded", message=message)
            return
        if self.count >= self._all_max and not self._end_one_for(caller):
            message = f"This process has {counted(self._all_max, 'waiting request')} already; try again later."
            yield Refusal(code="overloaded", message=message)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What requests that wait, and streams, need to follow what changes.

    ``waiting`` counts them, ``stream_shares`` are the shares of what the streams of an account read, and
    ``stream_lookups`` read for those of all accounts.
    """

    changes: Changes
    waiting: WaitingCalls
    stream_lookups: GroupedLookups
    stream_shares: FairShares = field(default_factory=lambda: FairShares(at_once_max=STREAM_READS_MAX))
