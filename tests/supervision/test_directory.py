"""The keyed directory: activation, passivation, mailboxes, cycles of asks, and the drain."""

from __future__ import annotations

import random
from typing import Any

import pykka
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.faults import Crashed, Deadlock, OutcomeUnknown, ShareExceeded, Unavailable
from holdfast.actors.runtime.messages import Command
from holdfast.supervision.keyed_group import KeyedLimits

from .keyed_actors import Break, Harness, Relay, Rest, Say, collect, outcome

# --------------------------------------------------------------------------------------- activation, passivation


async def test_many_first_messages_wake_an_actor_once(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running():
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(harness.ask, "a")
        assert harness.started == {"a": 1}
        assert harness.directory.active_count == 1
    assert harness.handled["a"] == ["hello"] * 50


async def test_an_address_stays_valid_across_passivation_and_restart(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(idle_s=10))
    ref = harness.directory.ref("a")
    assert isinstance(ref, pykka.ActorRef)
    async with harness.running() as directory:
        assert await ref.ask(Say("first")) == "first"
        await trio.sleep(60)
        assert directory.by_key == {}
        assert await ref.ask(Say("after passivation")) == "after passivation"
        assert isinstance(await outcome(lambda: ref.ask(Break())), Crashed)
        assert await ref.ask(Say("after a restart")) == "after a restart"
    assert harness.started == {"a": 3}
    assert ref.is_alive()
    assert str(ref) == "Actor (urn:holdfast:actors:a)"
    for refused in (ref.stop, ref.proxy):
        with pytest.raises(RuntimeError, match="actors:a"):
            refused()


async def test_an_idle_actor_is_passivated_and_a_used_one_is_not(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(idle_s=100))
    async with harness.running() as directory:
        await harness.ask("idle")
        for _ in range(30):
            await harness.ask("busy")
            await trio.sleep(20)
        assert directory.active_count == 1
        await harness.ask("idle")
        assert harness.started == {"idle": 2, "busy": 1}
        await trio.sleep(250)
        assert directory.active_count == 0
        assert directory.by_key == {}


async def test_above_the_limit_the_longest_idle_actor_is_passivated(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(active_max=3))
    async with harness.running() as directory:
        for key in "abc":
            await harness.ask(key)
            await trio.sleep(1)
        await harness.ask("a")
        await harness.ask("d")
        await wait_all_tasks_blocked()
        assert directory.active_count == 3
        assert harness.live == {"a": 1, "b": 0, "c": 1, "d": 1}


async def test_many_actors_above_the_limit_are_passivated_once_idle(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(active_max=3))
    async with harness.running() as directory:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(harness.ask, str(number))
        assert directory.active_count == 50
        await trio.sleep(1)
        assert directory.active_count == 3


async def test_a_message_during_passivation_is_answered(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(idle_s=0.4))
    async with harness.running():
        rng = random.Random(5)
        for _ in range(300):
            assert await harness.ask("a") == "hello"
            await trio.sleep(rng.choice([0.39, 0.4, 0.41, 0.45, 0.5, 0.55]))
        assert harness.started["a"] > 10
    assert harness.most_live == {"a": 1}


async def test_a_full_mailbox_refuses_asks_and_records_dead_letters(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(mailbox_max=3))
    replies: dict[int, Any] = {}
    async with harness.running() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(100))] + [("a", Say(str(i))) for i in range(5)], replies)
        await trio.sleep(50)
        assert [type(replies.get(i)) for i in (4, 5)] == [ShareExceeded] * 2
        directory.ref("a").tell(Say("sent"))
        assert harness.dead_letters.counts()["full"] == 1
        assert await harness.ask("b") == "hello"
    assert harness.handled["a"] == ["0", "1", "2"]


