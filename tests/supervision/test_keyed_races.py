"""Ends that meet: crashes during start, stop and restart of an actor, and orders that arrive too late."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.faults import Quarantined
from holdfast.actors.runtime.mailbox import SystemMessage
from holdfast.persistence.journal.units import Committed, Fence, NotWritten, Stale
from holdfast.supervision.control.keys import ControlledGroup
from holdfast.supervision.control.messages import CrashKey, DescribeKey, QuarantineKey, ReleaseKey, RestartKey
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.supervision.spec import Backoff
from holdfast.telemetry.reports.causes import describe

from .keyed_actors import Break, Harness, Rest, Say, Write, WritingActor, collect, outcome


def group_of(harness: Harness) -> ControlledGroup:
    return ControlledGroup(harness.directory, "proc_1", str)


class FailsAtEnd(WritingActor):
    """Raises when it is passivated or stopped."""

    async def on_stop(self) -> None:  # type: ignore[override]  # may await
        await trio.sleep(0.5)
        raise OSError("cannot clean up")


async def test_a_crash_while_passivated_keeps_what_arrives_meanwhile(autojump_clock: MockClock) -> None:
    harness = Harness(actor=FailsAtEnd, limits=KeyedLimits(idle_s=10, backoff=Backoff(1, 1, jitter=0)))
    async with harness.running() as directory:
        assert await harness.ask("a") == "hello"
        child = directory.by_key["a"]
        child.mailbox.put_system(SystemMessage.PASSIVATE)
        await trio.sleep(0.2)
        assert await harness.ask("a", Say("arrived meanwhile")) == "arrived meanwhile"
    assert harness.started["a"] == 2
    assert harness.reports("crash")[0].reason == "cannot clean up"


async def test_a_crash_in_the_drain_does_not_hold_it_up(autojump_clock: MockClock) -> None:
    harness = Harness(actor=FailsAtEnd, limits=KeyedLimits(backoff=Backoff(500, 500, jitter=0)))
    begun = 0.0
    async with harness.running():
        for key in "abc":
            await harness.ask(key)
        begun = trio.current_time()
    assert trio.current_time() - begun < 5
    assert {report.key for report in harness.reports("crash")} == {"a", "b", "c"}


async def test_a_crash_at_a_restart_by_an_operator_backs_off(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(backoff=Backoff(4, 4, jitter=0)))
    group = group_of(harness)
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(0.5)), ("a", Say("kept"))], replies)
        await trio.sleep(0.1)
        harness.failing_starts["a"] = 1
        nursery.start_soon(group.act, RestartKey("actors", "a", "to see it"))
        await trio.sleep(2)
        found = group.describe_key(DescribeKey("actors", "a"))
        assert getattr(found, "state", None) == "backing_off"
    assert replies == {0: "rested", 1: "kept"}
    assert [each.decision for each in harness.directory.restarts["a"]] == ["backoff", "restart"]


async def test_a_quarantine_during_the_start_holds_after_it(autojump_clock: MockClock) -> None:
    class SlowStart(WritingActor):
        async def on_start(self) -> None:  # type: ignore[override]  # may await
            await trio.sleep(0.5)
            await super().on_start()

    harness = Harness(actor=SlowStart)
    group = group_of(harness)
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Say("waits"))], replies)
        await trio.sleep(0.1)
        await group.act(QuarantineKey("actors", "a", "by hand", 60))
        await wait_all_tasks_blocked()
        assert isinstance(replies[0], Quarantined)
        assert harness.directory.quarantined() == ["a"]
        assert harness.handled["a"] == []


async def test_an_order_that_comes_too_late_ends_no_later_incarnation(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(backoff=Backoff(0.1, 0.1, jitter=0)))
    async with harness.running() as directory:
        await harness.ask("a")
        child = directory.by_key["a"]
        assert not isinstance(await outcome(lambda: harness.ask("a", Break())), str)
        # The incarnation that these were meant for has ended.
        child.mailbox.put_system(SystemMessage.CRASH)
        child.mailbox.put_system(SystemMessage.END)
        assert await harness.ask("a") == "hello"
        await trio.sleep(10)
        assert (child.incarnation, harness.started["a"]) == (2, 2)
    assert len(harness.reports("crash")) == 1


@pytest.mark.parametrize("order", [RestartKey, CrashKey, partial(QuarantineKey, for_s=60)])
async def test_an_order_during_open_decisions_waits_for_their_results(
    autojump_clock: MockClock, order: Any
) -> None:
    harness = Harness()
    group = group_of(harness)
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Write("1")), ("a", Write("2"))], replies)
        await trio.sleep(1)
        nursery.start_soon(group.act, order("actors", "a", "by hand"))
        await trio.sleep(5)
        assert replies == {}
        harness.settle(Committed(), NotWritten("the database was away"))
        await trio.sleep(5)
        assert replies[0] == "1"
        if order in (RestartKey, CrashKey):
            # The void decision is made again by the next incarnation.
            harness.settle(Committed())
            await trio.sleep(1)
            assert replies[1] == "2"
        else:
            assert isinstance(replies[1], Quarantined)
    assert harness.handled["a"][0] == "1"


async def test_two_orders_at_once_never_run_two_incarnations(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = group_of(harness)
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(0.5))], {})
        await trio.sleep(0.1)
        async with trio.open_nursery() as both:
            both.start_soon(group.act, RestartKey("actors", "a", "one"))
            both.start_soon(group.act, RestartKey("actors", "a", "two"))
        await trio.sleep(5)
        # The second finds the actor starting already, or restarts it once more.
        assert harness.started["a"] in {2, 3}
        assert harness.live == harness.most_live == {"a": 1}


async def test_a_restart_in_a_pause_takes_effect_when_it_ends(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = group_of(harness)
    async with harness.running() as directory:
        await harness.ask("a")
        directory.pause("maintenance")
        await group.act(RestartKey("actors", "a", "to see it"))
        await trio.sleep(5)
        found = group.describe_key(DescribeKey("actors", "a"))
        assert (getattr(found, "state", None), harness.started["a"]) == ("starting", 1)
        directory.resume("done")
        assert await harness.ask("a") == "hello"
        assert harness.started["a"] == 2


class Slow(WritingActor):
    """Takes a second to load."""

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        await trio.sleep(1)
        await super().on_start()


@pytest.mark.parametrize("ended_by", ["release", "expiry"])
@pytest.mark.parametrize("held_up_by", ["pause", "gate", "place"])
async def test_a_quarantine_while_the_actor_waits_to_start_leaves_one_task(
    autojump_clock: MockClock, held_up_by: str, ended_by: str
) -> None:
    harness = Harness(actor=Slow, limits=KeyedLimits(loading_max=1))
    group = group_of(harness)
    replies: dict[int, Any] = {}
    async with harness.running() as directory, trio.open_nursery() as nursery:
        await harness.ask("a")
        if held_up_by == "pause":
            directory.pause("maintenance")
        elif held_up_by == "gate":
            harness.gate.close("away")
        else:
            directory.ref("other").tell(Say())
            await wait_all_tasks_blocked()
        await group.act(RestartKey("actors", "a", "to see it"))
        directory.ref("a").tell(Say("refused"))
        await wait_all_tasks_blocked()
        await group.act(QuarantineKey("actors", "a", "by hand", 0.5))
        await wait_all_tasks_blocked()
        # What waited has ended.
        assert directory.active_count == (1 if held_up_by == "place" else 0)
        if ended_by == "release":
            await group.act(ReleaseKey("actors", "a", "mended"))
        else:
            await trio.sleep(0.6)
        directory.ref("a").tell(Say("kept"))
        await trio.sleep(0.1)
        assert directory.active_count == (2 if held_up_by == "place" else 1)
        directory.resume("done")
        harness.gate.open()
        nursery.start_soon(collect, harness, [("a", Say("asked"))], replies)
        await trio.sleep(10)
        assert replies == {0: "asked"}
        assert harness.handled["a"] == ["hello", "kept", "asked"]
        assert harness.most_live == {"a": 1} | ({"other": 1} if held_up_by == "place" else {})
        assert directory.quarantined() == []
        begun = trio.current_time()
    assert trio.current_time() - begun < 1


async def test_a_quarantine_and_a_release_at_once_leave_one_task(autojump_clock: MockClock) -> None:
    """The key is released before the task that waits for the end of the pause has noticed its quarantine."""
    harness = Harness()
    async with harness.running() as directory:
        directory.pause("maintenance")
        directory.ref("a").tell(Say("refused"))
        await wait_all_tasks_blocked()
        child = directory.by_key["a"]
        child.put_in_quarantine(describe(OSError("by hand")), for_s=60)
        child.release("mended")
        directory.ref("a").tell(Say("kept"))
        assert directory.by_key["a"] is child
        assert directory.active_count == 1
        directory.resume("done")
        assert await harness.ask("a") == "hello"
        assert harness.handled["a"] == ["kept", "hello"]
        assert (harness.started["a"], harness.most_live["a"]) == (1, 1)
    assert harness.directory.active_count == 0


async def test_a_quarantine_between_two_void_incarnations_holds(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = group_of(harness)
    async with harness.running() as directory:
        directory.ref("a").tell(Write("1"))
        await wait_all_tasks_blocked()
        for _ in range(4):
            harness.settle(Stale((Fence("account", "a", 0),)))
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            while not harness.queue and directory.by_key["a"].voids_in_row < 4:
                await trio.lowlevel.checkpoint()
        # It waits for a moment before the next incarnation, as two processes that serve one key do.
        assert (await group.act(QuarantineKey("actors", "a", "by hand", 60))) is not None
        await trio.sleep(5)
        assert directory.quarantined() == ["a"]
        assert directory.active_count == 0


async def test_a_gate_that_opens_in_a_pause_starts_nothing(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running() as directory:
        harness.gate.close("away")
        directory.ref("a").tell(Say("kept"))
        await wait_all_tasks_blocked()
        directory.pause("maintenance")
        harness.gate.open()
        await trio.sleep(10)
        assert harness.started["a"] == 0
        directory.resume("done")
        await wait_all_tasks_blocked()
        assert harness.handled["a"] == ["kept"]


async def test_an_order_that_waited_for_another_finds_the_key_as_it_is_then(autojump_clock: MockClock) -> None:
    class SlowStop(WritingActor):
        async def on_stop(self) -> None:  # type: ignore[override]  # may await
            await trio.sleep(0.5)

    harness = Harness(actor=SlowStop)
    group = group_of(harness)
    async with harness.running() as directory, trio.open_nursery() as nursery:
        await harness.ask("a")
        directory.by_key["a"].mailbox.put_system(SystemMessage.PASSIVATE)
        await wait_all_tasks_blocked()
        nursery.start_soon(group.act, RestartKey("actors", "a", "to see it"))
        await wait_all_tasks_blocked()
        # It waits for the restart, of which nothing is left once the actor is passivated and forgotten.
        await group.act(QuarantineKey("actors", "a", "by hand", 60))
        assert directory.quarantined() == ["a"]
        assert isinstance(await outcome(lambda: harness.ask("a")), Quarantined)


async def test_a_quarantine_in_the_instant_of_a_drain_holds(
    autojump_clock: MockClock,
) -> None:
    harness = Harness()
    async with harness.running() as directory:
        await outcome(lambda: harness.ask("a", Break()))
        await wait_all_tasks_blocked()
        await directory.stop()
        directory.by_key["a"].put_in_quarantine(describe(OSError("by hand")), for_s=60)
    assert directory.quarantined() == ["a"]
