"""Events in real rows: claimed fairly and once, ended, resent, signed and swept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy
import trio
from tests.sweepers import sweeper_of

from holdfast.actors.account.messages import CreateTask
from holdfast.actors.runtime.faults import OutcomeUnknown, Unavailable
from holdfast.actors.runtime.refs import TrioActorRef
from holdfast.actors.task.actor import TaskActor
from holdfast.actors.task.messages import EventsDue, RecordAnnouncement
from holdfast.actors.unfenced import EventCommands
from holdfast.actors.workers.outbox import PER_RECEIVER_MAX
from holdfast.actors.workers.sweeper import OUTBOX_RETENTION_S
from holdfast.ledger.tasks.events import PAUSES_S
from holdfast.ledger.tasks.task import HostingState, Task, TaskRequest, accept_task
from holdfast.ledger.tasks.webhook_secrets import Rotation
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.claims import outbox as outbox_claims
from holdfast.persistence.claims.outbox import FIRST, Capacity, DueEvent, claim_due
from holdfast.persistence.journal.units import Committed, NotWritten, Unit, UnitResult, Unknown
from holdfast.persistence.queries.events import EventAddress, events_of_task
from holdfast.persistence.queries.loading import load_task
from holdfast.persistence.records import tables
from holdfast.persistence.records.resulting_rows import new_event_rows
from holdfast.persistence.records.rows import (
    NewTaskRow,
    OutboxAttemptRow,
    OutboxOutcomeRow,
    OutboxRow,
    Row,
    TaskChangedRow,
    WebhookSecretRow,
)
from holdfast.persistence.server.database import Database
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.telemetry.reports.reporter import Reporter

from .account_checks import capacity_of
from .actor_system import task_dependencies

LEASE_S = 20.0


@dataclass
class Box:
    """An outbox in a database, and its journal."""

    system: Any
    command: CreateTask

    @property
    def database(self) -> Database:
        database: Database = self.system.database
        return database

    def task(self, account_id: str = "acct_1", **state: Any) -> Task:
        """Create a succeeded task with a webhook."""
        task = accept_task(
            account_id,
            new_id("task"),
            TaskRequest(
                input=self.command.request.input,
                terms=self.command.request.terms,
                quote_id="quo_1",
                api_key_id=None,
                hold_id=new_id("hold"),
                hold_micro=self.command.request.terms.hold_micro,
                webhook_url="https://example.com/hook",
                webhook_events=("task.succeeded", "task.assets_ready"),
            ),
            utc_now(),
        )
        ready = msgspec.structs.replace(task.state, hosting=HostingState(status="ready", final_url_ready=True))
        return msgspec.structs.replace(task, status="succeeded", state=ready, wake_at=None)

    def event(self, task: Task) -> OutboxRow:
        """Return the event of the task's end."""
        return new_event_rows(msgspec.structs.replace(task, status="processing"), task)[0]

    async def write(self, *rows: Row) -> None:
        assert isinstance(await self.system.journal.write(Unit(rows=rows)), Committed)

    async def plant(self, count: int, account_id: str = "acct_1", *, age_s: float = 1) -> list[OutboxRow]:
        """Insert events that are overdue, the oldest first."""
        at = utc_now() - timedelta(seconds=age_s)
        rows = [
            msgspec.structs.replace(self.event(self.task(account_id)), due_at=at + timedelta(milliseconds=n))
            for n in range(count)
        ]
        await self.write(*rows)
        return rows

    async def claim(
        self, *, most: int = 100, busy: dict[str, int] | None = None, now: datetime | None = None
    ) -> Any:
        due, _ = await self.database.work(
            claim_due,
            now or utc_now(),
            after=FIRST,
            named=(),
            capacity=capacity_of(
                0,
                most,
                PER_RECEIVER_MAX,
                busy or {},
                accounts_busy={(account_id, "quick"): number for account_id, number in (busy or {}).items()},
            ),
            learned={},
            lease_s=LEASE_S,
        )
        return due

    async def row(self, event_id: str) -> Any:
        """Read an event's row."""
        wanted = sqlalchemy.select(tables.outbox).where(tables.outbox.c.event_id == event_id)
        return await self.database.read(lambda rows: rows.execute(wanted).one())

    def end(self, event: DueEvent, status: str = "delivered", due_at: datetime | None = None) -> OutboxOutcomeRow:
        """Return an outcome of a claimed delivery."""
        done_at = utc_now() if due_at is None else None
        return OutboxOutcomeRow(
            event.account_id, event.event_id, event.attempts, event.round_at, due_at, status, done_at, None
        )


