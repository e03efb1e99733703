"""The journal: the one write path. Units of work that arrive during a commit are committed together by the next.

There is no timer. Under light load a batch is one unit; under heavy load it is half of the units that wait or were
just answered, up to ``batch_units_max``: callers that got their replies send again at once, and while one half is
written, the actors decide what the other half's callers send. One commit is under way at a time, and no
cancellation abandons it. Authors get their results in the order of submission, before the next batch is
gathered, so that no unit is written whose author has become void meanwhile.

While the database is away or slow, and after the journal has ended, units get ``NotWritten`` at once.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import structlog
import trio

from holdfast.persistence.journal.changes import Changes
from holdfast.persistence.journal.units import (
    AlreadyReplied,
    Author,
    Broken,
    Committed,
    NotWritten,
    Stale,
    Unit,
    UnitResult,
    Unknown,
)
from holdfast.persistence.journal.writer import CommitUnanswered, ConnectionLost
from holdfast.persistence.server.connections import run_to_the_end
from holdfast.persistence.server.database_gate import DatabaseGate
from holdfast.telemetry import metrics

log = structlog.get_logger(__name__)

BATCH_UNITS_SHARED = 32
"""Of more units than this, queued or just answered, a batch takes half."""

BLOCKED_S = 3.0
"""If no batch could be written for so long, though there were some, writes count as blocked."""
LOOK_UP_FIRST_S = 0.1
LOOK_UP_LAST_S = 1.0
MARKER_RETENTION_S = 24 * 3600
"""How long a batch's marker is retained, for a look-up to find."""
LOOK_UP_MAX_S = MARKER_RETENTION_S / 2
"""A look-up that succeeds later than this proves nothing: the marker may have been deleted since."""


class Writer(Protocol):
    """A batch writer, as the journal uses it."""

    def write(self, units: Sequence[Unit]) -> list[UnitResult]: ...

    def look_up(self, batch_id: str) -> bool: ...

    def close(self) -> None: ...


class Gate(Protocol):
    """Whether the database responds. A caller that loses the database closes it; the watcher opens it again."""

    @property
    def is_open(self) -> bool: ...

    @property
    def reason(self) -> str: ...

    def close(self, reason: str) -> None: ...

    def note_timeout(self, reason: str) -> None: ...

    def note_success(self) -> None: ...

    def stalled(self, reason: str) -> AbstractContextManager[None]: ...

    async def wait_open(self) -> None: ...


