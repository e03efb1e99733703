"""Task actors of two processes on one database, with random messages and journals that lose answers.

What the rows tell at the end must be one story: the audit finds nothing, what was announced is what happened, and
exactly the tasks that succeeded have results.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import trio
from sqlalchemy import Connection, text
from tests.content_claims import claim_content
from tests.usage_sums import GROUPINGS, sums_of

from holdfast.actors.account.messages import Recharge, TaskAccepted
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.messages import Command
from holdfast.actors.task.actor import TaskActor
from holdfast.actors.task.dependencies import NewTasks
from holdfast.actors.task.messages import (
    CancelTask,
    DecideReview,
    ExpireAssets,
    ReceiveProviderUpdate,
    RecordAnnouncement,
    RecordHosting,
    RecordPoll,
    RecordSubmission,
    Wake,
)
from holdfast.ledger.tasks.events import EVENT_KINDS
from holdfast.ledger.tasks.provider_update import Moderation, Output, ProviderUpdate
from holdfast.ledger.tasks.task import OutputItem, Task
from holdfast.ledger.tasks.transitions import HostingFailure
from holdfast.ledger.tasks.usage_totals import days_of
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.audit.rules import BrokenRule
from holdfast.persistence.claims.contents import Content
from holdfast.persistence.claims.outbox import FIRST, claim_due
from holdfast.persistence.journal.units import NotWritten, Unit, UnitResult
from holdfast.persistence.journal.writer import BatchWriter, CommitUnanswered
from holdfast.persistence.queries.loading import load_task, load_task_and_events
from holdfast.persistence.queries.usage_totals import usage_totals
from holdfast.persistence.records.rows import OutboxAttemptRow, OutboxOutcomeRow
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database
from holdfast.providers.media.base import Accepted, Ambiguous, NotSent
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory

from .account_checks import capacity_of
from .actor_system import ActorSystem, StartSystem, create_task, task_dependencies

TASKS = 8
RETENTION = timedelta(days=7)
OUTPUTS = tuple(Output(index=n, url=f"https://studio.test/{n}") for n in range(2))


class LosingWriter(BatchWriter):
    """Rolls batches back, or loses the answer to their commit, every now and then."""

    def __init__(self, database: Database, rng: random.Random) -> None:
        super().__init__(database.keep_writer(), now=utc_now)
        self.rng = rng
        self.is_losing = False
        self._written: dict[str, bool] = {}

    def write(self, units: Sequence[Unit]) -> list[UnitResult]:
        void: list[UnitResult] = [NotWritten("lost")] * len(units)
        luck = self.rng.random() if self.is_losing else 1.0
        if luck < 0.1:
            return void
        if luck > 0.22:
            return super().write(units)
        batch_id, durable = new_id("batch"), void
        if luck < 0.17:
            durable = super().write(units)
        self._written[batch_id] = durable is not void
        raise CommitUnanswered(batch_id, OSError("lost"), if_durable=durable, if_void=void)

    def look_up(self, batch_id: str) -> bool:
        return self._written[batch_id]


class Chaos:
    """Two processes and the source of their messages."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database = database
        self.rng = random.Random(seed)
        self.now = utc_now()
        self.processes: list[tuple[ActorSystem, KeyedDirectory]] = []
        self.tasks: list[str] = []
        self.new_tasks: list[NewTasks] = []

    def directory(self, system: ActorSystem) -> KeyedDirectory:
        # No worker runs: random messages stand for the results of their work.
        about = task_dependencies(accounts=system.accounts, now=lambda: self.now)

        new_tasks = NewTasks(about)
        self.new_tasks.append(new_tasks)

        async def load(request_id: str) -> Any:
            task = new_tasks.take(request_id)
            return (task, frozenset()) if task else await self.database.read(load_task_and_events, request_id)

        async def probe() -> bool:
            return True

        def factory(request_id: str, mailbox: Mailbox) -> TaskActor:
            return TaskActor(request_id, mailbox, system.journal, load=load, deps=about)

        return KeyedDirectory(
            "tasks",
            factory,
            gate=self.database.gate,
            probe=probe,
            reporter=system.reporter,
            dead_letters=DeadLetters(),
            rng=random.Random(1),
        )

    async def begin(self) -> None:
        system = self.processes[0][0]
        account_id, key_id = await system.open_account()
        await system.ask(account_id, Recharge(500_000_000))
        for _ in range(TASKS):
            command = create_task(key_id)
            request = msgspec.structs.replace(
                command.request,
                webhook_url="https://example.com/hook",
                webhook_events=EVENT_KINDS,
                metadata=self.rng.choice(({}, {"end_user": "ann"}, {"end_user": "bea"})),
            )
            command = msgspec.structs.replace(command, request=request)
            created = await system.ask(account_id, command)
            assert isinstance(created, TaskAccepted)
            self.tasks.append(created.request_id)
            # The actors of both processes begin with the first version, which one of them finds to be out of date.
            for new_tasks in self.new_tasks:
                new_tasks.keep(await self.row(created.request_id))
        self.now += timedelta(seconds=30)

    async def row(self, request_id: str) -> Task:
        task: Task = await self.database.read(lambda rows: load_task(rows, request_id))
        return task

    async def happens(self) -> None:
        """One thing, to one task, in one of the processes."""
        rng = self.rng
        system, tasks = rng.choice(self.processes)
        if rng.random() < 0.07:
            await self.delivers(system, tasks)
            return
        request_id = rng.choice(self.tasks)
        task = await self.row(request_id)
        message = await self.message(task, task.state.attempt or 1)
        if rng.random() < 0.6:
            tasks.ref(request_id).tell(message)
        else:
            await tasks.ref(request_id).ask(message)

    async def message(self, task: Task, attempt: int) -> Command[Any]:
        rng = self.rng
        kind = rng.choices(
            ["wake", "submission", "update", "hosting", "review", "cancel", "expire", "poll"],
            [20, 10, 25, 25, 7, 2, 4, 3],
        )[0]
        match kind:
            case "submission":
                ref = f"job_{attempt}"
                came = rng.choice((Accepted(ref, "queued"), Ambiguous("no answer"), NotSent("not reached")))
                return RecordSubmission(attempt, came)
            case "update":
                status = rng.choices(["queued", "processing", "succeeded", "failed", "canceled"], [3, 6, 13, 1, 1])[
                    0
                ]
                update = ProviderUpdate(
                    source="callback",
                    provider=task.provider,
                    event_id=f"evt_{rng.randrange(300)}",
                    request_id=task.request_id,
                    attempt=attempt,
                    status=status,  # type: ignore[arg-type]  # one of its words
                    provider_ref=f"job_{attempt}",
                    outputs=OUTPUTS if status == "succeeded" else (),
                    moderation=Moderation(flagged=rng.random() < 0.3),
                )
                return ReceiveProviderUpdate(update, b"{}")
            case "hosting":
                results = [await self.stored(task, output.index) for output in OUTPUTS if rng.random() < 0.8]
                number = task.state.hosting.round - rng.choice((0, 0, 0, 1))
                return RecordHosting(attempt, number, tuple(results))
            case "review":
                return DecideReview(approve=rng.random() < 0.6)
            case "cancel":
                return CancelTask()
            case "expire" if task.is_terminal:
                return ExpireAssets()
            case "poll":
                return RecordPoll(attempt, None)
        return Wake(recovering=rng.random() < 0.3)

    async def stored(self, task: Task, position: int) -> OutputItem | HostingFailure:
        if self.rng.random() < 0.3:
            return HostingFailure(position, "not found", final=self.rng.random() < 0.4)
        content, at = (
            Content(hashlib.sha256(f"{task.request_id}{position}".encode()).hexdigest(), "image/png"),
            self.now,
        )
        await self.database.work(claim_content, content, at)
        return OutputItem(
            index=position, asset_id=new_id("asset"), sha256=content.sha256, bytes=9,
            content_type=content.content_type, expires_at=at + RETENTION,
        )  # fmt: skip

    async def delivers(self, system: ActorSystem, tasks: KeyedDirectory) -> None:
        """Some events are taken, others given up."""
        at = utc_now() + timedelta(days=self.rng.random())
        due, _ = await self.database.work(
            lambda rows: claim_due(
                rows, at, after=FIRST, named=(), capacity=capacity_of(0, 4, 4, {}), learned={}, lease_s=5
            )
        )
        for event in due:
            status = self.rng.choice(("delivered", "given_up"))
            ids = (event.account_id, event.event_id, event.attempts)
            rows = (
                OutboxAttemptRow(*ids, utc_now(), 200, None, 1),
                OutboxOutcomeRow(*ids, event.round_at, None, status, utc_now(), None),
            )
            if event.kind == "task.assets_ready":
                assert event.request_id is not None
                tasks.ref(event.request_id).tell(RecordAnnouncement(status == "delivered", rows))
            else:
                await system.journal.write(Unit(rows=rows))

    async def lives(self, rounds: int) -> None:
        for _ in range(rounds):
            async with trio.open_nursery() as nursery:
                for _ in range(self.rng.choice((1, 5, 20))):
                    nursery.start_soon(self.happens)
            self.now += timedelta(seconds=self.rng.choice((0, 1, 20, 61)))

    async def ends(self) -> None:
        """Cancel what is still open, and let every actor handle its last message."""
        for request_id in self.tasks:
            await self.processes[0][1].ref(request_id).ask(CancelTask())
            for _, tasks in self.processes:
                await tasks.ref(request_id).ask(Wake())