@pytest.fixture
def box(system: Any, new_task: Callable[..., CreateTask]) -> Box:
    return Box(system, new_task("key_1"))


class Outbox(TrioActorRef):
    """The address of an outbox worker that records its messages."""

    def __init__(self) -> None:
        super().__init__("urn:test:outbox")
        self.received: list[EventsDue] = []

    def tell(self, message: object) -> None:
        assert isinstance(message, EventsDue)
        self.received.append(message)


async def test_a_claim_takes_the_oldest_and_counts_as_a_failed_attempt(
    box: Box,
) -> None:
    planted = await box.plant(3)
    now = utc_now()
    claimed: list[DueEvent] = await box.claim(most=2, now=now)
    assert sorted(event.event_id for event in claimed) == sorted(row.event_id for row in planted[:2])
    assert {(event.attempts, event.tries, event.kind) for event in claimed} == {(1, 1, "task.succeeded")}
    assert claimed[0].task.state.hosting.status == "ready"
    assert (await box.row(claimed[0].event_id)).due_at == now + timedelta(seconds=LEASE_S)
    [last] = await box.claim(now=now)
    assert last.event_id == planted[2].event_id
    assert await box.claim(now=now) == []
    later = now + timedelta(seconds=LEASE_S)
    assert {event.tries for event in await box.claim(now=later)} == {2}
    assert (await box.row(last.event_id)).due_at == later + timedelta(seconds=PAUSES_S[1])


async def test_a_claim_limits_each_account_to_its_share(box: Box) -> None:
    await box.plant(20, "acct_loud", age_s=60)
    await box.plant(1, "acct_calm")
    first: list[DueEvent] = await box.claim()
    assert sum(event.account_id == "acct_loud" for event in first) == PER_RECEIVER_MAX
    assert sum(event.account_id == "acct_calm" for event in first) == 1
    assert await box.claim(busy={"acct_loud": PER_RECEIVER_MAX}) == []
    assert len(await box.claim(busy={"acct_loud": PER_RECEIVER_MAX - 1})) == 1


async def test_a_single_event_does_not_wait_for_large_accounts(box: Box) -> None:
    loud = [f"acct_{number}" for number in range(4)]
    for account_id in loud:
        await box.plant(150, account_id, age_s=60)
    await box.plant(1, "acct_calm")
    under_way = dict.fromkeys(loud, PER_RECEIVER_MAX - 1)
    # One place has come free, and each of the loud ones may have it too.
    assert [event.account_id for event in await box.claim(most=1, busy=under_way)] == ["acct_calm"]
    assert sorted({event.account_id for event in await box.claim(most=4)}) == loud


async def test_a_claim_reads_few_rows_of_a_long_backlog(box: Box) -> None:
    await box.plant(1, "acct_hangs", age_s=60)
    [calm] = await box.plant(1, "acct_calm", age_s=30)
    columns = [column.name for column in tables.outbox.columns]
    copied = {"event_id": "'evt_' || n", "due_at": "due_at + n * interval '10 milliseconds'"}
    values = ", ".join(copied.get(name, name) for name in columns)

    def claim(rows: sqlalchemy.Connection) -> tuple[list[str], int]:
        rows.execute(
            sqlalchemy.text(
                f"insert into outbox ({', '.join(columns)}) select {values} "
                "from outbox, generate_series(1, 5000) n where account_id = 'acct_hangs'"
            )
        )
        rows.execute(sqlalchemy.text("analyze outbox"))
        read = sqlalchemy.text(
            "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'outbox'"
        )
        before = rows.execute(read).scalar_one()
        busy = {"acct_hangs": PER_RECEIVER_MAX}
        capacity = capacity_of(0, 100, 4, busy)
        due, _ = claim_due(rows, utc_now(), after=FIRST, named=(), capacity=capacity, learned={}, lease_s=LEASE_S)
        return [event.event_id for event in due], rows.execute(read).scalar_one() - before

    claimed, rows_read = await box.database.work(claim)
    assert claimed == [calm.event_id]
    assert rows_read < 200


