"""Actors for tests of the keyed directory, their commands, and their environment."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import structlog
import trio

from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.runtime.journaled import Commit, JournaledActor, Tell
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.messages import Command
from holdfast.actors.workers.poison_writer import PoisonedMessage
from holdfast.persistence.journal.units import Author, NotWritten, Unit, UnitResult
from holdfast.persistence.server.database_gate import DatabaseGate
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import Reporter

SILENT = structlog.wrap_logger(structlog.ReturnLogger(), wrapper_class=structlog.make_filtering_bound_logger(50))


LONG_S = 1_000.0


class Say(Command[str], frozen=True):
    """Answered by its word."""

    word: str = "hello"


class Rest(Command[str], frozen=True):
    """Keeps the actor in its turn for a while."""

    s: float


class Break(Command[str], frozen=True):
    """Ends the incarnation."""


class Relay(Command[str], frozen=True):
    """Asks the next of ``keys``, in its own directory, to relay to the rest."""

    keys: tuple[str, ...]


class Write(Command[str], frozen=True):
    """Becomes a unit of work; answered once that is durable."""

    word: str
    tell_to: str | None = None


class Harness:
    """The environment of the actors: what they handled, how many run, and a journal that settles on call."""

    def __init__(
        self,
        *,
        limits: KeyedLimits | None = None,
        actor: type[JournaledActor] | None = None,
        poison: Callable[[PoisonedMessage], None] | None = None,
    ) -> None:
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
        self._actor = actor or WritingActor
        self.directory = KeyedDirectory(
            "actors",
            lambda key, mailbox: cast(Any, self._actor)(self, key, mailbox),
            gate=self.gate,
            probe=self._probe,
            reporter=self.reporter,
            dead_letters=self.dead_letters,
            poison=poison,
            limits=limits or KeyedLimits(),
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
            author.unit_ended(unit, NotWritten("void") if author.is_void else result)

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


class WritingActor(JournaledActor):
    """Does what its messages say, and counts its incarnations."""

    own_fences = frozenset({"account"})

    def __init__(self, harness: Harness, key: str, mailbox: Mailbox) -> None:
        super().__init__(mailbox, harness)  # type: ignore[arg-type]  # all it needs of a journal
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