def audited(url: str) -> dict[BrokenRule, str]:
    with connected(url) as rows:
        return run_audit(rows)


def events_in(rows: Connection) -> tuple[dict[str, list[str]], dict[str, tuple[int, set[datetime]]]]:
    """By task: the kinds of its events, and how many assets it has and until when."""
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for request_id, kind in rows.execute(text("select request_id, kind from outbox")):
        kinds[request_id].append(kind)
    stored = rows.execute(text("select request_id, count(*), array_agg(expires_at) from assets group by 1"))
    return kinds, {request_id: (many, set(until)) for request_id, many, until in stored}


async def assert_totals(database: Database, until: datetime) -> None:
    """Check that the totals of usage are the sums of the log, by any two groups."""

    def read(rows: Connection) -> None:
        [account_id] = rows.execute(text("select id from accounts")).scalars()
        entries = rows.execute(text("select *, cost_micro as cost from usage_entries")).mappings()
        found = [dict(entry) for entry in entries]
        assert len(found) == TASKS
        since = min(entry["ts"] for entry in found)
        for groups in GROUPINGS:
            by_day = "day" in groups
            days, bounds = days_of(since, until, UTC) if by_day else ([], [since, until])
            totals = usage_totals(rows, account_id, groups, bounds)
            assert totals is not None
            sums = {
                tuple(days[each.part - 1].isoformat() if name == "day" else getattr(each, name) for name in groups):
                (each.count, each.cost_micro)
                for each in totals
            }  # fmt: skip
            assert sums == sums_of(found, groups, UTC)

    await database.read(read)