async def test_claims_look_through_all_accounts_in_turn(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_claims, "RECEIVERS_PROBED_MAX", 2)
    accounts = [f"acct_{number}" for number in range(5)]
    for account_id in accounts:
        await box.plant(1, account_id)
    limits: dict[str, Any] = {"named": (), "capacity": capacity_of(0, 9, 1, {}), "learned": {}, "lease_s": LEASE_S}
    found: list[list[str]] = []
    after: str | None = FIRST
    for _ in range(3):
        due, after = await box.database.work(claim_due, utc_now(), after=after, **limits)
        found.append(sorted(event.account_id for event in due))
    assert found == [["acct_0", "acct_1"], ["acct_2", "acct_3"], ["acct_4"]]
    assert after is None


async def test_a_claim_finds_the_events_of_named_accounts_alone(box: Box) -> None:
    await box.plant(1, "acct_other", age_s=60)
    [named] = await box.plant(1, "acct_named")
    due, after = await box.database.work(
        claim_due,
        utc_now(),
        after=None,
        named={"acct_named", "acct_without"},
        capacity=capacity_of(0, 9, PER_RECEIVER_MAX, {}),
        learned={},
        lease_s=LEASE_S,
    )
    assert [event.event_id for event in due] == [named.event_id]
    assert after is None


async def test_silent_receivers_have_a_limit_of_their_own_in_all_processes(box: Box) -> None:
    silent = [f"acct_silent{number}" for number in range(3)]
    for account_id in silent:
        await box.plant(PER_RECEIVER_MAX, account_id, age_s=60)
    await box.plant(1, "acct_calm")

    async def claimed(capacity: Capacity, learned: dict[str, bool], now: datetime) -> Counter[tuple[str, bool]]:
        due, _ = await box.database.work(
            claim_due, now, after=FIRST, named=(), capacity=capacity, learned=learned, lease_s=LEASE_S
        )
        return Counter((event.account_id, event.is_silent) for event in due)

    now = utc_now()
    first = await claimed(capacity_of(2, 9, PER_RECEIVER_MAX, {}), dict.fromkeys(silent, True), now)
    # Two of the silent ones, of different accounts; the others are not held up.
    assert first == {("acct_silent0", True): 1, ("acct_silent1", True): 1, ("acct_calm", False): 1}
    # What one process has learned holds for another, and after a restart.
    assert await claimed(capacity_of(0, 9, PER_RECEIVER_MAX, {}), {}, now) == {}
    third = await claimed(capacity_of(0, 9, PER_RECEIVER_MAX, {}), {"acct_silent2": False, "acct_calm": False}, now)
    assert third == {("acct_silent2", False): PER_RECEIVER_MAX}


async def test_an_account_has_so_many_deliveries_whatever_receivers_it_has(box: Box) -> None:
    """Webhooks cost nothing, so receivers of one account share its turn with those of another."""
    for number in range(10):
        for row in await box.plant(2, "acct_many", age_s=60):
            await box.database.work(_to_receiver, row.event_id, f"wh_{number}")
    await box.plant(2, "acct_one")

    async def claimed(**limits: Any) -> Counter[str]:
        capacity = capacity_of(9, limits.pop("quick", 100), PER_RECEIVER_MAX, {}, **limits)
        due, _ = await box.database.work(
            claim_due, utc_now(), after=FIRST, named=(), capacity=capacity, learned={}, lease_s=LEASE_S
        )
        return Counter(event.account_id for event in due)

    # The account with fewer under way goes first, and then each in turn.
    assert await claimed(quick=1, per_account=6, accounts_busy={("acct_many", "quick"): 1}) == {"acct_one": 1}
    assert await claimed(quick=2, per_account=6) == {"acct_one": 1, "acct_many": 1}
    assert await claimed(per_account=6, accounts_busy={("acct_many", "quick"): 1}) == {"acct_many": 5}
    assert await claimed(per_account=6, accounts_busy={("acct_many", "quick"): 6}) == {}
    assert await claimed(per_account=60, accounts_busy={("acct_many", "quick"): 6}) == {"acct_many": 14}


