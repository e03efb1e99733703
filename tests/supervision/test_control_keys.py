"""What operators see of a group's actors and do with them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.faults import OutcomeUnknown, Quarantined, Unavailable
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal.units import Committed
from holdfast.supervision.control.keys import ControlledGroup
from holdfast.supervision.control.messages import (
    CrashKey,
    DescribeKey,
    KeyDescription,
    KeyOrder,
    ListKeys,
    PauseGroup,
    QuarantineKey,
    ReleaseKey,
    RestartKey,
    ResumeGroup,
)
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.supervision.spec import Backoff

from .keyed_actors import Break, Harness, Rest, Say, Write, collect, outcome


def group_of(harness: Harness) -> ControlledGroup:
    return ControlledGroup(harness.directory, "proc_1", str)


def described(found: KeyDescription | Refusal) -> KeyDescription:
    assert isinstance(found, KeyDescription), found
    return found


def code_of(found: object) -> str:
    assert isinstance(found, Refusal), found
    return found.code


async def test_a_turn_is_described_with_its_await_stack(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = group_of(harness)
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(100)), ("a", Say("later"))], {})
        await trio.sleep(10)
        found = described(group.describe_key(DescribeKey("actors", "a")))
        assert (found.state, found.incarnation, found.work.turn) == ("active", 1, "Rest")
        assert (found.work.turn_age_s, found.work.mailbox_depth) == (10, 1)
        assert any("keyed_actors.WritingActor.on_receive" in line for line in found.await_stack)
        summary = group.describe()
        assert (summary.states, summary.messages, summary.paused_by) == ({"active": 1}, 1, None)
        assert summary.oldest_message_age_s == pytest.approx(10, abs=0.01)
    assert code_of(group.describe_key(DescribeKey("actors", "unknown"))) == "actor_not_found"


async def test_a_restart_reads_again_and_keeps_the_messages(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = group_of(harness)
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(0.5)), ("a", Say("kept"))], replies)
        await trio.sleep(0.1)
        await group.act(RestartKey("actors", "a", "to see it"))
        await trio.sleep(1)
        found = described(group.describe_key(DescribeKey("actors", "a")))
    assert replies == {0: "rested", 1: "kept"}
    assert harness.started["a"] == 2
    assert [(each.decision, each.reason) for each in found.history] == [("restart", "to see it")]
    assert harness.reports("crash") == []


async def test_a_restart_ends_a_turn_that_does_not_end(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = group_of(harness)
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(900)), ("a", Say("kept"))], replies)
        await trio.sleep(5)
        begun = trio.current_time()
        await group.act(RestartKey("actors", "a", "it is stuck"))
        await wait_all_tasks_blocked()
        assert trio.current_time() - begun < 3
        assert isinstance(replies[0], OutcomeUnknown)
        assert replies[1] == "kept"


async def test_a_crash_by_an_operator_is_a_crash_as_any(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(child_restarts=1, group_crashes=100, backoff=Backoff(2, 2, jitter=0)))
    group = group_of(harness)
    async with harness.running():
        assert await harness.ask("a") == "hello"
        found = described(await group.act(CrashKey("actors", "a", "a drill")))
        assert (found.state, found.restarts, found.retry_in_s) == ("backing_off", 1, 2)
        [report] = harness.reports("crash")
        assert (report.reason_type, report.reason, report.decision) == ("EndedByOperator", "a drill", "backoff")
        assert await harness.ask("a") == "hello"
        assert harness.started["a"] == 2
        await group.act(CrashKey("actors", "a", "a drill"))
        assert harness.directory.quarantined() == ["a"]


async def test_a_crash_by_an_operator_loses_no_decision(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = group_of(harness)
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Write("1"))], replies)
        await trio.sleep(1)
        nursery.start_soon(group.act, CrashKey("actors", "a", "a drill"))
        await trio.sleep(5)
        assert replies == {}
        harness.settle(Committed())
        await trio.sleep(5)
    assert replies == {0: "1"}
    assert len(harness.reports("crash")) == 1


async def test_an_operator_quarantines_one_key_and_releases_it(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = group_of(harness)
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(0.5)), ("a", Say("waits"))], replies)
        await trio.sleep(0.1)
        found = described(await group.act(QuarantineKey("actors", "a", "it is damaged", 600)))
        await wait_all_tasks_blocked()
        assert (found.state, found.quarantine_reason) == ("quarantined", "it is damaged")
        assert found.quarantined_for_s == pytest.approx(600, abs=1)
        assert replies[0] == "rested"
        refused = replies[1]
        assert isinstance(refused, Quarantined)
        assert refused.retry_after_s == pytest.approx(600, abs=1)
        assert isinstance(await outcome(lambda: harness.ask("a")), Quarantined)
        assert await harness.ask("b") == "hello"
        assert code_of(await group.act(CrashKey("actors", "a", "x"))) == "actor_not_active"
        await group.act(ReleaseKey("actors", "a", "mended"))
        assert await harness.ask("a") == "hello"
        assert code_of(await group.act(ReleaseKey("actors", "a", "again"))) == "actor_not_quarantined"


async def test_a_quarantine_ends_a_backoff_and_holds_a_sleeping_key(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(backoff=Backoff(50, 50, jitter=0)))
    group = group_of(harness)
    async with harness.running():
        assert not isinstance(await outcome(lambda: harness.ask("a", Break())), str)
        for key in ("a", "never_used"):
            found = described(await group.act(QuarantineKey("actors", key, "by hand", 60)))
            assert found.state == "quarantined"
            with pytest.raises(Quarantined):
                await harness.ask(key)
        await wait_all_tasks_blocked()
        assert harness.directory.active_count == 0


async def test_a_restart_ends_a_backoff_at_once(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(backoff=Backoff(50, 50, jitter=0)))
    group = group_of(harness)
    harness.failing_starts["a"] = 1
    async with harness.running(), trio.open_nursery() as nursery:
        replies: dict[int, Any] = {}
        begun = trio.current_time()
        nursery.start_soon(collect, harness, [("a", Say("1"))], replies)
        await trio.sleep(1)
        await group.act(RestartKey("actors", "a", "its cause is gone"))
        await wait_all_tasks_blocked()
        assert replies == {0: "1"}
        assert trio.current_time() - begun < 2


async def test_a_paused_group_refuses_until_it_is_resumed(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = group_of(harness)
    async with harness.running():
        assert await harness.ask("a") == "hello"
        paused = group.pause_or_resume(PauseGroup("actors", "maintenance"))
        assert (paused.paused_by, paused.pause_reason) == ("operator", "maintenance")
        with pytest.raises(Unavailable, match="paused"):
            await harness.ask("a")
        await trio.sleep(900)
        with pytest.raises(Unavailable, match="paused"):
            await harness.ask("a")
        resumed = group.pause_or_resume(ResumeGroup("actors", "done"))
        assert resumed.paused_by is None
        assert await harness.ask("a") == "hello"
    assert [report.reason for report in harness.reports("pause")] == ["maintenance"]
    assert [report.reason for report in harness.reports("resume")] == ["done"]


async def test_an_operators_pause_outlives_a_restart_of_the_group(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running() as directory:
        directory.pause("maintenance")
    async with harness.running() as directory:
        with pytest.raises(Unavailable, match="paused"):
            await harness.ask("a")
        directory.resume("done")
        assert await harness.ask("a") == "hello"


async def test_keys_are_listed_in_pages_by_state_and_shown_name(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = ControlledGroup(harness.directory, "proc_1", lambda key: f"masked:{key}")
    async with harness.running():
        for key in "cab":
            await harness.ask(key)
        await group.act(QuarantineKey("actors", "masked:b", "by hand", 60))
        first = group.list(ListKeys("actors", None, "", 2))
        assert [(each.key, each.state) for each in first.keys] == [
            ("masked:a", "active"),
            ("masked:b", "quarantined"),
        ]
        rest = group.list(ListKeys("actors", None, "masked:b", 2))
        assert [each.key for each in rest.keys] == ["masked:c"]
        assert [each.key for each in group.list(ListKeys("actors", "quarantined", "", 9)).keys] == ["masked:b"]
        assert described(group.describe_key(DescribeKey("actors", "masked:a"))).key == "masked:a"
        assert code_of(await group.act(QuarantineKey("actors", "unknown", "x", 60))) == "actor_not_found"


async def test_keys_are_listed_by_queue_wait_and_rate(autojump_clock: MockClock) -> None:
    harness = Harness()
    group = group_of(harness)

    def first(order: KeyOrder) -> list[str]:
        return [each.key for each in group.list(ListKeys("actors", None, "", 2, order)).keys]

    async with harness.running(), trio.open_nursery() as nursery:
        for _ in range(30):
            await harness.ask("often")
        for key in ("a", "b"):
            await harness.ask(key)
        nursery.start_soon(collect, harness, [("late", Rest(100)), ("late", Say("one"))], {})
        await trio.sleep(10)
        nursery.start_soon(collect, harness, [("full", Rest(100)), ("full", Say("one")), ("full", Say("two"))], {})
        await trio.sleep(10)
        assert first("key") == ["a", "b"]
        assert first("queue") == ["full", "late"]
        assert first("wait") == ["late", "full"]
        assert first("rate") == ["often", "a"]
        rate = described(group.describe_key(DescribeKey("actors", "often"))).messages_per_s
        assert rate == pytest.approx(0.5 * math.exp(-20 / 60), abs=0.001)
        await trio.sleep(60)
        rate = described(group.describe_key(DescribeKey("actors", "often"))).messages_per_s
        assert rate == pytest.approx(0.5 * math.exp(-80 / 60), abs=0.001)


async def test_the_history_outlives_the_actor(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(idle_s=10, group_crashes=1000))
    group = group_of(harness)
    async with harness.running() as directory:
        for _ in range(25):
            await outcome(lambda: harness.ask("a", Break()))
            await trio.sleep(61)
        await trio.sleep(600)
        assert directory.by_key == {}
        found = described(group.describe_key(DescribeKey("actors", "a")))
        assert (found.state, len(found.history)) == ("passivated", 20)
        assert found.history[0].last_message_type == "Break"
