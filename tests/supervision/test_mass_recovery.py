"""Many active actors killed at once are back soon, load a few at a time, and lose no message."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from holdfast.actors.runtime.mailbox import SystemMessage
from holdfast.persistence.journal.units import Committed
from holdfast.supervision.keyed_group import KeyedLimits

from .keyed_actors import Harness, Say, Write, WritingActor, collect, outcome

KEYS = [f"k{number}" for number in range(500)]
LOADING_MAX = 16
LOAD_S = 0.01


class Loading(WritingActor):
    """Takes a moment to load, and counts how many do at once."""

    now = 0
    most = 0

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        Loading.now += 1
        Loading.most = max(Loading.most, Loading.now)
        await trio.sleep(LOAD_S)
        Loading.now -= 1
        await super().on_start()


@pytest.fixture
def harness() -> Harness:
    Loading.now = Loading.most = 0
    return Harness(actor=Loading, limits=KeyedLimits(loading_max=LOADING_MAX))


async def ask_all(harness: Harness, into: dict[str, Any], word: str) -> None:
    """Ask every key at once, and wait through what happens."""

    async def one(key: str) -> None:
        ref = harness.directory.ref(key)
        into[key] = await outcome(lambda: ref.ask(Say(word), deadline_s=900, while_down="wait"))

    async with trio.open_nursery() as nursery:
        for key in KEYS:
            nursery.start_soon(one, key)


async def test_killed_with_their_group_all_are_back_and_nothing_is_lost(
    harness: Harness, autojump_clock: MockClock
) -> None:
    replies: dict[str, Any] = {}
    async with harness.running() as directory:
        await ask_all(harness, replies, "before")
        assert directory.active_count == len(KEYS)
    # The end of the run is what a crash of the journal does to the group; messages sent meanwhile wait.
    for key in KEYS[:50]:
        directory.child(key)
        directory.ref(key).tell(Say("meanwhile"))
    Loading.most = 0
    async with harness.running() as directory:
        begun = trio.current_time()
        await ask_all(harness, replies, "after")
        assert trio.current_time() - begun <= 2 * len(KEYS) / LOADING_MAX * LOAD_S
        assert directory.active_count == len(KEYS)
    assert Loading.most == LOADING_MAX
    assert set(replies.values()) == {"after"}
    assert all(harness.handled[key] == ["before", "meanwhile", "after"] for key in KEYS[:50])
    assert harness.most_live.most_common(1)[0][1] == 1


async def test_all_crashed_at_once_the_group_pauses_once_and_all_are_back(
    harness: Harness, autojump_clock: MockClock
) -> None:
    replies: dict[str, Any] = {}
    async with harness.running() as directory:
        await ask_all(harness, replies, "before")
        Loading.most = 0
        for child in directory.by_key.values():
            child.mailbox.put_system(SystemMessage.CRASH)
        begun = trio.current_time()
        await trio.sleep(0.001)
        assert not directory.is_ready
        await ask_all(harness, replies, "after")
        assert trio.current_time() - begun < 10
        assert directory.quarantined() == []
    assert set(replies.values()) == {"after"}
    assert Loading.most <= LOADING_MAX
    # One line for each of the first, and the others counted.
    assert len(harness.reports("pause")) == 1
    crashes = harness.reports("crash")
    assert len(crashes) == KeyedLimits().group_crashes + 1
    assert len(harness.reports("restart")) == len(crashes)
    assert [report.count for report in harness.reports("resume")] == [len(KEYS) - len(crashes)]


async def test_decisions_open_in_a_kill_are_answered_as_they_ended(
    harness: Harness, autojump_clock: MockClock
) -> None:
    replies: dict[int, Any] = {}
    async with harness.running() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [(key, Write("1")) for key in KEYS[:100]], replies)
        await trio.sleep(10)
        for child in directory.by_key.values():
            child.mailbox.put_system(SystemMessage.CRASH)
        await trio.sleep(1)
        harness.settle(*[Committed()] * 100)
        await trio.sleep(30)
    assert replies == dict.fromkeys(range(100), "1")
