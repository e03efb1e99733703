"""How things stand in a supervisor, as a value: what the operators' page shows and ``/readyz`` asks."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

import msgspec

from holdfast.supervision.spec import Restart

ChildState = Literal["pending", "starting", "running", "stopping", "restarting", "finished", "failed", "stopped"]
"""pending: its first start is still to come. restarting: down, waiting for its back-off or its turn.

finished, failed: ended by itself and not restarted. stopped: by an operator, or with the supervisor.
"""


class ChildStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One child at one moment. ``restarts_in_window`` are its own; ``retry_in_s`` is what is left of a back-off."""

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
    """A child with children of its own, or one that may be up and yet not ready (paused, say)."""

    @property
    def is_ready(self) -> bool:
        """Whether it can do its work now."""
        ...

    def children(self) -> tuple[ChildStatus, ...]:
        """Its children in start order."""
        ...


def as_branch(child: object) -> Branch | None:
    """``child`` if it has children or a readiness of its own."""
    return child if isinstance(child, Branch) else None
