"""Which task a request that is sent again is given, as far as one process can tell."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from holdfast_compat.openai.resends import REFUSED_S, Resends


async def test_each_attempt_joins_a_task_once() -> None:
    resends = Resends()
    tasks = ["task_2", "task_1"]
    assert resends.choose("equal", tasks, 1) == "task_2"
    resends.join("task_2", 1)
    assert resends.choose("equal", tasks, 1) == "task_1"
    resends.join("task_1", 1)
    assert resends.choose("equal", tasks, 1) is None
    assert resends.choose("equal", tasks, 2) == "task_2"
    resends.join("task_2", 3)
    assert resends.choose("equal", tasks, 2) == "task_1"


async def test_a_later_attempt_leaves_the_task_of_another() -> None:
    resends = Resends()
    resends.join("task_1", 1)
    tasks = ["task_2", "task_1"]  # the newer one is of another request, which is about to be sent again
    assert resends.choose("equal", tasks, 2) == "task_1"
    resends.join("task_1", 2)
    assert resends.choose("equal", tasks, 1) == "task_2"


async def test_the_tasks_of_later_attempts_are_known() -> None:
    resends = Resends()
    resends.join("task_1", 2)
    assert resends.joined_later(["task_2", "task_1"], 1) == {"task_1"}
    assert resends.joined_later(["task_2", "task_1"], 2) == set()


async def test_a_task_that_a_request_waits_for_comes_last() -> None:
    resends = Resends()
    with resends.served("task_2"):
        assert resends.choose("equal", ["task_2", "task_1"], 1) == "task_1"
        # Its client may have gone without a sign.
        assert resends.choose("equal", ["task_2"], 1) == "task_2"
    resends.lose("task_2")
    assert resends.choose("equal", ["task_2", "task_1"], 1) == "task_2"


async def test_a_refused_attempt_counts_once_and_for_a_while(autojump_clock: MockClock) -> None:
    resends = Resends()
    with resends.served("task_1"):
        resends.refuse("equal", 0)
        assert resends.choose("equal", ["task_1"], 2) == "task_1"
        assert resends.choose("other", ["task_1"], 1) == "task_1"
        assert resends.choose("equal", ["task_1"], 1) is None
        assert resends.choose("equal", ["task_1"], 1) == "task_1"
        resends.refuse("equal", 0)
        await trio.sleep(REFUSED_S + 1)
        assert resends.choose("equal", ["task_1"], 1) == "task_1"


async def test_a_lost_answer_comes_before_a_refusal() -> None:
    resends = Resends()
    resends.refuse("equal", 0)  # its client may have given up
    with pytest.raises(ConnectionError), resends.served("task_1"):
        raise ConnectionError
    assert resends.choose("equal", ["task_1"], 1) == "task_1"
    resends.join("task_1", 1)
    assert resends.choose("equal", ["task_1"], 1) is None


async def test_a_refusal_counts_once_without_tasks_too() -> None:
    resends = Resends()
    resends.refuse("equal", 0)
    assert resends.choose("equal", [], 1) is None
    resends.join("task_1", 1)
    with resends.served("task_2"):
        assert resends.choose("equal", ["task_2", "task_1"], 1) == "task_2"


async def test_resends_of_a_group_take_turns(autojump_clock: MockClock) -> None:
    resends = Resends()
    inside: list[str] = []

    async def look(group: str) -> None:
        async with resends.turn(group):
            assert group not in inside
            inside.append(group)
            await trio.sleep(1)
            inside.remove(group)

    async with trio.open_nursery() as nursery:
        for group in ("a", "a", "b", "a"):
            nursery.start_soon(look, group)
    assert trio.current_time() < 4
