"""The journal, with a writer that the test controls."""

from __future__ import annotations

import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from holdfast.actors.runtime.actor import JournaledActor
from holdfast.actors.runtime.faults import Unavailable
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.turns import Commit
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal import journal as journal_module
from holdfast.persistence.journal.drafts import Prepared, prepare
from holdfast.persistence.journal.journal import BATCH_UNITS_SHARED, Journal
from holdfast.persistence.journal.units import Broken, Committed, NotWritten, Stale, Unit, UnitResult, Unknown
from holdfast.persistence.journal.write_path import WritePath
from holdfast.persistence.journal.writer import CommitUnanswered, ConnectionLost
from holdfast.persistence.server.database_gate import DatabaseGate
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.reports import DeadLetters, Reporter

Outcome = Exception | list[UnitResult] | bool | None


class ScriptedWriter:
    """Starts a batch at once; the test ends it: with an exception, with results, or with None for all committed."""

    def __init__(self) -> None:
        self.batches: list[list[Unit]] = []
        self.prepared: list[Prepared | None] = []
        self.looked_up: list[str] = []
        self.closed = 0
        self._begun = threading.Semaphore(0)
        self._script: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def write(self, units: Sequence[Unit], prepared: Prepared | None = None) -> list[UnitResult]:
        self.batches.append(list(units))
        self.prepared.append(prepared)
        outcome = self._next()
        return outcome if isinstance(outcome, list) else [Committed()] * len(units)

    def look_up(self, batch_id: str) -> bool:
        self.looked_up.append(batch_id)
        return bool(self._next())

    def close(self) -> None:
        self.closed += 1

    def _next(self) -> Outcome:
        self._begun.release()
        outcome = self._script.get(timeout=20)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def has_begun(self) -> None:
        """Return once the writer has started its next call."""
        await trio.to_thread.run_sync(self._begun.acquire, abandon_on_cancel=True)

    def finish(self, outcome: Outcome = None) -> None:
        """End the call under way (or the next one) with this outcome."""
        self._script.put(outcome)


class Author:
    """Records its results; ``also`` runs at each one."""

    def __init__(self, settled_units: list[tuple[Unit, UnitResult]] | None = None) -> None:
        self.is_void = False
        self.settled_units: list[tuple[Unit, UnitResult]] = [] if settled_units is None else settled_units
        self.also: Callable[[UnitResult], None] = lambda _: None

    def settle(self, unit: Unit, result: UnitResult) -> None:
        self.settled_units.append((unit, result))
        self.also(result)

    async def has_settled(self, how_many: int) -> None:
        """Return once there are so many results; no trio task can wait for the writer's thread."""
        while len(self.settled_units) < how_many:  # noqa: ASYNC110 - see above
            await trio.sleep(0.001)

    @property
    def results(self) -> list[UnitResult]:
        return [result for _, result in self.settled_units]


class RenderContext:
    """A journal, its writer and its gate."""

    def __init__(self, *, batch_units_max: int = 500) -> None:
        self.writer = ScriptedWriter()
        self.gate = DatabaseGate()
        self.gate.open()
        self.journal = Journal(self.writer, self.gate, batch_units_max=batch_units_max)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.journal.run(task_status=task_status)

    def submit(self, author: Author, how_many: int = 1) -> list[Unit]:
        units = [Unit() for _ in range(how_many)]
        for unit in units:
            self.journal.submit(unit, author)
        return units


@dataclass(frozen=True)
class Sign(Command[str]):
    """A message that becomes a unit of work."""


class Clerk(JournaledActor):
    """An actor that writes a unit for each message."""

    own_fence = "account"

    def on_receive(self, message: Any) -> Any:
        return Commit(Unit(), "signed")


@pytest.fixture
async def bench(nursery: trio.Nursery) -> AsyncIterator[RenderContext]:
    bench = RenderContext()
    with trio.fail_after(20):
        await nursery.start(bench.run)
        yield bench
        await bench.journal.stop()


async def test_a_batch_takes_what_arrived_during_the_last_commit(bench: RenderContext) -> None:
    author = Author()
    first = bench.submit(author)
    await bench.writer.has_begun()
    later = bench.submit(author, BATCH_UNITS_SHARED)
    await wait_all_tasks_blocked()
    assert bench.writer.batches == [first]
    bench.writer.finish()
    await bench.writer.has_begun()
    assert bench.writer.batches == [first, later]
    bench.writer.finish()
    await author.has_settled(1 + BATCH_UNITS_SHARED)
    assert author.settled_units == [(unit, Committed()) for unit in first + later]


