"""The keyed directory: who is woken, who sleeps, who is set aside, and that no mail is lost on the way."""

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


class Stage:
    """The world of these actors: what they did, how often each lives, and a journal that waits for its cue."""

    def __init__(self, *, limits: KeyedLimits | None = None, actor: type[TrioActor] | None = None) -> None:
        self.heard: defaultdict[str, list[str]] = defaultdict(list)
        self.live: Counter[str] = Counter()
        self.most_live: Counter[str] = Counter()
        self.woken: Counter[str] = Counter()
        self.failing_starts: Counter[str] = Counter()
        self.start_fault: Exception | None = None
        self.failing_reads = 0
        self.queue: list[tuple[Unit, Author]] = []
        self.gate = DatabaseGate()
        self.gate.open()
        self.probes: list[bool] = []
        self.reporter = Reporter(logger=SILENT)
        self.dead_letters = DeadLetters()
        self._actor = actor or Player
        self.directory = KeyedDirectory(
            "players",
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

    def settle(self, *verdicts: UnitResult) -> None:
        """Tell the oldest units how they ended; a void author's are skipped as the journal would."""
        for verdict in verdicts:
            unit, author = self.queue.pop(0)
            author.settle(unit, NotWritten("void") if author.is_void else verdict)

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


class _OnStage(TrioActor):
    """What both kinds of player share: they count their lives."""

    stage: Stage
    key: str

    def enter(self, stage: Stage, key: str) -> None:
        self.stage, self.key = stage, key

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        stage, key = self.stage, self.key
        await trio.lowlevel.checkpoint()
        if stage.failing_starts[key]:
            stage.failing_starts[key] -= 1
            raise stage.start_fault or OSError(f"{key} cannot start")
        stage.woken[key] += 1

    async def serve(self) -> Any:
        stage, key = self.stage, self.key
        stage.live[key] += 1
        stage.most_live[key] = max(stage.most_live[key], stage.live[key])
        try:
            return await super().serve()
        finally:
            stage.live[key] -= 1

    async def on_receive(self, message: Any) -> Any:
        stage = self.stage
        match message:
            case Say(word=word):
                stage.heard[self.key].append(word)
                return word
            case Rest(s=s):
                await trio.sleep(s)
                return "rested"
            case Relay(keys=()):
                return self.key
            case Relay(keys=(first, *rest)):
                return self.key + await stage.ask(first, Relay(tuple(rest)))
            case Write(word=word, tell_to=tell_to):
                stage.heard[self.key].append(word)
                tells = (Tell(stage.directory.ref(tell_to), Say(word)),) if tell_to else ()
                return Commit(Unit(), word, tells)
            case _:
                raise ValueError("broken on purpose")


class Player(_OnStage):
    """An actor without a journal."""

    def __init__(self, stage: Stage, key: str, mailbox: Mailbox) -> None:
        super().__init__(mailbox)
        self.enter(stage, key)


class Scribe(_OnStage, JournaledActor):
    """An actor that writes."""

    own_fence = "account"

    def __init__(self, stage: Stage, key: str, mailbox: Mailbox) -> None:
        JournaledActor.__init__(self, mailbox, stage)  # type: ignore[arg-type]  # all it needs of a journal
        self.enter(stage, key)


async def outcome(call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except (AskFault, Crashed) as fault:
        return fault


async def collect(stage: Stage, asks: Sequence[tuple[str, Command[str]]], into: dict[int, Any]) -> None:
    """Ask one after the other without waiting for the answers."""

    async def one(index: int, key: str, command: Command[str]) -> None:
        into[index] = await outcome(lambda: stage.ask(key, command))

    async with trio.open_nursery() as nursery:
        for index, (key, command) in enumerate(asks):
            nursery.start_soon(one, index, key, command)
            await trio.sleep(0.001)


# ------------------------------------------------------------------------------------------------ waking and sleep


async def test_many_first_messages_wake_an_actor_once(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.running():
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(stage.ask, "a")
        assert stage.woken == {"a": 1}
        assert stage.directory.awake_count == 1
    assert stage.heard["a"] == ["hello"] * 50


async def test_an_address_stays_valid_across_passivation_and_restart(autojump_clock: MockClock) -> None:
    stage = Stage(limits=KeyedLimits(idle_s=10))
    ref = stage.directory.ref("a")
    assert isinstance(ref, pykka.ActorRef)
    async with stage.running() as directory:
        assert await ref.ask(Say("first")) == "first"
        await trio.sleep(60)
        assert directory._children == {}
        assert await ref.ask(Say("after passivation")) == "after passivation"
        assert isinstance(await outcome(lambda: ref.ask(Break())), Crashed)
        assert await ref.ask(Say("after a restart")) == "after a restart"
    assert stage.woken == {"a": 3}
    assert ref.is_alive()
    assert str(ref) == "Actor (urn:holdfast:players:a)"
    for refused in (ref.stop, ref.proxy):
        with pytest.raises(RuntimeError, match="players:a"):
            refused()


async def test_an_idle_actor_is_passivated_and_a_used_one_is_not(autojump_clock: MockClock) -> None:
    stage = Stage(limits=KeyedLimits(idle_s=100))
    async with stage.running() as directory:
        await stage.ask("idle")
        for _ in range(30):
            await stage.ask("busy")
            await trio.sleep(20)
        assert directory.awake_count == 1
        await stage.ask("idle")
        assert stage.woken == {"idle": 2, "busy": 1}
        await trio.sleep(250)
        assert directory.awake_count == 0
        assert directory._children == {}


async def test_above_the_limit_the_longest_idle_actor_is_passivated(autojump_clock: MockClock) -> None:
    stage = Stage(limits=KeyedLimits(awake_max=3))
    async with stage.running() as directory:
        for key in "abc":
            await stage.ask(key)
            await trio.sleep(1)
        await stage.ask("a")
        await stage.ask("d")
        await wait_all_tasks_blocked()
        assert directory.awake_count == 3
        assert stage.live == {"a": 1, "b": 0, "c": 1, "d": 1}


async def test_a_message_during_passivation_is_answered(autojump_clock: MockClock) -> None:
    stage = Stage(limits=KeyedLimits(idle_s=0.4))
    async with stage.running():
        rng = random.Random(5)
        for _ in range(300):
            assert await stage.ask("a") == "hello"
            await trio.sleep(rng.choice([0.39, 0.4, 0.41, 0.45, 0.5, 0.55]))
        assert stage.woken["a"] > 10
    assert stage.most_live == {"a": 1}


# --------------------------------------------------------------------------------------------------------- crashes


async def test_messages_survive_a_crash_in_their_order(autojump_clock: MockClock) -> None:
    stage = Stage()
    replies: dict[int, Any] = {}
    async with stage.running():
        asks: list[tuple[str, Command[str]]] = [("a", Rest(1)), ("a", Say("1")), ("a", Break())]
        await collect(stage, [*asks, ("a", Say("2")), ("a", Say("3"))], replies)
    assert isinstance(replies[2], Crashed)
    assert isinstance(replies[2].__cause__, ValueError)
    assert [replies[i] for i in (0, 1, 3, 4)] == ["rested", "1", "2", "3"]
    assert stage.heard["a"] == ["1", "2", "3"]
    assert stage.woken["a"] == 2
    [report] = stage.reports("crash")
    assert (report.key, report.incarnation, report.last_message_type) == ("a", 1, "Break")
    assert (report.decision, report.reason_type, report.mailbox_depth) == ("backoff", "ValueError", 2)


async def test_each_restart_backs_off_longer(autojump_clock: MockClock) -> None:
    stage = Stage(limits=KeyedLimits(child_restarts=5, backoff=Backoff(1, 8, jitter=0)))
    stage.failing_starts["a"] = 5
    async with stage.running():
        begun = trio.current_time()
        assert await stage.ask("a") == "hello"
        assert trio.current_time() - begun == pytest.approx(1 + 2 + 4 + 8 + 8)
    assert [report.delay_s for report in stage.reports("crash")] == [1, 2, 4, 8, 8]


async def test_a_crash_loop_quarantines_its_key_and_no_other(autojump_clock: MockClock) -> None:
    stage = Stage(limits=KeyedLimits(child_restarts=3, group_crashes=100))
    stage.failing_starts["sick"] = 4
    replies: dict[int, Any] = {}
    async with stage.running() as directory:
        await collect(stage, [("sick", Say("1")), ("sick", Say("2")), ("well", Say("3"))], replies)
        assert [type(replies[i]) for i in (0, 1)] == [Unavailable] * 2
        assert replies[2] == "3"
        assert directory.quarantined() == ["sick"]
        begun = trio.current_time()
        with pytest.raises(Unavailable, match="quarantined"):
            await stage.ask("sick")
        assert trio.current_time() == begun
        directory.ref("sick").tell(Say("told"))
        assert stage.dead_letters.counts()["dead"] == 1
        assert directory.release("sick")
        assert not directory.release("sick")
        assert await stage.ask("sick") == "hello"
    assert [report.key for report in stage.reports("quarantine")] == ["sick"]


async def test_a_crash_at_every_message_is_a_crash_loop_too(autojump_clock: MockClock) -> None:
    stage = Stage(limits=KeyedLimits(child_restarts=3, child_period_s=60, group_crashes=100))
    async with stage.running() as directory:
        for _ in range(4):
            assert isinstance(await outcome(lambda: stage.ask("a", Break())), Crashed)
            await trio.sleep(5)
        assert directory.quarantined() == ["a"]


async def test_crashes_far_apart_cause_no_quarantine(autojump_clock: MockClock) -> None:
    limits = KeyedLimits(child_restarts=1, child_period_s=60, group_crashes=100, idle_s=100)
    stage = Stage(limits=limits)
    async with stage.running() as directory:
        for _ in range(5):
            assert isinstance(await outcome(lambda: stage.ask("a", Break())), Crashed)
            await trio.sleep(61)
        assert directory.quarantined() == []
        await trio.sleep(300)
        assert directory._children == {}


async def test_when_many_keys_crash_the_group_pauses_and_resumes(autojump_clock: MockClock) -> None:
    limits = KeyedLimits(group_crashes=4, probe_backoff=Backoff(2, 2, jitter=0))
    stage = Stage(limits=limits)
    stage.probes = [False, False, True]
    keys = [f"k{i}" for i in range(8)]
    stage.failing_starts.update(dict.fromkeys(keys, 1))
    replies: dict[int, Any] = {}
    async with stage.running() as directory:
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, stage, [(key, Say(key)) for key in keys], replies)
            while directory.is_ready:  # noqa: ASYNC110 - the pause has no event outside
                await trio.sleep(0.01)
            with pytest.raises(Unavailable, match="paused"):
                await stage.ask("other")
        assert trio.current_time() - begun >= 6
        assert await stage.ask("other") == "hello"
        assert directory.quarantined() == []
    answered = [reply for reply in replies.values() if isinstance(reply, str)]
    refused = [reply for reply in replies.values() if isinstance(reply, Unavailable)]
    assert len(answered) + len(refused) == 8
    assert len(answered) >= 5
    assert len(stage.reports("pause")) == 1


async def test_a_closed_gate_refuses_asks_and_counts_no_crash(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.running() as directory:
        assert await stage.ask("a") == "hello"
        stage.gate.close("the database is away")
        begun = trio.current_time()
        for key in ("a", "b"):
            with pytest.raises(Unavailable, match="away"):
                await stage.ask(key)
        assert trio.current_time() == begun
        # What is told is kept, and heard once the gate is open; a start that fails meanwhile is nobody's crash.
        stage.failing_starts["b"] = 1
        directory.ref("b").tell(Say("kept"))
        await trio.sleep(10)
        assert stage.heard["b"] == []
        stage.failing_starts["b"] = 0
        stage.gate.open()
        await wait_all_tasks_blocked()
        assert stage.heard["b"] == ["kept"]
    assert stage.reporter.recent() == ()


async def test_a_full_mailbox_refuses_asks_and_records_dead_letters(autojump_clock: MockClock) -> None:
    stage = Stage(limits=KeyedLimits(mailbox_max=3))
    replies: dict[int, Any] = {}
    async with stage.running() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(collect, stage, [("a", Rest(100))] + [("a", Say(str(i))) for i in range(5)], replies)
        await trio.sleep(50)
        assert [type(replies.get(i)) for i in (4, 5)] == [Overloaded] * 2
        directory.ref("a").tell(Say("told"))
        assert stage.dead_letters.counts()["full"] == 1
        assert await stage.ask("b") == "hello"
    assert stage.heard["a"] == ["0", "1", "2"]


async def test_an_expired_message_is_skipped_and_a_started_one_ends(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.running() as directory:
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.ask, "a", Rest(20))
            await wait_all_tasks_blocked()
            with pytest.raises(OutcomeUnknown):
                await directory.ref("a").ask(Say("too late"), deadline_s=5)
            assert trio.current_time() - begun == pytest.approx(5)
        assert await stage.ask("a", Say("in time")) == "in time"
    assert stage.heard["a"] == ["in time"]


# ----------------------------------------------------------------------------------------------- asking in circles


@pytest.mark.parametrize("path", ["a", "ba", "bca", "bcdb"])
async def test_a_cycle_of_asks_is_refused_and_named(autojump_clock: MockClock, path: str) -> None:
    stage = Stage()
    stage.gate.open()
    async with stage.running():
        begun = trio.current_time()
        found = await outcome(lambda: stage.ask("a", Relay(tuple(path))))
        assert trio.current_time() - begun < 1
        assert isinstance(found, Crashed)
        cause: BaseException | None = found
        while isinstance(cause, Crashed):
            cause = cause.__cause__
        assert isinstance(cause, Deadlock)
        circle = path[path.index(path[-1]) :] if path.count(path[-1]) > 1 else "a" + path
        assert str(cause).replace(" -> ", "")[0] == circle[-2]


async def test_a_chain_of_asks_without_a_cycle_is_answered(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.running():
        assert await stage.ask("a", Relay(("b", "c", "d"))) == "abcd"
        replies: dict[int, Any] = {}
        await collect(stage, [("a", Relay(("c",))), ("b", Relay(("c",))), ("d", Relay(("a", "b")))], replies)
        assert replies == {0: "ac", 1: "bc", 2: "dab"}


# ------------------------------------------------------------------------------- what the database is to blame for


@pytest.mark.parametrize("fault", [QueryTimedOut("a lock was held"), DatabaseAway("the connection was lost")])
async def test_a_start_without_the_database_is_no_crash(autojump_clock: MockClock, fault: Exception) -> None:
    """The gate is open all the time: nobody has found out yet, or only this query is slow."""
    stage = Stage(limits=KeyedLimits(child_restarts=1, group_crashes=2))
    stage.start_fault = fault
    keys = [f"k{n}" for n in range(6)]
    stage.failing_starts.update(dict.fromkeys(keys, 20))
    replies: dict[int, Any] = {}
    async with stage.running() as directory:
        await collect(stage, [(key, Say(key)) for key in keys], replies)
        assert directory.quarantined() == []
        assert directory.is_ready
    assert [replies[n] for n in range(6)] == keys
    assert stage.reporter.recent() == ()


async def test_a_turn_whose_read_failed_is_decided_again(autojump_clock: MockClock) -> None:
    class Reader(Scribe):
        async def on_receive(self, message: Any) -> Any:
            if self.stage.failing_reads:
                self.stage.failing_reads -= 1
                raise QueryTimedOut("a lock was held")
            return await super().on_receive(message)

    stage = Stage(actor=Reader, limits=KeyedLimits(child_restarts=1, voids_in_row_max=2))
    stage.failing_reads = 10
    async with stage.running() as directory:
        assert await stage.ask("a", Say("read at last")) == "read at last"
        assert directory.quarantined() == []
    assert stage.reporter.recent() == ()


async def test_decisions_void_because_of_the_database_are_no_crash(autojump_clock: MockClock) -> None:
    stage = Stage(actor=Scribe, limits=KeyedLimits(voids_in_row_max=2))
    replies: dict[int, Any] = {}
    async with stage.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, stage, [("a", Write("1"))], replies)
        for _ in range(10):
            await trio.sleep(60)
            stage.settle(NotWritten("a lock was held", timed_out=True))
        await trio.sleep(60)
        stage.settle(Committed())
    assert replies == {0: "1"}
    assert stage.reporter.recent() == ()


async def test_an_unreadable_row_quarantines_its_key_at_once(
    autojump_clock: MockClock,
) -> None:
    stage = Stage(limits=KeyedLimits(group_crashes=2))
    stage.start_fault = UnreadableRow("tasks", "t", ValueError("a word nobody knows"))
    sick = [f"sick{n}" for n in range(6)]
    stage.failing_starts.update(dict.fromkeys(sick, 100))
    async with stage.running() as directory:
        for key in sick:
            with pytest.raises(Unavailable, match="quarantined"):
                await stage.ask(key)
        assert sorted(directory.quarantined()) == sick
        assert directory.is_ready
        assert await stage.ask("well") == "hello"


# ------------------------------------------------------------------------------------------- quarantine and its end

LAPSING = KeyedLimits(
    child_restarts=1, child_period_s=60, group_crashes=100, quarantine=Backoff(100, 1000, jitter=0)
)


async def test_after_a_quarantine_the_next_message_is_a_trial(autojump_clock: MockClock) -> None:
    stage = Stage(limits=LAPSING)
    stage.failing_starts["a"] = 2
    async with stage.running() as directory:
        found = await outcome(lambda: stage.ask("a"))
        assert isinstance(found, Unavailable)
        assert found.retry_after_s == pytest.approx(100)
        await trio.sleep(60)
        found = await outcome(lambda: stage.ask("a"))
        assert isinstance(found, Unavailable)
        assert found.retry_after_s == pytest.approx(40)
        await trio.sleep(found.retry_after_s)
        assert await stage.ask("a") == "hello"
        assert directory.quarantined() == []
    assert [report.delay_s for report in stage.reports("quarantine")] == [100]


async def test_each_failed_trial_quarantines_for_longer(autojump_clock: MockClock) -> None:
    stage = Stage(limits=LAPSING)
    stage.failing_starts["a"] = 2 + 5
    async with stage.running():
        for _ in range(6):
            found = await outcome(lambda: stage.ask("a"))
            assert isinstance(found, Unavailable)
            await trio.sleep(found.retry_after_s)
        # What is told is a trial too.
        stage.directory.ref("a").tell(Say("told"))
        await wait_all_tasks_blocked()
        assert stage.heard["a"] == ["told"]
    assert [report.delay_s for report in stage.reports("quarantine")] == [100, 200, 400, 800, 1000, 1000]


@pytest.mark.parametrize("worked", [True, False])
async def test_the_budget_starts_over_once_the_key_has_worked(autojump_clock: MockClock, worked: bool) -> None:
    stage = Stage(limits=LAPSING)
    stage.failing_starts["a"] = 2
    async with stage.running() as directory:
        assert isinstance(await outcome(lambda: stage.ask("a")), Unavailable)
        await trio.sleep(100)
        assert await stage.ask("a") == "hello"
        await trio.sleep(61 if worked else 1)
        assert isinstance(await outcome(lambda: stage.ask("a", Break())), Crashed)
        await trio.sleep(10)
        assert directory.quarantined() == ([] if worked else ["a"])
        assert isinstance(await outcome(lambda: stage.ask("a", Break())), Crashed if worked else Unavailable)
        await trio.sleep(10)
    # After the budget has started over it is spent as ever, and the first quarantine is a short one again.
    assert [report.delay_s for report in stage.reports("quarantine")] == ([100, 100] if worked else [100, 200])


async def test_an_unused_quarantined_key_is_forgotten(autojump_clock: MockClock) -> None:
    stage = Stage(limits=LAPSING)
    stage.failing_starts["a"] = 2
    async with stage.running() as directory:
        assert isinstance(await outcome(lambda: stage.ask("a")), Unavailable)
        await trio.sleep(900)
        assert directory.quarantined() == ["a"]
        await trio.sleep(600)
        assert directory._children == {}


# ------------------------------------------------------------------------------------------ drain, kill, run again


async def test_a_drain_handles_messages_refuses_asks_and_retains_tells(autojump_clock: MockClock) -> None:
    stage = Stage()
    replies: dict[int, Any] = {}
    async with trio.open_nursery() as nursery:
        async with stage.running() as directory:
            asks: list[tuple[str, Command[str]]] = [("a", Rest(5)), ("a", Say("1")), ("b", Say("2"))]
            nursery.start_soon(collect, stage, asks, replies)
            await trio.sleep(1)
            await directory.stop()
            with pytest.raises(Unavailable):
                await stage.ask("a")
        assert not directory.is_ready
        with pytest.raises(Unavailable):
            await stage.ask("a")
    assert replies == {0: "rested", 1: "1", 2: "2"}
    stage.directory.ref("c").tell(Say("kept"))
    assert stage.heard["c"] == []
    async with stage.running():
        await wait_all_tasks_blocked()
        assert stage.heard["c"] == ["kept"]
        assert await stage.ask("a") == "hello"
    assert stage.directory.awake_count == 0


async def test_a_drain_does_not_wait_for_actors_that_cannot_start(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.gate.close("away")
    async with stage.running() as directory:
        directory.ref("a").tell(Say("kept"))
        await wait_all_tasks_blocked()
        begun = trio.current_time()
    assert trio.current_time() - begun < 1
    stage.gate.open()
    async with stage.running():
        await wait_all_tasks_blocked()
        assert stage.heard["a"] == ["kept"]


async def test_a_kill_during_a_turn_replies_unknown_and_keeps_messages(autojump_clock: MockClock) -> None:
    stage = Stage()
    replies: dict[int, Any] = {}
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as tree:
            await tree.start(stage.directory.run)
            nursery.start_soon(collect, stage, [("a", Rest(50)), ("a", Say("next"))], replies)
            await trio.sleep(1)
            tree.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        assert isinstance(replies[0], OutcomeUnknown)
        assert stage.live["a"] == 0
        assert stage.directory.awake_count == 0
        async with stage.running():
            await wait_all_tasks_blocked()
    assert replies[1] == "next"


async def test_a_tell_during_the_end_is_retained_or_handled(autojump_clock: MockClock) -> None:
    stage = Stage()
    stop = trio.Event()
    sent = 0

    async def keep_telling() -> None:
        nonlocal sent
        while not stop.is_set():
            stage.directory.ref(f"k{sent % 3}").tell(Say(str(sent)))
            sent += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for kill in (True, False) * 5:
            async with trio.open_nursery() as tree:
                await tree.start(stage.directory.run)
                nursery.start_soon(keep_telling)
                for _ in range(20):
                    await trio.lowlevel.checkpoint()
                if kill:
                    tree.cancel_scope.cancel()
                else:
                    await stage.directory.stop()
                    await trio.lowlevel.checkpoint()
                    stop.set()
            stop.set()
            await wait_all_tasks_blocked()
            stop = trio.Event()
        async with stage.running():
            await wait_all_tasks_blocked()
    heard = [word for words in stage.heard.values() for word in words]
    assert sorted(map(int, heard)) == list(range(sent))
    for words in stage.heard.values():
        assert list(map(int, words)) == sorted(map(int, words))
    assert max(stage.most_live.values()) == 1


# --------------------------------------------------------------------------------------------- undurable decisions


async def test_replies_and_tells_are_sent_in_order_once_durable(autojump_clock: MockClock) -> None:
    stage = Stage(actor=Scribe)
    replies: dict[int, Any] = {}
    async with stage.running(), trio.open_nursery() as nursery:
        asks = [("a", Write("1", "b")), ("a", Say("2")), ("a", Write("3"))]
        nursery.start_soon(collect, stage, asks, replies)
        await trio.sleep(1)
        assert stage.heard["a"] == ["1", "2", "3"]
        assert replies == {}
        stage.settle(Committed())
        await trio.sleep(1)
        assert replies == {0: "1", 1: "2"}
        assert stage.heard["b"] == ["1"]
        stage.settle(Committed())
    assert replies[2] == "3"


async def test_a_void_decision_requeues_all_later_ones_in_order(autojump_clock: MockClock) -> None:
    stage = Stage(actor=Scribe)
    replies: dict[int, Any] = {}
    async with stage.running(), trio.open_nursery() as nursery:
        asks: list[tuple[str, Command[str]]] = [("a", Write("1")), ("a", Write("2")), ("a", Say("3"))]
        asks += [("a", Write("4")), ("a", Say("5"))]
        nursery.start_soon(collect, stage, asks, replies)
        await trio.sleep(1)
        stage.settle(Committed(), MOVED)
        # Mail that comes while the void incarnation waits for its last verdict stands behind what is sent back.
        stage.directory.ref("a").tell(Write("6"))
        await trio.sleep(1)
        assert stage.live["a"] == 1
        assert stage.woken["a"] == 1
        stage.settle(Committed())
        await trio.sleep(1)
        assert stage.woken["a"] == 2
        assert stage.heard["a"] == ["1", "2", "3", "4", "5", "2", "3", "4", "5", "6"]
        assert replies == {0: "1"}
        stage.settle(Committed(), Committed(), Committed())
    assert replies == {i: str(i + 1) for i in range(5)}
    assert stage.reporter.recent() == ()


async def test_a_crash_waits_for_the_results_of_open_units(autojump_clock: MockClock) -> None:
    stage = Stage(actor=Scribe)
    replies: dict[int, Any] = {}
    async with stage.running(), trio.open_nursery() as nursery:
        asks = [("a", Write("1")), ("a", Write("2")), ("a", Break()), ("a", Write("3"))]
        nursery.start_soon(collect, stage, asks, replies)
        await trio.sleep(5)
        assert stage.woken["a"] == 1
        assert isinstance(replies.pop(2), Crashed)
        assert replies == {}
        stage.settle(Committed(), Committed())
        await trio.sleep(5)
        assert replies == {0: "1", 1: "2"}
        assert stage.woken["a"] == 2
        stage.settle(Committed())
    assert replies[3] == "3"


async def test_a_crash_after_a_void_decision_requeues_it(autojump_clock: MockClock) -> None:
    stage = Stage(actor=Scribe)
    replies: dict[int, Any] = {}
    async with stage.running(), trio.open_nursery() as nursery:
        asks = [("a", Write("1")), ("a", Break()), ("a", Write("2"))]
        nursery.start_soon(collect, stage, asks, replies)
        await trio.sleep(5)
        stage.settle(MOVED)
        await trio.sleep(5)
        assert stage.heard["a"] == ["1", "1", "2"]
        stage.settle(Committed(), Committed())
    assert isinstance(replies.pop(1), Crashed)
    assert replies == {0: "1", 2: "2"}


async def test_passivation_waits_for_the_last_commit(autojump_clock: MockClock) -> None:
    stage = Stage(actor=Scribe, limits=KeyedLimits(idle_s=10))
    replies: dict[int, Any] = {}
    async with stage.running() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(collect, stage, [("a", Write("1"))], replies)
        await trio.sleep(100)
        assert directory.awake_count == 1
        directory.ref("a").tell(Say("2"))
        await trio.sleep(1)
        stage.settle(Committed())
        await trio.sleep(100)
        assert directory.awake_count == 0
    assert stage.heard["a"] == ["1", "2"]
    assert stage.woken["a"] == 1


async def test_a_killed_incarnations_void_decision_is_decided_again(autojump_clock: MockClock) -> None:
    stage = Stage(actor=Scribe)
    replies: dict[int, Any] = {}
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as tree:
            await tree.start(stage.directory.run)
            asks = [("a", Write("1")), ("a", Write("2")), ("a", Write("3"))]
            nursery.start_soon(collect, stage, asks, replies)
            await trio.sleep(1)
            tree.cancel_scope.cancel()
        async with stage.running():
            stage.directory.ref("a").tell(Say("wakes it"))
            await trio.sleep(1)
            assert stage.live["a"] == 1
            stage.settle(Committed(), NotWritten("the batch was lost"), Committed())
            await trio.sleep(1)
            assert stage.heard["a"] == ["1", "2", "3", "wakes it", "2", "3"]
            stage.settle(Committed(), Committed())
            await trio.sleep(1)
    assert replies == {0: "1", 1: "2", 2: "3"}


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_messages_requeued_after_a_kill_wake_the_next_run(
    autojump_clock: MockClock, is_forgotten: bool
) -> None:
    """The verdict comes when the directory runs again, and nobody else says a word to the key."""
    stage = Stage(actor=Scribe, limits=KeyedLimits(idle_s=10))
    replies: dict[int, Any] = {}
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as tree:
            await tree.start(stage.directory.run)
            nursery.start_soon(collect, stage, [("a", Write("1"))], replies)
            await trio.sleep(1)
            tree.cancel_scope.cancel()
        async with stage.running():
            await trio.sleep(100 if is_forgotten else 1)
            assert ("a" not in stage.directory._children) is is_forgotten
            stage.settle(NotWritten("the batch was lost"))
            await trio.sleep(1)
            assert stage.heard["a"] == ["1", "1"]
            stage.settle(Committed())
            await trio.sleep(1)
    assert replies == {0: "1"}


async def test_too_many_void_decisions_in_a_row_count_as_a_crash(autojump_clock: MockClock) -> None:
    stage = Stage(actor=Scribe, limits=KeyedLimits(voids_in_row_max=5))
    async with stage.running() as directory:
        directory.ref("a").tell(Write("1"))
        for _ in range(6):
            await trio.sleep(1)
            stage.settle(MOVED)
        await trio.sleep(5)
        assert [report.reason_type for report in stage.reports("crash")] == ["RuntimeError"]
        stage.settle(Committed())


# ---------------------------------------------------------------------------------------------------- any schedule


Step = tuple[str, str, float]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["say", "say", "write", "write", "break", "tell", "verdict", "void", "sleep", "away", "back"]
        ),
        st.sampled_from("abc"),
        st.sampled_from([0.0, 0.0, 0.1, 1.0, 30.0]),
    ),
    max_size=60,
)


async def play(steps: list[Step]) -> None:
    """Live one schedule; then the journal answers everything, and each ask has exactly one fitting answer."""
    limits = KeyedLimits(
        idle_s=20, awake_max=2, child_restarts=1000, group_crashes=1000, backoff=Backoff(0.1, 1, jitter=0.2)
    )
    stage = Stage(actor=Scribe, limits=limits)
    asked: dict[int, tuple[str, Command[str]]] = {}
    answers: dict[int, list[Any]] = defaultdict(list)

    async def ask(number: int, key: str, command: Command[str]) -> None:
        answer = await outcome(lambda: stage.ask(key, command))
        answers[number].append(answer)

    async def finish() -> None:
        stage.gate.open()
        with trio.fail_after(LONG_S / 2):
            while len(answers) < len(asked) or stage.queue:
                stage.settle(*[Committed()] * len(stage.queue))
                await trio.sleep(0.5)

    async def keep_settling() -> None:
        while True:
            stage.settle(*[Committed()] * len(stage.queue))
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
                    case "verdict" | "void":
                        for _ in range(min(3, len(stage.queue))):
                            stage.settle(Committed() if what == "verdict" else MOVED)
                    case "away":
                        stage.gate.close("away")
                    case "back":
                        stage.gate.open()
                if pause_s:
                    await trio.sleep(pause_s)
            await finish()

    async with trio.open_nursery() as journal:
        async with stage.running() as directory:
            await enact(directory)
            journal.start_soon(keep_settling)
        journal.cancel_scope.cancel()
    for number, (_, command) in asked.items():
        [answer] = answers[number]
        if isinstance(command, Break):
            assert isinstance(answer, Crashed | Unavailable)
        else:
            assert answer == str(number) or isinstance(answer, Unavailable)
    assert max(stage.most_live.values(), default=1) == 1
    assert stage.directory.awake_count == 0


@settings(max_examples=120, deadline=None)
@given(STEPS)
def test_any_schedule_answers_each_ask_once_with_one_incarnation(steps: list[Step]) -> None:
    trio.run(play, steps, clock=MockClock(autojump_threshold=0))
