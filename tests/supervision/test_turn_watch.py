"""A turn that takes too long is reported once, with where it waits, and again when it has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import MockClock

from holdfast.actors.workers.passes import Passes
from holdfast.supervision.control.keys import ControlledGroup
from holdfast.supervision.control.messages import RestartKey
from holdfast.supervision.turn_watch import TurnWatch
from holdfast.telemetry.reports.report import in_words
from holdfast.telemetry.reports.reporter import ALONE_MAX

from .keyed_actors import Harness, Rest, Say, collect


@asynccontextmanager
async def watched(harness: Harness, limit_s: float = 30) -> AsyncIterator[trio.Nursery]:
    """Run the harness's directory and a watch of it."""
    watch = TurnWatch(
        [harness.directory],
        Passes(),
        limit_s=limit_s,
        reporter=harness.reporter,
        is_database_open=lambda: harness.gate.is_open,
        mask=lambda _group, key: f"masked:{key}",
    )
    async with harness.running(), trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: watch.run(task_status=task_status))
        yield nursery
        nursery.cancel_scope.cancel()


async def test_a_long_turn_is_reported_once_and_at_its_end(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with watched(harness) as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(100)), ("a", Say("waits"))], {})
        await trio.sleep(29)
        assert harness.reports("stuck") == []
        await trio.sleep(61)
        [report] = harness.reports("stuck")
        assert (report.key, report.last_message_type, report.mailbox_depth) == ("masked:a", "Rest", 1)
        assert 30 <= (report.duration_s or 0) <= 36
        assert "keyed_actors.WritingActor.on_receive" in (report.reason or "")
        assert harness.reports("recovery") == []
        await trio.sleep(20)
        [ended] = harness.reports("recovery")
        assert (ended.key, ended.last_message_type) == ("masked:a", "Rest")
        assert 100 <= (ended.duration_s or 0) <= 106
        await trio.sleep(300)
        assert len(harness.reports("stuck")) == 1


async def test_short_turns_one_after_the_other_are_not_stuck(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with watched(harness) as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(20)) for _ in range(20)], {})
        await trio.sleep(450)
    assert harness.reports("stuck") == []


async def test_a_stuck_turn_that_an_operator_ends_is_over(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with watched(harness) as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(900))], {})
        await trio.sleep(60)
        await ControlledGroup(harness.directory, "proc_1", str).act(RestartKey("actors", "a", "it is stuck"))
        await trio.sleep(10)
        assert len(harness.reports("recovery")) == 1


async def test_a_start_that_takes_too_long_is_stuck(autojump_clock: MockClock) -> None:
    harness = Harness()

    async def slow(_self: Any) -> None:
        await trio.sleep(100)

    harness.directory.factory = _with_start(harness, slow)
    async with watched(harness) as nursery:
        await trio.sleep(1000)
        nursery.start_soon(collect, harness, [("a", Say())], {})
        await trio.sleep(60)
        [report] = harness.reports("stuck")
        assert report.last_message_type == "its start"
        assert 30 <= (report.duration_s or 0) <= 36


def _with_start(harness: Harness, on_start: Any) -> Any:
    made = harness.directory.factory

    def make(key: str, mailbox: Any) -> Any:
        actor = made(key, mailbox)
        actor.on_start = lambda: on_start(actor)  # type: ignore[method-assign]  # of this one
        return actor

    return make


async def test_many_stuck_turns_are_summed_up(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with watched(harness) as nursery:
        nursery.start_soon(collect, harness, [(f"k{n}", Rest(50)) for n in range(ALONE_MAX + 5)], {})
        await trio.sleep(45)
        harness.reporter.report_sums(at_once=True)
        *alone, total = harness.reports("stuck")
        assert len(alone) == ALONE_MAX
        assert total.count == 5
        assert in_words(total).startswith("takes too long 5 times in ")


async def test_nothing_is_stuck_while_the_database_is_away(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with watched(harness) as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(200))], {})
        await trio.sleep(10)
        harness.gate.close("the database is away")
        await trio.sleep(100)
        assert harness.reports("stuck") == []
        harness.gate.open()
        await trio.sleep(10)
        assert len(harness.reports("stuck")) == 1
