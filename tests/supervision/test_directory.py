"""The keyed directory: activation, passivation, quarantine, and that no message is lost."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pykka
import pytest
import structlog
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.actor import JournaledActor, TrioActor
from holdfast.actors.runtime.faults import AskFault, Crashed, Deadlock, OutcomeUnknown, Overloaded, Unavailable
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.turns import Commit, Tell
from holdfast.persistence.journal.units import Author, Committed, Fence, NotWritten, Stale, Unit, UnitResult
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway, QueryTimedOut
from holdfast.persistence.server.database_gate import DatabaseGate
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.intensity import Backoff
from holdfast.supervision.keyed_child import KeyedLimits
from holdfast.supervision.reports import DeadLetters, Report, Reporter

SILENT = structlog.wrap_logger(structlog.ReturnLogger(), wrapper_class=structlog.make_filtering_bound_logger(50))
LONG_S = 1_000.0
MOVED = Stale((Fence("account", "a", 0),))


@dataclass(frozen=True)
class Say(Command[str]):
    """Answered by its word."""

    word: str = "hello"


@dataclass(frozen=True)
class Rest(Command[str]):
    """Keeps the actor in its turn for a while."""

    s: float


@dataclass(frozen=True)
class Break(Command[str]):
    """Ends the incarnation."""


@dataclass(frozen=True)
class Relay(Command[str]):
    """Asks the next of ``keys``, in its own directory, to relay to the rest."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Write(Command[str]):
    """Becomes a unit of work; answered once that is durable."""

    word: str
    tell_to: str | None = None


