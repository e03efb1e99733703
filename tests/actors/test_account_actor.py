"""Account actors on a real database: parallel commands, keys, crashes, and several processes."""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
from msgspec.structs import replace
from sqlalchemy import Connection, text
from trio.testing import wait_all_tasks_blocked

from holdfast import metrics
from holdfast.actors.account.actor import AccountLimits
from holdfast.actors.account.messages import (
    CreateApiKey,
    CreateTask,
    Recharge,
    Recharged,
    RecordKeyUse,
    RevokeApiKey,
    SettleTask,
    TaskAccepted,
)
from holdfast.actors.account.order_messages import CreateOrder
from holdfast.actors.account.replies import RecentReplies
from holdfast.actors.runtime.faults import AskFault, Crashed, StaleFence
from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.ledger.clock import utc_now
from holdfast.ledger.ids import new_id
from holdfast.ledger.money import AMOUNT_MICRO_MAX
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.transitions import Settlement
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.journal.drafts import Prepared
from holdfast.persistence.journal.units import NotWritten, Unit, UnitResult
from holdfast.persistence.journal.writer import BatchWriter, CommitUnanswered, ConnectionLost
from holdfast.persistence.queries.loading import load_task
from holdfast.persistence.records.accounts import ApiKeyRecord, ApiKeyRevokedRow, IdempotencyProbe, StoredReply
from holdfast.persistence.records.tasks import TaskChangedRow, UsageChangedRow
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.intensity import Backoff
from holdfast.supervision.keyed_child import KeyedLimits

CREDIT = 1_000_000
NO_WAIT = Backoff(0.0, 0.0, jitter=0.0)
HARDY = KeyedLimits(child_restarts=10**6, group_crashes=10**6, voids_in_row_max=10**6, backoff=NO_WAIT)

NewTask = Callable[..., CreateTask]
StartSystem = Callable[..., Awaitable[Any]]


def keyed(key: str, fingerprint: bytes = b"same body") -> IdempotencyKey:
    return IdempotencyKey("POST /v2/control/sandbox/recharge", key, fingerprint)


async def settle_command(
    database: Database, request_id: str, charge_micro: int | None, *, version: int | None = None
) -> SettleTask:
    """What a task's actor would ask of its account to end the task."""
    task = await database.read(lambda connection: load_task(connection, request_id))
    operation_id, at = new_id("op"), utc_now()
    after = replace(
        task,
        version=task.version + 1,
        status="canceled" if charge_micro is None else "succeeded",
        wake_at=None,
        updated_at=at,
        state=replace(task.state, cost_micro=charge_micro or 0, operation_id=operation_id),
    )
    return SettleTask(
        request_id,
        task.version if version is None else version,
        Settlement(
            kind="release" if charge_micro is None else "capture",
            hold_id=task.request.hold_id,
            charge_micro=charge_micro or 0,
            operation_id=operation_id,
            reason="because",
            at=at,
        ),
        (TaskChangedRow(after), UsageChangedRow(after)),
    )


def totals(connection: Connection, account_id: str) -> tuple[int, int, int]:
    row = connection.execute(
        text("select balance_micro, held_micro, operation_count from accounts where id = :id"), {"id": account_id}
    ).one()
    return row.balance_micro, row.held_micro, row.operation_count


async def read_totals(database: Database, account_id: str) -> tuple[int, int, int]:
    return await database.read(lambda connection: totals(connection, account_id))


async def count(database: Database, table: str) -> int:
    sql = text(f"select count(*) from {table}")
    return await database.read(lambda connection: int(connection.execute(sql).scalar_one()))