async def test_a_batch_takes_half_of_many_units(bench: RenderContext) -> None:
    author = Author()
    first = bench.submit(author)
    await bench.writer.has_begun()
    later = bench.submit(author, 299)
    bench.writer.finish()
    await bench.writer.has_begun()
    assert bench.writer.batches == [first, later[:150]]
    # Callers with replies send again: there are still 300 units.
    again = bench.submit(author)
    bench.writer.finish()
    await bench.writer.has_begun()
    bench.writer.finish()
    await author.has_settled(301)
    assert bench.writer.batches == [first, later[:150], later[150:] + again]
    assert author.settled_units == [(unit, Committed()) for unit in first + later + again]


async def test_units_left_to_the_next_batch_go_at_once_and_in_order(
    bench: RenderContext,
) -> None:
    settled_units: list[tuple[Unit, UnitResult]] = []
    authors = [Author(settled_units) for _ in range(5)]
    first = bench.submit(authors[0])
    await bench.writer.has_begun()
    units = first + [bench.submit(authors[n % 5])[0] for n in range(1, 401)]
    for _ in range(6):
        bench.writer.finish()
    await authors[0].has_settled(401)
    assert [len(batch) for batch in bench.writer.batches] == [1, 200, 200]
    assert settled_units == [(unit, Committed()) for unit in units]


async def test_a_unit_waits_only_for_units_submitted_before_it(bench: RenderContext) -> None:
    """Units that come later only make the next batch larger."""
    author = Author()
    lasts = [bench.submit(author, 100)[-1]]
    for _ in range(12):
        await bench.writer.has_begun()
        lasts.append(bench.submit(author, 100)[-1])
        bench.writer.finish()
    await bench.writer.has_begun()
    batch_of = {unit: number for number, batch in enumerate(bench.writer.batches) for unit in batch}
    bench.writer.finish()
    assert all(batch_of[last] <= number + 1 for number, last in enumerate(lasts[:12]))


async def test_the_other_half_of_a_void_authors_units_is_not_written(bench: RenderContext) -> None:
    void, sound = Author(), Author()

    def make_void(result: UnitResult) -> None:
        void.is_void = void.is_void or not isinstance(result, Committed)

    void.also = make_void
    first = bench.submit(sound)
    await bench.writer.has_begun()
    voided = bench.submit(void, 150)
    remaining = bench.submit(sound, 50)
    bench.writer.finish()
    await bench.writer.has_begun()
    assert bench.writer.batches == [first, voided[:100]]
    bench.writer.finish([*[Committed()] * 99, Stale(())])
    await bench.writer.has_begun()
    bench.writer.finish()
    await sound.has_settled(51)
    assert bench.writer.batches[2:] == [remaining]
    assert [unit for unit, _ in void.settled_units] == voided
    assert [type(result) for result in void.results] == [Committed] * 99 + [Stale] + [NotWritten] * 50


async def test_a_batch_is_prepared_unless_a_unit_cannot_be_encoded(
    bench: RenderContext,
) -> None:
    class Unready:
        """A row that cannot be encoded."""

    author = Author()
    [sound] = bench.submit(author)
    await bench.writer.has_begun()
    row: Any = Unready()
    broken = Unit(rows=(row,))
    bench.journal.submit(broken, author)
    neighbour = bench.submit(author)
    bench.writer.finish()
    await bench.writer.has_begun()
    assert bench.writer.batches == [[sound], [broken, *neighbour]]
    assert bench.writer.prepared == [prepare([sound]), None]
    cause = TypeError("a row that cannot be encoded")
    bench.writer.finish([Broken(cause), Committed()])
    await author.has_settled(3)
    assert author.results == [Committed(), Broken(cause), Committed()]


async def test_no_batch_is_larger_than_its_limit(nursery: trio.Nursery) -> None:
    with trio.fail_after(20):
        bench = RenderContext(batch_units_max=7)
        bench.submit(Author(), 30)
        for _ in range(5):
            bench.writer.finish()
        await nursery.start(bench.run)
        await bench.journal.stop()
        await wait_all_tasks_blocked()
        while bench.writer.closed == 0:  # noqa: ASYNC110 - the journal's end has no event
            await trio.sleep(0.001)
    assert [len(batch) for batch in bench.writer.batches] == [7, 7, 7, 7, 2]


