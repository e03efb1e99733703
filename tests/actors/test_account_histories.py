"""Account actors and their rows: lost commits, several processes, and random histories."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from sqlalchemy import Connection, text
from tests.limit_model import Bound, spending_replayed
from tests.lot_model import VOIDED, replayed
from trio.testing import wait_all_tasks_blocked

from holdfast.actors.account.group_messages import ChangeKeyGroup, CreateKeyGroup
from holdfast.actors.account.messages import (
    AdjustCredit,
    ChangeApiKey,
    CreateApiKey,
    CreateOrder,
    CreditChanged,
    ExpireLots,
    ExpireOrder,
    GrantCredit,
    LotsExpired,
    ReceivePaymentEvent,
    Recharge,
    RecordCustomer,
    RecordIntentRefused,
    ResumeTopUp,
    RevokeApiKey,
    SaveCard,
    SetAccess,
    SetAutoTopUp,
    SetCeiling,
    SetLimits,
    TaskAccepted,
    VoidLot,
    redeem_coupon,
)
from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.runtime.messages import Replayed
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.credit.limits import WINDOWS, Limit
from holdfast.ledger.orders.facts import DisputeStatus, PaymentEvent
from holdfast.ledger.orders.order import OrderBonus, OrderResult
from holdfast.ledger.orders.top_ups import AutoTopUp, SavedCard, TopUpSettings
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.claims.coupons import add_coupon
from holdfast.persistence.journal.units import NotWritten, Unit, UnitResult
from holdfast.persistence.journal.writer import BatchWriter, CommitUnanswered, ConnectionLost
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.queries.lots import lots_of_account
from holdfast.persistence.queries.orders import top_up_of_account
from holdfast.persistence.server.connections import await_in_call
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.supervision.spec import Backoff
from holdfast.telemetry import metrics

from .account_checks import (
    CREDIT,
    Clock,
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
from .test_account_lots import claim, left, make_coupon

HOUR = timedelta(hours=1)
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
        super().__init__(database.keep_writer(), now=utc_now)
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
    fresh = CreateApiKey("key_2", b"2" * 32, "hk_test_2", KeyTerms("second", ("tasks:write",)))
    await there.ask(account_id, Recharge(CREDIT))
    await there.ask(account_id, fresh)
    assert isinstance(await here.ask(account_id, new_task("key_2")), TaskAccepted)
    await there.ask(account_id, RevokeApiKey(key_id))
    last = await here.ask(account_id, new_task(key_id))
    assert isinstance(last, Refusal)
    assert last.code == "invalid_api_key"


async def test_a_command_the_database_refuses_fails_alone(system: Any, database: Database) -> None:
    account_id, _ = await system.open_account()
    poison = CreateApiKey("key_p", b"p" * 32, "hk", KeyTerms("a NUL \x00 inside", ("tasks:read",)))
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
        super().__init__(database.keep_writer(), now=utc_now)
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
    "recharge", "grant", "grant", "coupon", "create", "create", "create", "create", "settle", "settle", "settle",
    "adjust", "access", "limit", "pay", "refund", "dispute", "top_up", "top_up", "top_up", "switch_on", "wait",
    "expire", "void_lot", "void_lot", "void", "crash",
)  # fmt: skip
CLIENTS = 6
STEPS_EACH = 30
TOP_UP = TopUpSettings(below_micro=12 * CREDIT, amount_micro=10 * CREDIT, max_per_day=1, max_per_month=3)
REFUSED_HOLDS = {"insufficient_credit", "account_disabled", "key_limit_exceeded", "account_limit_exceeded"}


class Poison:
    """A message no account understands: it ends the incarnation that reads it."""


@dataclass
class PaidOrder:
    """An order of ten credits that was paid, and what was taken back of it; its bonus, and what it has given."""

    order_id: str
    offered_micro: int = 0
    bonus_micro: int = 0
    bonus_until: datetime | None = None
    refunded_micro: int = 0
    is_disputed: bool = False

    @property
    def worth_micro(self) -> int:
        taken_micro = self.refunded_micro + (Payments.amount_micro if self.is_disputed else 0)
        return max(0, Payments.amount_micro - taken_micro)


class Auditor:
    """A model of one account that only adds up the replies, independently of the service's code.

    ``outcomes`` are what becomes of each attempt of a top-up: it is paid, refused, or never charged.
    """

    def __init__(self) -> None:
        self.balance_micro = 0
        self.open: dict[str, int] = {}
        self.settled: set[str] = set()
        self.operations = 0
        self.outcomes: dict[str, str] = {}
        self.topped_up: set[str] = set()

    def given(self, reply: CreditChanged) -> None:
        self.balance_micro += reply.amount_micro
        self.operations += 1

    def adjusted(self, reply: CreditChanged) -> None:
        self.given(reply)
        assert reply.amount_micro > 0 or reply.account.balance_micro >= reply.account.held_micro

    def bonus(self, order: PaidOrder, reply: OrderResult, at: datetime) -> None:
        """What the bonus of an order gives follows its worth: no less, and more only while holds have it."""
        due_micro = order.offered_micro * order.worth_micro // Payments.amount_micro
        given_micro = sum(move.amount_micro for move in reply.order.state.bonus_moves)
        if given_micro < due_micro:
            assert order.bonus_until is not None
            assert order.bonus_until <= at
        assert given_micro <= max(due_micro, order.bonus_micro)
        self.paid(given_micro - order.bonus_micro)
        order.bonus_micro = given_micro

    def paid(self, amount_micro: int) -> None:
        """The worth of an order has changed."""
        if amount_micro:
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


def attempts_in(rows: Connection, account_id: str) -> tuple[AutoTopUp, dict[str, tuple[str, datetime]]]:
    """Return the automatic top-up with its attempts, each with its status and the time it was opened."""
    about = {"id": account_id}
    version = text("select version from accounts where id = :id")
    before = rows.scalar(version, about)
    top_up = top_up_of_account(rows, account_id)
    assert top_up is not None
    sql = text("select order_id, status, created_at from orders where account_id = :id and origin = 'top_up'")
    attempts = {row.order_id: (row.status, row.created_at) for row in rows.execute(sql, about)}
    if rows.scalar(version, about) != before:
        return attempts_in(rows, account_id)
    is_open = [order_id for order_id, (status, _) in attempts.items() if status in ("pending", "held")]
    assert is_open == ([] if top_up.open_order_id is None else [top_up.open_order_id])
    return top_up, attempts


def assert_refusal_is_justified(refusal: Refusal) -> None:
    assert refusal.code in REFUSED_HOLDS
    if refusal.code == "insufficient_credit":
        assert refusal.available_micro is not None
        assert refusal.required_micro is not None
        assert refusal.available_micro < max(refusal.required_micro, 0) or refusal.available_micro < 0
    if refusal.limit is not None:
        assert refusal.required_micro is not None
        assert refusal.limit.spent_micro + refusal.required_micro > refusal.limit.credits_micro


@pytest.mark.parametrize(
    ("seed", "has_rival"),
    [
        (0, True),
        *(pytest.param(seed, has_rival, marks=pytest.mark.slow) for seed in (1, 2) for has_rival in (False, True)),
    ],
)
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
    """Everything that moves credit or bounds it, at once: credit of every source, holds over several lots, partial
    charges, expiry at any moment, refunds, disputes, top-ups, limits that change, and faults.
    """
    rng = random.Random(seed)
    auditor = Auditor()
    clock = Clock(utc_now())

    async def keep_gate_open() -> None:
        while True:
            await database.gate.wait_closed()
            await database.open()

    async def until_there(step: Callable[..., Awaitable[Any]], *about: Any, **more: Any) -> Any:
        while True:
            try:
                return await step(*about, **more)
            except DatabaseAway:
                await database.gate.wait_open()

    async def until_answered(command: Any) -> Any:
        """Retry with the same key until there is a reply."""
        while True:
            try:
                return unwrapped(await rng.choice(systems).accounts.ref(account_id).ask(command))
            except (AskFault, Crashed):
                await trio.lowlevel.checkpoint()

    async def give(command: Any, *refusals: str) -> None:
        reply = await until_answered(command)
        if isinstance(reply, CreditChanged):
            auditor.given(reply)
        else:
            assert reply.code in refusals

    async def take_back(order: PaidOrder, event: PaymentEvent, **change: Any) -> None:
        before = order.worth_micro
        reply = await until_answered(ReceivePaymentEvent(order.order_id, event, b"{}"))
        assert isinstance(reply, OrderResult)
        for name, value in change.items():
            setattr(order, name, value)
        auditor.paid(order.worth_micro - before)
        auditor.bonus(order, reply, clock.at)

    async def charge_attempt(orders: list[PaidOrder]) -> None:
        """Do what becomes of the open attempt of the top-up; others may do so at the same time."""
        top_up, _ = await until_there(database.read, attempts_in, account_id)
        if top_up.open_order_id is None:
            await until_answered(ResumeTopUp())
            return
        order_id = top_up.open_order_id
        match auditor.outcomes.setdefault(order_id, rng.choice(["paid", "paid", "paid", "refused", "left"])):
            case "paid":
                reply = await until_answered(ReceivePaymentEvent(order_id, payments.paid(order_id), b"{}"))
                assert isinstance(reply, OrderResult)
                assert reply.order.status == "credited"
                if order_id not in auditor.topped_up:
                    auditor.topped_up.add(order_id)
                    auditor.paid(payments.amount_micro)
                    orders.append(PaidOrder(order_id))
            case "refused":
                await until_answered(RecordIntentRefused(order_id, "card_declined"))
            case _:
                await until_answered(ExpireOrder(order_id))

    async def client(name: int) -> None:
        mine: list[str] = []
        orders: list[PaidOrder] = []
        for step in range(STEPS_EACH):
            key = f"{name}-{step}"
            amount_micro = rng.randrange(1, 2 * CREDIT)
            until = rng.choice([None, clock.at + rng.randrange(1, 30) * HOUR])
            match rng.choice(STEPS):
                case "recharge":
                    await give(Recharge(amount_micro, keyed(key)), "account_disabled")
                case "grant":
                    action_id = await until_there(acted_on, database, account_id)
                    granted = GrantCredit(amount_micro, until, action_id, "a present", keyed(key))
                    await give(granted, "invalid_parameter")
                case "coupon":
                    await until_there(database.work, add_coupon, make_coupon(key, amount_micro=amount_micro))
                    await give(redeem_coupon(await until_there(claim, database, account_id, key)))
                case "adjust":
                    action_id = await until_there(acted_on, database, account_id)
                    signed = amount_micro * rng.choice([1, -1])
                    reply = await until_answered(AdjustCredit(signed, action_id, "a note", keyed(key)))
                    if isinstance(reply, CreditChanged):
                        auditor.adjusted(reply)
                    else:
                        assert reply.code == "insufficient_credit"
                case "void_lot":
                    action_id = await until_there(acted_on, database, account_id)
                    read = partial(lots_of_account, account_id=account_id, limit=100, is_open=True)
                    number = rng.choice([each.number for each in await until_there(database.read, read)] or [1])
                    voided = VoidLot(number, action_id, VOIDED, keyed(key))
                    await give(voided, "credit_lot_not_found", "credit_lot_not_voidable")
                case "pay":
                    bonus = OrderBonus(credit_micro=amount_micro, expires_days=1) if rng.random() < 0.6 else None
                    request = payments.request(account_id, bonus=bonus)
                    reply = await until_answered(CreateOrder(request, keyed(key)))
                    if isinstance(reply, OrderResult):
                        order_id = reply.order.order_id
                        event = payments.paid(order_id)
                        reply = await until_answered(ReceivePaymentEvent(order_id, event, b"{}"))
                        assert isinstance(reply, OrderResult)
                        order = PaidOrder(order_id, 0 if bonus is None else amount_micro)
                        order.bonus_until = reply.order.bonus_expires_at
                        orders.append(order)
                        auditor.paid(payments.amount_micro)
                        auditor.bonus(order, reply, clock.at)
                    else:
                        assert reply.code == "account_disabled"
                case "refund" if orders:
                    order = orders.pop(rng.randrange(len(orders)))
                    refunded = rng.randrange(1, payments.amount_micro + 1)
                    event = payments.refunded(order.order_id, refunded)
                    await take_back(order, event, refunded_micro=refunded)
                case "dispute" if orders:
                    order = rng.choice(orders)
                    if not order.is_disputed:
                        event = payments.disputed(order.order_id, "needs_response")
                        await take_back(order, event, is_disputed=True)
                    else:
                        orders.remove(order)
                        result: DisputeStatus = rng.choice(["won", "lost"])
                        event = payments.disputed(order.order_id, result)
                        await take_back(order, event, is_disputed=result == "lost")
                case "top_up":
                    await charge_attempt(orders)
                case "switch_on":
                    below_micro = rng.randrange(1, 20 * CREDIT)
                    await until_answered(
                        SetAutoTopUp(replace(TOP_UP, below_micro=below_micro), rng.random() < 0.95)
                    )
                case "access":
                    await until_answered(SetAccess(is_disabled=rng.random() < 0.2))
                case "create":
                    hold_micro = rng.choice([rng.randrange(2 * CREDIT), rng.randrange(5 * CREDIT)])
                    task = new_task(rng.choice([key_id, bound_key, shared_key]), hold_micro=hold_micro, key=key)
                    reply = await until_answered(task)
                    if isinstance(reply, TaskAccepted):
                        auditor.accepted(reply)
                        mine.append(reply.request_id)
                    else:
                        assert_refusal_is_justified(reply)
                case "limit":
                    limit = Limit(rng.randrange(1, 12 * CREDIT), rng.choice(WINDOWS))
                    await until_answered(rng.choice(limits)(limit))
                case "settle" if mine:
                    request_id = mine.pop(rng.randrange(len(mine)))
                    charge_micro = rng.choice([None, rng.randint(0, auditor.open[request_id])])
                    settle = await until_there(settle_command, database, request_id, charge_micro)
                    reply = await until_answered(settle)
                    if isinstance(reply, Refusal):
                        assert reply.code == "hold_not_open"  # an unanswered try of this same command did it
                    auditor.ended(request_id, charge_micro)
                case "expire":
                    assert isinstance(await until_answered(ExpireLots()), LotsExpired)
                case "wait":
                    clock.at += rng.randrange(14) * HOUR
                case "void":
                    await until_there(database.work, move_behind_its_back(account_id))
                case "crash":
                    systems[0].accounts.ref(account_id).tell(Poison())
                case _:
                    pass

    nursery.start_soon(keep_gate_open)
    healthy = await start_system(limits=HARDY, now=clock)
    account_id, key_id = await healthy.open_account()
    bound_key = new_id("key")
    day = Limit(6 * CREDIT, "day")
    bounded = CreateApiKey(bound_key, bound_key.encode(), "hk_test_b", KeyTerms("bounded", ("tasks:write",)), day)
    # One group has the same keys and limit all the time, and other names; into another a key comes and goes.
    group_id, other_group, shared_key = new_id("grp"), new_id("grp"), new_id("key")
    of_group = Limit(9 * CREDIT, "day")
    shared = CreateApiKey(shared_key, shared_key.encode(), "hk_test_s", KeyTerms("shared", ("tasks:write",)))
    card = SavedCard(card_id="pm_1", brand="visa", last4="4242", exp_month=1, exp_year=2040, saved_at=clock.at)
    for command in (
        CreateKeyGroup(group_id, "both", (of_group,)),
        CreateKeyGroup(other_group, "one", (Limit(40 * CREDIT, "week"),)),
        replace(bounded, group_id=group_id),
        replace(shared, group_id=group_id),
        SetCeiling("week", 30 * CREDIT),
        SetCeiling("day", 14 * CREDIT),
        RecordCustomer("cus_1", False),
        SaveCard(card),
        SetAutoTopUp(TOP_UP, True),
    ):
        assert not isinstance(await healthy.ask(account_id, command), Refusal)
    bounds = [
        Bound(bound_key, "day", 6 * CREDIT),
        Bound(group_id, "day", 9 * CREDIT),
        Bound("", "week", 30 * CREDIT),
        Bound("", "day", 14 * CREDIT),
    ]
    limits: list[Callable[[Limit], Any]] = [
        lambda limit: ChangeApiKey(key_id, {}, limit=limit),
        lambda _: ChangeApiKey(key_id, {}, limit=None),
        lambda limit: SetLimits((limit,)),
        lambda limit: SetCeiling("month", 2 * limit.credits_micro),
        lambda _: SetCeiling("month", None),
        lambda _: SetLimits(()),
        lambda _: ChangeApiKey(key_id, {}, group_id=rng.choice([other_group, None])),
        lambda limit: ChangeKeyGroup(other_group, limits=rng.choice([(), (limit,)])),
        lambda limit: ChangeKeyGroup(group_id, f"both {limit.window}", (of_group,)),
    ]
    systems = [await start_system(limits=HARDY, writer=FaultyWriter(database, rng), now=clock)]
    if has_rival:
        systems.append(healthy)
    async with trio.open_nursery() as clients:
        for name in range(CLIENTS):
            clients.start_soon(client, name)

    # The books: what the replies say, less what expired, of which no client had a reply.
    expired = await until_there(database.read, lambda rows: rows.execute(_EXPIRED, {"id": account_id}).one())
    assert await until_there(read_totals, database, account_id) == (
        auditor.balance_micro - int(expired.amount_micro),
        sum(auditor.open.values()),
        auditor.operations + expired.count,
    )
    # Its lots, by the rules in words.
    lots = await until_there(database.read, replayed, account_id)
    assert await until_there(left, database, account_id) == lots.left()
    # The top-ups: each paid once, and no more than the limits of a day and a month allow.
    assert not isinstance(await until_answered(SetAccess(is_disabled=False)), Refusal)
    await until_answered(ResumeTopUp())
    top_up, attempts = await until_there(database.read, attempts_in, account_id)
    assert {order_id for order_id, (status, _) in attempts.items() if status == "credited"} == auditor.topped_up
    days = [at.date() for status, at in attempts.values() if status in ("pending", "credited")]
    months = [(day.year, day.month) for day in days]
    today, this_month = days.count(clock.at.date()), months.count((clock.at.year, clock.at.month))
    assert max(map(days.count, days), default=0) <= TOP_UP.max_per_day
    assert max(map(months.count, months), default=0) <= TOP_UP.max_per_month
    balance_micro, held_micro, _ = await until_there(read_totals, database, account_id)
    if top_up.enabled and top_up.open_order_id is None and balance_micro - held_micro < top_up.settings.below_micro:
        assert today == TOP_UP.max_per_day or this_month == TOP_UP.max_per_month
    # The limits: never exceeded, and what is spent of those that are set later is what the model adds up.
    for later in (ChangeApiKey(key_id, {}, limit=Limit(1, "total")), SetLimits(()), SetCeiling("total", 1)):
        await until_answered(later)
    await until_answered(ChangeKeyGroup(other_group, limits=(Limit(CREDIT, "total"), Limit(CREDIT, "month"))))
    loaded = await until_there(database.read, load_account, account_id)
    groups = loaded.groups_of_keys
    assert {key: group for key, group in groups.items() if key != key_id} == dict.fromkeys(
        (bound_key, shared_key), group_id
    )
    spending = await until_there(database.read, spending_replayed, account_id, bounds, groups)
    assert {each.limited_id for each in loaded.spending} == {"", key_id, bound_key, group_id, other_group}
    assert {each.window for each in loaded.spending} >= {"day", "week", "total"}
    for each in loaded.spending:
        assert each.spent_micro == spending.spent(each.limited_id, each.window, each.starts_at)
    # Exactly what they leave may be held, and no more.
    for removal in (ChangeApiKey(key_id, {}, limit=None), SetCeiling("total", None), SetCeiling("month", None)):
        await until_answered(removal)
    rest_micro = min(each.most_micro - spending.spent(each.limited_id, each.window, clock.at) for each in bounds)
    action_id = await until_there(acted_on, database, account_id)
    enough_micro = lots.debt + max(0, held_micro - balance_micro) + rest_micro + 1
    await give(GrantCredit(enough_micro, None, action_id, "enough", keyed("enough")))
    refused = await until_answered(new_task(bound_key, hold_micro=rest_micro + 1, key="too much"))
    assert isinstance(refused, Refusal)
    assert refused.limit is not None
    held = await until_answered(new_task(bound_key, hold_micro=rest_micro, key="the rest"))
    assert isinstance(held, TaskAccepted)
    assert_audit_clean(database)


_EXPIRED = text(
    "select count(*) as count, coalesce(sum(amount_micro), 0) as amount_micro from operations "
    "where account_id = :id and kind = 'expiry'"
)