def _to_receiver(rows: sqlalchemy.Connection, event_id: str, receiver: str) -> None:
    outbox = tables.outbox
    rows.execute(sqlalchemy.update(outbox).where(outbox.c.event_id == event_id).values(receiver=receiver))


async def test_two_processes_never_claim_the_same_delivery(box: Box) -> None:
    await box.plant(PER_RECEIVER_MAX)
    now = utc_now()
    taken: list[str] = []

    def both(rows: sqlalchemy.Connection) -> None:
        limits: dict[str, Any] = {"after": FIRST, "named": (), "learned": {}, "lease_s": LEASE_S}
        mine, _ = claim_due(rows, now, capacity=capacity_of(0, 2, 2, {}), **limits)
        # The other one looks before the first has committed.
        with rows.engine.begin() as other:
            theirs, _ = claim_due(other, now, capacity=capacity_of(0, 100, 2, {}), **limits)
        taken.extend(event.event_id for event in (*mine, *theirs))

    await box.database.work(both)
    taken += [event.event_id for event in await box.claim(now=now)]
    assert len(taken) == len(set(taken)) == PER_RECEIVER_MAX


async def test_an_outcome_of_an_outdated_attempt_is_ignored(box: Box) -> None:
    [row] = await box.plant(1)
    [first] = await box.claim()
    late = utc_now() + timedelta(minutes=1)
    [second] = await box.claim(now=late)
    await box.write(box.end(first, "given_up"))
    assert (await box.row(row.event_id)).status == "pending"
    outbox = Outbox()
    commands = EventCommands(box.system.journal, outbox, utc_now)
    await commands.resend([EventAddress("acct_1", row.event_id, "wh_1")])
    # The receiver is named, so that its event does not wait for the next tick.
    assert outbox.received == [EventsDue("wh_1")]
    await box.write(box.end(second, "given_up"))
    again = await box.row(row.event_id)
    assert (again.status, again.tries, again.attempts) == ("pending", 0, 2)
    [third] = await box.claim()
    await box.write(box.end(third))
    assert (await box.row(row.event_id)).status == "delivered"
    assert await box.claim(now=late + timedelta(days=9)) == []


async def test_an_event_that_was_resent_since_a_time_is_not_resent(box: Box) -> None:
    [row] = await box.plant(1)
    [first] = await box.claim()
    await box.write(box.end(first, "given_up"))
    since = utc_now()
    commands = EventCommands(box.system.journal, Outbox(), lambda: since + timedelta(seconds=1))
    address = [EventAddress("acct_1", row.event_id, "wh_1")]
    await commands.resend(address, unless_since=since)
    [second] = await box.claim(now=since + timedelta(seconds=2))
    await box.write(box.end(second, "given_up"))
    await commands.resend(address, unless_since=since)
    assert (await box.row(row.event_id)).status == "given_up"
    await commands.resend(address)
    assert (await box.row(row.event_id)).status == "pending"


async def test_a_claim_returns_the_newest_secret_generations(box: Box) -> None:
    commands = EventCommands(box.system.journal, Outbox(), utc_now)
    await box.plant(1)
    first = await commands.rotate_secret("acct_1", 1)
    await commands.rotate_secret("acct_1", 1)
    for generation in range(2, 9):
        await commands.rotate_secret("acct_1", generation)
    await commands.rotate_secret("acct_other", 1)
    [event] = await box.claim()
    assert [rotation.generation for rotation in event.rotations] == [8, 7, 6, 5]
    at = sqlalchemy.select(tables.webhook_secrets.c.rotated_at).where(
        tables.webhook_secrets.c.account_id == "acct_1", tables.webhook_secrets.c.generation == 1
    )
    assert await box.database.read(lambda rows: rows.execute(at).scalar_one()) == first.at


