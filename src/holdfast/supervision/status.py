"""The status of supervised children, for the operators' page and ``/readyz``."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

import msgspec

from holdfast.supervision.spec import Restart

ChildState = Literal["pending", "starting", "running", "stopping", "restarting", "finished", "failed", "stopped"]
"""pending: not started yet. restarting: down, waiting for its backoff or its turn.

finished, failed: ended by itself and not restarted. stopped: by an operator, or with the supervisor.
"""


class ChildStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One child's status. ``restarts_in_window`` are its own; ``retry_in_s`` is the rest of its backoff."""

    child_id: str
    state: ChildState
    restart: Restart
    incarnation: int
    restarts_in_window: int
    since: datetime
    retry_in_s: float | None = None
    last_fault: str | None = None
    children: tuple[ChildStatus, ...] = ()


@runtime_checkable
class Branch(Protocol):
    """A child with children of its own, or one that may be up and not ready."""

    @property
    def is_ready(self) -> bool:
        """Whether it can work now."""
        ...

    def children(self) -> tuple[ChildStatus, ...]:
        """Return its children in start order."""
        ...


def as_branch(child: object) -> Branch | None:
    """Return ``child`` if it is a :class:`Branch`, else None."""
    return child if isinstance(child, Branch) else None
