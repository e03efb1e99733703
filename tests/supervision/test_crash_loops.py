"""Slow crash loops: a child that fails within its budget for ever is reported; of a group, the process ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from holdfast.supervision.faults import GaveUp
from holdfast.supervision.spec import Backoff, ChildSpec
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import TOP_INTENSITY, WORKERS_INTENSITY

if TYPE_CHECKING:
    from tests.supervision.conftest import ScriptedTree

APART_S = 25.0
"""Too slow for the first budget of the top, three in 30 seconds."""
AT_ONCE = Backoff(0.0, 0.0, jitter=0.0)


def workers_of(scripted: ScriptedTree) -> Supervisor:
    return scripted.supervisor(scripted.spec("a"), scripted.spec("b"), name="workers", intensity=WORKERS_INTENSITY)


def service_of(scripted: ScriptedTree) -> Supervisor:
    spec = ChildSpec("workers", lambda: workers_of(scripted), backoff=AT_ONCE, shutdown_s=8.0)
    return scripted.supervisor(spec, name="holdfast", strategy="rest_for_one", intensity=TOP_INTENSITY)


async def spend_the_budget(scripted: ScriptedTree, child_id: str) -> None:
    for _ in range(WORKERS_INTENSITY.restarts + 1):
        scripted.crash(child_id)
        await scripted.settle()


async def test_a_group_that_gives_up_twice_a_minute_ends_the_process(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    top, times = service_of(scripted), 0

    async def give_up_over_and_over() -> None:
        nonlocal times
        async with scripted.running(top):
            while True:
                await trio.sleep(APART_S)
                times += 1
                await spend_the_budget(scripted, "a")

    with pytest.raises(ExceptionGroup) as caught:
        await give_up_over_and_over()
    (gave_up,) = caught.value.exceptions
    assert isinstance(gave_up, GaveUp)
    assert "over 10 restarts in 900 s, the last by 'workers'" in str(gave_up)
    assert times == 11
    last = scripted.reports("escalation")[-1]
    assert (last.path, last.restarts, last.budget) == ("holdfast/workers", 11, 10)
    # Before that, operators knew what would happen, and by which worker.
    loops = [(report.path, report.level) for report in scripted.reports("crash_loop") if report.count is None]
    assert loops == [("holdfast/workers/a", "critical"), ("holdfast/workers", "critical")]


async def test_a_worker_that_keeps_crashing_alone_leaves_the_others_alone(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: scripted.conditions.run(task_status=task_status))
        async with scripted.running(service_of(scripted)):
            for crashes in range(1, 200):
                scripted.crash("a", ValueError(f"number {crashes}"))
                await trio.sleep(APART_S)
                if crashes < 5:
                    assert scripted.reports("crash_loop") == []
            assert (scripted.ups["a"], scripted.ups["b"]) == (200, 1)
            begun, *counts = scripted.reports("crash_loop")
            assert (begun.path, begun.key, begun.reason) == (
                "holdfast/workers/a",
                None,
                "it keeps crashing: ValueError: number 5",
            )
            # After a minute, then ever more rarely; 199 crashes take 83 minutes.
            lasted_s = [report.duration_s or 0 for report in counts]
            assert lasted_s == pytest.approx([160, 280, 520, 1000, 1960, 3880], abs=2)
            assert [report.count or 0 for report in counts] == pytest.approx([7, 12, 21, 41, 79, 156], abs=1)
            assert scripted.reports("recovery") == []
            await trio.sleep(610)
            (over,) = scripted.reports("recovery")
            assert (over.path, over.count) == ("holdfast/workers/a", 199)
            assert over.reason == "it has not crashed for ten minutes"
        nursery.cancel_scope.cancel()


async def test_crashes_more_than_ten_minutes_apart_are_no_loop(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: scripted.conditions.run(task_status=task_status))
        async with scripted.running(service_of(scripted)):
            for _ in range(10):
                scripted.crash("a")
                await trio.sleep(602)
        nursery.cancel_scope.cancel()
    assert scripted.reports("crash_loop") == scripted.reports("recovery") == []
