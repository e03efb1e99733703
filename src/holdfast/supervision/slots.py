"""What a supervisor remembers of each child: its place, and the life it may have at present."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Literal

import trio

from holdfast.supervision.intensity import RestartWindow
from holdfast.supervision.spec import Child, ChildSpec, Intensity
from holdfast.supervision.status import ChildState, ChildStatus, as_branch

Phase = Literal["down", "starting", "running", "stopping"]
Settled = Literal["finished", "failed", "stopped"]


class Life:
    """One incarnation. Whoever acts on a child holds its life, so that a late act cannot hit a successor."""

    __slots__ = ("child", "done", "scope", "up_at")

    def __init__(self) -> None:
        self.scope = trio.CancelScope(shield=True)
        self.done = trio.Event()
        self.child: Child | None = None
        self.up_at: float | None = None


class StartSignal:
    """The ``task_status`` handed to one incarnation; calls ``on_started`` once."""

    __slots__ = ("_called", "_on_started")

    def __init__(self, on_started: Callable[[], None]) -> None:
        self._on_started = on_started
        self._called = False

    def started(self, _value: None = None) -> None:
        """The child is up. Raises RuntimeError if it says so twice."""
        if self._called:
            raise RuntimeError("started() was called twice")
        self._called = True
        self._on_started()


class Slot:
    """One child's place. ``settled``: why it is not to be started. ``doomed``: it is up and must come down."""

    def __init__(self, spec: ChildSpec, intensity: Intensity, path: str, since: datetime) -> None:
        self.spec = spec
        self.path = path
        self.since = since
        self.phase: Phase = "down"
        self.life = Life()
        self.settled: Settled | None = None
        self.doomed = False
        self.incarnation = 0
        self.once_up = False
        self.fails_in_a_row = 0
        self.window = RestartWindow(intensity.restarts, intensity.period_s)
        self.last_fault: str | None = None
        self.timer: trio.CancelScope | None = None
        self.due_at = 0.0

    @property
    def live(self) -> bool:
        """Whether an incarnation exists, in whatever phase."""
        return self.phase != "down"

    @property
    def ready(self) -> bool:
        """Whether it runs, and says it is ready if it can tell."""
        branch = as_branch(self.life.child)
        return self.phase == "running" and (branch is None or branch.is_ready)

    def clear_timer(self) -> None:
        """Give up waiting for a back-off."""
        if self.timer is not None:
            timer, self.timer = self.timer, None
            timer.cancel()

    def settle(self, settled: Settled) -> None:
        """It is not to be started again for now."""
        self.settled = settled
        self.clear_timer()

    def state(self, ending: bool) -> ChildState:
        """The phase as outsiders know it; ``ending`` when the whole supervisor is coming or has come down."""
        if self.phase != "down":
            return self.phase
        if self.settled is not None:
            return self.settled
        if ending:
            return "stopped"
        return "restarting" if self.incarnation else "pending"

    def status(self, now: float | None, ending: bool) -> ChildStatus:
        """A picture of the child at ``now`` (trio's clock; None outside of trio)."""
        branch = as_branch(self.life.child)
        return ChildStatus(
            child_id=self.spec.child_id,
            state=self.state(ending),
            restart=self.spec.restart,
            incarnation=self.incarnation,
            restarts_in_window=0 if now is None else self.window.count(now),
            since=self.since,
            retry_in_s=max(0.0, self.due_at - now) if self.timer is not None and now is not None else None,
            last_fault=self.last_fault,
            children=() if branch is None else branch.children(),
        )
