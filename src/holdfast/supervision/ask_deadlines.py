"""The deadlines of all asks, with one timer.

A cancel scope for each ask would cost as much as the ask. Instead, asks enter their deadlines in a table, and one
task sleeps until the earliest. It is a system task of trio, since an ask outlives a restart of the directory it
was sent to.
"""

from __future__ import annotations

import trio

from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.actors.runtime.future import TrioFuture

NEVER = float("inf")
GRAIN_S = 0.02
"""The shortest time between two runs of the timer, each of which scans the whole table."""


class AskDeadlines:
    """Futures with their deadlines (trio's clock)."""

    def __init__(self) -> None:
        self._waiting: dict[TrioFuture[object], tuple[float, float]] = {}
        self._alarm_at = NEVER
        self._sooner: trio.Event | None = None

    def add(self, future: TrioFuture[object], deadline: float, deadline_s: float) -> None:
        """Fail ``future`` with :class:`OutcomeUnknown` unless it is set or removed before ``deadline``.

        It fails then or a moment later (:data:`GRAIN_S`), never sooner.
        """
        self._waiting[future] = (deadline, deadline_s)
        if deadline < self._alarm_at:
            self._alarm_at = deadline
            if self._sooner is None:
                self._sooner = trio.Event()
                trio.lowlevel.spawn_system_task(self._run, name="ask deadlines")
            else:
                self._sooner.set()

    async def wait(self, future: TrioFuture[object], deadline: float, deadline_s: float) -> object:
        """Return what ``future`` is set to. Raises :class:`OutcomeUnknown` unless that is before ``deadline``."""
        self.add(future, deadline, deadline_s)
        try:
            return await future.wait()
        finally:
            self.remove(future)

    def remove(self, future: TrioFuture[object]) -> None:
        """Forget ``future``: its ask has ended."""
        self._waiting.pop(future, None)

    async def _run(self) -> None:
        # The timer is not moved when an ask ends: the next ask then finds one that is early enough.
        while True:
            self._sooner = trio.Event()
            with trio.move_on_at(self._alarm_at):
                await self._sooner.wait()
                continue
            now = trio.current_time()
            for future, (deadline, deadline_s) in list(self._waiting.items()):
                if deadline <= now:
                    del self._waiting[future]
                    if not future.is_set:
                        future.fail(OutcomeUnknown(f"no answer within {deadline_s:g} s"))
            earliest = min((deadline for deadline, _ in self._waiting.values()), default=NEVER)
            self._alarm_at = max(earliest, now + GRAIN_S)
