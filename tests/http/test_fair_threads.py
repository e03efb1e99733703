"""Threads are shared in turn: however many jobs one caller has, another waits for one of them at most."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import trio
import trio.testing

from holdfast.actors.runtime.faults import Overloaded
from holdfast.http.kit.fair_threads import FairThreads


async def test_callers_take_turns() -> None:
    threads, order, gate = FairThreads(threads_max=1, waiting_per_caller_max=5), [], threading.Event()

    async def work(caller: str, name: str) -> None:
        def run() -> None:
            gate.wait(10)
            order.append(name)

        await threads.run(caller, run)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(work, "greedy", f"greedy {number}")
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.start_soon(work, "other", "other")
            await trio.testing.wait_all_tasks_blocked(0.01)
            gate.set()
    assert order.index("other") == 1
    assert len(order) == 6


async def test_a_caller_with_too_many_jobs_is_refused_and_others_served() -> None:
    threads, gate = FairThreads(threads_max=2, waiting_per_caller_max=2), threading.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(threads.run, "greedy", lambda: gate.wait(10))
            await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(Overloaded):
                await threads.run("greedy", lambda: None)
            assert await threads.run("other", lambda: "served") == "served"
            gate.set()
        assert await threads.run("greedy", lambda: "served") == "served"


async def test_a_caller_without_jobs_takes_no_memory() -> None:
    threads = FairThreads()
    with trio.fail_after(20):
        with trio.CancelScope() as scope:
            scope.cancel()
            await threads.run("gone", lambda: None)
        with pytest.raises(ZeroDivisionError):
            await threads.run("broken", lambda: 1 / 0)
        for number in range(20):
            assert await threads.run("gone", partial(abs, number)) == number
    assert threads._shares == {}