async def in_parallel(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    replies: list[Any] = [None] * len(calls)

    async def call(index: int) -> None:
        replies[index] = await calls[index]()

    async with trio.open_nursery() as nursery:
        for index in range(len(calls)):
            nursery.start_soon(call, index)
    return replies


def unwrapped(reply: Any) -> Any:
    """The answer itself, first-hand or replayed."""
    return reply.reply if isinstance(reply, Replayed) else reply


def assert_audit_clean(database: Database) -> None:
    with connected(database.url) as connection:
        broken = [check for check in run_audit(connection) if not check.ok]
    assert not broken


def stale_count() -> float:
    return float(metrics.FENCE_STALE.labels("account")._value.get())


async def fallen_asleep(system: Any) -> None:
    while system.accounts.awake_count:  # noqa: ASYNC110 - passivation has no event
        await trio.sleep(0.01)


def move_behind_its_back(account_id: str) -> Callable[[Connection], Any]:
    """What another process does to an account that it serves as well."""
    statement = text("update accounts set version = version + 1 where id = :id")
    return lambda connection: connection.execute(statement, {"id": account_id})


# ------------------------------------------------------------------------------------------------- credit and keys


async def test_of_200_parallel_tasks_those_the_credit_covers_are_accepted(system: Any, new_task: NewTask) -> None:
    with trio.fail_after(30):
        account_id, key_id = await system.open_account()
        await system.accounts.ref(account_id).ask(Recharge(7 * CREDIT))
        replies = await in_parallel([lambda: system.accounts.ref(account_id).ask(new_task(key_id))] * 200)
    accepted = [reply for reply in replies if isinstance(reply, TaskAccepted)]
    refused = [reply for reply in replies if isinstance(reply, Refusal)]
    assert (len(accepted), len(refused)) == (7, 193)
    assert {refusal.code for refusal in refused} == {"insufficient_credit"}
    assert await read_totals(system.database, account_id) == (7 * CREDIT, 7 * CREDIT, 8)
    assert sorted(system.announced) == sorted(reply.request_id for reply in accepted)
    assert_audit_clean(system.database)


async def test_50_parallel_calls_with_one_key_create_one_task(system: Any, new_task: NewTask) -> None:
    with trio.fail_after(30):
        account_id, key_id = await system.open_account()
        await system.accounts.ref(account_id).ask(Recharge(7 * CREDIT))
        replies = await in_parallel([lambda: system.accounts.ref(account_id).ask(new_task(key_id, key="k"))] * 50)
    answers = [unwrapped(reply) for reply in replies]
    assert sum(isinstance(reply, Replayed) for reply in replies) == 49
    assert all(answer == answers[0] for answer in answers)
    assert isinstance(answers[0], TaskAccepted)
    assert await count(system.database, "tasks") == 1
    assert await read_totals(system.database, account_id) == (7 * CREDIT, CREDIT, 2)
    assert len(system.announced) == 1


async def test_a_key_used_for_another_request_is_refused(system: Any) -> None:
    with trio.fail_after(30):
        account_id, _ = await system.open_account()
        first = await system.accounts.ref(account_id).ask(Recharge(CREDIT, keyed("k")))
        other = await system.accounts.ref(account_id).ask(Recharge(2 * CREDIT, keyed("k", b"other body")))
    assert isinstance(first, Recharged)
    assert isinstance(other, Refusal)
    assert other.code == "idempotency_key_reused"
    assert other.final
    assert await read_totals(system.database, account_id) == (CREDIT, 0, 1)


async def test_the_same_key_on_another_route_is_another_key(system: Any) -> None:
    with trio.fail_after(30):
        account_id, _ = await system.open_account()
        for route in ("POST /a", "POST /b"):
            reply = await system.accounts.ref(account_id).ask(Recharge(CREDIT, IdempotencyKey(route, "k", b"body")))
            assert isinstance(reply, Recharged)
    assert await read_totals(system.database, account_id) == (2 * CREDIT, 0, 2)


@pytest.mark.parametrize("fingerprint", [b"same body", b"other body"])
async def test_a_key_is_found_in_rows_after_passivation(start_system: StartSystem, fingerprint: bytes) -> None:
    with trio.fail_after(30):
        system = await start_system(limits=KeyedLimits(idle_s=0.02))
        account_id, _ = await system.open_account()
        first = await system.accounts.ref(account_id).ask(Recharge(CREDIT, keyed("k")))
        await fallen_asleep(system)
        again = await system.accounts.ref(account_id).ask(Recharge(CREDIT, keyed("k", fingerprint)))
    if fingerprint == b"same body":
        assert again == Replayed(first)
    else:
        assert isinstance(again, Refusal)
        assert again.code == "idempotency_key_reused"
    assert await read_totals(system.database, account_id) == (CREDIT, 0, 1)


async def test_a_used_key_is_replayed_although_a_limit_is_reached(
    start_system: StartSystem, new_task: NewTask, payments: Any
) -> None:
    limits = AccountLimits(tasks_in_flight_max=1, orders_pending_max=1)
    with trio.fail_after(30):
        first, second = await start_system(account_limits=limits), await start_system(account_limits=limits)
        account_id, key_id = await first.open_account()
        commands = [
            Recharge(AMOUNT_MICRO_MAX, keyed("k")),
            new_task(key_id, key="k"),
            CreateOrder(payments.request(account_id, "sandbox"), keyed("order")),
        ]
        created = [await first.accounts.ref(account_id).ask(command) for command in commands]
        # The other process remembers no answer, and could accept none of them by now.
        again = [await second.accounts.ref(account_id).ask(command) for command in commands]
        fresh = [
            await second.accounts.ref(account_id).ask(command)
            for command in (
                Recharge(AMOUNT_MICRO_MAX, keyed("other")),
                new_task(key_id, key="other"),
                CreateOrder(payments.request(account_id, "sandbox"), keyed("other order")),
            )
        ]
    assert again == [Replayed(reply) for reply in created]
    assert [refusal.code for refusal in fresh] == [
        "amount_too_large",
        "concurrency_limit_exceeded",
        "too_many_open_orders",
    ]


async def test_hundreds_of_replies_found_in_rows_are_no_crash_loop(start_system: StartSystem) -> None:
    keys = AccountLimits().replies_max + 150
    with trio.fail_after(30):
        first, second = await start_system(), await start_system()
        account_id, _ = await first.open_account()
        created = await in_parallel(
            [partial(first.accounts.ref(account_id).ask, Recharge(CREDIT, keyed(f"k{i}"))) for i in range(keys)]
        )
        for i in range(keys):
            found = await second.accounts.ref(account_id).ask(Recharge(CREDIT, keyed(f"k{i}")))
            assert found == Replayed(created[i])
    assert second.reporter.recent() == ()
    assert await read_totals(first.database, account_id) == (keys * CREDIT, 0, keys)


async def test_more_replies_found_at_once_than_are_remembered(start_system: StartSystem) -> None:
    with trio.fail_after(30):
        first = await start_system()
        second = await start_system(account_limits=AccountLimits(replies_max=4))
        account_id, _ = await first.open_account()
        commands = [Recharge(CREDIT, keyed(f"k{i}")) for i in range(30)]
        created = await in_parallel([partial(first.accounts.ref(account_id).ask, each) for each in commands])
        again = await in_parallel([partial(second.accounts.ref(account_id).ask, each) for each in commands])
    assert again == [Replayed(reply) for reply in created]
    assert second.reporter.recent() == ()
    assert await read_totals(first.database, account_id) == (30 * CREDIT, 0, 30)


def test_replies_found_in_rows_are_bounded() -> None:
    replies = RecentReplies("acct_1", replies_max=3)
    refusal = Refusal(code="insufficient_credit", message="No.")
    stored = StoredReply(b"same body", msgspec.json.encode(refusal))
    replies.learn([(IdempotencyProbe("acct_1", "POST /r", f"k{i}"), stored) for i in range(5)])

    def remembered() -> list[str]:
        keys = [IdempotencyKey("POST /r", f"k{i}", b"same body") for i in range(7)]
        return [key.key for key in keys if replies.find(key, Recharged) is not None]

    assert remembered() == ["k0", "k1", "k2"]
    for name in ("k5", "k6"):
        replies.add(IdempotencyKey("POST /r", name, b"same body"), refusal, utc_now())
    assert remembered() == ["k2", "k5", "k6"]


async def test_a_refusal_for_insufficient_credit_is_replayed(system: Any, new_task: NewTask) -> None:
    with trio.fail_after(30):
        account_id, key_id = await system.open_account()
        refused = await system.accounts.ref(account_id).ask(new_task(key_id, key="k"))
        await system.accounts.ref(account_id).ask(Recharge(7 * CREDIT))
        again = await system.accounts.ref(account_id).ask(new_task(key_id, key="k"))
        fresh = await system.accounts.ref(account_id).ask(new_task(key_id, key="another"))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.required_micro, refused.available_micro) == ("insufficient_credit", CREDIT, 0)
    assert again == Replayed(refused)
    assert isinstance(fresh, TaskAccepted)