class Harness:
    """The environment of the actors: what they handled, how many run, and a journal that settles on call."""

    def __init__(self, *, limits: KeyedLimits | None = None, actor: type[TrioActor] | None = None) -> None:
        self.handled: defaultdict[str, list[str]] = defaultdict(list)
        self.live: Counter[str] = Counter()
        self.most_live: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        self.failing_starts: Counter[str] = Counter()
        self.start_fault: Exception | None = None
        self.failing_reads = 0
        self.queue: list[tuple[Unit, Author]] = []
        self.gate = DatabaseGate()
        self.gate.open()
        self.probes: list[bool] = []
        self.reporter = Reporter(logger=SILENT)
        self.dead_letters = DeadLetters()
        self._actor = actor or PlainActor
        self.directory = KeyedDirectory(
            "actors",
            lambda key, mailbox: cast(Any, self._actor)(self, key, mailbox),
            gate=self.gate,
            probe=self._probe,
            reporter=self.reporter,
            dead_letters=self.dead_letters,
            limits=limits,
            rng=random.Random(1),
        )

    async def _probe(self) -> bool:
        await trio.lowlevel.checkpoint()
        return self.probes.pop(0) if self.probes else True

    def submit(self, unit: Unit, author: Author) -> None:
        """The journal's side of a decision: it waits for :meth:`settle`."""
        self.queue.append((unit, author))

    def settle(self, *results: UnitResult) -> None:
        """Tell the oldest units how they ended; a void author's are skipped as the journal would."""
        for result in results:
            unit, author = self.queue.pop(0)
            author.settle(unit, NotWritten("void") if author.is_void else result)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[KeyedDirectory]:
        """Run the directory around the body, then drain it."""
        with trio.fail_after(10 * LONG_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(self.directory.run)
                yield self.directory
                await self.directory.stop()

    def reports(self, kind: str) -> list[Report]:
        return [report for report in reversed(self.reporter.recent()) if report.kind == kind]

    async def ask(self, key: str, command: Command[str] | None = None) -> Any:
        return await self.directory.ref(key).ask(command or Say(), deadline_s=LONG_S)


class _Scripted(TrioActor):
    """The part that both kinds of actor share: it counts incarnations."""

    harness: Harness
    key: str

    def join(self, harness: Harness, key: str) -> None:
        self.harness, self.key = harness, key

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        harness, key = self.harness, self.key
        await trio.lowlevel.checkpoint()
        if harness.failing_starts[key]:
            harness.failing_starts[key] -= 1
            raise harness.start_fault or OSError(f"{key} cannot start")
        harness.started[key] += 1

    async def serve(self) -> Any:
        harness, key = self.harness, self.key
        harness.live[key] += 1
        harness.most_live[key] = max(harness.most_live[key], harness.live[key])
        try:
            return await super().serve()
        finally:
            harness.live[key] -= 1

    async def on_receive(self, message: Any) -> Any:
        harness = self.harness
        match message:
            case Say(word=word):
                harness.handled[self.key].append(word)
                return word
            case Rest(s=s):
                await trio.sleep(s)
                return "rested"
            case Relay(keys=()):
                return self.key
            case Relay(keys=(first, *rest)):
                return self.key + await harness.ask(first, Relay(tuple(rest)))
            case Write(word=word, tell_to=tell_to):
                harness.handled[self.key].append(word)
                tells = (Tell(harness.directory.ref(tell_to), Say(word)),) if tell_to else ()
                return Commit(Unit(), word, tells)
            case _:
                raise ValueError("broken on purpose")


class PlainActor(_Scripted):
    """An actor without a journal."""

    def __init__(self, harness: Harness, key: str, mailbox: Mailbox) -> None:
        super().__init__(mailbox)
        self.join(harness, key)


class WritingActor(_Scripted, JournaledActor):
    """An actor that writes."""

    own_fence = "account"

    def __init__(self, harness: Harness, key: str, mailbox: Mailbox) -> None:
        JournaledActor.__init__(self, mailbox, harness)  # type: ignore[arg-type]  # all it needs of a journal
        self.join(harness, key)


async def outcome(call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except (AskFault, Crashed) as fault:
        return fault


async def collect(harness: Harness, asks: Sequence[tuple[str, Command[str]]], into: dict[int, Any]) -> None:
    """Ask one after the other without waiting for the answers."""

    async def one(index: int, key: str, command: Command[str]) -> None:
        into[index] = await outcome(lambda: harness.ask(key, command))

    async with trio.open_nursery() as nursery:
        for index, (key, command) in enumerate(asks):
            nursery.start_soon(one, index, key, command)
            await trio.sleep(0.001)


# --------------------------------------------------------------------------------------- activation, passivation


async def test_many_first_messages_wake_an_actor_once(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running():
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(harness.ask, "a")
        assert harness.started == {"a": 1}
        assert harness.directory.awake_count == 1
    assert harness.handled["a"] == ["hello"] * 50


async def test_an_address_stays_valid_across_passivation_and_restart(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(idle_s=10))
    ref = harness.directory.ref("a")
    assert isinstance(ref, pykka.ActorRef)
    async with harness.running() as directory:
        assert await ref.ask(Say("first")) == "first"
        await trio.sleep(60)
        assert directory._children == {}
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
        assert directory.awake_count == 1
        await harness.ask("idle")
        assert harness.started == {"idle": 2, "busy": 1}
        await trio.sleep(250)
        assert directory.awake_count == 0
        assert directory._children == {}


async def test_above_the_limit_the_longest_idle_actor_is_passivated(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(awake_max=3))
    async with harness.running() as directory:
        for key in "abc":
            await harness.ask(key)
            await trio.sleep(1)
        await harness.ask("a")
        await harness.ask("d")
        await wait_all_tasks_blocked()
        assert directory.awake_count == 3
        assert harness.live == {"a": 1, "b": 0, "c": 1, "d": 1}


async def test_a_message_during_passivation_is_answered(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(idle_s=0.4))
    async with harness.running():
        rng = random.Random(5)
        for _ in range(300):
            assert await harness.ask("a") == "hello"
            await trio.sleep(rng.choice([0.39, 0.4, 0.41, 0.45, 0.5, 0.55]))
        assert harness.started["a"] > 10
    assert harness.most_live == {"a": 1}


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


async def test_a_crash_loop_quarantines_its_key_and_no_other(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(child_restarts=3, group_crashes=100))
    harness.failing_starts["broken"] = 4
    replies: dict[int, Any] = {}
    async with harness.running() as directory:
        await collect(harness, [("broken", Say("1")), ("broken", Say("2")), ("healthy", Say("3"))], replies)
        assert [type(replies[i]) for i in (0, 1)] == [Unavailable] * 2
        assert replies[2] == "3"
        assert directory.quarantined() == ["broken"]
        begun = trio.current_time()
        with pytest.raises(Unavailable, match="quarantined"):
            await harness.ask("broken")
        assert trio.current_time() == begun
        directory.ref("broken").tell(Say("sent"))
        assert harness.dead_letters.counts()["dead"] == 1
        assert directory.release("broken")
        assert not directory.release("broken")
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
        assert directory._children == {}


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


async def test_a_full_mailbox_refuses_asks_and_records_dead_letters(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(mailbox_max=3))
    replies: dict[int, Any] = {}
    async with harness.running() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Rest(100))] + [("a", Say(str(i))) for i in range(5)], replies)
        await trio.sleep(50)
        assert [type(replies.get(i)) for i in (4, 5)] == [Overloaded] * 2
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
        assert isinstance(found, Crashed)
        cause: BaseException | None = found
        while isinstance(cause, Crashed):
            cause = cause.__cause__
        assert isinstance(cause, Deadlock)
        circle = path[path.index(path[-1]) :] if path.count(path[-1]) > 1 else "a" + path
        assert str(cause).replace(" -> ", "")[0] == circle[-2]


