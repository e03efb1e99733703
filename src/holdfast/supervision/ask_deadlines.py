"""One timer for everybody who waits for an answer.

A cancel scope for each ask would cost as much as the ask. Here an ask leaves its deadline in a table, and one task
sleeps until the earliest of them. It is a system task of trio's: callers wait through restarts of the part they
asked, so their deadlines must not fall with it.
"""

from __future__ import annotations

import trio

from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.actors.runtime.future import TrioFuture

NEVER = float("inf")
GRAIN_S = 0.02
"""How long the timer rests after it rang, at the least: each ring looks at all who wait, thousands in bad times."""


class AskDeadlines:
    """Futures that are waited for, each with the moment (trio time) at which waiting ends."""

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

    def remove(self, future: TrioFuture[object]) -> None:
        """Nobody waits for ``future`` any more."""
        self._waiting.pop(future, None)

    async def _run(self) -> None:
        # An alarm is not taken back when its ask is answered: the next ask then finds one set that is early enough.
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
