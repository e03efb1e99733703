"""Any order of operators' actions, faults and drains: a key has one task, each message its outcome, drains end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.runtime.journaled import Reload
from holdfast.actors.runtime.messages import Command
from holdfast.persistence.journal.units import Committed, NotWritten
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.control.keys import ControlledGroup
from holdfast.supervision.control.messages import CrashKey, QuarantineKey, ReleaseKey, RestartKey
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.supervision.spec import Backoff

from .keyed_actors import Break, Harness, Rest, Say, Write, WritingActor, outcome

LIMITS = KeyedLimits(
    idle_s=5,
    active_max=2,
    loading_max=1,
    child_restarts=2,
    child_period_s=20,
    group_crashes=4,
    group_period_s=5,
    backoff=Backoff(0.2, 4, jitter=0.2),
    quarantine=Backoff(3, 10, jitter=0.1),
)


class Stale(Command[str], frozen=True):
    """Its handler finds the rows newer than its state, whenever it looks."""


class Actor(WritingActor):
    """Takes a while to load, which it cannot while the database is away."""

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        await trio.sleep(0.3)
        if not self.harness.gate.is_open:
            raise DatabaseAway("away")
        await super().on_start()

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, Stale):
            raise Reload("the rows are newer")
        return await super().on_receive(message)


ACTIONS: dict[str, Callable[[str], Any]] = {
    "restart": lambda key: RestartKey("actors", key, "to see it"),
    "crash": lambda key: CrashKey("actors", key, "a drill"),
    "quarantine": lambda key: QuarantineKey("actors", key, "by hand", 2.0),
    "release": lambda key: ReleaseKey("actors", key, "mended"),
}
ASKS: dict[str, Callable[[str], Command[str]]] = {
    "say": Say,
    "write": lambda word: Write(word, "c"),
    "break": lambda _: Break(),
    "stale": lambda _: Stale(),
    "rest": lambda _: Rest(2.5),
}
STEP = st.tuples(
    st.sampled_from(
        [*ACTIONS, *ACTIONS, *ASKS, "tell", "tell", "pause", "resume", "away", "back", "settle", "drain", "sleep"]
    ),
    st.sampled_from("aab"),
    st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.3, 1.0, 6.0]),
)
Step = tuple[str, str, float]


class Schedule:
    """One schedule, and what became of its messages."""

    def __init__(self) -> None:
        self.harness = Harness(actor=Actor, limits=LIMITS)
        self.directory = self.harness.directory
        self.group = ControlledGroup(self.directory, "proc_1", str)
        self.answers: defaultdict[int, list[Any]] = defaultdict(list)
        self.asked = 0
        self.tells: Counter[str] = Counter()

    async def play(self, steps: list[Step]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.watch)
            at = 0
            async with trio.open_nursery() as senders:
                while at < len(steps):
                    async with self.running():
                        at = await self.enact(steps, at, senders)
                async with self.running():
                    await self.finish()
            async with self.running():
                pass
            nursery.cancel_scope.cancel()

    async def enact(self, steps: list[Step], at: int, senders: trio.Nursery) -> int:
        """Take steps until the next drain; return how far it came."""
        for number, (what, key, pause_s) in enumerate(steps[at:], at):
            if what == "drain":
                return number + 1
            self.take(what, key, number, senders)
            self.check()
            if pause_s:
                await trio.sleep(pause_s)
            else:
                await trio.lowlevel.checkpoint()
        return len(steps)

    def take(self, what: str, key: str, number: int, senders: trio.Nursery) -> None:
        match what:
            case "restart" | "crash" | "quarantine" | "release":
                senders.start_soon(self.group.act, ACTIONS[what](key))
            case "tell":
                self.tells[key] += 1
                self.directory.ref(key).tell(Say(f"tell {number}"))
            case "pause":
                self.directory.pause("by hand")
            case "resume":
                self.directory.resume("by hand")
            case "away":
                self.harness.gate.close("away")
            case "back":
                self.harness.gate.open()
            case "settle":
                self.settle()
            case "sleep":
                pass
            case _:
                self.asked += 1
                senders.start_soon(self.ask, number, key, ASKS[what](str(number)))

    async def ask(self, number: int, key: str, command: Command[str]) -> None:
        self.answers[number].append(await outcome(lambda: self.harness.ask(key, command)))

    def settle(self) -> None:
        is_open = self.harness.gate.is_open
        self.harness.settle(*[Committed() if is_open else NotWritten("away")] * len(self.harness.queue))

    async def finish(self) -> None:
        """Put an end to all that holds messages up, and wait until all is answered."""
        self.harness.gate.open()
        with trio.fail_after(600):
            while len(self.answers) < self.asked or self.directory.active_count:
                self.directory.resume("by hand")
                self.settle()
                await trio.sleep(0.5)

    @asynccontextmanager
    async def running(self) -> Any:
        """Run the directory; the drain ends soon, whatever holds up its actors."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.directory.run)
            yield
            await self.directory.stop()
            nursery.start_soon(self.within, 30, self.keep_settling, nursery)
        assert self.directory.active_count == 0

    async def within(self, s: float, work: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
        with trio.fail_after(s):
            await work()
        nursery.cancel_scope.cancel()

    async def keep_settling(self) -> None:
        while self.directory.nursery is not None:
            self.settle()
            await trio.sleep(0.1)

    async def watch(self) -> None:
        while True:
            self.check()
            await trio.sleep(0.05)

    def check(self) -> None:
        """Each key has one task at most, and one actor; the table knows every task."""
        nursery = self.directory.nursery
        if nursery is None:
            return
        tasks = Counter(task.name for task in nursery.child_tasks if task.name.startswith("actor:"))
        assert set(tasks.values()) <= {1}, tasks
        assert self.directory.active_count == tasks.total()
        children = self.directory.by_key
        assert {name.rpartition(":")[2] for name in tasks} <= children.keys()
        assert max(self.harness.most_live.values(), default=1) == 1


def check_messages(schedule: Schedule) -> None:
    """Each ask has one answer or fault; each tell was handled or recorded as one that no actor will handle."""
    harness = schedule.harness
    assert len(schedule.answers) == schedule.asked
    for answers in schedule.answers.values():
        [answer] = answers
        assert isinstance(answer, str | AskFault | Crashed)
    letters = Counter(
        letter.key
        for letter in harness.dead_letters.recent()
        if letter.message_type == "Say" and letter.reason == "dead"
    )
    for key, count in schedule.tells.items():
        handled = {word for word in harness.handled[key] if word.startswith("tell")}
        assert len(handled) + letters[key] == count
    assert all(child.mailbox.empty() for child in harness.directory.by_key.values())


QUARANTINED_WHILE_IT_WAITS = [
    ("restart", "a", 0.1),
    ("quarantine", "a", 0.1),
    ("release", "a", 0.0),
    ("tell", "a", 0.1),
]


def check(steps: list[Step]) -> None:
    """Check that each key has one task at a time, each message one fate, and that the drain ends."""

    async def main() -> None:
        schedule = Schedule()
        await schedule.play(steps)
        check_messages(schedule)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("second", [("pause", "a", 0.0), ("away", "a", 0.0), ("say", "b", 0.1)])
def test_a_key_that_is_quarantined_while_it_waits_has_one_task(second: Step) -> None:
    check([("say", "a", 1.0), second, *QUARANTINED_WHILE_IT_WAITS, ("drain", "a", 0.0)])


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=50))
@pytest.mark.slow
def test_one_task_a_key_and_drains_end_in_any_schedule(steps: list[Step]) -> None:
    check(steps)