async def test_a_chain_of_asks_without_a_cycle_is_answered(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running():
        assert await harness.ask("a", Relay(("b", "c", "d"))) == "abcd"
        replies: dict[int, Any] = {}
        await collect(harness, [("a", Relay(("c",))), ("b", Relay(("c",))), ("d", Relay(("a", "b")))], replies)
        assert replies == {0: "ac", 1: "bc", 2: "dab"}


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
    harness = Harness(actor=WritingActor, limits=KeyedLimits(voids_in_row_max=2))
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
    harness.start_fault = UnreadableRow("tasks", "t", ValueError("an unknown word"))
    sick = [f"sick{n}" for n in range(6)]
    harness.failing_starts.update(dict.fromkeys(sick, 100))
    async with harness.running() as directory:
        for key in sick:
            with pytest.raises(Unavailable, match="quarantined"):
                await harness.ask(key)
        assert sorted(directory.quarantined()) == sick
        assert directory.is_ready
        assert await harness.ask("healthy") == "hello"


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


async def test_an_unused_quarantined_key_is_forgotten(autojump_clock: MockClock) -> None:
    harness = Harness(limits=LAPSING)
    harness.failing_starts["a"] = 2
    async with harness.running() as directory:
        assert isinstance(await outcome(lambda: harness.ask("a")), Unavailable)
        await trio.sleep(900)
        assert directory.quarantined() == ["a"]
        await trio.sleep(600)
        assert directory._children == {}


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
    assert harness.directory.awake_count == 0


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
        assert harness.directory.awake_count == 0
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


# --------------------------------------------------------------------------------------------- undurable decisions


async def test_replies_and_tells_are_sent_in_order_once_durable(autojump_clock: MockClock) -> None:
    harness = Harness(actor=WritingActor)
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
    harness = Harness(actor=WritingActor)
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
    harness = Harness(actor=WritingActor)
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
    harness = Harness(actor=WritingActor)
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
    harness = Harness(actor=WritingActor, limits=KeyedLimits(idle_s=10))
    replies: dict[int, Any] = {}
    async with harness.running() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Write("1"))], replies)
        await trio.sleep(100)
        assert directory.awake_count == 1
        directory.ref("a").tell(Say("2"))
        await trio.sleep(1)
        harness.settle(Committed())
        await trio.sleep(100)
        assert directory.awake_count == 0
    assert harness.handled["a"] == ["1", "2"]
    assert harness.started["a"] == 1


async def test_a_killed_incarnations_void_decision_is_decided_again(autojump_clock: MockClock) -> None:
    harness = Harness(actor=WritingActor)
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
    harness = Harness(actor=WritingActor, limits=KeyedLimits(idle_s=10))
    replies: dict[int, Any] = {}
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as tree:
            await tree.start(harness.directory.run)
            nursery.start_soon(collect, harness, [("a", Write("1"))], replies)
            await trio.sleep(1)
            tree.cancel_scope.cancel()
        async with harness.running():
            await trio.sleep(100 if is_forgotten else 1)
            assert ("a" not in harness.directory._children) is is_forgotten
            harness.settle(NotWritten("the batch was lost"))
            await trio.sleep(1)
            assert harness.handled["a"] == ["1", "1"]
            harness.settle(Committed())
            await trio.sleep(1)
    assert replies == {0: "1"}


async def test_too_many_void_decisions_in_a_row_count_as_a_crash(autojump_clock: MockClock) -> None:
    harness = Harness(actor=WritingActor, limits=KeyedLimits(voids_in_row_max=5))
    async with harness.running() as directory:
        directory.ref("a").tell(Write("1"))
        for _ in range(6):
            await trio.sleep(1)
            harness.settle(MOVED)
        await trio.sleep(5)
        assert [report.reason_type for report in harness.reports("crash")] == ["RuntimeError"]
        harness.settle(Committed())


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
        idle_s=20, awake_max=2, child_restarts=1000, group_crashes=1000, backoff=Backoff(0.1, 1, jitter=0.2)
    )
    harness = Harness(actor=WritingActor, limits=limits)
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
    assert harness.directory.awake_count == 0


@settings(max_examples=120, deadline=None)
@given(STEPS)
def test_any_schedule_answers_each_ask_once_with_one_incarnation(steps: list[Step]) -> None:
    trio.run(play, steps, clock=MockClock(autojump_threshold=0))