async def test_a_revoked_key_is_refused_by_the_next_command(system: Any, new_task: NewTask) -> None:
    with trio.fail_after(30):
        account_id, key_id = await system.open_account()
        await system.accounts.ref(account_id).ask(Recharge(7 * CREDIT))
        revoked, refused, again = await in_parallel(
            [
                lambda: system.accounts.ref(account_id).ask(RevokeApiKey(key_id)),
                lambda: system.accounts.ref(account_id).ask(new_task(key_id)),
                lambda: system.accounts.ref(account_id).ask(RevokeApiKey(key_id)),
            ]
        )
    replies = [revoked, refused, again]
    # The three arrive in any order; what came after the revocation is refused.
    assert any(isinstance(reply, ApiKeyRevokedRow) for reply in replies)
    last = await system.accounts.ref(account_id).ask(new_task(key_id))
    assert isinstance(last, Refusal)
    assert last.code == "invalid_api_key"


async def test_a_key_without_the_scope_is_refused(system: Any, new_task: NewTask) -> None:
    with trio.fail_after(30):
        account_id, _ = await system.open_account()
        reader = CreateApiKey("key_reader", b"r" * 32, "hk_test_r", 'a "name", {b}\\', ("tasks:read",))
        assert isinstance(await system.accounts.ref(account_id).ask(reader), ApiKeyRecord)
        refused = await system.accounts.ref(account_id).ask(new_task("key_reader"))
    assert isinstance(refused, Refusal)
    assert refused.code == "insufficient_scope"