async def test_an_expired_message_is_skipped_and_a_started_one_ends(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running() as directory:
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(harness.ask, "a", Rest(20))
            await wait_all_tasks_blocked()
            with pytest.raises(OutcomeUnknown):
                await directory.ref("a").ask(Say("too late"), deadline_s=5)
            assert trio.current_time() - begun == pytest.approx(5)
        assert await harness.ask("a", Say("in time")) == "in time"
    assert harness.handled["a"] == ["in time"]


# ----------------------------------------------------------------------------------------------- asking in circles


@pytest.mark.parametrize("path", ["a", "ba", "bca", "bcdb"])
async def test_a_cycle_of_asks_is_refused_and_named(autojump_clock: MockClock, path: str) -> None:
    harness = Harness()
    harness.gate.open()
    async with harness.running():
        begun = trio.current_time()
        found = await outcome(lambda: harness.ask("a", Relay(tuple(path))))
        assert trio.current_time() - begun < 1
        assert isinstance(found, Deadlock)
        circle = path[path.index(path[-1]) :] if path.count(path[-1]) > 1 else "a" + path
        assert str(found).replace(" -> ", "")[0] == circle[-2]


async def test_a_chain_of_asks_without_a_cycle_is_answered(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running():
        assert await harness.ask("a", Relay(("b", "c", "d"))) == "abcd"
        replies: dict[int, Any] = {}
        await collect(harness, [("a", Relay(("c",))), ("b", Relay(("c",))), ("d", Relay(("a", "b")))], replies)
        assert replies == {0: "ac", 1: "bc", 2: "dab"}


# ------------------------------------------------------------------------------------------ drain, kill, run again


async def test_a_drain_handles_messages_refuses_asks_and_retains_tells(autojump_clock: MockClock) -> None:
    harness = Harness()
    replies: dict[int, Any] = {}
    async with trio.open_nursery() as nursery:
        async with harness.running() as directory:
            asks: list[tuple[str, Command[str]]] = [("a", Rest(5)), ("a", Say("1")), ("b", Say("2"))]
            nursery.start_soon(collect, harness, asks, replies)
            await trio.sleep(1)
            await directory.stop()
            with pytest.raises(Unavailable):
                await harness.ask("a")
        assert not directory.is_ready
        with pytest.raises(Unavailable):
            await harness.ask("a")
    assert replies == {0: "rested", 1: "1", 2: "2"}
    harness.directory.ref("c").tell(Say("kept"))
    assert harness.handled["c"] == []
    async with harness.running():
        await wait_all_tasks_blocked()
        assert harness.handled["c"] == ["kept"]
        assert await harness.ask("a") == "hello"
    assert harness.directory.active_count == 0


async def test_a_drain_does_not_wait_for_actors_that_cannot_start(autojump_clock: MockClock) -> None:
    harness = Harness()
    harness.gate.close("away")
    async with harness.running() as directory:
        directory.ref("a").tell(Say("kept"))
        await wait_all_tasks_blocked()
        begun = trio.current_time()
    assert trio.current_time() - begun < 1
    harness.gate.open()
    async with harness.running():
        await wait_all_tasks_blocked()
        assert harness.handled["a"] == ["kept"]


async def test_a_kill_during_a_turn_replies_unknown_and_keeps_messages(autojump_clock: MockClock) -> None:
    harness = Harness()
    replies: dict[int, Any] = {}
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as tree:
            await tree.start(harness.directory.run)
            nursery.start_soon(collect, harness, [("a", Rest(50)), ("a", Say("next"))], replies)
            await trio.sleep(1)
            tree.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        assert isinstance(replies[0], OutcomeUnknown)
        assert harness.live["a"] == 0
        assert harness.directory.active_count == 0
        async with harness.running():
            await wait_all_tasks_blocked()
    assert replies[1] == "next"


async def test_a_tell_during_the_end_is_retained_or_handled(autojump_clock: MockClock) -> None:
    harness = Harness()
    stop = trio.Event()
    sent = 0

    async def keep_telling() -> None:
        nonlocal sent
        while not stop.is_set():
            harness.directory.ref(f"k{sent % 3}").tell(Say(str(sent)))
            sent += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for kill in (True, False) * 5:
            async with trio.open_nursery() as tree:
                await tree.start(harness.directory.run)
                nursery.start_soon(keep_telling)
                for _ in range(20):
                    await trio.lowlevel.checkpoint()
                if kill:
                    tree.cancel_scope.cancel()
                else:
                    await harness.directory.stop()
                    await trio.lowlevel.checkpoint()
                    stop.set()
            stop.set()
            await wait_all_tasks_blocked()
            stop = trio.Event()
        async with harness.running():
            await wait_all_tasks_blocked()
    handled = [word for words in harness.handled.values() for word in words]
    assert sorted(map(int, handled)) == list(range(sent))
    for words in harness.handled.values():
        assert list(map(int, words)) == sorted(map(int, words))
    assert max(harness.most_live.values()) == 1