class Journal:
    """Accepts units at any time; writes them while :meth:`run` runs. It notes in ``changes`` what was committed."""

    def __init__(
        self, writer: Writer, gate: Gate, *, batch_units_max: int = 500, changes: Changes | None = None
    ) -> None:
        self._writer = writer
        self._gate = gate
        self._changes = changes or Changes()
        self._batch_units_max = batch_units_max
        self._queue: deque[tuple[Unit, Author]] = deque()
        self._arrived = trio.Event()
        self._answered_units = 0
        self._stopping = False
        self.is_accepting = False
        """Whether the journal runs, so that a unit submitted now can be written."""
        self._wait_accepting = trio.lowlevel.ParkingLot()
        self._has_ended = False
        self._blocked_since: float | None = None
        self._tried_at = -BLOCKED_S
        self.commit_s = 0.0
        """How long the newest commit took."""

    @property
    def queued_units(self) -> int:
        """How many units wait for the next batch."""
        return len(self._queue)

    @property
    def is_blocked(self) -> bool:
        """Whether writing has taken, or timed out again and again, for :data:`BLOCKED_S` until now."""
        now = trio.current_time()
        is_recent = now - self._tried_at < BLOCKED_S
        return is_recent and self._blocked_since is not None and now - self._blocked_since >= BLOCKED_S

    async def wait_accepting(self) -> None:
        """Return once it runs."""
        while not self.is_accepting:
            await self._wait_accepting.park()

    def submit(self, unit: Unit, author: Author) -> None:
        """Queue a unit; ``author.unit_ended`` is called with its result once that is known.

        After the journal has ended, that happens before this returns: the queue is not read until it runs again.
        """
        if self._has_ended:
            self._refuse(unit, author, "the journal does not run")
            return
        self._queue.append((unit, author))
        self._arrived.set()

    async def write(self, unit: Unit) -> UnitResult:
        """Queue a unit and wait for its result. Cancelling the wait does not withdraw the unit."""
        waiter = _Waiter()
        self.submit(unit, waiter)
        await waiter.ended.wait()
        assert waiter.result is not None
        return waiter.result

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write batches until :meth:`stop`; then write what is queued and return.

        If it ends for any other reason, every queued unit gets ``NotWritten``, and so does every unit submitted
        before it runs again.
        """
        self._stopping = False
        self._has_ended = False
        try:
            await self._gate.wait_open()
            self.is_accepting = True
            self._wait_accepting.unpark_all()
            task_status.started()
            while True:
                # Nothing yields from here until the writer waits: a cancellation finds units in the queue or at
                # the database, never in between.
                await trio.lowlevel.checkpoint_if_cancelled()
                if not self._gate.is_open:
                    self._refuse_queued(f"the database is away: {self._gate.reason}")
                batch = self._gather()
                if batch:
                    await self._commit(batch)
                elif self._stopping:
                    return
                else:
                    await self._arrived.wait()
        finally:
            self._has_ended = True
            self.is_accepting = False
            self._refuse_queued("the journal stopped")
            self._writer.close()

    async def stop(self) -> None:
        """Ask :meth:`run` to finish what is queued and return."""
        self._stopping = True
        self._arrived.set()

    def _refuse_queued(self, reason: str) -> None:
        for _ in range(len(self._queue)):
            unit, author = self._queue.popleft()
            self._refuse(unit, author, reason)

    @staticmethod
    def _refuse(unit: Unit, author: Author, reason: str) -> None:
        refused = NotWritten(reason)
        _tell_author(author, unit, refused)
        _count([refused])

    # ------------------------------------------------------------------------------------------------- batches

    def _gather(self) -> list[tuple[Unit, Author]]:
        batch: list[tuple[Unit, Author]] = []
        units_about = len(self._queue) + self._answered_units
        units_max = min(max(units_about // 2, BATCH_UNITS_SHARED), self._batch_units_max)
        while self._queue and len(batch) < units_max:
            unit, author = self._queue.popleft()
            if author.is_void:
                self._refuse(unit, author, "its author has become void")
            else:
                batch.append((unit, author))
        if not self._queue and not self._stopping:
            self._arrived = trio.Event()
        self._answered_units = len(batch)
        metrics.JOURNAL_QUEUE.set(len(self._queue))
        return batch

    async def _commit(self, batch: list[tuple[Unit, Author]]) -> None:
        begun = trio.current_time()
        if self._blocked_since is None or begun - self._tried_at >= BLOCKED_S:
            self._blocked_since = begun
        self._tried_at = math.inf
        units = [unit for unit, _ in batch]
        results: list[UnitResult] = [Unknown("the journal was interrupted during a commit")] * len(units)
        try:
            results = await self._write(units)
        finally:
            self._tried_at = trio.current_time()
            self.commit_s = self._tried_at - begun
            if not _timed_out(results):
                self._blocked_since = None
            metrics.JOURNAL_COMMIT_S.observe(self.commit_s)
            metrics.JOURNAL_BATCH_UNITS.observe(len(units))
            for (unit, author), result in zip(batch, results, strict=True):
                _tell_author(author, unit, result)
            ended = list(zip(units, results, strict=True))
            self._changes.commit((unit for unit, result in ended if type(result) is Committed), begun)
            self._changes.commit(unit for unit, result in ended if type(result) is Unknown)
            _count(results)

    async def _write(self, units: list[Unit]) -> list[UnitResult]:
        try:
            results = await run_to_the_end(self._writer.write, units)
            timeout = _timed_out(results)
            if timeout is None:
                self._gate.note_success()
            else:
                # It concerns the whole batch.
                self._gate.note_timeout(timeout.reason)
            return results
        except ConnectionLost as lost:
            log.debug("database connection lost before a commit", units=len(units), reason=str(lost))
            self._gate.close(str(lost))
            not_written = NotWritten("the database connection was lost before the commit")
            return [*lost.results, *[not_written] * (len(units) - len(lost.results))]
        except CommitUnanswered as lost:
            log.warning("database connection lost during a commit", units=len(units), reason=str(lost))
            return await self._look_up(lost)

    async def _look_up(self, lost: CommitUnanswered) -> list[UnitResult]:
        """Look up, for as long as it takes, whether a batch whose COMMIT got no response is durable.

        Until then the database counts as slow, even if probes succeed: nothing else can be written meanwhile.
        """
        begun = trio.current_time()
        durable = await self._try_look_up(lost.batch_id)
        if durable is None:
            with self._gate.stalled(f"a commit got no response: {lost}"):
                pause_s = LOOK_UP_FIRST_S
                while durable is None:
                    await trio.sleep(pause_s)
                    pause_s = min(pause_s * 2, LOOK_UP_LAST_S)
                    durable = await self._try_look_up(lost.batch_id)
        metrics.COMMIT_LOOKUPS.labels("committed" if durable else "void").inc()
        log.warning("lost commit looked up", batch_id=lost.batch_id, durable=durable)
        if not durable and trio.current_time() - begun > LOOK_UP_MAX_S:
            return [Unknown("its marker was looked up too late")] * len(lost.if_void)
        return lost.if_durable if durable else lost.if_void

    async def _try_look_up(self, batch_id: str) -> bool | None:
        try:
            return await run_to_the_end(self._writer.look_up, batch_id)
        except ConnectionLost as lost:
            self._gate.close(str(lost))
            return None


class _Waiter:
    """An author that waits for one result."""

    is_void = False

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.result: UnitResult | None = None

    def unit_ended(self, unit: Unit, result: UnitResult) -> None:  # noqa: ARG002 - it has one unit
        self.result = result
        self.ended.set()


_LABELS: dict[type[UnitResult], str] = {
    Committed: "committed",
    Stale: "stale",
    AlreadyReplied: "already_answered",
    NotWritten: "not_written",
    Broken: "broken",
    Unknown: "unknown",
}


def _timed_out(results: Sequence[UnitResult]) -> NotWritten | None:
    """Return the result of a batch that timed out; None for any other batch."""
    last = results[-1]
    return last if type(last) is NotWritten and last.timed_out else None


def _tell_author(author: Author, unit: Unit, result: UnitResult) -> None:
    try:
        author.unit_ended(unit, result)
    except Exception:
        # One author's bug must not keep the others from their results.
        log.exception("an author failed to handle its result", result=_LABELS[type(result)])


def _count(results: Sequence[UnitResult]) -> None:
    for kind, number in Counter(map(type, results)).items():
        metrics.JOURNAL_UNITS.labels(_LABELS[kind]).inc(number)
    for result in results:
        if type(result) is Stale:
            for fence in result.fences:
                metrics.FENCE_STALE.labels(fence.kind).inc()


class WritePath:
    """The gate for callers that write. Reads need the database alone, and use its own gate."""

    def __init__(self, database: DatabaseGate, journal: Journal) -> None:
        self._database = database
        self._journal = journal

    @property
    def is_open(self) -> bool:
        """Whether a decision made now can be written."""
        return self._database.is_open and self._journal.is_accepting

    @property
    def reason(self) -> str:
        """Why it is closed."""
        return self._database.reason or "the journal is starting"

    @property
    def retry_after_s(self) -> float:
        """How long to wait before a retry while it is closed."""
        return self._database.retry_after_s

    async def wait_open(self) -> None:
        """Return once it is open."""
        while not self.is_open:
            await self._database.wait_open()
            await self._journal.wait_accepting()