async def test_recording_a_keys_use_does_not_change_the_version(system: Any) -> None:
    with trio.fail_after(30):
        account_id, key_id = await system.open_account()
        at = utc_now()
        await system.accounts.ref(account_id).ask(RecordKeyUse(key_id, at))
        sql = text("select version, last_used_at from accounts a join api_keys k on k.account_id = a.id")
        row = await system.database.read(lambda connection: connection.execute(sql).one())
    assert (row.version, row.last_used_at) == (0, at)


# -------------------------------------------------------------------------------------------------------- settling


async def test_a_hold_is_settled_once(system: Any, new_task: NewTask) -> None:
    with trio.fail_after(30):
        account_id, key_id = await system.open_account()
        await system.accounts.ref(account_id).ask(Recharge(2 * CREDIT))
        accepted = await system.accounts.ref(account_id).ask(new_task(key_id))
        capture = await settle_command(system.database, accepted.request_id, 400_000)
        release = await settle_command(system.database, accepted.request_id, None)
        settled = await system.accounts.ref(account_id).ask(capture)
        refused = await system.accounts.ref(account_id).ask(release)
    assert settled == capture.settlement
    assert isinstance(refused, Refusal)
    assert refused.code == "hold_not_open"
    assert await read_totals(system.database, account_id) == (1_600_000, 0, 3)
    assert_audit_clean(system.database)


