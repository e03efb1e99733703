"""Account actors and their rows: lost commits, several processes, and random histories."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio
from sqlalchemy import Connection, text
from trio.testing import wait_all_tasks_blocked

from holdfast.actors.account.messages import (
    AdjustCredit,
    CreateApiKey,
    CreateOrder,
    CreditChanged,
    ReceivePaymentEvent,
    Recharge,
    RevokeApiKey,
    SetAccess,
    TaskAccepted,
)
from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.runtime.messages import Replayed
from holdfast.ledger.clock import utc_now
from holdfast.ledger.ids import new_id
from holdfast.ledger.orders.order import OrderResult
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal.units import NotWritten, Unit, UnitResult
from holdfast.persistence.journal.writer import BatchWriter, CommitUnanswered, ConnectionLost
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.loop_calls import await_in_call
from holdfast.supervision.keyed_child import KeyedLimits
from holdfast.supervision.spec import Backoff
from holdfast.telemetry import metrics

from .account_checks import (
    CREDIT,
    NewTask,
    StartSystem,
    acted_on,
    assert_audit_clean,
    in_parallel,
    keyed,
    read_totals,
    settle_command,
    unwrapped,
)
from .actor_system import Payments

NO_WAIT = Backoff(0.0, 0.0, jitter=0.0)


HARDY = KeyedLimits(child_restarts=10**6, group_crashes=10**6, voids_in_row_max=10**6, backoff=NO_WAIT)


def stale_count() -> float:
    return float(metrics.FENCE_STALE.labels("account")._value.get())


def move_behind_its_back(account_id: str) -> Callable[[Connection], Any]:
    """What another process does to an account that it serves as well."""
    statement = text("update accounts set version = version + 1 where id = :id")
    return lambda connection: connection.execute(statement, {"id": account_id})


# ----------------------------------------------------------------------------------------------- the bond with rows


class StallingWriter(BatchWriter):
    """Holds every batch back until it is let go."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.connect_writer, now=utc_now)
        self.may_write = trio.Event()
        self.may_write.set()

    def write(self, units: Sequence[Unit]) -> list[UnitResult]:
        await_in_call(self.may_write.wait)
        return super().write(units)


async def test_replies_replays_and_refusals_wait_for_the_commit(
    start_system: StartSystem, database: Database, new_task: NewTask
) -> None:
    writer = StallingWriter(database)
    system = await start_system(writer=writer)
    account_id, key_id = await system.open_account()
    replies: dict[str, Any] = {}

    async def ask(name: str, command: Any) -> None:
        replies[name] = await system.ask(account_id, command)

    await system.ask(account_id, Recharge(CREDIT))
    try:
        async with trio.open_nursery() as nursery:
            writer.may_write = trio.Event()
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
    account_id, _ = await system.open_account(CREDIT)
    before = stale_count()
    await database.work(move_behind_its_back(account_id))
    replies = await in_parallel([lambda: system.ask(account_id, Recharge(CREDIT))] * 20)
    assert all(isinstance(reply, CreditChanged) for reply in replies)
    assert stale_count() > before
    balances = sorted(reply.account.balance_micro for reply in replies)
    assert balances == [CREDIT * n for n in range(2, 22)]
    assert_audit_clean(database)


async def test_two_processes_on_one_account_neither_lose_nor_double(
    start_system: StartSystem, database: Database, new_task: NewTask
) -> None:
    before = stale_count()
    systems = [await start_system(), await start_system()]
    account_id, key_id = await systems[0].open_account()
    # Both have loaded the account before they race, so at least one state becomes stale.
    await systems[0].ask(account_id, Recharge(5 * CREDIT))
    await systems[1].ask(account_id, Recharge(5 * CREDIT))

    async def hammer(system: Any, name: str) -> list[Any]:
        replies = []
        for i in range(15):
            # Both send the same keys: the second must get the first one's reply.
            replies.append(await system.ask(account_id, new_task(key_id, key=f"shared-{i}")))
            replies.append(await system.ask(account_id, Recharge(1, keyed(f"{name}-{i}"))))
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
    here, there = await start_system(), await start_system()
    account_id, key_id = await here.open_account()
    assert isinstance(await here.ask(account_id, new_task(key_id)), Refusal)
    await there.ask(account_id, Recharge(CREDIT))
    assert isinstance(await here.ask(account_id, new_task(key_id)), TaskAccepted)
    fresh = CreateApiKey("key_2", b"2" * 32, "hk_test_2", "second", ("tasks:write",))
    await there.ask(account_id, Recharge(CREDIT))
    await there.ask(account_id, fresh)
    assert isinstance(await here.ask(account_id, new_task("key_2")), TaskAccepted)
    await there.ask(account_id, RevokeApiKey(key_id))
    last = await here.ask(account_id, new_task(key_id))
    assert isinstance(last, Refusal)
    assert last.code == "invalid_api_key"