@pytest.mark.parametrize(("verdict", "fault"), [(NotWritten("x"), Unavailable), (Unknown("x"), OutcomeUnknown)])
async def test_an_event_command_that_was_not_written_fails(verdict: UnitResult, fault: type[Exception]) -> None:
    class Journal:
        async def write(self, _: Unit) -> UnitResult:
            return verdict

    outbox = Outbox()
    commands = EventCommands(Journal(), outbox, utc_now)  # type: ignore[arg-type]  # as much of a journal as is asked
    with pytest.raises(fault):
        await commands.resend([EventAddress("acct_1", "evt_1", "acct_1")])
    assert outbox.received == []


async def test_events_are_read_with_their_newest_attempts(box: Box) -> None:
    task = box.task()
    event = box.event(task)
    attempts = [
        OutboxAttemptRow("acct_1", event.event_id, number, utc_now(), 500, None, 7) for number in range(1, 70)
    ]
    await box.write(msgspec.structs.replace(event, attempts=69), *attempts)
    [found] = await box.database.read(lambda rows: events_of_task(rows, "acct_1", task.request_id))
    assert (found.event_id, found.status) == (event.event_id, "pending")
    assert [attempt.number for attempt in found.attempts] == list(range(69, 19, -1))
    assert await box.database.read(lambda rows: events_of_task(rows, "acct_2", task.request_id)) == []


async def test_finished_events_and_old_secrets_are_swept(box: Box) -> None:
    [old, young, waiting] = await box.plant(3)
    claimed = {event.event_id: event for event in await box.claim()}
    past = utc_now() - timedelta(seconds=OUTBOX_RETENTION_S + 60)
    await box.write(
        msgspec.structs.replace(box.end(claimed[old.event_id]), done_at=past),
        box.end(claimed[young.event_id]),
        *(OutboxAttemptRow("acct_1", row.event_id, 1, past, 200, None, 7) for row in (old, young, waiting)),
        *(WebhookSecretRow("acct_1", *Rotation(n, past + timedelta(seconds=n))) for n in (1, 2)),
        WebhookSecretRow("acct_2", 1, utc_now()),
    )
    await sweeper_of(box.database).sweep()

    def left(rows: sqlalchemy.Connection) -> Any:
        events = set(rows.execute(sqlalchemy.select(tables.outbox.c.event_id)).scalars())
        attempts = set(rows.execute(sqlalchemy.select(tables.outbox_attempts.c.event_id)).scalars())
        secrets = rows.execute(
            sqlalchemy.select(tables.webhook_secrets.c.account_id, tables.webhook_secrets.c.generation)
        )
        return events, attempts, {(row.account_id, row.generation) for row in secrets}

    stored = {young.event_id, waiting.event_id}
    assert await box.database.read(left) == (stored, stored, {("acct_1", 2), ("acct_2", 1)})


async def test_a_task_records_delivery_in_the_commit_that_ends_the_event(box: Box, nursery: trio.Nursery) -> None:
    task = box.task()
    event = box.event(task)
    await box.write(NewTaskRow(task), event)
    [claimed] = await box.claim()

    async def load(request_id: str) -> Any:
        return await box.database.read(lambda rows: (load_task(rows, request_id), frozenset()))

    dependencies = task_dependencies(accounts=box.system.accounts)

    async def probe() -> bool:
        return True

    tasks = KeyedDirectory(
        "tasks",
        lambda key, mailbox: TaskActor(key, mailbox, box.system.journal, load=load, deps=dependencies),
        gate=box.database.gate,
        probe=probe,
        reporter=Reporter(),
        dead_letters=DeadLetters(),
    )
    await nursery.start(tasks.run)
    # Active with a memory in which nothing can be announced; then another process moves the task on.
    earlier = msgspec.structs.replace(task, status="processing", version=2)
    await box.write(TaskChangedRow(earlier, "proc_1"))
    lost = RecordAnnouncement(False, ())
    await tasks.ref(task.request_id).ask(lost)
    await box.write(TaskChangedRow(msgspec.structs.replace(task, version=3), "proc_1"))
    await tasks.ref(task.request_id).ask(RecordAnnouncement(True, (box.end(claimed),)))
    now = await box.database.read(lambda rows: load_task(rows, task.request_id))
    assert (now.version, now.state.hosting.assets_ready_event) == (4, "sent")
    assert (await box.row(event.event_id)).status == "delivered"
    nursery.cancel_scope.cancel()
