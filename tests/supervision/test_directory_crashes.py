"""The keyed directory: crashes, restarts, quarantine, and what is the database's fault."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.faults import Crashed, Quarantined, Unavailable
from holdfast.actors.runtime.messages import Command
from holdfast.actors.workers.poison_writer import PoisonedMessage
from holdfast.persistence.journal.units import Committed, NotWritten
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway, QueryTimedOut
from holdfast.supervision.control.keys import ControlledGroup
from holdfast.supervision.control.messages import QuarantineKey
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.supervision.spec import Backoff

from .keyed_actors import Break, Harness, Rest, Say, Write, WritingActor, collect, outcome

# --------------------------------------------------------------------------------------------------------- crashes


async def test_messages_survive_a_crash_in_their_order(autojump_clock: MockClock) -> None:
    harness = Harness()
    replies: dict[int, Any] = {}
    async with harness.running():
        asks: list[tuple[str, Command[str]]] = [("a", Rest(1)), ("a", Say("1")), ("a", Break())]
        await collect(harness, [*asks, ("a", Say("2")), ("a", Say("3"))], replies)
    assert isinstance(replies[2], Crashed)
    assert isinstance(replies[2].__cause__, ValueError)
    assert [replies[i] for i in (0, 1, 3, 4)] == ["rested", "1", "2", "3"]
    assert harness.handled["a"] == ["1", "2", "3"]
    assert harness.started["a"] == 2
    [report] = harness.reports("crash")
    assert (report.key, report.incarnation, report.last_message_type) == ("a", 1, "Break")
    assert (report.decision, report.reason_type, report.mailbox_depth) == ("backoff", "ValueError", 2)


async def test_each_restart_backs_off_longer(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(child_restarts=5, backoff=Backoff(1, 8, jitter=0)))
    harness.failing_starts["a"] = 5
    async with harness.running():
        begun = trio.current_time()
        assert await harness.ask("a") == "hello"
        assert trio.current_time() - begun == pytest.approx(1 + 2 + 4 + 8 + 8)
    assert [report.delay_s for report in harness.reports("crash")] == [1, 2, 4, 8, 8]
    assert [report.level for report in harness.reports("crash")] == ["warning"] * 2 + ["error"] * 3
    assert [(report.key, report.incarnation) for report in harness.reports("restart")] == [("a", 6)]


async def test_a_crash_loop_quarantines_its_key_and_no_other(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(child_restarts=3, group_crashes=100))
    harness.failing_starts["broken"] = 4
    replies: dict[int, Any] = {}
    async with harness.running() as directory:
        await collect(harness, [("broken", Say("1")), ("broken", Say("2")), ("healthy", Say("3"))], replies)
        assert [type(replies[i]) for i in (0, 1)] == [Quarantined] * 2
        assert replies[2] == "3"
        assert directory.quarantined() == ["broken"]
        begun = trio.current_time()
        with pytest.raises(Unavailable, match="quarantined"):
            await harness.ask("broken")
        assert trio.current_time() == begun
        directory.ref("broken").tell(Say("sent"))
        assert harness.dead_letters.counts()["dead"] == 1
        directory.by_key["broken"].release("mended")
        assert directory.quarantined() == []
        assert await harness.ask("broken") == "hello"
    assert [report.key for report in harness.reports("quarantine")] == ["broken"]


async def test_a_crash_at_every_message_is_a_crash_loop_too(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(child_restarts=3, child_period_s=60, group_crashes=100))
    async with harness.running() as directory:
        for _ in range(4):
            assert isinstance(await outcome(lambda: harness.ask("a", Break())), Crashed)
            await trio.sleep(5)
        assert directory.quarantined() == ["a"]


async def test_crashes_far_apart_cause_no_quarantine(autojump_clock: MockClock) -> None:
    limits = KeyedLimits(child_restarts=1, child_period_s=60, group_crashes=100, idle_s=100)
    harness = Harness(limits=limits)
    async with harness.running() as directory:
        for _ in range(5):
            assert isinstance(await outcome(lambda: harness.ask("a", Break())), Crashed)
            await trio.sleep(61)
        assert directory.quarantined() == []
        await trio.sleep(300)
        assert directory.by_key == {}


async def test_when_many_keys_crash_the_group_pauses_and_resumes(autojump_clock: MockClock) -> None:
    limits = KeyedLimits(group_crashes=4, probe_backoff=Backoff(2, 2, jitter=0))
    harness = Harness(limits=limits)
    harness.probes = [False, False, True]
    keys = [f"k{i}" for i in range(8)]
    harness.failing_starts.update(dict.fromkeys(keys, 1))
    replies: dict[int, Any] = {}
    async with harness.running() as directory:
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, harness, [(key, Say(key)) for key in keys], replies)
            while directory.is_ready:  # noqa: ASYNC110 - the pause has no event outside
                await trio.sleep(0.01)
            with pytest.raises(Unavailable, match="paused"):
                await harness.ask("other")
        assert trio.current_time() - begun >= 6
        assert await harness.ask("other") == "hello"
        assert directory.quarantined() == []
    answered = [reply for reply in replies.values() if isinstance(reply, str)]
    refused = [reply for reply in replies.values() if isinstance(reply, Unavailable)]
    assert len(answered) + len(refused) == 8
    assert len(answered) >= 5
    assert len(harness.reports("pause")) == 1


async def test_a_closed_gate_refuses_asks_and_counts_no_crash(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running() as directory:
        assert await harness.ask("a") == "hello"
        harness.gate.close("the database is away")
        begun = trio.current_time()
        for key in ("a", "b"):
            with pytest.raises(Unavailable, match="away"):
                await harness.ask(key)
        assert trio.current_time() == begun
        # A message sent by tell is retained and handled once the gate is open; a failing start is no crash.
        harness.failing_starts["b"] = 1
        directory.ref("b").tell(Say("kept"))
        await trio.sleep(10)
        assert harness.handled["b"] == []
        harness.failing_starts["b"] = 0
        harness.gate.open()
        await wait_all_tasks_blocked()
        assert harness.handled["b"] == ["kept"]
    assert harness.reporter.recent() == ()


# ------------------------------------------------------------------------------- what the database is to blame for


@pytest.mark.parametrize("fault", [QueryTimedOut("a lock was held"), DatabaseAway("the connection was lost")])
async def test_a_start_without_the_database_is_no_crash(autojump_clock: MockClock, fault: Exception) -> None:
    """The gate stays open: the outage was not detected yet, or only this query is slow."""
    harness = Harness(limits=KeyedLimits(child_restarts=1, group_crashes=2))
    harness.start_fault = fault
    keys = [f"k{n}" for n in range(6)]
    harness.failing_starts.update(dict.fromkeys(keys, 20))
    replies: dict[int, Any] = {}
    async with harness.running() as directory:
        await collect(harness, [(key, Say(key)) for key in keys], replies)
        assert directory.quarantined() == []
        assert directory.is_ready
    assert [replies[n] for n in range(6)] == keys
    assert harness.reporter.recent() == ()


async def test_a_turn_whose_read_failed_is_decided_again(autojump_clock: MockClock) -> None:
    class Reader(WritingActor):
        async def on_receive(self, message: Any) -> Any:
            if self.harness.failing_reads:
                self.harness.failing_reads -= 1
                raise QueryTimedOut("a lock was held")
            return await super().on_receive(message)

    harness = Harness(actor=Reader, limits=KeyedLimits(child_restarts=1, voids_in_row_max=2))
    harness.failing_reads = 10
    async with harness.running() as directory:
        assert await harness.ask("a", Say("read at last")) == "read at last"
        assert directory.quarantined() == []
    assert harness.reporter.recent() == ()


async def test_decisions_void_because_of_the_database_are_no_crash(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(voids_in_row_max=2))
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Write("1"))], replies)
        for _ in range(10):
            await trio.sleep(60)
            harness.settle(NotWritten("a lock was held", timed_out=True))
        await trio.sleep(60)
        harness.settle(Committed())
    assert replies == {0: "1"}
    assert harness.reporter.recent() == ()


async def test_an_unreadable_row_quarantines_its_key_at_once(
    autojump_clock: MockClock,
) -> None:
    harness = Harness(limits=KeyedLimits(group_crashes=2))
    harness.start_fault = UnreadableRow("tasks t: an unknown word")
    sick = [f"sick{n}" for n in range(6)]
    harness.failing_starts.update(dict.fromkeys(sick, 100))
    async with harness.running() as directory:
        for key in sick:
            with pytest.raises(Unavailable, match="quarantined"):
                await harness.ask(key)
        assert sorted(directory.quarantined()) == sick
        assert directory.is_ready
        assert await harness.ask("healthy") == "hello"


async def test_a_crash_while_the_gate_is_closed_is_reported_and_costs_no_budget(
    autojump_clock: MockClock,
) -> None:
    """The database may be its cause: so the key keeps its budget, but the message and the report are kept."""
    kept: list[PoisonedMessage] = []
    harness = Harness(limits=KeyedLimits(child_restarts=1, group_crashes=100), poison=kept.append)
    async with harness.running() as directory:
        for _ in range(4):
            asks: list[tuple[str, Command[str]]] = [("a", Rest(1)), ("a", Break())]
            replies: dict[int, Any] = {}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(collect, harness, asks, replies)
                await trio.sleep(0.5)
                harness.gate.close("the database is away")
                await trio.sleep(5)
                assert isinstance(replies[1], Crashed)
                harness.gate.open()
        assert directory.quarantined() == []
        assert await harness.ask("a") == "hello"
    assert [type(message.envelope.message) for message in kept] == [Break] * 4
    assert [report.reason_type for report in harness.reports("crash")] == ["ValueError"] * 4


async def test_many_crashes_while_the_gate_is_closed_pause_the_group(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(group_crashes=4))
    keys = [f"k{n}" for n in range(20)]
    async with harness.running() as directory:
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(collect, harness, [(key, Rest(1)), (key, Break())], {})
            await trio.sleep(0.5)
            harness.gate.close("the database is away")
            await trio.sleep(5)
            harness.gate.open()
        assert directory.quarantined() == []
        await trio.sleep(60)
        assert await harness.ask("k0") == "hello"
    assert len(harness.reports("crash")) <= 5
    assert len(harness.reports("pause")) == 1


async def test_a_crash_that_meets_an_operators_quarantine_keeps_its_message(autojump_clock: MockClock) -> None:
    class Late(WritingActor):
        async def on_receive(self, message: Any) -> Any:
            if isinstance(message, Break):
                await trio.sleep(0.5)
            return await super().on_receive(message)

    kept: list[PoisonedMessage] = []
    harness = Harness(actor=Late, poison=kept.append)
    group = ControlledGroup(harness.directory, "proc_1", str)
    async with harness.running() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Break())], {})
        await trio.sleep(0.1)
        await group.act(QuarantineKey("actors", "a", "by hand", 60))
        assert directory.quarantined() == ["a"]
        assert [type(message.envelope.message) for message in kept] == [Break]


async def test_a_quarantine_reports_what_it_refuses_once_for_each_type(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(group_crashes=2))
    harness.start_fault = UnreadableRow("tasks t: an unknown word")
    harness.failing_starts["sick"] = 100

    def refused() -> list[str | None]:
        return [report.reason for report in harness.reporter.recent() if report.kind == "dead_letter"]

    async with harness.running() as directory:
        with pytest.raises(Unavailable, match="quarantined"):
            await harness.ask("sick")
        for _ in range(5):
            directory.tell("sick", Write("1"))
        assert refused() == ["Write, its actor is quarantined"]
        directory.tell("sick", Say("1"))
        assert len(refused()) == 2
        quarantine = directory.child("sick").quarantine
        assert quarantine is not None
        await trio.sleep(quarantine.until - trio.current_time())
        with pytest.raises(Unavailable, match="quarantined"):
            await harness.ask("sick")
        directory.tell("sick", Write("1"))
        assert len(refused()) == 3
        assert harness.dead_letters.counts()["dead"] == 7


# ------------------------------------------------------------------------------------------- quarantine and its end


LAPSING = KeyedLimits(
    child_restarts=1, child_period_s=60, group_crashes=100, quarantine=Backoff(100, 1000, jitter=0)
)


async def test_after_a_quarantine_the_next_message_is_a_trial(autojump_clock: MockClock) -> None:
    harness = Harness(limits=LAPSING)
    harness.failing_starts["a"] = 2
    async with harness.running() as directory:
        found = await outcome(lambda: harness.ask("a"))
        assert isinstance(found, Unavailable)
        assert found.retry_after_s == pytest.approx(100)
        await trio.sleep(60)
        found = await outcome(lambda: harness.ask("a"))
        assert isinstance(found, Unavailable)
        assert found.retry_after_s == pytest.approx(40)
        await trio.sleep(found.retry_after_s)
        assert await harness.ask("a") == "hello"
        assert directory.quarantined() == []
    assert [report.delay_s for report in harness.reports("quarantine")] == [100]


async def test_each_failed_trial_quarantines_for_longer(autojump_clock: MockClock) -> None:
    harness = Harness(limits=LAPSING)
    harness.failing_starts["a"] = 2 + 5
    async with harness.running():
        for _ in range(6):
            found = await outcome(lambda: harness.ask("a"))
            assert isinstance(found, Unavailable)
            await trio.sleep(found.retry_after_s)
        # A message sent by tell is a trial too.
        harness.directory.ref("a").tell(Say("sent"))
        await wait_all_tasks_blocked()
        assert harness.handled["a"] == ["sent"]
    assert [report.delay_s for report in harness.reports("quarantine")] == [100, 200, 400, 800, 1000, 1000]


@pytest.mark.parametrize("worked", [True, False])
async def test_the_budget_starts_over_once_the_key_has_worked(autojump_clock: MockClock, worked: bool) -> None:
    harness = Harness(limits=LAPSING)
    harness.failing_starts["a"] = 2
    async with harness.running() as directory:
        assert isinstance(await outcome(lambda: harness.ask("a")), Unavailable)
        await trio.sleep(100)
        assert await harness.ask("a") == "hello"
        await trio.sleep(61 if worked else 1)
        assert isinstance(await outcome(lambda: harness.ask("a", Break())), Crashed)
        await trio.sleep(10)
        assert directory.quarantined() == ([] if worked else ["a"])
        assert isinstance(await outcome(lambda: harness.ask("a", Break())), Crashed if worked else Unavailable)
        await trio.sleep(10)
    # After the budget has started over it is spent as ever, and the first quarantine is a short one again.
    assert [report.delay_s for report in harness.reports("quarantine")] == ([100, 100] if worked else [100, 200])
    assert [report.reason for report in harness.reports("release")] == (["its trial succeeded"] if worked else [])


async def test_an_unused_quarantined_key_is_forgotten(autojump_clock: MockClock) -> None:
    harness = Harness(limits=LAPSING)
    harness.failing_starts["a"] = 2
    async with harness.running() as directory:
        assert isinstance(await outcome(lambda: harness.ask("a")), Unavailable)
        await trio.sleep(900)
        assert directory.quarantined() == ["a"]
        await trio.sleep(600)
        assert directory.by_key == {}


async def test_a_crash_is_described_once_for_all_that_show_it(
    autojump_clock: MockClock, described: list[str]
) -> None:
    kept: list[PoisonedMessage] = []
    harness = Harness(limits=KeyedLimits(child_restarts=0), poison=kept.append)
    async with harness.running() as directory:
        assert isinstance(await outcome(lambda: harness.ask("a", Break())), Crashed)
        quarantine = directory.by_key["a"].quarantine
        [report], [restart] = harness.reports("quarantine"), directory.restarts["a"]
        assert quarantine is not None
        assert quarantine.reason == report.reason == restart.reason == kept[0].cause.reason
        assert len(described) == 1


async def test_a_crash_that_pauses_the_group_is_described_once(
    autojump_clock: MockClock, described: list[str]
) -> None:
    harness = Harness(limits=KeyedLimits(group_crashes=0))
    async with harness.running() as directory:
        assert isinstance(await outcome(lambda: harness.ask("a", Break())), Crashed)
        [paused], [crash] = harness.reports("pause"), harness.reports("crash")
        assert directory.pause_reason == paused.reason == crash.reason
        assert (paused.reason_type, paused.location) == (crash.reason_type, crash.location)
        assert len(described) == 1


async def test_a_probe_that_keeps_failing_is_reported_once(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(group_crashes=0, probe_backoff=Backoff(2, 2, jitter=0)))
    tries = 0

    async def probe() -> bool:
        nonlocal tries
        tries += 1
        if tries < 50:
            raise DatabaseAway(f"no answer to probe {tries}")
        return True

    harness.directory.probe = probe
    async with harness.running() as directory:
        assert isinstance(await outcome(lambda: harness.ask("a", Break())), Crashed)
        await trio.sleep(101)
        assert directory.is_ready
        paused, failing = harness.reports("pause")
        assert (paused.reason_type, failing.reason_type) == ("ValueError", "DatabaseAway")
        assert len(harness.reports("resume")) == 1
