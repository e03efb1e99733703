"""The specification of a child: how to start it, when to restart it, how long it may take to stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import trio

from holdfast.supervision.intensity import Backoff

Restart = Literal["permanent", "transient", "temporary"]
"""permanent: always restarted. transient: only after a crash. temporary: never, not even with its siblings."""

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""Which siblings are restarted with a child: none, all, or those started after it."""


DEFAULT_BACKOFF = Backoff(0.1, 30.0, jitter=0.2)


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

    def place(self, path: str) -> None:
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


@dataclass(frozen=True, slots=True)
class Intensity:
    """A supervisor's budget: more than ``restarts`` within ``period_s`` seconds and it gives up.

    ``longer`` is a second budget over a longer time, for failures that follow each other too slowly for the first.
    """

    restarts: int
    period_s: float
    longer: Intensity | None = None
