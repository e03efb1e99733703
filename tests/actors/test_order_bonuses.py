"""The bonuses of payment orders in the account actor: given once, voided with the payment, and never a debt."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from holdfast.actors.account.messages import (
    ExpireLots,
    ExpireOrder,
    Recharge,
    ReconcileOrder,
    RecordCustomer,
    ResolveOrder,
    SaveCard,
    SetAutoTopUp,
    TaskAccepted,
)
from holdfast.ledger.orders.order import Order, OrderBonus, OrderResult
from holdfast.ledger.orders.snapshots import ProviderSnapshot, synthetic_events
from holdfast.ledger.orders.top_ups import SavedCard, TopUpSettings
from holdfast.ledger.values import AMOUNT_MICRO_MAX, utc_now
from holdfast.persistence.queries.lots import LotRecord, lots_of_account
from holdfast.persistence.queries.orders import top_up_of_account
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database

from .account_checks import (
    CREDIT,
    Clock,
    NewTask,
    StartSystem,
    assert_audit_clean,
    in_parallel,
    read_totals,
    settle_command,
)
from .order_checks import HARDY, deliver, new_order, received, stored
from .test_account_orders import sandbox_payment

BONUS = OrderBonus(credit_micro=3 * CREDIT, expires_days=30)


async def bonus_lots(database: Database, account_id: str) -> list[LotRecord]:
    lots = await database.read(partial(lots_of_account, account_id=account_id, limit=100))
    assert isinstance(lots, list)
    return [lot for lot in lots if lot.source == "bonus"]


async def balance(system: Any, account_id: str) -> int:
    return (await read_totals(system.database, account_id))[0]


async def paid_order(system: Any, payments: Any, account_id: str, **fields: Any) -> Order:
    order = await new_order(system, payments, account_id, **{"bonus": BONUS, **fields})
    return await deliver(system, order, payments.paid(order.order_id))


def bonus_moves(order: Order) -> list[int]:
    return [move.amount_micro for move in order.state.bonus_moves]


@pytest.mark.parametrize("provider", ["cardprovider", "sandbox"])
async def test_a_payment_gives_its_bonus_once_as_promotional_credit_that_expires(
    start_system: StartSystem, database: Database, payments: Any, provider: str
) -> None:
    clock = Clock(utc_now())
    systems = [await start_system(limits=HARDY, now=clock), await start_system(limits=HARDY, now=clock)]
    account_id, _ = await systems[0].open_account()
    order = await new_order(systems[0], payments, account_id, provider, bonus=BONUS)
    command: Any = sandbox_payment(order)
    if provider == "cardprovider":
        command = received(payments.paid(order.order_id), order.order_id)
    replies = await in_parallel([partial(system.ask, account_id, command) for system in systems * 5])
    assert all(isinstance(reply, OrderResult) for reply in replies)
    after = await stored(database, order.order_id)
    assert (after.net_micro, bonus_moves(after)) == (10 * CREDIT, [3 * CREDIT])
    assert await read_totals(database, account_id) == (13 * CREDIT, 0, 2)
    [lot] = await bonus_lots(database, account_id)
    assert (lot.kind, lot.reference, lot.amount_micro) == ("promotional", order.order_id, 3 * CREDIT)
    assert lot.expires_at == after.bonus_expires_at == after.state.credited_at + timedelta(days=30)  # type: ignore[operator]  # it was credited
    clock.at += timedelta(days=30)
    await systems[0].ask(account_id, ExpireLots())
    assert await balance(systems[0], account_id) == 10 * CREDIT
    assert_audit_clean(database)


async def test_a_late_payment_and_a_second_one_give_the_bonus_once(
    start_system: StartSystem, database: Database, payments: Any
) -> None:
    clock = Clock(utc_now())
    system = await start_system(now=clock)
    account_id, _ = await system.open_account()
    order = await new_order(system, payments, account_id, bonus=BONUS)
    clock.at = order.request.expires_at
    assert (await system.ask(account_id, ExpireOrder(order.order_id))).order.status == "expired"
    event = payments.paid(order.order_id)
    [(payment_id, paid)] = event.facts.payments.items()
    second = payments.event(
        "payment_intent.succeeded",
        replace(event.facts, payments={"pi_second": replace(paid, charge_ids=("ch_second",))}, charges={}),
    )
    after = await deliver(system, order, event, second)
    assert set(after.state.facts.payments) == {payment_id, "pi_second"}
    assert bonus_moves(after) == [3 * CREDIT]
    # What the reconciler finds of it is known.
    snapshot = ProviderSnapshot(events=synthetic_events(event.facts, at=1, attempt_of=""), state="succeeded")
    reconciled = await system.ask(account_id, ReconcileOrder(order.order_id, snapshot))
    assert bonus_moves(reconciled.order) == [3 * CREDIT]
    assert await balance(system, account_id) == 13 * CREDIT
    assert_audit_clean(database)


async def test_an_order_that_is_not_paid_gives_no_bonus(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    order = await new_order(system, payments, account_id, bonus=BONUS)
    after = await deliver(system, order, payments.attempt("processing"), payments.attempt("failed"))
    assert (after.status, bonus_moves(after)) == ("failed", [])
    assert await balance(system, account_id) == 0
    assert_audit_clean(system.database)


async def test_a_held_payment_gives_the_credited_share_of_the_bonus(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    order = await new_order(system, payments, account_id, bonus=BONUS)
    held = await deliver(system, order, payments.paid(order.order_id, amount_micro=5 * CREDIT))
    assert (held.status, bonus_moves(held)) == ("held", [])
    resolved = await system.ask(account_id, ResolveOrder(order.order_id, credit=True))
    assert (resolved.order.net_micro, bonus_moves(resolved.order)) == (5 * CREDIT, [3 * CREDIT // 2])
    assert_audit_clean(system.database)


async def test_refunds_void_the_bonus_by_their_share_of_the_amount(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    order = await paid_order(system, payments, account_id)
    part = await deliver(system, order, payments.refunded(order.order_id, 5 * CREDIT, name="re_1"))
    assert bonus_moves(part) == [3 * CREDIT, -3 * CREDIT // 2]
    assert await balance(system, account_id) == 6_500_000
    whole = await deliver(system, part, payments.refunded(order.order_id, 5 * CREDIT, name="re_2"))
    assert whole.bonus_micro == 0
    assert await balance(system, account_id) == 0
    [lot] = await bonus_lots(system.database, account_id)
    assert lot.remaining_micro == 0
    assert_audit_clean(system.database)


async def test_a_refund_reported_before_its_payment_gives_no_bonus(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    order = await new_order(system, payments, account_id, bonus=BONUS)
    early = await deliver(system, order, payments.refunded(order.order_id, 10 * CREDIT))
    after = await deliver(system, early, payments.paid(order.order_id))
    assert ([move.kind for move in after.state.moves], bonus_moves(after)) == (["credit", "reversal"], [])
    assert_audit_clean(system.database)


async def test_what_was_used_of_a_bonus_stays_used_and_is_never_a_debt(
    system: Any, payments: Any, new_task: NewTask
) -> None:
    """Two credits are charged, half a credit is held: half a credit of the bonus is left to void."""
    account_id, key_id = await system.open_account()
    order = await paid_order(system, payments, account_id)
    done = await system.ask(account_id, new_task(key_id, hold_micro=2 * CREDIT))
    await system.ask(account_id, await settle_command(system.database, done.request_id, 2 * CREDIT))
    running = await system.ask(account_id, new_task(key_id, hold_micro=CREDIT // 2))
    assert isinstance(running, TaskAccepted)
    after = await deliver(system, order, payments.refunded(order.order_id, 10 * CREDIT))
    assert bonus_moves(after) == [3 * CREDIT, -CREDIT // 2]
    assert await read_totals(system.database, account_id) == (CREDIT // 2, CREDIT // 2, 7)
    # What the task returns stays, until something else of the order changes.
    await system.ask(account_id, await settle_command(system.database, running.request_id, None))
    assert await balance(system, account_id) == CREDIT // 2
    assert_audit_clean(system.database)


async def test_a_reversal_leaves_the_debt_that_it_leaves_without_bonus(
    system: Any, payments: Any, new_task: NewTask
) -> None:
    account_id, key_id = await system.open_account()
    order = await paid_order(system, payments, account_id)
    done = await system.ask(account_id, new_task(key_id, hold_micro=5 * CREDIT))
    await system.ask(account_id, await settle_command(system.database, done.request_id, 5 * CREDIT))
    after = await deliver(system, order, payments.disputed(order.order_id, "needs_response"))
    # All of the bonus was used first, so that none of it is left.
    assert bonus_moves(after) == [3 * CREDIT]
    assert await balance(system, account_id) == -2 * CREDIT
    await deliver(system, after, payments.disputed(order.order_id, "won"))
    assert await balance(system, account_id) == 8 * CREDIT
    assert_audit_clean(system.database)


@pytest.mark.parametrize(("days", "is_given_back"), [(29, True), (30, False)])
async def test_a_won_dispute_gives_the_bonus_again_until_its_expiry(
    start_system: StartSystem, payments: Any, days: int, is_given_back: bool
) -> None:
    clock = Clock(utc_now())
    system = await start_system(now=clock)
    account_id, _ = await system.open_account()
    order = await paid_order(system, payments, account_id)
    disputed = await deliver(system, order, payments.disputed(order.order_id, "needs_response"))
    assert (bonus_moves(disputed), await balance(system, account_id)) == ([3 * CREDIT, -3 * CREDIT], 0)
    clock.at += timedelta(days=days)
    won = await deliver(system, disputed, payments.disputed(order.order_id, "won"))
    again = [3 * CREDIT] if is_given_back else []
    assert bonus_moves(won) == [3 * CREDIT, -3 * CREDIT, *again]
    lots = await bonus_lots(system.database, account_id)
    assert {lot.expires_at for lot in lots} == {order.bonus_expires_at}
    assert await balance(system, account_id) == 10 * CREDIT + sum(again)
    assert_audit_clean(system.database)


@pytest.mark.parametrize(("room", "given"), [(11, [CREDIT]), (10, [])])
async def test_a_bonus_is_no_reason_to_refuse_a_payment(
    system: Any, payments: Any, room: int, given: list[int]
) -> None:
    account_id, _ = await system.open_account()
    await system.ask(account_id, Recharge(AMOUNT_MICRO_MAX - room * CREDIT))
    order = await paid_order(system, payments, account_id)
    assert (order.status, bonus_moves(order)) == ("credited", given)
    assert await balance(system, account_id) == AMOUNT_MICRO_MAX
    assert_audit_clean(system.database)


async def test_a_refund_gives_nothing_of_a_bonus(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    await system.ask(account_id, Recharge(AMOUNT_MICRO_MAX - 11 * CREDIT))
    order = await paid_order(system, payments, account_id)
    part = await deliver(system, order, payments.refunded(order.order_id, CREDIT, name="re_1"))
    assert (part.net_micro, bonus_moves(part)) == (9 * CREDIT, [CREDIT])
    # Of what was given nothing is more than the share that is left: it is voided with the rest of the payment.
    whole = await deliver(system, part, payments.refunded(order.order_id, 9 * CREDIT, name="re_2"))
    assert bonus_moves(whole) == [CREDIT, -CREDIT]
    assert_audit_clean(system.database)


async def test_a_refund_with_a_bonus_opens_no_top_up_which_has_none(
    system: Any, payments: Any, new_task: NewTask
) -> None:
    account_id, key_id = await system.open_account()
    order = await paid_order(system, payments, account_id)
    card = SavedCard(card_id="pm_1", brand="visa", last4="4242", exp_month=1, exp_year=2040, saved_at=utc_now())
    settings = TopUpSettings(below_micro=12 * CREDIT, amount_micro=10 * CREDIT, max_per_day=1, max_per_month=1)
    for command in (RecordCustomer("cus_1", False), SaveCard(card), SetAutoTopUp(settings, True)):
        await system.ask(account_id, command)
    after = await deliver(system, order, payments.refunded(order.order_id, 5 * CREDIT))
    assert bonus_moves(after) == [3 * CREDIT, -3 * CREDIT // 2]
    read = partial(top_up_of_account, account_id=account_id)
    assert (await system.database.read(read)).open_order_id is None
    assert isinstance(await system.ask(account_id, new_task(key_id)), TaskAccepted)
    top_up = await stored(system.database, (await system.database.read(read)).open_order_id)
    assert (top_up.request.origin, top_up.request.bonus) == ("top_up", None)
    assert_audit_clean(system.database)


async def test_the_rows_of_a_bonus_name_its_order_and_move_no_money(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    order = await paid_order(system, payments, account_id)
    await deliver(system, order, payments.refunded(order.order_id, 10 * CREDIT))
    sql = text(
        "select o.kind, o.amount_micro, o.reason, array_agg(p.ledger_account order by p.line) as accounts "
        "from operations o join postings p on (p.account_id, p.number) = (o.account_id, o.number) "
        "where o.reference = :order_id group by o.number, o.kind, o.amount_micro, o.reason order by o.number"
    )
    with connected(system.database.url) as rows:
        found = [tuple(row) for row in rows.execute(sql, {"order_id": order.order_id})]
    assert found == [
        ("credit", 10 * CREDIT, "payment_succeeded", ["cash:cardprovider", "available"]),
        ("grant", 3 * CREDIT, "bonus of the order", ["promotions", "available"]),
        ("adjustment", -3 * CREDIT, "bonus voided with the payment", ["adjustments", "available"]),
        ("reversal", 10 * CREDIT, "created", ["available", "cash:cardprovider"]),
    ]
