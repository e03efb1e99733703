"""A journal with a scripted writer, and authors of units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import trio

from holdfast.persistence.journal.changes import Changes
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Committed, Unit, UnitResult
from holdfast.persistence.server.connections import await_in_call
from holdfast.persistence.server.database_gate import DatabaseGate

Outcome = Exception | list[UnitResult] | bool | None


class ScriptedWriter:
    """Starts a batch at once; the test ends it: with an exception, with results, or with None for all committed."""

    def __init__(self) -> None:
        self.batches: list[list[Unit]] = []
        self.looked_up: list[str] = []
        self.closed = 0
        self._begun = trio.Semaphore(0)
        self._script, self._outcomes = trio.open_memory_channel[Outcome](math.inf)

    def write(self, units: Sequence[Unit]) -> list[UnitResult]:
        self.batches.append(list(units))
        outcome = self._next()
        return outcome if isinstance(outcome, list) else [Committed()] * len(units)

    def look_up(self, batch_id: str) -> bool:
        self.looked_up.append(batch_id)
        return bool(self._next())

    def close(self) -> None:
        self.closed += 1

    def _next(self) -> Outcome:
        self._begun.release()
        outcome = await_in_call(self._outcomes.receive)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def has_begun(self) -> None:
        """Return once the writer has started its next call."""
        await self._begun.acquire()

    def finish(self, outcome: Outcome = None) -> None:
        """End the call under way (or the next one) with this outcome."""
        self._script.send_nowait(outcome)


class Author:
    """Records its results; ``also`` runs at each one."""

    def __init__(self, settled_units: list[tuple[Unit, UnitResult]] | None = None) -> None:
        self.is_void = False
        self.settled_units: list[tuple[Unit, UnitResult]] = [] if settled_units is None else settled_units
        self.also: Callable[[UnitResult], None] = lambda _: None

    def unit_ended(self, unit: Unit, result: UnitResult) -> None:
        self.settled_units.append((unit, result))
        self.also(result)

    async def has_settled(self, how_many: int) -> None:
        """Return once there are so many results; no trio task can wait for the writer's thread."""
        while len(self.settled_units) < how_many:  # noqa: ASYNC110 - see above
            await trio.sleep(0.001)

    @property
    def results(self) -> list[UnitResult]:
        return [result for _, result in self.settled_units]


class JournalBench:
    """A journal, its writer and its gate."""

    def __init__(self, *, batch_units_max: int = 500) -> None:
        self.writer = ScriptedWriter()
        self.gate = DatabaseGate()
        self.gate.open()
        self.changes = Changes()
        self.journal = Journal(self.writer, self.gate, batch_units_max=batch_units_max, changes=self.changes)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.journal.run(task_status=task_status)

    def submit(self, author: Author, how_many: int = 1) -> list[Unit]:
        units = [Unit() for _ in range(how_many)]
        for unit in units:
            self.journal.submit(unit, author)
        return units
