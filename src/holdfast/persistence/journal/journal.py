"""The journal: the one write path. Units of work come in, gather while a commit is under way, and go together.

There is no timer. Under light load a batch is one unit; under heavy load it grows by itself with what arrived
during the last commit, up to ``batch_units_max``. Those who were just answered are about to ask again, so a batch
takes half of all: were everybody in one batch, nothing would be decided while it is written, and nothing written
while it is decided. One commit is under way at a time, in a thread that no cancellation abandons. Verdicts go
back to the authors in the order of submission, before the next batch is gathered: a unit of an author that has
become void in between is never written.

While the database is away or slow, and once the journal has ended, nobody waits in vain: units are answered
``NotWritten`` at once, and decided again when there is something to write them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar, TypeVarTuple

import structlog
import trio

from holdfast import metrics
from holdfast.persistence.journal.drafts import Prepared, prepare
from holdfast.persistence.journal.units import (
    AlreadyAnswered,
    Author,
    Broken,
    Committed,
    NotWritten,
    Stale,
    Unit,
    Unknown,
    Verdict,
)
from holdfast.persistence.journal.writer import CommitUnanswered, ConnectionLost

log = structlog.get_logger(__name__)

BATCH_UNITS_SHARED = 32
"""With more about than this, a batch leaves half to the next one."""

LOOK_UP_FIRST_S = 0.1
LOOK_UP_LAST_S = 1.0
MARKS_KEPT_S = 7 * 24 * 3600
"""How long a batch's mark stays in the database, for a look-up to find."""
LOOK_UP_MAX_S = MARKS_KEPT_S / 2
"""A look-up that succeeds later than this says nothing: the mark it does not find may have been removed."""

Arguments = TypeVarTuple("Arguments")
B = TypeVar("B")


class Writer(Protocol):
    """What the journal needs of a batch writer; tests put a fake in its place."""

    def write(self, units: Sequence[Unit], prepared: Prepared | None = None) -> list[Verdict]: ...

    def look_up(self, batch_id: str) -> bool: ...

    def close(self) -> None: ...


