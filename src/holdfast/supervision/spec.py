"""What a supervisor is told about a child: how to start it, when to restart it, how long it may take to stop."""

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
"""Who falls with a child that is restarted: nobody, everybody, or those started after it."""

AutoShutdown = Literal["never", "any_significant", "all_significant"]
"""Whether the supervisor finishes once one (or the last) of its significant children has finished for good."""


DEFAULT_BACKOFF = Backoff(0.1, 30.0, jitter=0.2)


class Child(Protocol):
    """Something that lives under a supervisor. One object is one incarnation; a restart makes a new one.

    Cleaning up belongs into ``finally`` of ``run``: a kill is a cancellation.
    """

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Live. Call ``task_status.started()`` once up; to return is a normal exit, to raise is a crash."""
        ...

    async def stop(self) -> None:
        """Ask ``run`` to return soon. Called at most once, and only after ``started()``.

        A child that is not up yet has nothing to drain and is cancelled instead.
        """
        ...


@runtime_checkable
class Placed(Protocol):
    """A child that wants to know where in the tree it lives; told before it runs."""

    def place(self, path: str) -> None:
        """Learn the path, such as ``holdfast/workers``."""
        ...


@runtime_checkable
class Hurried(Protocol):
    """A child that can be told to end without patience; a supervisor passes it on to the children below."""

    def stop_at_once(self) -> None:
        """Give up waiting for anybody; ``run`` returns as soon as its own code has unwound."""
        ...


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child of a supervisor. ``start`` makes a fresh object for every incarnation and may raise.

    ``shutdown_s`` is the patience after a polite stop; then the child is killed (0: killed at once). Give a child
    that is itself a supervisor at least its ``drain_timeout_s``. An ``independent`` child keeps running when a
    sibling before it is restarted. A child that stayed up for ``backoff.max_s`` has recovered: its next crash
    waits ``backoff.min_s`` again.

    Raises ValueError for an id that would not fit into a path, an endless patience, or a significant child that is
    permanent (it never finishes, so it can never be the reason to shut down).
    """

    child_id: str
    start: Callable[[], Child]
    restart: Restart = "permanent"
    shutdown_s: float = 5.0
    significant: bool = False
    backoff: Backoff = DEFAULT_BACKOFF
    independent: bool = False

    def __post_init__(self) -> None:
        if not self.child_id or "/" in self.child_id:
            raise ValueError("a child id is not empty and has no slash")
        if not 0 <= self.shutdown_s < math.inf:
            raise ValueError("shutdown_s is finite and not negative")
        if self.significant and self.restart == "permanent":
            raise ValueError("a permanent child cannot be significant")


@dataclass(frozen=True, slots=True)
class Intensity:
    """A supervisor's budget: more than ``restarts`` within ``period_s`` seconds and it gives up."""

    restarts: int
    period_s: float
