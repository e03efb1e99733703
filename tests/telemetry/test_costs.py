"""Who and what costs most in one process: bounded, by minutes and by the day, and the CPU of turns."""

from __future__ import annotations

import time
from types import CoroutineType
from typing import Any, cast

import trio

from holdfast.supervision.turn_watch import await_stack
from holdfast.telemetry.costs import (
    MINUTES,
    NAMES_KEPT,
    NAMES_MAX,
    SHOWN_MAX,
    TURNS_FOR_ONE_TIMED,
    CostCounts,
    TimedTurn,
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_large_name_that_comes_late_is_found() -> None:
    counts = CostCounts(clock := Clock())
    for number in range(2 * NAMES_MAX):
        counts.add("account", f"small_{number}")
    for number in range(300):
        counts.add("account", "large")
        counts.add("account", f"later_{number}")
    found = counts.read().minutes["account"]
    first = found.largest[0]
    assert (first.name, found.total) == ("large", 2 * NAMES_MAX + 600)
    assert first.count - first.over_by <= 300 <= first.count
    assert len(found.largest) == SHOWN_MAX
    assert len(counts._minutes[-1]["account"].of) <= NAMES_MAX
    clock.now_s += 3600
    later = counts.read().day["account"]
    assert (later.largest[0], later.total) == (first, found.total)
    assert [len(hour["account"].of) for hour in counts._hours if hour] == [NAMES_KEPT]


def test_names_that_come_together_are_counted_each() -> None:
    counts = CostCounts(clock := Clock())
    for number in range(3 * NAMES_MAX):
        counts.add_each(("route", "key"), ("GET /a", f"key_{number % 2}" if number % 3 else None))
    clock.now_s += 60
    counts.add_each(("route", "key"), ("GET /b", "key_0"))
    found = counts.read().minutes
    assert [(each.name, each.count) for each in found["route"].largest] == [
        ("GET /a", 3 * NAMES_MAX),
        ("GET /b", 1),
    ]
    of_keys = {each.name: each.count for each in found["key"].largest}
    assert of_keys == {"key_0": NAMES_MAX + 1, "key_1": NAMES_MAX}
    clock.now_s += (MINUTES - 1) * 60
    assert [each.name for each in counts.read().minutes["route"].largest] == ["GET /b"]


def test_names_that_come_together_once_take_bounded_memory() -> None:
    counts = CostCounts(Clock())
    for number in range(3 * NAMES_MAX):
        counts.add_each(("route", "account"), ("GET /a", f"acct_{number}"))
        assert len(counts._together) <= NAMES_MAX
    assert counts.read().minutes["account"].total == 3 * NAMES_MAX


def test_minutes_leave_the_last_ones_and_stay_in_the_day() -> None:
    clock = Clock()
    counts = CostCounts(clock)
    counts.add("route", "GET /a", 5)
    clock.now_s += 60
    counts.add("route", "GET /b", 2)
    both = counts.read()
    assert [(each.name, each.count) for each in both.minutes["route"].largest] == [("GET /a", 5), ("GET /b", 2)]
    assert both.day == both.minutes
    clock.now_s += (MINUTES - 1) * 60
    assert [each.name for each in counts.read().minutes["route"].largest] == ["GET /b"]
    clock.now_s += 3600
    found = counts.read()
    assert "route" not in found.minutes
    assert (found.day["route"].total, len(found.day["route"].largest)) == (7, 2)
    clock.now_s += 24 * 3600
    assert counts.read().day == {}
    clock.now_s += 400 * 24 * 3600
    counts.add("route", "GET /a")
    assert counts.read().day["route"].total == 1


async def test_the_steps_of_a_turn_are_measured_and_its_frames_found() -> None:
    stacks: list[list[str]] = []

    async def waiting() -> str:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        await trio.lowlevel.checkpoint()
        return "done"

    async def turn() -> str:
        task = trio.lowlevel.current_task()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, task)
            return await waiting_here()

    async def waiting_here() -> str:
        await started.wait()
        return await waiting()

    async def watch(task: trio.lowlevel.Task) -> None:
        await trio.lowlevel.checkpoint()
        stacks.append(await_stack(task))
        started.set()

    started = trio.Event()
    timed = TimedTurn()
    assert await timed.awaiting(cast("CoroutineType[Any, Any, object]", turn())) == "done"
    assert 0.02 <= timed.end() < 60
    assert any("waiting_here" in frame for frame in stacks[0])


async def test_an_exception_goes_through_a_measured_turn() -> None:
    async def turn() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.append(True)
            raise

    cancelled: list[bool] = []
    with trio.move_on_after(0) as scope:
        await TimedTurn().awaiting(cast("CoroutineType[Any, Any, object]", turn()))
    assert (scope.cancelled_caught, cancelled) == (True, [True])


def test_one_turn_is_measured_for_as_many_as_it_stands_for() -> None:
    counts = CostCounts()
    measured = [counts.time_turn() is not None for _ in range(3 * TURNS_FOR_ONE_TIMED)]
    assert measured == [True, *[False] * (TURNS_FOR_ONE_TIMED - 1)] * 3


def test_a_turn_that_awaits_nothing_is_measured_too() -> None:
    timed, began_s = TimedTurn(), time.thread_time()
    while time.thread_time() - began_s < 0.002:
        pass
    assert 0.002 <= timed.end() < 60