async def test_a_stale_task_is_refused_and_the_account_is_unchanged(system: Any, new_task: NewTask) -> None:
    with trio.fail_after(30):
        account_id, key_id = await system.open_account()
        await system.accounts.ref(account_id).ask(Recharge(2 * CREDIT))
        accepted = await system.accounts.ref(account_id).ask(new_task(key_id))
        stale = await settle_command(system.database, accepted.request_id, 400_000, version=7)
        outcomes: list[Any] = []

        async def settle() -> None:
            try:
                outcomes.append(await system.accounts.ref(account_id).ask(stale))
            except StaleFence as fault:
                outcomes.append(str(fault))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle)
            for _ in range(5):
                nursery.start_soon(system.accounts.ref(account_id).ask, Recharge(CREDIT))
        assert outcomes == [f"task {accepted.request_id}"]
        assert await read_totals(system.database, account_id) == (7 * CREDIT, CREDIT, 7)
        good = await settle_command(system.database, accepted.request_id, 400_000)
        assert isinstance(await system.accounts.ref(account_id).ask(good), Settlement)
    assert_audit_clean(system.database)


# ----------------------------------------------------------------------------------------------- the bond with rows


class StallingWriter:
    """Holds every batch back until it is let go."""

    def __init__(self, inner: BatchWriter) -> None:
        self.inner = inner
        self.may_write = threading.Event()
        self.may_write.set()

    def write(self, units: Sequence[Unit], prepared: Prepared | None = None) -> list[UnitResult]:
        self.may_write.wait(20)
        return self.inner.write(units, prepared)

    def look_up(self, batch_id: str) -> bool:
        return self.inner.look_up(batch_id)

    def close(self) -> None:
        self.inner.close()


async def test_replies_replays_and_refusals_wait_for_the_commit(
    start_system: StartSystem, database: Database, new_task: NewTask
) -> None:
    writer = StallingWriter(BatchWriter(database.connect_writer, now=utc_now))
    with trio.fail_after(30):
        system = await start_system(writer=writer)
        account_id, key_id = await system.open_account()
        replies: dict[str, Any] = {}

        async def ask(name: str, command: Any) -> None:
            replies[name] = await system.accounts.ref(account_id).ask(command)

        await system.accounts.ref(account_id).ask(Recharge(CREDIT))
        try:
            async with trio.open_nursery() as nursery:
                writer.may_write.clear()
                for name, key in (("first", "k"), ("replay", "k"), ("refusal", None)):
                    nursery.start_soon(ask, name, new_task(key_id, key=key))
                    await wait_all_tasks_blocked()
                assert replies == {}
                assert await read_totals(database, account_id) == (CREDIT, 0, 1)
                writer.may_write.set()
        finally:
            writer.may_write.set()
    assert isinstance(replies["first"], TaskAccepted)
    assert replies["replay"] == Replayed(replies["first"])
    assert isinstance(replies["refusal"], Refusal)


async def test_an_account_changed_by_another_process_is_reloaded(system: Any, database: Database) -> None:
    with trio.fail_after(30):
        account_id, _ = await system.open_account()
        await system.accounts.ref(account_id).ask(Recharge(CREDIT))
        before = stale_count()
        await database.work(move_behind_its_back(account_id))
        replies = await in_parallel([lambda: system.accounts.ref(account_id).ask(Recharge(CREDIT))] * 20)
    assert all(isinstance(reply, Recharged) for reply in replies)
    assert stale_count() > before
    balances = sorted(reply.account.balance_micro for reply in replies)
    assert balances == [CREDIT * n for n in range(2, 22)]
    assert_audit_clean(database)


async def test_two_processes_on_one_account_neither_lose_nor_double(
    start_system: StartSystem, database: Database, new_task: NewTask
) -> None:
    before = stale_count()
    with trio.fail_after(60):
        systems = [await start_system(), await start_system()]
        account_id, key_id = await systems[0].open_account()
        # Both have loaded the account before they race, so at least one state becomes stale.
        await systems[0].accounts.ref(account_id).ask(Recharge(5 * CREDIT))
        await systems[1].accounts.ref(account_id).ask(Recharge(5 * CREDIT))

        async def hammer(system: Any, name: str) -> list[Any]:
            replies = []
            for i in range(15):
                # Both send the same keys: the second must get the first one's reply.
                replies.append(await system.accounts.ref(account_id).ask(new_task(key_id, key=f"shared-{i}")))
                replies.append(await system.accounts.ref(account_id).ask(Recharge(1, keyed(f"{name}-{i}"))))
            return replies

        first, second = await in_parallel([partial(hammer, systems[0], "a"), partial(hammer, systems[1], "b")])
    plain = [[unwrapped(reply) for reply in replies[::2]] for replies in (first, second)]
    assert plain[0] == plain[1]
    accepted = [reply for reply in plain[0] if isinstance(reply, TaskAccepted)]
    assert len(accepted) == 10
    assert stale_count() > before
    assert await read_totals(database, account_id) == (10 * CREDIT + 30, 10 * CREDIT, 42)
    assert sorted(systems[0].announced + systems[1].announced) == sorted(reply.request_id for reply in accepted)
    assert_audit_clean(database)


