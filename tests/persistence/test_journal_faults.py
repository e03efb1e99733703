"""The journal when the database, an author or a commit fails."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.faults import Unavailable
from holdfast.actors.runtime.journaled import Commit, JournaledActor
from holdfast.actors.runtime.messages import Command
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal import journal as journal_module
from holdfast.persistence.journal.journal import BLOCKED_S, WritePath
from holdfast.persistence.journal.units import Committed, NotWritten, Stale, Unit, UnitResult, Unknown
from holdfast.persistence.journal.writer import CommitUnanswered, ConnectionLost
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.telemetry.reports.reporter import Reporter

from .journal_bench import Author, JournalBench


class Sign(Command[str], frozen=True):
    """A message that becomes a unit of work."""


class Clerk(JournaledActor):
    """An actor that writes a unit for each message."""

    own_fences = frozenset({"account"})

    def on_receive(self, message: Any) -> Any:
        return Commit(Unit(), "signed")


async def test_a_connection_lost_before_the_commit_closes_the_gate(bench: JournalBench) -> None:
    author = Author()
    bench.submit(author, 2)
    await bench.writer.has_begun()
    bench.writer.finish(ConnectionLost(OSError("gone")))
    await bench.gate.wait_closed()
    await author.has_settled(2)
    assert [type(result) for result in author.results] == [NotWritten] * 2
    assert "gone" in bench.gate.reason


@pytest.mark.parametrize("durable", [True, False])
async def test_a_lost_commit_is_looked_up_until_the_database_answers(bench: JournalBench, durable: bool) -> None:
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
    bench = JournalBench()
    bench.gate.close("not there yet")
    author = Author()
    bench.submit(author)
    nursery.start_soon(bench.run)
    await wait_all_tasks_blocked()
    assert bench.writer.batches == []
    bench.writer.finish()
    bench.gate.open()
    await bench.writer.has_begun()


async def test_one_authors_bug_keeps_no_result_from_others(bench: JournalBench) -> None:
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


async def test_a_cancelled_wait_leaves_its_unit_to_be_written(bench: JournalBench) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await bench.journal.write(Unit())
    assert scope.cancelled_caught
    await bench.writer.has_begun()
    assert len(bench.writer.batches[0]) == 1
    bench.writer.finish()


async def test_units_are_refused_at_once_while_the_database_is_away(bench: JournalBench) -> None:
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


async def test_a_batch_that_timed_out_starts_a_probe(bench: JournalBench) -> None:
    author = Author()
    bench.submit(author)
    bench.writer.finish([NotWritten("LockNotAvailable", timed_out=True)])
    await author.has_settled(1)
    assert bench.gate.is_doubted
    assert bench.gate.is_open


async def submitted(bench: JournalBench) -> trio.Event:
    """Submit a unit, wait until it is written, and return the event of its result."""
    author, settled = Author(), trio.Event()
    author.also = lambda _: settled.set()
    bench.submit(author)
    await bench.writer.has_begun()
    return settled


def is_blocked(bench: JournalBench) -> bool:
    return bench.journal.is_blocked


async def test_writes_are_blocked_while_they_take_or_time_out_for_seconds(
    mock_clock: MockClock, bench: JournalBench
) -> None:
    settled = await submitted(bench)
    assert not is_blocked(bench)
    mock_clock.jump(BLOCKED_S)
    assert is_blocked(bench)
    bench.writer.finish([NotWritten("LockNotAvailable", timed_out=True)])
    await settled.wait()
    assert is_blocked(bench)
    settled = await submitted(bench)
    assert is_blocked(bench)
    bench.writer.finish()
    await settled.wait()
    assert not is_blocked(bench)


async def test_writes_are_not_blocked_by_a_timeout_that_nothing_followed(
    mock_clock: MockClock, bench: JournalBench
) -> None:
    settled = await submitted(bench)
    mock_clock.jump(BLOCKED_S)
    bench.writer.finish([NotWritten("LockNotAvailable", timed_out=True)])
    await settled.wait()
    mock_clock.jump(BLOCKED_S)
    assert not is_blocked(bench)
    settled = await submitted(bench)
    assert not is_blocked(bench)
    bench.writer.finish()
    await settled.wait()


async def test_after_a_crash_units_are_refused_before_submit_returns() -> None:
    bench = JournalBench()
    author = Author()
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
    bench = JournalBench()
    path = WritePath(bench.gate, bench.journal)
    seen = [(path.is_open, path.reason)]
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
    bench = JournalBench()
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
    bench: JournalBench, monkeypatch: pytest.MonkeyPatch
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