async def test_a_command_the_database_refuses_fails_alone(system: Any, database: Database) -> None:
    account_id, _ = await system.open_account()
    poison = CreateApiKey("key_p", b"p" * 32, "hk", "a NUL \x00 inside", ("tasks:read",))
    outcomes: list[Any] = []

    async def ask(command: Any) -> None:
        try:
            outcomes.append(await system.ask(account_id, command))
        except Crashed as crash:
            outcomes.append(crash)

    async with trio.open_nursery() as nursery:
        for i in range(10):
            nursery.start_soon(ask, poison if i == 4 else Recharge(CREDIT))
    assert sum(isinstance(outcome, Crashed) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, CreditChanged) for outcome in outcomes) == 9
    assert await read_totals(database, account_id) == (9 * CREDIT, 0, 9)
    assert_audit_clean(database)


# ----------------------------------------------------------------------------------------------- random histories


class FaultyWriter(BatchWriter):
    """A batch writer on a bad day: it loses connections before, during and after commits, by a seeded dice."""

    def __init__(self, database: Database, rng: random.Random) -> None:
        super().__init__(database.connect_writer, now=utc_now)
        self.rng = rng
        self.durable: dict[str, bool] = {}

    def write(self, units: Sequence[Unit]) -> list[UnitResult]:
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
        verdicts = super().write(units)
        if luck < 0.32:
            self.durable[batch_id] = True
            raise CommitUnanswered(batch_id, OSError("committed, unanswered"), if_durable=verdicts, if_void=void)
        return verdicts

    def look_up(self, batch_id: str) -> bool:
        if self.rng.random() < 0.3:
            raise ConnectionLost(OSError("still away"))
        return self.durable[batch_id]


STEPS = (
    "recharge", "create", "create", "settle", "settle", "adjust", "access", "pay", "refund", "void", "crash"
)  # fmt: skip


class Poison:
    """A message no account understands: it ends the incarnation that reads it."""


class Auditor:
    """A model of one account that only adds up the replies, independently of the service's code."""

    def __init__(self) -> None:
        self.balance_micro = 0
        self.open: dict[str, int] = {}
        self.settled: set[str] = set()
        self.operations = 0

    def recharged(self, reply: CreditChanged) -> None:
        self.balance_micro += reply.amount_micro
        self.operations += 1

    def adjusted(self, reply: CreditChanged) -> None:
        self.balance_micro += reply.amount_micro
        self.operations += 1
        assert reply.amount_micro > 0 or reply.account.balance_micro >= reply.account.held_micro

    def paid(self, amount_micro: int) -> None:
        """A payment was credited; below zero, a part of it was refunded."""
        self.balance_micro += amount_micro
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
    payments: Payments,
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
        orders: list[str] = []
        for step in range(18):
            match rng.choice(STEPS):
                case "recharge":
                    command = Recharge(rng.randrange(1, 3 * CREDIT), keyed(f"{name}-{step}"))
                    reply = unwrapped(await until_answered(account_id, command))
                    if isinstance(reply, CreditChanged):
                        auditor.recharged(reply)
                    else:
                        assert reply.code == "account_disabled"
                case "adjust":
                    action_id = await until_there(partial(acted_on, database, account_id))
                    amount_micro = rng.choice([-1, 1]) * rng.randrange(1, 2 * CREDIT)
                    adjust = AdjustCredit(amount_micro, action_id, "a note", keyed(f"{name}-{step}"))
                    reply = unwrapped(await until_answered(account_id, adjust))
                    if isinstance(reply, CreditChanged):
                        auditor.adjusted(reply)
                    else:
                        assert reply.code == "insufficient_credit"
                case "pay":
                    order = CreateOrder(payments.request(account_id), keyed(f"{name}-{step}"))
                    reply = unwrapped(await until_answered(account_id, order))
                    if isinstance(reply, OrderResult):
                        orders.append(reply.order.order_id)
                        event = payments.paid(orders[-1])
                        await until_answered(account_id, ReceivePaymentEvent(orders[-1], event, b"{}"))
                        auditor.paid(payments.amount_micro)
                    else:
                        assert reply.code == "account_disabled"
                case "refund" if orders:
                    order_id, amount_micro = orders.pop(), rng.randrange(1, payments.amount_micro + 1)
                    event = payments.refunded(order_id, amount_micro)
                    await until_answered(account_id, ReceivePaymentEvent(order_id, event, b"{}"))
                    auditor.paid(-amount_micro)
                case "access":
                    await until_answered(account_id, SetAccess(is_disabled=rng.random() < 0.3))
                case "create":
                    task = new_task(key_id, hold_micro=rng.randrange(2 * CREDIT), key=f"{name}-{step}")
                    reply = await until_answered(account_id, task)
                    reply = unwrapped(reply)
                    if isinstance(reply, TaskAccepted):
                        auditor.accepted(reply)
                        mine.append(reply.request_id)
                    else:
                        assert reply.code in {"insufficient_credit", "account_disabled"}
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

    nursery.start_soon(keep_gate_open)
    healthy = await start_system(limits=HARDY)
    account_id, key_id = await healthy.open_account()
    systems = [await start_system(limits=HARDY, writer=FaultyWriter(database, rng))]
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
