"""Lots of an account's actor: grants, expiry, coupons and restarts, on rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text
from tests.lot_model import VOIDED, replayed
from tests.sweepers import sweeper_of

from holdfast.actors.account.actor import EXPIRIES_MAX
from holdfast.actors.account.limits import AccountLimits
from holdfast.actors.account.messages import (
    AnnounceExpiry,
    CreateOrder,
    CreditChanged,
    ExpireLots,
    GrantCredit,
    LotsExpired,
    ReceivePaymentEvent,
    Recharge,
    TaskAccepted,
    VoidLot,
    redeem_coupon,
)
from holdfast.actors.runtime.faults import Crashed
from holdfast.actors.runtime.messages import Replayed
from holdfast.actors.workers import lot_sweeper
from holdfast.actors.workers.lot_sweeper import LotSweeper
from holdfast.ledger.orders.order import OrderResult
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import AMOUNT_MICRO_MAX, new_id, utc_now
from holdfast.persistence.claims.coupons import (
    WRONG_CODES_MAX,
    WRONG_CODES_S,
    NewCouponClaim,
    add_coupon,
    claim_coupon,
    end_coupon,
    overdue_claims,
    sha256_of_code,
)
from holdfast.persistence.claims.lots import accounts_with_expired_lots
from holdfast.persistence.queries.ledger import statement_of_account
from holdfast.persistence.queries.lots import LotRecord, lots_of_account
from holdfast.persistence.records import tables
from holdfast.persistence.records.credit_tables import CouponClaim, CouponRow
from holdfast.persistence.server.database import Database

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

LATER = timedelta(days=1)


async def grant(system: Any, account_id: str, amount_micro: int, expires_at: datetime | None = None) -> Any:
    action_id = await acted_on(system.database, account_id)
    command = GrantCredit(amount_micro, expires_at, action_id, "a present", keyed(action_id))
    return await system.ask(account_id, command)


async def lots(database: Database, account_id: str) -> dict[int, LotRecord]:
    return {lot.number: lot for lot in await database.read(lots_of_account, account_id, limit=100)}


async def left(database: Database, account_id: str) -> dict[int, tuple[int, int]]:
    return {
        number: (lot.remaining_micro, lot.reserved_micro)
        for number, lot in (await lots(database, account_id)).items()
        if lot.remaining_micro
    }


async def test_a_task_uses_granted_credit_before_paid_credit(
    system: Any, database: Database, new_task: NewTask
) -> None:
    account_id, key_id = await system.open_account(2 * CREDIT)
    given = await grant(system, account_id, CREDIT, utc_now() + LATER)
    assert isinstance(given, CreditChanged)
    assert given.account.balance_micro == 3 * CREDIT
    task = await system.ask(account_id, new_task(key_id, hold_micro=CREDIT + 5))
    assert isinstance(task, TaskAccepted)
    assert await left(database, account_id) == {1: (2 * CREDIT, 5), 2: (CREDIT, CREDIT)}
    await system.ask(account_id, await settle_command(database, task.request_id, CREDIT - 7))
    assert await left(database, account_id) == {1: (2 * CREDIT, 0), 2: (7, 0)}
    found = await lots(database, account_id)
    assert [(found[number].kind, found[number].source) for number in (1, 2)] == [
        ("paid", "recharge"),
        ("promotional", "grant"),
    ]
    assert await database.read(lots_of_account, account_id, limit=9, kind="paid") == [found[1]]
    assert await database.read(lots_of_account, account_id, limit=9, is_open=False) == []
    assert_audit_clean(database)


async def void(system: Any, account_id: str, number: int, key: str) -> Any:
    action_id = await acted_on(system.database, account_id)
    return await system.ask(account_id, VoidLot(number, action_id, VOIDED, keyed(key)))


async def test_what_is_left_of_a_grant_is_voided_and_what_is_held_of_it_stays(
    system: Any, database: Database, new_task: NewTask
) -> None:
    account_id, key_id = await system.open_account(2 * CREDIT)
    await grant(system, account_id, CREDIT)
    task = await system.ask(account_id, new_task(key_id, hold_micro=CREDIT - 100))
    voided = await void(system, account_id, 2, "first")
    assert isinstance(voided, CreditChanged)
    assert (voided.amount_micro, voided.account.balance_micro) == (-100, 3 * CREDIT - 100)
    assert await left(database, account_id) == {1: (2 * CREDIT, 0), 2: (CREDIT - 100, CREDIT - 100)}
    # A repeat takes nothing more, though more is left of the lot by then.
    await system.ask(account_id, await settle_command(database, task.request_id, 30))
    assert await left(database, account_id) == {1: (2 * CREDIT, 0), 2: (CREDIT - 130, 0)}
    again = await void(system, account_id, 2, "first")
    assert again == Replayed(voided)
    assert await left(database, account_id) == {1: (2 * CREDIT, 0), 2: (CREDIT - 130, 0)}
    assert isinstance(await void(system, account_id, 2, "second"), CreditChanged)
    assert await left(database, account_id) == {1: (2 * CREDIT, 0)}
    newest = (await database.read(statement_of_account, account_id, limit=1))[0]
    assert (newest.kind, newest.reason, newest.amount_micro) == ("adjustment", VOIDED, 130 - CREDIT)
    assert newest.postings == (("adjustments", CREDIT - 130, None), ("available", 130 - CREDIT, 2))
    await database.read(replayed, account_id)
    assert_audit_clean(database)


async def test_a_void_of_no_promotional_credit_is_refused(
    system: Any, database: Database, new_task: NewTask
) -> None:
    account_id, key_id = await system.open_account(CREDIT)
    await grant(system, account_id, CREDIT)
    await system.ask(account_id, new_task(key_id, hold_micro=CREDIT))
    found = [await void(system, account_id, number, f"v{number}") for number in (1, 2, 3, 4)]
    codes = ["credit_lot_not_voidable", "credit_lot_not_voidable", "credit_lot_not_found", "credit_lot_not_found"]
    assert [each.code for each in found] == codes
    assert await left(database, account_id) == {1: (CREDIT, 0), 2: (CREDIT, CREDIT)}
    assert_audit_clean(database)


async def test_a_restarted_actor_knows_lots_and_reservations(
    start_system: StartSystem, database: Database, new_task: NewTask
) -> None:
    here, there = await start_system(), await start_system()
    account_id, key_id = await here.open_account(CREDIT)
    for _ in range(3):
        await grant(here, account_id, CREDIT)
    task = await here.ask(account_id, new_task(key_id, hold_micro=3 * CREDIT + 10))
    assert isinstance(task, TaskAccepted)
    # Another process that serves the account reads its rows.
    await there.ask(account_id, await settle_command(database, task.request_id, 2 * CREDIT + 3))
    assert await left(database, account_id) == {1: (CREDIT, 0), 4: (CREDIT - 3, 0)}
    await here.ask(account_id, new_task(key_id, hold_micro=CREDIT))
    assert await left(database, account_id) == {1: (CREDIT, 3), 4: (CREDIT - 3, CREDIT - 3)}
    await database.read(replayed, account_id)
    assert_audit_clean(database)


async def test_a_lot_expires_once_and_reserved_credit_after_its_hold(
    start_system: StartSystem, database: Database, new_task: NewTask
) -> None:
    clock = Clock(utc_now())
    system = await start_system(now=clock)
    account_id, key_id = await system.open_account(CREDIT)
    expires_at = clock.at + LATER
    await grant(system, account_id, CREDIT, expires_at)
    held = await system.ask(account_id, new_task(key_id, hold_micro=CREDIT - 100))
    assert isinstance(held, TaskAccepted)
    assert await system.ask(account_id, ExpireLots()) == LotsExpired(0)
    clock.at = expires_at
    refused = await system.ask(account_id, new_task(key_id, hold_micro=CREDIT + 1))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.available_micro) == ("insufficient_credit", CREDIT)
    sweeper = LotSweeper(database=database, accounts=system.accounts, now=clock)
    await sweeper.sweep()
    assert await left(database, account_id) == {1: (CREDIT, 0), 2: (CREDIT - 100, CREDIT - 100)}
    await sweeper.sweep()
    await system.ask(account_id, await settle_command(database, held.request_id, 400))
    await sweeper.sweep()
    assert await left(database, account_id) == {1: (CREDIT, 0)}
    kinds = [each.kind for each in await database.read(statement_of_account, account_id, limit=9)]
    assert kinds == ["expiry", "capture", "expiry", "hold", "grant", "credit"]
    assert await read_totals(database, account_id) == (CREDIT, 0, 6)
    assert_audit_clean(database)


async def test_an_account_s_many_lots_expire_in_one_sweep(
    start_system: StartSystem, database: Database, new_task: NewTask
) -> None:
    clock = Clock(utc_now())
    system = await start_system(now=clock)
    account_id, key_id = await system.open_account(CREDIT)
    many = 2 * EXPIRIES_MAX + 3
    await in_parallel([partial(grant, system, account_id, CREDIT, clock.at + LATER) for _ in range(many)])
    held = await system.ask(account_id, new_task(key_id, hold_micro=2 * CREDIT))
    assert isinstance(held, TaskAccepted)
    clock.at += LATER
    sweeper = LotSweeper(database=database, accounts=system.accounts, now=clock)
    await sweeper.sweep()
    # Two lots are reserved, and only their holds could use them: nothing is due any more.
    assert await read_totals(database, account_id) == (3 * CREDIT, 2 * CREDIT, 1 + many + 1 + many - 2)
    assert await database.read(accounts_with_expired_lots, clock.at, after="", most=9) == []
    assert await system.ask(account_id, ExpireLots()) == LotsExpired(0)
    assert_audit_clean(database)


async def test_a_sweep_continues_behind_accounts_that_do_not_answer(
    start_system: StartSystem, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lot_sweeper, "ACCOUNTS_MAX", 1)
    clock = Clock(utc_now())
    system = await start_system(now=clock)
    expires_at = clock.at + LATER
    accounts = sorted([(await system.open_account())[0] for _ in range(3)])
    for account_id in accounts:
        await grant(system, account_id, CREDIT, expires_at)
    clock.at = expires_at

    class DeafFirst:
        def ref(self, account_id: str) -> Any:
            return self if account_id == accounts[0] else system.accounts.ref(account_id)

        async def ask(self, _command: object, *, deadline_s: float) -> object:
            raise Crashed(f"not within {deadline_s} s")

    sweeper = LotSweeper(database=database, accounts=DeafFirst(), now=clock)
    assert [await sweeper.sweep() for _ in range(4)] == [True, True, True, False]
    totals = [await read_totals(database, account_id) for account_id in accounts]
    assert [balance for balance, *_ in totals] == [CREDIT, 0, 0]
    assert_audit_clean(database)


async def test_paid_credit_expires_where_the_setting_says_so(start_system: StartSystem, database: Database) -> None:
    system = await start_system(account_limits=AccountLimits(paid_credit_days=30))
    account_id, _ = await system.open_account(CREDIT)
    [lot] = (await lots(database, account_id)).values()
    assert lot.expires_at == lot.created_at + timedelta(days=30)


async def test_the_owner_is_notified_30_and_7_days_before_paid_credit_expires(
    start_system: StartSystem, database: Database
) -> None:
    clock = Clock(utc_now())
    limits = AccountLimits(paid_credit_days=40)
    system, other = [await start_system(now=clock, account_limits=limits) for _ in range(2)]
    account_id, _ = await system.open_account(CREDIT)
    await grant(system, account_id, CREDIT, clock.at + 40 * LATER)
    begun, sent = clock.at, []
    events = tables.outbox.c
    mails = select(events.event_id).where(events.account_id == account_id, events.kind == "credit.expiring")
    for day in (9, 10, 11, 32, 33, 34, 40):
        clock.at = begun + day * LATER
        # A process that takes the account over knows of which lots its owner was notified.
        for each in (system, other):
            sweeper = LotSweeper(database=database, accounts=each.accounts, now=clock)
            assert not await sweeper.notify()
        sent.append(len(await database.read(lambda rows: rows.execute(mails).all())))
    assert sent == [0, 1, 1, 1, 2, 2, 2]
    assert await system.ask(account_id, AnnounceExpiry()) is None
    assert_audit_clean(database)


async def test_a_refund_takes_its_order_s_lot_and_the_next_credit_pays_a_debt(
    system: Any, database: Database, new_task: NewTask, payments: Payments
) -> None:
    account_id, key_id = await system.open_account()
    orders = []
    for _ in range(2):
        created = await system.ask(account_id, CreateOrder(payments.request(account_id)))
        assert isinstance(created, OrderResult)
        orders.append(created.order.order_id)
        event = payments.paid(orders[-1])
        await system.ask(account_id, ReceivePaymentEvent(orders[-1], event, b"{}"))
    amount = payments.amount_micro
    # The second order is refunded: its own lot pays, although the first lot is the older one.
    refund = payments.refunded(orders[1], amount)
    await system.ask(account_id, ReceivePaymentEvent(orders[1], refund, b"{}"))
    assert await left(database, account_id) == {1: (amount, 0)}
    await system.ask(account_id, new_task(key_id, hold_micro=amount))
    refund = payments.refunded(orders[0], amount)
    await system.ask(account_id, ReceivePaymentEvent(orders[0], refund, b"{}"))
    assert await read_totals(database, account_id) == (0, amount, 5)
    assert await left(database, account_id) == {1: (amount, amount)}
    await grant(system, account_id, amount + 9)
    assert await left(database, account_id) == {1: (amount, amount), 6: (9, 0)}
    await database.read(replayed, account_id)
    assert_audit_clean(database)


# --------------------------------------------------------------------------------------------------------- coupons


def make_coupon(code: str = "WELCOME", **more: Any) -> CouponRow:
    usual: dict[str, Any] = {"amount_micro": CREDIT, "uses_max": 1, "credit_days": 30, "redeem_until": None}
    return CouponRow(
        coupon_id=new_id("cpn"),
        code_sha256=sha256_of_code(code),
        code_prefix=code[:2],
        created_at=utc_now(),
        **usual | more,
    )


async def claim(database: Database, account_id: str, code: str = "WELCOME", now: datetime | None = None) -> Any:
    new = NewCouponClaim(account_id, sha256_of_code(code), new_id("cpu"), now or utc_now())
    return await database.work(claim_coupon, new)


async def test_a_coupon_is_redeemed_once_by_each_account_up_to_its_limit(
    start_system: StartSystem, database: Database
) -> None:
    systems = [await start_system(), await start_system()]
    accounts = [(await systems[0].open_account())[0] for _ in range(8)]
    assert await database.work(add_coupon, make_coupon(uses_max=3))
    assert not await database.work(add_coupon, make_coupon())

    async def redeem(account_id: str, turn: int) -> Any:
        claimed = await claim(database, account_id)
        if isinstance(claimed, CouponClaim):
            return unwrapped(await systems[turn % 2].ask(account_id, redeem_coupon(claimed)))
        return claimed

    replies = await in_parallel([partial(redeem, each, n) for n, each in enumerate(accounts * 4)])
    assert {reply for reply in replies if isinstance(reply, str)} == {"used_up", "already_redeemed"}
    balances = [(await read_totals(database, each))[0] for each in accounts]
    assert sorted(balances) == [0] * 5 + [CREDIT] * 3
    assert await database.read(lambda rows: rows.scalar(text("select uses from coupons"))) == 3
    redeemed = accounts[balances.index(CREDIT)]
    [lot] = (await lots(database, redeemed)).values()
    assert (lot.kind, lot.source, lot.expires_at) == ("promotional", "coupon", lot.created_at + timedelta(days=30))
    assert_audit_clean(database)


async def test_a_claim_whose_process_died_is_ended_once(start_system: StartSystem, database: Database) -> None:
    here, there = await start_system(), await start_system()
    account_id, _ = await here.open_account()
    await database.work(add_coupon, make_coupon())
    claimed = await claim(database, account_id)
    assert await claim(database, account_id) == claimed
    assert await database.read(overdue_claims, utc_now(), most=9) == []

    def later() -> datetime:
        return utc_now() + timedelta(minutes=2)

    assert await database.read(overdue_claims, later(), most=9) == [claimed]
    sweepers = [LotSweeper(database=database, accounts=each.accounts, now=later) for each in (here, there)]
    await in_parallel([sweeper.redeem for sweeper in sweepers] * 3)
    assert await read_totals(database, account_id) == (CREDIT, 0, 1)
    assert isinstance(await there.ask(account_id, redeem_coupon(claimed)), Replayed)
    assert await claim(database, account_id) == "already_redeemed"
    assert await database.read(overdue_claims, later(), most=9) == []
    assert_audit_clean(database)


async def test_claims_behind_accounts_that_refuse_are_ended_too(
    start_system: StartSystem, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lot_sweeper, "ACCOUNTS_MAX", 1)
    system = await start_system()
    accounts = [(await system.open_account())[0] for _ in range(3)]
    await database.work(add_coupon, make_coupon(uses_max=3))
    for account_id in accounts:
        await claim(database, account_id)
    await system.ask(accounts[0], Recharge(AMOUNT_MICRO_MAX))
    later = utc_now() + timedelta(minutes=2)
    sweeper = LotSweeper(database=database, accounts=system.accounts, now=lambda: later)
    assert [await sweeper.redeem() for _ in range(4)] == [True, True, True, False]
    assert [(await read_totals(database, each))[0] for each in accounts] == [AMOUNT_MICRO_MAX, CREDIT, CREDIT]
    assert_audit_clean(database)


async def test_a_coupon_that_has_ended_is_not_claimed(system: Any, database: Database) -> None:
    account_id, _ = await system.open_account()
    soon = utc_now() + timedelta(hours=1)
    ended, dated = make_coupon("ENDED"), make_coupon("DATED", redeem_until=soon)
    for coupon in (ended, dated):
        await database.work(add_coupon, coupon)
    after = await database.work(end_coupon, ended.coupon_id, utc_now())
    assert after is not None
    assert after.disabled_at is not None
    assert await database.work(end_coupon, ended.coupon_id, soon) == after
    assert await database.work(end_coupon, "cpn_x", soon) is None
    assert await claim(database, account_id, "ENDED") == "ended"
    assert await claim(database, account_id, "DATED", now=soon) == "ended"
    assert isinstance(await claim(database, account_id, "DATED"), CouponClaim)


async def test_codes_cannot_be_guessed(system: Any, database: Database) -> None:
    account_id, _ = await system.open_account()
    other_id, _ = await system.open_account()
    await database.work(add_coupon, make_coupon(uses_max=9))
    at = utc_now()
    wrong = [await claim(database, account_id, f"GUESS-{n}", at) for n in range(WRONG_CODES_MAX)]
    assert wrong == ["unknown"] * WRONG_CODES_MAX
    assert await claim(database, account_id, "WELCOME", at) == "too_many_tries"
    assert isinstance(await claim(database, other_id, "WELCOME", at), CouponClaim)
    an_hour_later = at + timedelta(seconds=WRONG_CODES_S)
    assert isinstance(await claim(database, account_id, "WELCOME", an_hour_later), CouponClaim)


async def test_wrong_codes_are_swept_after_an_hour(system: Any) -> None:
    clock = Clock(utc_now())
    accounts = [(await system.open_account())[0] for _ in range(2)]
    sweeper = sweeper_of(system.database, now=clock)
    for account_id in accounts:
        tried = NewCouponClaim(account_id, sha256_of_code("WRONG"), new_id("cpu"), clock())
        assert await system.database.work(claim_coupon, tried) == "unknown"
        clock.at += timedelta(minutes=31)
    assert [(await sweeper.sweep())["coupon_tries"] for _ in range(2)] == [1, 0]
    clock.at += timedelta(minutes=31)
    assert (await sweeper.sweep())["coupon_tries"] == 1