async def test_no_process_refuses_by_a_state_that_is_stale(start_system: StartSystem, new_task: NewTask) -> None:
    with trio.fail_after(30):
        here, there = await start_system(), await start_system()
        account_id, key_id = await here.open_account()
        assert isinstance(await here.accounts.ref(account_id).ask(new_task(key_id)), Refusal)
        await there.accounts.ref(account_id).ask(Recharge(CREDIT))
        assert isinstance(await here.accounts.ref(account_id).ask(new_task(key_id)), TaskAccepted)
        fresh = CreateApiKey("key_2", b"2" * 32, "hk_test_2", "second", ("tasks:write",))
        await there.accounts.ref(account_id).ask(Recharge(CREDIT))
        await there.accounts.ref(account_id).ask(fresh)
        assert isinstance(await here.accounts.ref(account_id).ask(new_task("key_2")), TaskAccepted)
        await there.accounts.ref(account_id).ask(RevokeApiKey(key_id))
        last = await here.accounts.ref(account_id).ask(new_task(key_id))
    assert isinstance(last, Refusal)
    assert last.code == "invalid_api_key"


async def test_a_command_the_database_refuses_fails_alone(system: Any, database: Database) -> None:
    with trio.fail_after(30):
        account_id, _ = await system.open_account()
        poison = CreateApiKey("key_p", b"p" * 32, "hk", "a NUL \x00 inside", ("tasks:read",))
        outcomes: list[Any] = []

        async def ask(command: Any) -> None:
            try:
                outcomes.append(await system.accounts.ref(account_id).ask(command))
            except Crashed as crash:
                outcomes.append(crash)

        async with trio.open_nursery() as nursery:
            for i in range(10):
                nursery.start_soon(ask, poison if i == 4 else Recharge(CREDIT))
    assert sum(isinstance(outcome, Crashed) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Recharged) for outcome in outcomes) == 9
    assert await read_totals(database, account_id) == (9 * CREDIT, 0, 9)
    assert_audit_clean(database)


# ----------------------------------------------------------------------------------------------- random histories


class FaultyWriter:
    """A batch writer on a bad day: it loses connections before, during and after commits, by a seeded dice."""

    def __init__(self, inner: BatchWriter, rng: random.Random) -> None:
        self.inner = inner
        self.rng = rng
        self.durable: dict[str, bool] = {}

    def write(self, units: Sequence[Unit], prepared: Prepared | None = None) -> list[UnitResult]:
        luck = self.rng.random()
        if luck < 0.08:
            raise ConnectionLost(OSError("before anything was sent"))
        if luck < 0.16:
            return [NotWritten("injected")] * len(units)
        void: list[UnitResult] = [NotWritten("the commit did not happen")] * len(units)
        batch_id = new_id("batch")
        if luck < 0.24:
            self.durable[batch_id] = False
            raise CommitUnanswered(batch_id, OSError("sent, lost"), if_durable=void, if_void=void)
        verdicts = self.inner.write(units, prepared)
        if luck < 0.32:
            self.durable[batch_id] = True
            raise CommitUnanswered(batch_id, OSError("committed, unanswered"), if_durable=verdicts, if_void=void)
        return verdicts

    def look_up(self, batch_id: str) -> bool:
        if self.rng.random() < 0.3:
            raise ConnectionLost(OSError("still away"))
        return self.durable[batch_id]

    def close(self) -> None:
        self.inner.close()


