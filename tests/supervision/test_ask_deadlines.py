"""The timer of all asks: each ends at its own deadline, whatever the others' are."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.actors.runtime.mailbox import GRAIN_S, AskDeadlines, TrioFuture


async def ask(deadlines: AskDeadlines, wait_s: float, ended: dict[float, float]) -> None:
    """Wait for an answer that never comes, and note when waiting ended."""
    future: TrioFuture[object] = TrioFuture()
    deadlines.add(future, trio.current_time() + wait_s, wait_s)
    with pytest.raises(OutcomeUnknown, match=f"within {wait_s:g} s"):
        await future.wait()
    ended[wait_s] = trio.current_time()


async def test_each_ask_ends_at_its_own_deadline(autojump_clock: MockClock) -> None:
    deadlines, ended, begun = AskDeadlines(), dict[float, float](), trio.current_time()
    async with trio.open_nursery() as nursery:
        for wait_s in (10.0, 2.0, 30.0, 0.5):
            nursery.start_soon(ask, deadlines, wait_s, ended)
    assert {wait_s: at - begun for wait_s, at in ended.items()} == {10.0: 10.0, 2.0: 2.0, 30.0: 30.0, 0.5: 0.5}


async def test_close_deadlines_share_timer_runs_and_none_ends_early(autojump_clock: MockClock) -> None:
    deadlines, ended, begun = AskDeadlines(), dict[float, float](), trio.current_time()
    waits_s = [1.0 + GRAIN_S * number / 100 for number in range(300)]
    async with trio.open_nursery() as nursery:
        for wait_s in waits_s:
            nursery.start_soon(ask, deadlines, wait_s, ended)
    late_s = [ended[wait_s] - begun - wait_s for wait_s in waits_s]
    assert -1e-9 <= min(late_s) <= max(late_s) <= GRAIN_S + 1e-9
    assert len(set(ended.values())) <= 5


async def test_an_earlier_deadline_added_later_is_met(mock_clock: MockClock) -> None:
    deadlines, ended = AskDeadlines(), dict[float, float]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, deadlines, 10.0, ended)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1.0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, deadlines, 3.0, ended)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(3.0)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == {3.0: 4.0}
        mock_clock.jump(6.0)
    assert ended == {3.0: 4.0, 10.0: 10.0}


async def test_an_answered_ask_is_not_failed_and_the_next_one_ends(autojump_clock: MockClock) -> None:
    deadlines, ended = AskDeadlines(), dict[float, float]()
    answered: TrioFuture[object] = TrioFuture()
    deadlines.add(answered, trio.current_time() + 5.0, 5.0)
    answered.set("in time")
    deadlines.remove(answered)
    await ask(deadlines, 8.0, ended)
    assert await answered.wait() == "in time"
    await trio.sleep(20)
    await ask(deadlines, 1.0, ended)
    assert ended == {8.0: 8.0, 1.0: 29.0}


async def test_a_reply_at_the_deadline_is_not_overwritten(mock_clock: MockClock) -> None:
    deadlines = AskDeadlines()
    future: TrioFuture[object] = TrioFuture()
    deadlines.add(future, trio.current_time() + 1.0, 1.0)
    await trio.testing.wait_all_tasks_blocked()
    future.set("just in time")
    mock_clock.jump(1.0)
    await trio.testing.wait_all_tasks_blocked()
    assert await future.wait() == "just in time"