async def test_one_commit_is_under_way_at_a_time(bench: RenderContext) -> None:
    author = Author()
    for round_number in range(1, 4):
        bench.submit(author)
        if round_number == 1:
            await bench.writer.has_begun()
        await wait_all_tasks_blocked()
        assert len(bench.writer.batches) == 1
    bench.writer.finish()
    bench.writer.finish()
    await bench.writer.has_begun()
    assert [len(batch) for batch in bench.writer.batches] == [1, 2]


async def test_results_come_in_the_order_of_submission(bench: RenderContext) -> None:
    settled_units: list[tuple[Unit, UnitResult]] = []
    authors = [Author(settled_units), Author(settled_units), Author(settled_units)]
    units = [bench.submit(authors[i % 3])[0] for i in range(9)]
    await bench.writer.has_begun()
    results: list[UnitResult] = [Committed() if i % 2 else Stale(()) for i in range(9)]
    bench.writer.finish(results)
    await authors[0].has_settled(9)
    assert settled_units == list(zip(units, results, strict=True))


async def test_queued_units_of_a_void_author_are_not_written(bench: RenderContext) -> None:
    void, sound = Author(), Author()

    def make_void(result: UnitResult) -> None:
        void.is_void = void.is_void or not isinstance(result, Committed)

    void.also = make_void
    bench.submit(void)
    await bench.writer.has_begun()
    bench.submit(void, 3)
    remaining = bench.submit(sound, 2)
    bench.writer.finish([Stale(())])
    await bench.writer.has_begun()
    assert bench.writer.batches[1] == remaining
    assert [type(result) for result in void.results] == [Stale, NotWritten, NotWritten, NotWritten]
    bench.writer.finish()


async def test_stop_writes_what_is_queued_and_returns(nursery: trio.Nursery) -> None:
    bench = RenderContext()
    ended = trio.Event()

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        await bench.run(task_status=task_status)
        ended.set()

    with trio.fail_after(20):
        await nursery.start(run)
        author = Author()
        bench.submit(author)
        await bench.writer.has_begun()
        bench.submit(author, 2)
        await bench.journal.stop()
        bench.submit(author)
        bench.writer.finish()
        bench.writer.finish()
        await ended.wait()
    assert author.results == [Committed()] * 4
    assert bench.writer.closed == 1


async def test_stop_writes_the_other_half_too() -> None:
    bench = RenderContext()
    author = Author()
    with trio.fail_after(20):
        async with trio.open_nursery() as inner:
            await inner.start(bench.run)
            units = bench.submit(author)
            await bench.writer.has_begun()
            units += bench.submit(author, 333)
            await bench.journal.stop()
            for _ in range(12):
                bench.writer.finish()
    assert author.settled_units == [(unit, Committed()) for unit in units]
    assert bench.writer.closed == 1


async def test_a_cancelled_journal_settles_the_other_half() -> None:
    bench = RenderContext()
    author = Author()
    with trio.fail_after(20):
        async with trio.open_nursery() as inner:
            await inner.start(bench.run)
            bench.submit(author)
            await bench.writer.has_begun()
            bench.submit(author, 200)
            bench.writer.finish()
            await bench.writer.has_begun()
            inner.cancel_scope.cancel()
            bench.writer.finish()
    assert author.results == [Committed()] * 101 + [NotWritten("the journal stopped")] * 100
    assert [len(batch) for batch in bench.writer.batches] == [1, 100]


async def test_a_stopped_journal_runs_again(nursery: trio.Nursery) -> None:
    bench = RenderContext()
    with trio.fail_after(20):
        for _ in range(2):
            async with trio.open_nursery() as inner:
                await inner.start(bench.run)
                await bench.journal.stop()
        await nursery.start(bench.run)
        bench.writer.finish()
        assert await bench.journal.write(Unit()) == Committed()


async def test_a_cancelled_journal_finishes_its_commit_and_no_more() -> None:
    bench = RenderContext()
    author = Author()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(bench.run)
            bench.submit(author)
            await bench.writer.has_begun()
            bench.submit(author, 3)
            nursery.cancel_scope.cancel()
            bench.writer.finish()
    assert author.results == [Committed()] + [NotWritten("the journal stopped")] * 3
    assert len(bench.writer.batches) == 1
    assert bench.writer.closed == 1