class Poison:
    """A message no account understands: it ends the incarnation that reads it."""


class Auditor:
    """A model of one account that only adds up the replies, independently of the service's code."""

    def __init__(self) -> None:
        self.balance_micro = 0
        self.open: dict[str, int] = {}
        self.settled: set[str] = set()
        self.operations = 0

    def recharged(self, reply: Recharged) -> None:
        self.balance_micro += reply.amount_micro
        self.operations += 1

    def accepted(self, reply: TaskAccepted) -> None:
        assert reply.request_id not in self.open
        assert reply.request_id not in self.settled
        self.open[reply.request_id] = reply.estimated_micro
        self.operations += 1

    def ended(self, request_id: str, charge_micro: int | None) -> None:
        assert (charge_micro or 0) <= self.open.pop(request_id)
        self.settled.add(request_id)
        self.balance_micro -= charge_micro or 0
        self.operations += 1


@pytest.mark.parametrize("has_rival", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_random_histories_with_faults_match_the_auditor(
    start_system: StartSystem,
    database: Database,
    new_task: NewTask,
    *,
    nursery: trio.Nursery,
    seed: int,
    has_rival: bool,
) -> None:
    rng = random.Random(seed)
    auditor = Auditor()

    async def keep_gate_open() -> None:
        while True:
            await database.gate.wait_closed()
            await database.open()

    async def until_there(step: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await step()
            except DatabaseAway:
                await database.gate.wait_open()

    async def until_answered(account_id: str, command: Any) -> Any:
        """Retry with the same key until there is a reply."""
        while True:
            try:
                return await rng.choice(systems).accounts.ref(account_id).ask(command)
            except (AskFault, Crashed):
                await trio.lowlevel.checkpoint()

    async def client(account_id: str, key_id: str, name: int) -> None:
        mine: list[str] = []
        for step in range(25):
            match rng.choice(["recharge", "create", "create", "settle", "settle", "void", "crash"]):
                case "recharge":
                    command = Recharge(rng.randrange(1, 3 * CREDIT), keyed(f"{name}-{step}"))
                    reply = await until_answered(account_id, command)
                    auditor.recharged(unwrapped(reply))
                case "create":
                    task = new_task(key_id, hold_micro=rng.randrange(2 * CREDIT), key=f"{name}-{step}")
                    reply = await until_answered(account_id, task)
                    reply = unwrapped(reply)
                    if isinstance(reply, TaskAccepted):
                        auditor.accepted(reply)
                        mine.append(reply.request_id)
                    else:
                        assert reply.code == "insufficient_credit"
                case "settle" if mine:
                    request_id = mine.pop()
                    charge_micro = rng.choice([None, rng.randint(0, auditor.open[request_id])])
                    settle = await until_there(partial(settle_command, database, request_id, charge_micro))
                    reply = await until_answered(account_id, settle)
                    if isinstance(reply, Refusal):
                        assert reply.code == "hold_not_open"  # an unanswered try of this same command did it
                    auditor.ended(request_id, charge_micro)
                case "void":
                    await until_there(partial(database.work, move_behind_its_back(account_id)))
                case "crash":
                    systems[0].accounts.ref(account_id).tell(Poison())
                case _:
                    pass

    with trio.fail_after(60):
        nursery.start_soon(keep_gate_open)
        inner = BatchWriter(database.connect_writer, now=utc_now)
        healthy = await start_system(limits=HARDY)
        account_id, key_id = await healthy.open_account()
        systems = [await start_system(limits=HARDY, writer=FaultyWriter(inner, rng))]
        if has_rival:
            systems.append(healthy)
        async with trio.open_nursery() as clients:
            for name in range(6):
                clients.start_soon(client, account_id, key_id, name)
    assert await read_totals(database, account_id) == (
        auditor.balance_micro,
        sum(auditor.open.values()),
        auditor.operations,
    )
    assert_audit_clean(database)
