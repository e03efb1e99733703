"""The specification of a child: how to start it, when and how often to restart it, how to stop it."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

import trio

_LARGEST_EXPONENT: Final = 64

Restart = Literal["permanent", "transient", "temporary"]
"""permanent: always restarted. transient: only after a crash. temporary: never, not even with its siblings."""

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""Which siblings are restarted with a child: none, all, or those started after it."""


class RestartWindow:
    """Counts restarts in a sliding window of ``period_s`` seconds; more than ``restarts`` of them is too many."""

    __slots__ = ("_times", "period_s", "restarts")

    def __init__(self, restarts: int, period_s: float) -> None:
        if restarts < 0 or period_s <= 0:
            raise ValueError("a restart window needs restarts >= 0 and period_s > 0")
        self.restarts = restarts
        self.period_s = period_s
        # One more than the budget is enough to know that it is spent.
        self._times: deque[float] = deque(maxlen=restarts + 1)

    def record(self, now: float) -> bool:
        """Count one restart at ``now`` (seconds, monotonic). Returns whether the budget covers it."""
        self._times.append(now)
        return self.count(now) <= self.restarts

    def count(self, now: float) -> int:
        """Return the restarts in the window that ends at ``now``, at most the budget plus one."""
        while self._times and self._times[0] < now - self.period_s:
            self._times.popleft()
        return len(self._times)

    def clear(self) -> None:
        """Start over."""
        self._times.clear()


@dataclass(frozen=True, slots=True)
class Intensity:
    """A supervisor's budget: more than ``restarts`` within ``period_s`` seconds and it gives up.

    ``longer`` is a second budget over a longer time, for failures that follow each other too slowly for the first.
    """

    restarts: int
    period_s: float
    longer: Intensity | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times that grow from ``min_s`` by ``factor`` up to ``max_s``, each varied by ±``jitter`` (a share).

    The jitter is applied after the cap, so that many children at the cap do not start in the same instant.
    """

    min_s: float
    max_s: float
    factor: float = 2.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.min_s <= self.max_s or self.factor < 1 or not 0 <= self.jitter < 1:
            raise ValueError("a backoff needs 0 <= min_s <= max_s, factor >= 1 and 0 <= jitter < 1")

    def delay(self, n: int, rng: random.Random) -> float:
        """Return the seconds to wait after the ``n``-th failure in a row (the first is 1)."""
        exponent = min(max(n, 1) - 1, _LARGEST_EXPONENT)
        plain_s = min(self.max_s, self.min_s * self.factor**exponent)
        return plain_s * (1 + rng.uniform(-self.jitter, self.jitter)) if self.jitter else plain_s


DEFAULT_BACKOFF: Final = Backoff(0.1, 30.0, jitter=0.2)


class Child(Protocol):
    """A part under a supervisor. Clean up in a ``finally`` of ``run``: a kill is a cancellation."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run. Call ``task_status.started()`` once up; to return is a normal exit, to raise is a crash."""
        ...

    async def stop(self) -> None:
        """Make ``run`` return soon. Called at most once a run, and only after ``started()``.

        A child that is not up yet is cancelled instead.
        """
        ...


@runtime_checkable
class HasPath(Protocol):
    """A child that uses its path in the tree."""

    def set_path(self, path: str) -> None:
        """Set the path, such as ``holdfast/workers``; called before ``run``."""
        ...


@runtime_checkable
class StopsAtOnce(Protocol):
    """A child that can stop without a drain. A supervisor passes this on to its children."""

    def stop_at_once(self) -> None:
        """Make ``run`` return without waiting for any child."""
        ...


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child of a supervisor. ``start`` returns the object to run for each incarnation, and may raise.

    ``shutdown_s`` is how long a stop may take before the child is killed (0: killed at once). Give a child that is
    itself a supervisor at least its ``drain_timeout_s``. An ``independent`` child keeps running when a sibling
    before it is restarted. A supervisor is ready without a child that is not ``required``, once that has been up.
    The backoff of a child that stayed up for ``backoff.max_s`` starts over.

    Raises ValueError for an id that does not fit into a path, or an infinite or negative ``shutdown_s``.
    """

    child_id: str
    start: Callable[[], Child]
    restart: Restart = "permanent"
    shutdown_s: float = 5.0
    backoff: Backoff = DEFAULT_BACKOFF
    independent: bool = False
    required: bool = True

    def __post_init__(self) -> None:
        if not self.child_id or "/" in self.child_id:
            raise ValueError("a child id is not empty and has no slash")
        if not 0 <= self.shutdown_s < math.inf:
            raise ValueError("shutdown_s is finite and not negative")
