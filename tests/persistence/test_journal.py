"""The journal: batches, their order and size, stop, and cancellation."""

from __future__ import annotations

from contextlib import ExitStack

import trio
from trio.testing import wait_all_tasks_blocked

from holdfast.persistence.journal.changes import KeptRow
from holdfast.persistence.journal.journal import BATCH_UNITS_SHARED
from holdfast.persistence.journal.units import Committed, NotWritten, Stale, Unit, UnitResult, Unknown
from holdfast.persistence.journal.writer import CommitUnanswered, ConnectionLost
from holdfast.persistence.records.rows import AccountHead

from .journal_bench import Author, JournalBench


async def test_a_batch_takes_what_arrived_during_the_last_commit(bench: JournalBench) -> None:
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


async def test_what_was_committed_is_noted_and_what_may_have_been_is_named(bench: JournalBench) -> None:
    heads = [AccountHead(f"acct_{number}") for number in range(3)]
    results: list[UnitResult] = [Committed(), Unknown("lost"), NotWritten("refused")]
    with ExitStack() as opened:
        watches = [opened.enter_context(bench.changes.watch(head.id, values_max=1)) for head in heads]
        author = Author()
        for head in heads:
            bench.journal.submit(Unit(rows=(head,)), author)
        await bench.writer.has_begun()
        bench.writer.finish(results)
        await author.has_settled(3)
        assert author.results == results
        taken = [watch.take()[0] for watch in watches]
    assert taken == [{"acct_0": KeptRow(heads[0])}, {"acct_1": None}, {}]


async def test_a_batch_takes_half_of_many_units(bench: JournalBench) -> None:
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
    bench: JournalBench,
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


async def test_a_unit_waits_only_for_units_submitted_before_it(bench: JournalBench) -> None:
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


async def test_the_other_half_of_a_void_authors_units_is_not_written(bench: JournalBench) -> None:
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


async def test_no_batch_is_larger_than_its_limit(nursery: trio.Nursery) -> None:
    bench = JournalBench(batch_units_max=7)
    bench.submit(Author(), 30)
    for _ in range(5):
        bench.writer.finish()
    await nursery.start(bench.run)
    await bench.journal.stop()
    await wait_all_tasks_blocked()
    while bench.writer.closed == 0:  # noqa: ASYNC110 - the journal's end has no event
        await trio.sleep(0.001)
    assert [len(batch) for batch in bench.writer.batches] == [7, 7, 7, 7, 2]


async def test_one_commit_is_under_way_at_a_time(bench: JournalBench) -> None:
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


async def test_results_come_in_the_order_of_submission(bench: JournalBench) -> None:
    settled_units: list[tuple[Unit, UnitResult]] = []
    authors = [Author(settled_units), Author(settled_units), Author(settled_units)]
    units = [bench.submit(authors[i % 3])[0] for i in range(9)]
    await bench.writer.has_begun()
    results: list[UnitResult] = [Committed() if i % 2 else Stale(()) for i in range(9)]
    bench.writer.finish(results)
    await authors[0].has_settled(9)
    assert settled_units == list(zip(units, results, strict=True))


async def test_queued_units_of_a_void_author_are_not_written(bench: JournalBench) -> None:
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
    bench = JournalBench()
    ended = trio.Event()

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        await bench.run(task_status=task_status)
        ended.set()

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
    bench = JournalBench()
    author = Author()
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
    bench = JournalBench()
    author = Author()
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
    bench = JournalBench()
    for _ in range(2):
        async with trio.open_nursery() as inner:
            await inner.start(bench.run)
            await bench.journal.stop()
    await nursery.start(bench.run)
    bench.writer.finish()
    assert await bench.journal.write(Unit()) == Committed()


async def test_a_cancelled_journal_finishes_its_commit_and_no_more() -> None:
    bench = JournalBench()
    author = Author()
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
    bench = JournalBench()
    author = Author()
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
