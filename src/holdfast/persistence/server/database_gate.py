"""Whether the database answers, for reads, writes and readiness alike.

There are three sources: reads and writes that succeed, time out or lose their connection; a journal that cannot
look up a commit; and the watcher's probes. A caller that finds the database gone or slow closes the gate for all,
so that the others are refused at once instead of each waiting for its own timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import trio

from holdfast.persistence.server.database_faults import Trouble
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.conditions import TakeOutcome, ignore_outcome

DatabaseState = Literal["available", "slow", "away"]

RETRY_AFTER_S = 1.0
"""The watcher probes at least this often while the gate is closed."""
GRACE_S = 1.0
"""How long a running read may continue after the gate has closed: the gate may open again soon."""
TIMEOUTS_MAX = 3
TIMEOUTS_SPAN_S = 4.0
"""After this many timeouts without a success for this long the database counts as slow, even if probes succeed."""


class DatabaseGate:
    """Open while the database answers. Used on trio's thread only.

    ``take_outcome`` takes the reason whenever it is closed, and None when it opens.
    """

    def __init__(self) -> None:
        self.take_outcome: TakeOutcome = ignore_outcome
        self.reason = "The database has not been reached yet."
        self.retry_after_s = RETRY_AFTER_S
        self._doubted = trio.Event()
        self._trouble: Trouble | None = "away"
        self._stalled: str | None = None
        self._fault_of_server: str | None = None
        self.is_open = False
        """Whether the database answered when it was last used or probed."""
        self.closings = 0
        """How often it has closed; other threads may read it."""
        self._changed = trio.lowlevel.ParkingLot()
        self._waiting: dict[trio.CancelScope, float] = {}
        self._timeouts = 0
        self._succeeded_at = -TIMEOUTS_SPAN_S

    @property
    def state(self) -> DatabaseState:
        """The last known state of the database."""
        if self._trouble is not None:
            return self._trouble
        return "available" if self._stalled is None else "slow"

    def open(self) -> None:
        """Open the gate, unless the journal is stalled. Idempotent."""
        self._trouble = None
        self._fault_of_server = None
        self._update()

    def explain(self, fault: str) -> None:
        """While it is closed, give as the reason why the server does not run, which no connection says."""
        if not self.is_open:
            self._fault_of_server = fault
            self.close(fault)

    def close(self, reason: str, trouble: Trouble = "away", *, is_fault: bool = True) -> None:
        """Close the gate: refuse callers with ``reason``. Running reads are cancelled after :data:`GRACE_S`.

        It is no fault when this process ends.
        """
        self.reason = reason = self._fault_of_server or reason
        self._trouble = trouble
        if is_fault:
            self.take_outcome(f"{trouble}: {_first_line(reason)}")
        self._update()

    @contextmanager
    def stalled(self, reason: str) -> Iterator[None]:
        """Keep the gate closed while the journal looks up a commit, even if probes succeed."""
        self.reason = self._stalled = reason
        self.take_outcome(f"slow: {_first_line(reason)}")
        self._update()
        try:
            yield
        finally:
            self._stalled = None
            self._update()

    @contextmanager
    def cutting_short(self, scope: trio.CancelScope) -> Iterator[None]:
        """Cancel ``scope`` :data:`GRACE_S` after the gate closes, unless it is open again by then."""
        self._waiting[scope] = scope.deadline
        try:
            yield
        finally:
            del self._waiting[scope]

    def note_success(self) -> None:
        """A read or a write succeeded."""
        self._timeouts = 0
        self._succeeded_at = trio.current_time()

    def note_timeout(self, reason: str) -> None:
        """Record a timeout: request a probe, and close the gate after :data:`TIMEOUTS_MAX` without a success."""
        self._timeouts += 1
        self._doubted.set()
        quiet_s = trio.current_time() - self._succeeded_at
        if self.is_open and self._timeouts >= TIMEOUTS_MAX and quiet_s >= TIMEOUTS_SPAN_S:
            self.close(reason, "slow")

    @property
    def is_doubted(self) -> bool:
        """Whether there was a timeout since :meth:`trust`."""
        return self._doubted.is_set()

    def trust(self) -> None:
        """Forget earlier timeouts; the watcher is about to probe."""
        self._doubted = trio.Event()

    async def wait_open(self) -> None:
        """Return once the gate is open."""
        while not self.is_open:
            await self._changed.park()

    async def wait_closed(self) -> None:
        """Return once the gate is closed."""
        while self.is_open:
            await self._changed.park()

    async def wait_closed_or_doubted(self) -> None:
        """Return once the gate is closed, or a timeout has requested a probe."""
        doubted = self._doubted
        while self.is_open and not doubted.is_set():
            await doubted.wait()

    def _update(self) -> None:
        should_be_open = self._trouble is None and self._stalled is None
        if should_be_open == self.is_open:
            return
        self.is_open = should_be_open
        self._changed.unpark_all()
        if should_be_open:
            self.reason = ""
            self.take_outcome(None)
            metrics.DATABASE_UP.set(1)
            for scope, deadline in self._waiting.items():
                scope.deadline = deadline
        else:
            self.closings += 1
            self._doubted.set()
            metrics.DATABASE_UP.set(0)
            metrics.DATABASE_OUTAGES.inc()
            if self._waiting:
                soon = trio.current_time() + GRACE_S
                for scope in self._waiting:
                    scope.deadline = min(scope.deadline, soon)


def _first_line(reason: str) -> str:
    """Return the fault itself; the lines after it are the driver's advice."""
    return reason.partition("\n")[0]
