"""Notices of what commits have changed: who is woken by what, and what is done while some may be missed."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import msgspec
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.ledger.tasks.task import Task
from holdfast.persistence.journal.changes import (
    NAMED_MAX,
    PARTS_MAX,
    REREAD_S,
    VALUES_MAX,
    Change,
    Changes,
    Extent,
    KeptRow,
    Watch,
)
from holdfast.persistence.journal.units import Unit
from holdfast.persistence.records.key_rows import ApiKeyUsedRow
from holdfast.persistence.records.rows import AccountHead, NewTaskRow, Row, TaskChangedRow

from .values import make_task

ADA, BOB = "acct_a", "acct_b"
AT = datetime(2026, 11, 1, tzinfo=UTC)
TASK = make_task(ADA, "task_1", AT)


def unit_of(*rows: Row) -> Unit:
    return Unit(rows=rows)


def is_woken(watch: Watch) -> bool:
    rows, missed = watch.take()
    return missed or bool(rows)


def test_a_commit_wakes_the_watches_of_its_account_and_its_tasks_only() -> None:
    changes = Changes()
    with changes.watch(ADA) as account, changes.watch(TASK.request_id) as task, changes.watch(BOB) as other:
        changes.commit([unit_of(AccountHead(ADA), NewTaskRow(TASK), ApiKeyUsedRow(BOB, "key_1", AT))])
        assert account.take() == ({ADA: None, TASK.request_id: None}, False)
        assert task.take() == ({TASK.request_id: None}, False)
        assert not is_woken(other)
        changes.commit([unit_of(AccountHead(ADA)), unit_of(AccountHead(BOB))])
        assert account.take() == ({ADA: None}, False)
        assert not is_woken(task)
        assert is_woken(other)
    changes.commit([unit_of(AccountHead(ADA))])
    assert not is_woken(account)


async def test_a_wait_is_ended_by_changes_of_its_extent_only(autojump_clock: MockClock) -> None:
    changes = Changes()
    ended = msgspec.structs.replace(TASK, status="succeeded")
    rows = [
        TaskChangedRow(TASK, "proc_1"),
        TaskChangedRow(TASK, "proc_1", has_new_usage=True),
        TaskChangedRow(ended, "proc_1", has_new_usage=True),
    ]
    ended_by = []
    for extent in Extent:
        with changes.watch(TASK.request_id) as watch:
            for number, row in enumerate(rows):
                until = trio.current_time() + 1
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watch.wait, until, extent)
                    await wait_all_tasks_blocked()
                    changes.commit([unit_of(row)])
                if trio.current_time() < until:
                    ended_by.append((extent, number))
                # What does not end a wait is taken all the same, and ends a later one for less.
                await watch.wait(math.inf)
                assert watch.take() == ({TASK.request_id: None}, False)
    assert ended_by == [
        (Extent.ANYTHING, 0), (Extent.ANYTHING, 1), (Extent.ANYTHING, 2),
        (Extent.STATUS, 1), (Extent.STATUS, 2),
        (Extent.END, 2),
    ]  # fmt: skip


def test_a_task_changed_twice_by_a_commit_is_noted_once() -> None:
    sent: list[Change] = []
    changes = Changes()
    changes.send = sent.extend
    ended = TaskChangedRow(msgspec.structs.replace(TASK, status="succeeded"), "proc_1", has_new_usage=True)
    hosted = TaskChangedRow(TASK, "proc_1")
    for rows in ((ended, hosted), (hosted, ended)):
        changes.commit([unit_of(row) for row in rows])
    assert sent == [Change(ADA, TASK.request_id, Extent.END)] * 2


async def test_what_was_committed_after_the_last_read_needs_none(mock_clock: MockClock) -> None:
    changes, head = Changes(), AccountHead(ADA, 7)
    second, third = (msgspec.structs.replace(TASK, version=version) for version in (2, 3))
    last = TaskChangedRow(third, "proc_1")
    with changes.watch(ADA, values_max=VALUES_MAX) as account, changes.watch(TASK.request_id) as task:

        def commit(*rows: Row, begun_at: float) -> None:
            changes.commit([unit_of(row) for row in rows], begun_at)

        commit(
            head, TaskChangedRow(TASK, "proc_1", has_new_usage=True), TaskChangedRow(second, "proc_1"), begun_at=0
        )
        assert second.request.input
        assert account.take() == ({ADA: KeptRow(head), TASK.request_id: kept_of(second)}, False)
        assert task.take() == ({TASK.request_id: None}, False)

        # A read that ends now may have seen the next commit of what was noted before, and of what began before.
        commit(head, begun_at=1)
        mock_clock.jump(5)
        account.note_read()
        commit(last, begun_at=5)
        assert account.take() == ({ADA: None, TASK.request_id: None}, False)
        commit(last, begun_at=6)
        assert account.take() == ({TASK.request_id: kept_of(third)}, False)

        # Another member's commit may be the later one, whichever notice comes first.
        for first in (True, False):
            if first:
                changes.note([Change(ADA, TASK.request_id)])
            commit(last, begun_at=7)
            if not first:
                changes.note([Change(ADA, TASK.request_id)])
            assert account.take() == ({TASK.request_id: None}, False)

        # Nor is what may not have been committed.
        changes.commit([unit_of(head)])
        assert account.take() == ({ADA: None}, False)


def kept_of(task: Task) -> KeptRow:
    """Return what a watch keeps of a task."""
    return KeptRow(msgspec.structs.replace(task, request=task.request.without_input))


def test_a_watch_keeps_little_of_what_was_committed() -> None:
    changes = Changes()
    large = msgspec.structs.replace(TASK.request, metadata={str(number): "" for number in range(PARTS_MAX + 1)})
    with changes.watch(ADA, values_max=VALUES_MAX) as watch:
        changes.commit([unit_of(NewTaskRow(msgspec.structs.replace(TASK, request=large)))], 0.0)
        assert watch.take() == ({TASK.request_id: None}, False)
        many = [msgspec.structs.replace(TASK, request_id=f"task_{number}") for number in range(VALUES_MAX + 2)]
        changes.commit([unit_of(*map(NewTaskRow, many))], 0.0)
        assert list(watch.take()[0].values()) == [*map(kept_of, many[:-2]), None, None]


def test_what_any_watch_of_the_account_keeps_is_found() -> None:
    changes, new = Changes(), unit_of(NewTaskRow(TASK))
    assert changes.kept(ADA, TASK.request_id) is None
    with changes.watch(ADA), changes.watch(ADA, values_max=1) as first, changes.watch(ADA, values_max=1) as second:
        changes.commit([new], 0.0)
        first.take()
        found = changes.kept(ADA, TASK.request_id)
        assert found is not None
        assert found is second.take()[0][TASK.request_id]
        assert changes.kept(ADA, TASK.request_id) is None
        changes.commit([new])
        assert changes.kept(ADA, TASK.request_id) is None


def test_a_slow_watch_keeps_a_bounded_number_of_names() -> None:
    changes = Changes()
    with changes.watch(ADA) as watch:
        changes.note(Change(ADA, f"task_{number}") for number in range(NAMED_MAX + 1))
        rows, missed = watch.take()
        assert (len(rows), missed) == (NAMED_MAX, True)
        assert watch.take() == ({}, False)


def test_other_members_are_sent_what_is_committed_here_only() -> None:
    sent: list[Change] = []
    changes = Changes()
    changes.send = sent.extend
    changes.note([Change(BOB, BOB)])
    changes.commit([unit_of(AccountHead(ADA), NewTaskRow(TASK)), unit_of(AccountHead(ADA))])
    assert sent == [Change(ADA, ADA), Change(ADA, TASK.request_id)]


async def test_a_wait_ends_with_a_notice_at_its_time_or_with_the_process(autojump_clock: MockClock) -> None:
    changes = Changes()
    begun = trio.current_time()
    with changes.watch(ADA) as watch:
        await watch.wait(begun + 60)
        assert trio.current_time() == begun + 60
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.wait, math.inf)
            await wait_all_tasks_blocked()
            changes.note([Change(ADA, ADA)])
        watch.take()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.wait, math.inf)
            await wait_all_tasks_blocked()
            changes.end()
        watch.take()
        await watch.wait(math.inf)
        assert trio.current_time() == begun + 60


async def test_while_notices_may_be_missed_rows_are_read_again_and_again(autojump_clock: MockClock) -> None:
    changes = Changes()
    changes.is_complete = lambda: False
    begun = trio.current_time()
    with changes.watch(ADA) as watch:
        for turn in range(1, 4):
            await watch.wait(math.inf)
            assert trio.current_time() == begun + turn * REREAD_S
            assert watch.take() == ({}, True)
        changes.is_complete = lambda: True
        changes.note_missed()
        await watch.wait(math.inf)
        assert watch.take() == ({}, True)