class Gate(Protocol):
    """Knows whether the database is there; whoever finds it gone closes it, and its watcher opens it again."""

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
    """Accepts units at any time; writes them while :meth:`run` runs."""

    def __init__(self, writer: Writer, gate: Gate, *, batch_units_max: int = 500) -> None:
        self._writer = writer
        self._gate = gate
        self._batch_units_max = batch_units_max
        self._queue: deque[tuple[Unit, Author]] = deque()
        self._arrived = trio.Event()
        self._answered_units = 0
        self._thread = _OneAtATime()
        self._stopping = False
        self._accepting = trio.Event()
        self._has_ended = False

    @property
    def is_accepting(self) -> bool:
        """Whether what is submitted now has a chance of being written."""
        return self._accepting.is_set()

    async def wait_accepting(self) -> None:
        """Return once it runs."""
        while not self.is_accepting:
            await self._accepting.wait()

    def submit(self, unit: Unit, author: Author) -> None:
        """Queue a unit; ``author.settle`` is called with its verdict once that is known.

        Once the journal has ended, that is before this returns: nobody reads the queue until it runs again.
        """
        if self._has_ended:
            self._refuse(unit, author, "the journal does not run")
            return
        self._queue.append((unit, author))
        self._arrived.set()

    async def write(self, unit: Unit) -> Verdict:
        """Queue a unit and wait for its verdict. A cancelled wait leaves the unit to its fate."""
        waiter = _Waiter()
        self.submit(unit, waiter)
        await waiter.settled.wait()
        assert waiter.verdict is not None
        return waiter.verdict

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write batches until :meth:`stop`; then write what is left and return.

        On the way out for any other reason every unit still queued is answered ``NotWritten``, and so is all that
        is submitted before it runs again.
        """
        self._stopping = False
        self._has_ended = False
        try:
            await self._gate.wait_open()
            self._accepting.set()
            task_status.started()
            while True:
                # From here to the thread's start nothing yields: a kill meets units in the queue or at the
                # database, never between.
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
            self._accepting = trio.Event()
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
        _settle(author, unit, refused)
        _count([refused])

    # ------------------------------------------------------------------------------------------------- batches

    def _gather(self) -> list[tuple[Unit, Author]]:
        batch: list[tuple[Unit, Author]] = []
        units_about = len(self._queue) + self._answered_units
        units_max = min(max(units_about // 2, BATCH_UNITS_SHARED), self._batch_units_max)
        while self._queue and len(batch) < units_max:
            unit, author = self._queue.popleft()
            if author.is_void:
                self._refuse(unit, author, "decided by an incarnation that no longer stands")
            else:
                batch.append((unit, author))
        if not self._queue and not self._stopping:
            self._arrived = trio.Event()
        self._answered_units = len(batch)
        metrics.JOURNAL_QUEUE.set(len(self._queue))
        return batch

    async def _commit(self, batch: list[tuple[Unit, Author]]) -> None:
        begun = trio.current_time()
        units = [unit for unit, _ in batch]
        verdicts: list[Verdict] = [Unknown("the journal was cut off during a commit")] * len(units)
        try:
            verdicts = await self._write(units)
        finally:
            metrics.JOURNAL_COMMIT_S.observe(trio.current_time() - begun)
            metrics.JOURNAL_BATCHES.inc()
            metrics.JOURNAL_BATCH_UNITS.observe(len(units))
            for (unit, author), verdict in zip(batch, verdicts, strict=True):
                _settle(author, unit, verdict)
            _count(verdicts)

    async def _write(self, units: list[Unit]) -> list[Verdict]:
        try:
            verdicts = await self._on_thread(self._writer.write, units, prepare(units))
            self._note(verdicts)
            return verdicts
        except ConnectionLost as lost:
            log.warning("database connection lost before a commit", units=len(units), reason=str(lost))
            self._gate.close(str(lost))
            return [NotWritten("the database connection was lost before the commit")] * len(units)
        except CommitUnanswered as lost:
            log.warning("database connection lost during a commit", units=len(units), reason=str(lost))
            return await self._look_up(lost)

    async def _on_thread(self, work: Callable[[*Arguments], B], *arguments: *Arguments) -> B:
        return await trio.to_thread.run_sync(
            work,
            *arguments,
            limiter=self._thread,  # type: ignore[arg-type]  # has what trio asks of a limiter
        )

    def _note(self, verdicts: list[Verdict]) -> None:
        """Let the gate know how a batch fared; where it timed out, all of it did."""
        last = verdicts[-1]
        if type(last) is NotWritten and last.timed_out:
            self._gate.note_timeout(last.reason)
        else:
            self._gate.note_success()

    async def _look_up(self, lost: CommitUnanswered) -> list[Verdict]:
        """Ask the database, for as long as it takes, what became of a batch whose COMMIT was not answered.

        While it cannot tell, it counts as slow, whatever its probes say: nothing else can be written meanwhile.
        """
        begun = trio.current_time()
        durable = await self._try_look_up(lost.batch_id)
        if durable is None:
            with self._gate.stalled(f"a commit was not answered: {lost}"):
                pause_s = LOOK_UP_FIRST_S
                while durable is None:
                    await trio.sleep(pause_s)
                    pause_s = min(pause_s * 2, LOOK_UP_LAST_S)
                    durable = await self._try_look_up(lost.batch_id)
        metrics.COMMIT_LOOKUPS.labels("committed" if durable else "void").inc()
        log.warning("lost commit looked up", batch_id=lost.batch_id, durable=durable)
        if not durable and trio.current_time() - begun > LOOK_UP_MAX_S:
            return [Unknown("its mark was looked for too late")] * len(lost.if_void)
        return lost.if_durable if durable else lost.if_void

    async def _try_look_up(self, batch_id: str) -> bool | None:
        try:
            return await self._on_thread(self._writer.look_up, batch_id)
        except ConnectionLost as lost:
            self._gate.close(str(lost))
            return None


class _OneAtATime:
    """A limiter that limits nothing: the journal has one commit under way by its own loop.

    Taking a token of trio's own limiter lets every other runnable task go first. Here that would put all that the
    actors have to decide between two commits instead of beside the next one.
    """

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Go ahead at once."""

    def release_on_behalf_of(self, borrower: object) -> None:
        """Nothing to give back."""


class _Waiter:
    """An author that only wants to know."""

    is_void = False

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.verdict: Verdict | None = None

    def settle(self, unit: Unit, verdict: Verdict) -> None:  # noqa: ARG002 - it has only one
        self.verdict = verdict
        self.settled.set()


_LABELS: dict[type[Verdict], str] = {
    Committed: "committed",
    Stale: "stale",
    AlreadyAnswered: "already_answered",
    NotWritten: "not_written",
    Broken: "broken",
    Unknown: "unknown",
}


def _settle(author: Author, unit: Unit, verdict: Verdict) -> None:
    try:
        author.settle(unit, verdict)
    except Exception:
        # One author's bug must not keep its neighbours' verdicts from them.
        log.exception("an author could not take its verdict", verdict=_LABELS[type(verdict)])


def _count(verdicts: Sequence[Verdict]) -> None:
    for kind, number in Counter(map(type, verdicts)).items():
        metrics.JOURNAL_UNITS.labels(_LABELS[kind]).inc(number)
    for verdict in verdicts:
        if type(verdict) is Stale:
            for fence in verdict.fences:
                metrics.FENCE_STALE.labels(fence.kind).inc()