@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 10), *(pytest.param(seed, 40, marks=pytest.mark.slow) for seed in (2, 3, 4))]
)
async def test_two_processes_and_lost_replies_leave_one_history(
    start_system: StartSystem, nursery: trio.Nursery, database: Database, seed: int, rounds: int
) -> None:
    chaos = Chaos(database, seed)
    writers = [LosingWriter(database, random.Random(seed + number)) for number in range(2)]
    for writer in writers:
        system = await start_system(writer=writer)
        tasks = chaos.directory(system)
        await nursery.start(tasks.run)
        chaos.processes.append((system, tasks))
    await chaos.begin()
    for writer in writers:
        writer.is_losing = True
    await chaos.lives(rounds)
    for writer in writers:
        writer.is_losing = False
    await chaos.ends()
    assert await trio.to_thread.run_sync(audited, database.url) == {}
    await assert_totals(database, chaos.now + timedelta(days=1))
    kinds, stored = await database.read(events_in)
    for request_id in chaos.tasks:
        task = await chaos.row(request_id)
        statuses = [f"task.{entry.status}" for entry in task.state.status_history if entry.status != "queued"]
        ready = ["task.assets_ready"] if task.status == "succeeded" else []
        assert sorted(kinds[request_id]) == sorted(statuses + ready)
        if task.status == "succeeded" and task.state.hosting.status == "ready":
            assert stored[request_id] == (len(task.state.output), {task.state.output[0].expires_at})
        else:
            assert request_id not in stored
