"""The keyed directory and undurable decisions: replies wait, void ones are decided again, no message is lost."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.faults import Crashed, NotAccepted, Quarantined, Unavailable
from holdfast.actors.runtime.journaled import RELOADS_IN_ROW_MAX, Reload
from holdfast.actors.runtime.messages import Command
from holdfast.actors.workers.poison_writer import PoisonedMessage
from holdfast.persistence.journal.units import Committed, Fence, NotWritten, Stale
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_child import VOIDS_UNDELAYED
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.supervision.spec import Backoff

from .keyed_actors import LONG_S, Break, Harness, Say, Write, WritingActor, collect, outcome

MOVED = Stale((Fence("account", "a", 0),))


# --------------------------------------------------------------------------------------------- undurable decisions


async def test_replies_and_tells_are_sent_in_order_once_durable(autojump_clock: MockClock) -> None:
    harness = Harness()
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        asks = [("a", Write("1", "b")), ("a", Say("2")), ("a", Write("3"))]
        nursery.start_soon(collect, harness, asks, replies)
        await trio.sleep(1)
        assert harness.handled["a"] == ["1", "2", "3"]
        assert replies == {}
        harness.settle(Committed())
        await trio.sleep(1)
        assert replies == {0: "1", 1: "2"}
        assert harness.handled["b"] == ["1"]
        harness.settle(Committed())
    assert replies[2] == "3"


async def test_a_void_decision_requeues_all_later_ones_in_order(autojump_clock: MockClock) -> None:
    harness = Harness()
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        asks: list[tuple[str, Command[str]]] = [("a", Write("1")), ("a", Write("2")), ("a", Say("3"))]
        asks += [("a", Write("4")), ("a", Say("5"))]
        nursery.start_soon(collect, harness, asks, replies)
        await trio.sleep(1)
        harness.settle(Committed(), MOVED)
        # Messages that arrive while the void incarnation waits for its last result come after those requeued.
        harness.directory.ref("a").tell(Write("6"))
        await trio.sleep(1)
        assert harness.live["a"] == 1
        assert harness.started["a"] == 1
        harness.settle(Committed())
        await trio.sleep(1)
        assert harness.started["a"] == 2
        assert harness.handled["a"] == ["1", "2", "3", "4", "5", "2", "3", "4", "5", "6"]
        assert replies == {0: "1"}
        harness.settle(Committed(), Committed(), Committed())
    assert replies == {i: str(i + 1) for i in range(5)}
    assert harness.reporter.recent() == ()


async def test_a_crash_waits_for_the_results_of_open_units(autojump_clock: MockClock) -> None:
    harness = Harness()
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        asks = [("a", Write("1")), ("a", Write("2")), ("a", Break()), ("a", Write("3"))]
        nursery.start_soon(collect, harness, asks, replies)
        await trio.sleep(5)
        assert harness.started["a"] == 1
        assert isinstance(replies.pop(2), Crashed)
        assert replies == {}
        harness.settle(Committed(), Committed())
        await trio.sleep(5)
        assert replies == {0: "1", 1: "2"}
        assert harness.started["a"] == 2
        harness.settle(Committed())
    assert replies[3] == "3"


async def test_a_crash_after_a_void_decision_requeues_it(autojump_clock: MockClock) -> None:
    harness = Harness()
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        asks = [("a", Write("1")), ("a", Break()), ("a", Write("2"))]
        nursery.start_soon(collect, harness, asks, replies)
        await trio.sleep(5)
        harness.settle(MOVED)
        await trio.sleep(5)
        assert harness.handled["a"] == ["1", "1", "2"]
        harness.settle(Committed(), Committed())
    assert isinstance(replies.pop(1), Crashed)
    assert replies == {0: "1", 2: "2"}


async def test_passivation_waits_for_the_last_commit(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(idle_s=10))
    replies: dict[int, Any] = {}
    async with harness.running() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Write("1"))], replies)
        await trio.sleep(100)
        assert directory.active_count == 1
        directory.ref("a").tell(Say("2"))
        await trio.sleep(1)
        harness.settle(Committed())
        await trio.sleep(100)
        assert directory.active_count == 0
    assert harness.handled["a"] == ["1", "2"]
    assert harness.started["a"] == 1


async def test_a_killed_incarnations_void_decision_is_decided_again(autojump_clock: MockClock) -> None:
    harness = Harness()
    replies: dict[int, Any] = {}
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as tree:
            await tree.start(harness.directory.run)
            asks = [("a", Write("1")), ("a", Write("2")), ("a", Write("3"))]
            nursery.start_soon(collect, harness, asks, replies)
            await trio.sleep(1)
            tree.cancel_scope.cancel()
        async with harness.running():
            harness.directory.ref("a").tell(Say("wakes it"))
            await trio.sleep(1)
            assert harness.live["a"] == 1
            harness.settle(Committed(), NotWritten("the batch was lost"), Committed())
            await trio.sleep(1)
            assert harness.handled["a"] == ["1", "2", "3", "wakes it", "2", "3"]
            harness.settle(Committed(), Committed())
            await trio.sleep(1)
    assert replies == {0: "1", 1: "2", 2: "3"}


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_messages_requeued_after_a_kill_wake_the_next_run(
    autojump_clock: MockClock, is_forgotten: bool
) -> None:
    """The result comes when the directory runs again, and the key gets no other message."""
    harness = Harness(limits=KeyedLimits(idle_s=10))
    replies: dict[int, Any] = {}
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as tree:
            await tree.start(harness.directory.run)
            nursery.start_soon(collect, harness, [("a", Write("1"))], replies)
            await trio.sleep(1)
            tree.cancel_scope.cancel()
        async with harness.running():
            await trio.sleep(100 if is_forgotten else 1)
            assert ("a" not in harness.directory.by_key) is is_forgotten
            harness.settle(NotWritten("the batch was lost"))
            await trio.sleep(1)
            assert harness.handled["a"] == ["1", "1"]
            harness.settle(Committed())
            await trio.sleep(1)
    assert replies == {0: "1"}


@pytest.mark.parametrize("is_elsewhere", [True, False])
async def test_too_many_void_decisions_in_a_row_count_as_a_crash(
    autojump_clock: MockClock, is_elsewhere: bool
) -> None:
    harness = Harness(limits=KeyedLimits(voids_in_row_max=5))
    async with harness.running() as directory:
        directory.is_elsewhere = lambda _: is_elsewhere
        directory.ref("a").tell(Write("1"))
        for _ in range(6):
            await trio.sleep(1)
            harness.settle(MOVED)
        await trio.sleep(5)
        assert [report.reason_type for report in harness.reports("crash")] == ["RuntimeError"]
        harness.settle(Committed())


@pytest.mark.parametrize("is_elsewhere", [True, False])
async def test_void_asks_are_given_back_if_another_process_serves_the_key(
    autojump_clock: MockClock, is_elsewhere: bool
) -> None:
    harness = Harness()
    replies: dict[int, Any] = {}
    async with harness.running() as directory, trio.open_nursery() as nursery:
        directory.is_elsewhere = lambda key: is_elsewhere and key == "a"
        nursery.start_soon(collect, harness, [("a", Write("1"))], replies)
        await trio.sleep(1)
        directory.ref("a").tell(Write("2"))
        for _ in range(VOIDS_UNDELAYED + 1):
            assert replies == {}
            await trio.sleep(1)
            harness.settle(MOVED, MOVED)
        await trio.sleep(1)
        harness.settle(*[Committed()] * len(harness.queue))
    # A tell has no sender that could send it again.
    assert harness.handled["a"][2 * VOIDS_UNDELAYED + 2 :] == (["2"] if is_elsewhere else ["1", "2"])
    assert type(replies[0]) is (NotAccepted if is_elsewhere else str)


class Newer(Command[str], frozen=True):
    """Its handler finds the rows newer than its state, so many times."""

    times: int


class Rereader(WritingActor):
    """Asks for a reload, as often as its messages say."""

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, Newer):
            self.harness.handled[self.key].append("read again")
            if len(self.harness.handled[self.key]) <= message.times:
                raise Reload("the rows are newer")
            return "done"
        return await super().on_receive(message)


async def test_a_few_reloads_in_a_row_are_no_crash(autojump_clock: MockClock) -> None:
    harness = Harness(actor=Rereader)
    async with harness.running():
        assert await harness.ask("a", Newer(RELOADS_IN_ROW_MAX)) == "done"
    assert harness.reporter.recent() == ()


async def test_more_reloads_in_a_row_are_a_crash_with_its_budget(autojump_clock: MockClock) -> None:
    """The rows say the same each time: the message is kept as one that crashed, and its key is quarantined."""
    kept: list[PoisonedMessage] = []
    limits = KeyedLimits(child_restarts=2, group_crashes=100, backoff=Backoff(1, 8, jitter=0))
    harness = Harness(actor=Rereader, limits=limits, poison=kept.append)
    replies: dict[int, Any] = {}
    async with harness.running() as directory:
        await collect(harness, [("a", Newer(1000))] * 4, replies)
        assert directory.quarantined() == ["a"]
    assert [type(replies[n]) for n in range(4)] == [Crashed, Crashed, Crashed, Quarantined]
    [first, second] = harness.reports("crash")
    assert (first.reason_type, first.reason, first.last_message_type) == ("Reload", "the rows are newer", "Newer")
    assert (first.delay_s, second.delay_s) == (1, 2)
    assert [message.envelope.message for message in kept] == [Newer(1000)] * 3
    # Nothing was written in between: each later message is tried once.
    assert len(harness.handled["a"]) == RELOADS_IN_ROW_MAX + 3


async def test_a_commit_between_reloads_starts_their_count_over(autojump_clock: MockClock) -> None:
    harness = Harness(actor=Rereader)
    async with harness.running() as directory:
        for _ in range(3 * RELOADS_IN_ROW_MAX):
            harness.handled["a"].clear()
            assert await harness.ask("a", Newer(1)) == "done"
            directory.ref("a").tell(Write("1"))
            await wait_all_tasks_blocked()
            harness.settle(Committed())
    assert harness.reporter.recent() == ()


async def test_units_that_the_database_never_writes_back_off(autojump_clock: MockClock) -> None:
    """Also while reads succeed, so that each incarnation loads its rows."""
    harness = Harness(limits=KeyedLimits(backoff=Backoff(1, 8, jitter=0)))
    began: list[float] = []
    async with harness.running() as directory:
        directory.ref("a").tell(Write("1"))
        while len(began) < 6:
            await wait_all_tasks_blocked()
            if harness.queue:
                began.append(trio.current_time())
                harness.settle(NotWritten("the batch was rolled back"))
            else:
                await trio.sleep(0.5)
        await trio.sleep(10)
        harness.settle(Committed())
    assert [round(later - earlier) for earlier, later in pairwise(began)] == [0, 1, 2, 4, 8]
    assert harness.reporter.recent() == ()


# ---------------------------------------------------------------------------------------------------- any schedule


Step = tuple[str, str, float]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["say", "say", "write", "write", "break", "tell", "result", "void", "sleep", "away", "back"]
        ),
        st.sampled_from("abc"),
        st.sampled_from([0.0, 0.0, 0.1, 1.0, 30.0]),
    ),
    max_size=60,
)


async def play(steps: list[Step]) -> None:
    """Run one schedule; then the journal settles all units, and each ask has exactly one right answer."""
    limits = KeyedLimits(
        idle_s=20, active_max=2, child_restarts=1000, group_crashes=1000, backoff=Backoff(0.1, 1, jitter=0.2)
    )
    harness = Harness(limits=limits)
    asked: dict[int, tuple[str, Command[str]]] = {}
    answers: dict[int, list[Any]] = defaultdict(list)

    async def ask(number: int, key: str, command: Command[str]) -> None:
        answer = await outcome(lambda: harness.ask(key, command))
        answers[number].append(answer)

    async def finish() -> None:
        harness.gate.open()
        with trio.fail_after(LONG_S / 2):
            while len(answers) < len(asked) or harness.queue:
                harness.settle(*[Committed()] * len(harness.queue))
                await trio.sleep(0.5)

    async def keep_settling() -> None:
        while True:
            harness.settle(*[Committed()] * len(harness.queue))
            await trio.sleep(0.5)

    async def enact(directory: KeyedDirectory) -> None:
        async with trio.open_nursery() as nursery:
            for number, (what, key, pause_s) in enumerate(steps):
                word = str(number)
                commands: dict[str, Command[str]] = {"say": Say(word), "write": Write(word, "c"), "break": Break()}
                match what:
                    case "say" | "write" | "break":
                        asked[number] = (key, commands[what])
                        nursery.start_soon(ask, number, key, commands[what])
                    case "tell":
                        directory.ref(key).tell(Write(word))
                    case "result" | "void":
                        for _ in range(min(3, len(harness.queue))):
                            harness.settle(Committed() if what == "result" else MOVED)
                    case "away":
                        harness.gate.close("away")
                    case "back":
                        harness.gate.open()
                if pause_s:
                    await trio.sleep(pause_s)
            await finish()

    async with trio.open_nursery() as journal:
        async with harness.running() as directory:
            await enact(directory)
            journal.start_soon(keep_settling)
        journal.cancel_scope.cancel()
    for number, (_, command) in asked.items():
        [answer] = answers[number]
        if isinstance(command, Break):
            assert isinstance(answer, Crashed | Unavailable)
        else:
            assert answer == str(number) or isinstance(answer, Unavailable)
    assert max(harness.most_live.values(), default=1) == 1
    assert harness.directory.active_count == 0


@settings(max_examples=120, deadline=None)
@given(STEPS)
def test_any_schedule_answers_each_ask_once_with_one_incarnation(steps: list[Step]) -> None:
    trio.run(play, steps, clock=MockClock(autojump_threshold=0))
