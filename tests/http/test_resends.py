"""Which task a request that is sent again is given, as far as one process can tell."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from holdfast_compat.attempts import REFUSED_S, RequestAttempts, Resend, Unanswered


def keyed(*tasks: str) -> dict[str, str]:
    """The tasks of a group, the newest first, by the keys of their replies."""
    return {f"req_{task}": task for task in tasks}


async def test_each_attempt_joins_a_task_once() -> None:
    attempts = RequestAttempts()
    tasks = keyed("task_2", "task_1")
    assert attempts.choose(Resend("equal", 1), tasks) == "task_2"
    attempts.join("task_2", 1)
    assert attempts.choose(Resend("equal", 1), tasks) == "task_1"
    attempts.join("task_1", 1)
    assert attempts.choose(Resend("equal", 1), tasks) is None
    assert attempts.choose(Resend("equal", 2), tasks) == "task_2"
    attempts.join("task_2", 3)
    assert attempts.choose(Resend("equal", 2), tasks) == "task_1"


async def test_a_later_attempt_leaves_the_task_of_another() -> None:
    attempts = RequestAttempts()
    attempts.join("task_1", 1)
    tasks = keyed("task_2", "task_1")  # the newer one is of another request, which is about to be sent again
    assert attempts.choose(Resend("equal", 2), tasks) == "task_1"
    attempts.join("task_1", 2)
    assert attempts.choose(Resend("equal", 1), tasks) == "task_2"


async def test_the_tasks_of_later_attempts_are_known() -> None:
    attempts = RequestAttempts()
    attempts.join("task_1", 2)
    first = Resend("equal", 1)
    assert attempts.must_outwait(first, ["task_2", "task_1"])
    assert first.outwaited == {"task_1"}
    assert not attempts.must_outwait(first, ["task_2", "task_1"])
    assert not attempts.must_outwait(Resend("equal", 2), ["task_2", "task_1"])


async def test_a_task_that_a_request_waits_for_comes_last() -> None:
    attempts = RequestAttempts()
    with attempts.served("task_2"):
        assert attempts.choose(Resend("equal", 1), keyed("task_2", "task_1")) == "task_1"
        # Its client may have gone without a sign.
        assert attempts.choose(Resend("equal", 1), keyed("task_2")) == "task_2"
    attempts.lose("task_2")
    assert attempts.choose(Resend("equal", 1), keyed("task_2", "task_1")) == "task_2"


async def test_a_refused_attempt_counts_once_and_for_a_while(autojump_clock: MockClock) -> None:
    attempts = RequestAttempts()
    with attempts.served("task_1"):
        attempts.refuse(Resend("equal", 0), "req_0")
        assert attempts.choose(Resend("equal", 2), keyed("task_1")) == "task_1"
        assert attempts.choose(Resend("other", 1), keyed("task_1")) == "task_1"
        assert attempts.choose(Resend("equal", 1), keyed("task_1")) is None
        assert attempts.choose(Resend("equal", 1), keyed("task_1")) == "task_1"
        attempts.refuse(Resend("equal", 0), "req_0")
        await trio.sleep(REFUSED_S + 1)
        assert attempts.choose(Resend("equal", 1), keyed("task_1")) == "task_1"


async def test_a_lost_answer_comes_before_a_refusal() -> None:
    attempts = RequestAttempts()
    attempts.refuse(Resend("equal", 0), "req_0")  # its client may have given up
    with pytest.raises(ConnectionError), attempts.served("task_1"):
        raise ConnectionError
    assert attempts.choose(Resend("equal", 1), keyed("task_1")) == "task_1"
    attempts.join("task_1", 1)
    assert attempts.choose(Resend("equal", 1), keyed("task_1")) is None


async def test_a_refusal_counts_once_without_tasks_too() -> None:
    attempts = RequestAttempts()
    attempts.refuse(Resend("equal", 0), "req_0")
    assert attempts.choose(Resend("equal", 1), keyed()) is None
    attempts.join("task_1", 1)
    with attempts.served("task_2"):
        assert attempts.choose(Resend("equal", 1), keyed("task_2", "task_1")) == "task_2"


async def test_the_resend_of_a_refused_resend_chooses_as_that_would_have() -> None:
    attempts = RequestAttempts()
    attempts.join("task_2", 1)
    with attempts.served("task_2"), attempts.served("task_3"):
        attempts.refuse(Resend("equal", 1), "req_0")
        # Its first attempt created a task, and the second was refused before it could join that.
        assert attempts.choose(Resend("equal", 2), keyed("task_3", "task_2", "task_1")) == "task_1"
        attempts.join("task_1", 2)
        assert attempts.choose(Resend("equal", 2), keyed("task_3", "task_2", "task_1")) == "task_2"


async def test_a_refused_resend_alone_is_no_reason_for_another_task() -> None:
    attempts = RequestAttempts()
    with attempts.served("task_1"):
        attempts.refuse(Resend("equal", 1), "req_0")
        assert attempts.choose(Resend("equal", 2), keyed("task_1")) == "task_1"


async def test_a_request_that_was_refused_twice_has_no_task() -> None:
    attempts = RequestAttempts()
    with attempts.served("task_1"):
        attempts.refuse(Resend("equal", 0), "req_0")
        second = Resend("equal", 1)
        assert attempts.choose(second, keyed("task_1")) is None
        attempts.refuse(second, "req_1")
        assert attempts.choose(Resend("equal", 2), keyed("task_1")) is None
        assert attempts.choose(Resend("equal", 2), keyed("task_1")) == "task_1"


async def test_an_attempt_whose_outcome_was_unknown_has_the_task_that_it_created() -> None:
    attempts = RequestAttempts()
    with attempts.served("task_2"):
        attempts.refuse(Resend("equal", 0), "req_task_1")
        attempts.join("task_1", 1)
        with attempts.served("task_1"):
            assert attempts.choose(Resend("equal", 1), keyed("task_2", "task_1")) == "task_2"
            attempts.refuse(Resend("equal", 0), "req_task_3")
            assert attempts.choose(Resend("equal", 1), keyed("task_2", "task_1")) is None


async def test_a_task_that_was_taken_from_its_resend_is_made_up_for() -> None:
    attempts = RequestAttempts()
    for first in range(2):
        attempts.refuse(Resend("equal", 0), f"req_{first}")
    taker = Resend("equal", 1)
    assert attempts.choose(taker, {}) is None
    attempts.refuse(taker, "req_task_1")  # its outcome was unknown: it created the task
    assert attempts.choose(Resend("equal", 1), keyed("task_1")) == "task_1"
    attempts.join("task_1", 1)
    with attempts.served("task_1"):
        assert attempts.choose(Resend("equal", 2), keyed("task_1")) is None


async def test_resends_of_a_group_take_turns(autojump_clock: MockClock) -> None:
    attempts = RequestAttempts()
    inside: list[str] = []

    async def look(group: str) -> None:
        async with attempts.turn(group):
            assert group not in inside
            inside.append(group)
            await trio.sleep(1)
            inside.remove(group)

    async with trio.open_nursery() as nursery:
        for group in ("a", "a", "b", "a"):
            nursery.start_soon(look, group)
    assert trio.current_time() < 4


async def test_requests_that_count_no_more_take_no_memory(autojump_clock: MockClock) -> None:
    unanswered = Unanswered[str, str](REFUSED_S)
    for _ in range(1000):
        unanswered.add("a group", "a request")
        await trio.sleep(REFUSED_S / 10)
    assert len(unanswered["a group"]) <= 10
    assert unanswered.take("a group") is not None