async def test_a_cancelled_look_up_leaves_only_its_batch_unknown() -> None:
    bench = RenderContext()
    author = Author()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(bench.run)
            bench.submit(author, 2)
            await bench.writer.has_begun()
            bench.submit(author, 3)
            void: list[UnitResult] = [NotWritten("void")] * 2
            committed: list[UnitResult] = [Committed()] * 2
            bench.writer.finish(CommitUnanswered("batch_1", OSError(), if_durable=committed, if_void=void))
            await bench.writer.has_begun()
            bench.writer.finish(ConnectionLost(OSError("still away")))
            await bench.gate.wait_closed()
            await wait_all_tasks_blocked()
            assert author.settled_units == []
            nursery.cancel_scope.cancel()
    assert [type(result) for result in author.results] == [Unknown] * 2 + [NotWritten] * 3


async def test_a_connection_lost_before_the_commit_closes_the_gate(bench: RenderContext) -> None:
    author = Author()
    bench.submit(author, 2)
    await bench.writer.has_begun()
    bench.writer.finish(ConnectionLost(OSError("gone")))
    await bench.gate.wait_closed()
    await author.has_settled(2)
    assert [type(result) for result in author.results] == [NotWritten] * 2
    assert "gone" in bench.gate.reason


@pytest.mark.parametrize("durable", [True, False])
async def test_a_lost_commit_is_looked_up_until_the_database_answers(bench: RenderContext, durable: bool) -> None:
    author = Author()
    bench.submit(author, 2)
    await bench.writer.has_begun()
    if_durable: list[UnitResult] = [Committed(), Stale(())]
    if_void: list[UnitResult] = [NotWritten("void"), Stale(())]
    bench.writer.finish(CommitUnanswered("batch_1", OSError(), if_durable=if_durable, if_void=if_void))
    for _ in range(3):
        await bench.writer.has_begun()
        bench.writer.finish(ConnectionLost(OSError("still away")))
        await bench.gate.wait_closed()
        assert author.settled_units == []
        bench.gate.open()
    await bench.writer.has_begun()
    bench.writer.finish(durable)
    await author.has_settled(2)
    assert author.results == (if_durable if durable else if_void)
    assert bench.writer.looked_up == ["batch_1"] * 4


async def test_nothing_is_written_before_the_gate_has_opened(nursery: trio.Nursery) -> None:
    bench = RenderContext()
    bench.gate.close("not there yet")
    author = Author()
    bench.submit(author)
    with trio.fail_after(20):
        nursery.start_soon(bench.run)
        await wait_all_tasks_blocked()
        assert bench.writer.batches == []
        bench.writer.finish()
        bench.gate.open()
        await bench.writer.has_begun()


async def test_one_authors_bug_keeps_no_result_from_others(bench: RenderContext) -> None:
    def fall_over(_: UnitResult) -> None:
        raise AssertionError("a bug")

    clumsy, sound = Author(), Author()
    clumsy.also = fall_over
    bench.submit(clumsy)
    bench.submit(sound)
    bench.writer.finish()
    bench.writer.finish()
    bench.writer.finish()
    await sound.has_settled(1)
    bench.writer.finish()
    assert await bench.journal.write(Unit()) == Committed()


async def test_a_cancelled_wait_leaves_its_unit_to_be_written(bench: RenderContext) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await bench.journal.write(Unit())
    assert scope.cancelled_caught
    await bench.writer.has_begun()
    assert len(bench.writer.batches[0]) == 1
    bench.writer.finish()


async def test_units_are_refused_at_once_while_the_database_is_away(bench: RenderContext) -> None:
    author = Author()
    bench.gate.close("the server is gone")
    units = bench.submit(author, 3)
    await author.has_settled(3)
    assert [unit for unit, _ in author.settled_units] == units
    assert all(isinstance(result, NotWritten) and "gone" in result.reason for result in author.results)
    assert bench.writer.batches == []
    bench.gate.open()
    bench.writer.finish()
    assert await bench.journal.write(Unit()) == Committed()


async def test_a_batch_that_timed_out_starts_a_probe(bench: RenderContext) -> None:
    author = Author()
    bench.submit(author)
    bench.writer.finish([NotWritten("LockNotAvailable", timed_out=True)])
    await author.has_settled(1)
    assert bench.gate.is_doubted
    assert bench.gate.is_open


async def test_after_a_crash_units_are_refused_before_submit_returns() -> None:
    bench = RenderContext()
    author = Author()
    with trio.fail_after(20):
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - what is raised comes out of the nursery
            async with trio.open_nursery() as inner:
                await inner.start(bench.run)
                bench.submit(author)
                await bench.writer.has_begun()
                bench.submit(author, 2)
                bench.writer.finish(MemoryError("a fault of the journal itself"))
        assert caught.group_contains(MemoryError)
        assert [type(result) for result in author.results] == [Unknown, NotWritten, NotWritten]
        accepting = [bench.journal.is_accepting]
        bench.submit(author)
        assert [type(result) for result in author.results][3:] == [NotWritten]
        async with trio.open_nursery() as inner:
            await inner.start(bench.run)
            accepting.append(bench.journal.is_accepting)
            bench.writer.finish()
            assert await bench.journal.write(Unit()) == Committed()
            await bench.journal.stop()
    assert accepting == [False, True]


async def test_the_write_path_is_closed_until_the_journal_runs() -> None:
    bench = RenderContext()
    path = WritePath(bench.gate, bench.journal)
    seen = [(path.is_open, path.reason)]
    with trio.fail_after(20):
        async with trio.open_nursery() as inner:
            await inner.start(bench.run)
            await path.wait_open()
            bench.gate.close("away")
            seen.append((path.is_open, path.reason))
            bench.gate.open()
            seen.append((path.is_open, ""))
            await bench.journal.stop()
    seen.append((path.is_open, path.reason))
    not_running = (False, "the journal is starting")
    assert seen == [not_running, (False, "away"), (True, ""), not_running]


async def test_actors_end_with_the_journal_and_keep_their_mailboxes() -> None:
    """In the supervisor's order: the journal ends, then the actors that depend on it are drained and started."""
    bench = RenderContext()
    accounts = KeyedDirectory(
        "accounts",
        lambda _key, mailbox: Clerk(mailbox, bench.journal),
        gate=WritePath(bench.gate, bench.journal),
        probe=trio.lowlevel.checkpoint,  # type: ignore[arg-type]  # never asked
        reporter=Reporter(),
        dead_letters=DeadLetters(),
    )
    answered: list[str | Refusal] = []

    async def run_accounts(*, task_status: trio.TaskStatus[None]) -> None:
        await accounts.run(task_status=task_status)

    async def ask() -> None:
        answered.append(await accounts.ref("a").ask(Sign()))

    with trio.fail_after(20):
        async with trio.open_nursery() as askers:
            async with trio.open_nursery() as tree:
                async with trio.open_nursery() as inner:
                    await inner.start(bench.run)
                    await tree.start(run_accounts)
                    askers.start_soon(ask)
                    await bench.writer.has_begun()
                    askers.start_soon(ask)
                    await wait_all_tasks_blocked()
                    inner.cancel_scope.cancel()
                    bench.writer.finish([NotWritten("rolled back")])
                # Both were returned; deciding them again would only fill a queue that is not read.
                await wait_all_tasks_blocked()
                with pytest.raises(Unavailable):
                    await accounts.ref("b").ask(Sign())
                await accounts.stop()
            assert answered == []
            async with trio.open_nursery() as tree:
                await tree.start(bench.run)
                await tree.start(run_accounts)
                for _ in range(2):
                    bench.writer.finish()
                while len(answered) < 2:  # noqa: ASYNC110 - the end of a writer's thread has no event
                    await trio.sleep(0.001)
                await accounts.stop()
                await bench.journal.stop()
    assert answered == ["signed", "signed"]


async def test_a_look_up_after_the_retention_is_unknown(
    bench: RenderContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker that is missing may have been deleted. One that is found still proves that the batch is durable."""
    monkeypatch.setattr(journal_module, "LOOK_UP_MAX_S", -1.0)
    author = Author()
    for durable in (False, True):
        bench.submit(author)
        await bench.writer.has_begun()
        lost = CommitUnanswered("b", OSError(), if_durable=[Committed()], if_void=[NotWritten("void")])
        bench.writer.finish(lost)
        await bench.writer.has_begun()
        bench.writer.finish(durable)
    await author.has_settled(2)
    assert [type(result) for result in author.results] == [Unknown, Committed]
