"""Payment orders in the account actor: creation, events that count once, and orders that expire."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from holdfast.actors.account.limits import AccountLimits
from holdfast.actors.account.messages import (
    AttachIntent,
    CreateOrder,
    CreateTask,
    ExpireOrder,
    PaySandboxOrder,
    Recharge,
    ReconcileOrder,
    TaskAccepted,
)
from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.ledger.orders.decisions import create_order
from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import Order, OrderResult
from holdfast.ledger.orders.sandbox_signature import SandboxValues
from holdfast.ledger.orders.snapshots import ProviderSnapshot
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount, new_id, utc_now
from holdfast.persistence.server.database import Database

from .account_checks import CREDIT, StartSystem, assert_audit_clean, in_parallel, read_totals
from .order_checks import HARDY, deliver, new_order, received, stored


def sandbox_payment(order: Order, status: str = "paid") -> PaySandboxOrder:
    values = SandboxValues(
        order_id=order.order_id,
        account_id=order.account_id,
        amount=format_amount(order.request.amount_micro),
        currency=order.request.currency,
        status=status,
    )
    return PaySandboxOrder(order.order_id, values, b"{}")


async def stored_events(database: Database) -> list[tuple[str, str, bool]]:
    sql = text("select event_id, verdict, order_id is not null from payment_events order by received_at, event_id")
    return [tuple(row) for row in await database.read(lambda connection: connection.execute(sql).all())]


# ------------------------------------------------------------------------------------------------------ once only


@pytest.mark.parametrize(("same_account", "at_once"), [(True, True), (True, False), (False, False)])
async def test_an_event_id_used_for_a_second_order_credits_only_the_first(
    start_system: StartSystem, payments: Any, same_account: bool, at_once: bool
) -> None:
    """With ``at_once`` the second one is decided while the first is not durable yet."""
    system = await start_system(limits=HARDY)
    first_account, _ = await system.open_account()
    second_account = first_account if same_account else (await system.open_account())[0]
    orders = [await new_order(system, payments, account_id) for account_id in (first_account, second_account)]
    events = [payments.paid(order.order_id) for order in orders]
    commands = [
        received(msgspec.structs.replace(event, event_id=events[0].event_id), order.order_id)
        for event, order in zip(events, orders, strict=True)
    ]
    calls = [
        partial(system.ask, order.account_id, command) for order, command in zip(orders, commands, strict=True)
    ]
    if at_once:
        replies = await in_parallel(calls)
    else:
        replies = [await call() for call in calls]
    # Whichever was first; telling either again changes nothing.
    again = [await call() for call in calls]
    assert sorted(reply.verdict for reply in replies) == ["applied", "duplicate"]
    assert sorted(reply.order.status for reply in replies) == ["credited", "pending"]
    assert [reply.verdict for reply in again] == ["duplicate", "duplicate"]
    balances = [
        (await read_totals(system.database, account_id))[0] for account_id in {first_account, second_account}
    ]
    assert sum(balances) == 10 * CREDIT
    stored = await stored_events(system.database)
    assert [(verdict, has_order) for _, verdict, has_order in stored] == [("applied", True), ("refused", True)]
    assert_audit_clean(system.database)


async def test_the_reply_equals_the_row(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    order = await new_order(system, payments, account_id)
    attached = await system.ask(account_id, AttachIntent(order.order_id, f"pi_{order.order_id}"))
    again = await system.ask(account_id, AttachIntent(order.order_id, f"pi_{order.order_id}"))
    after = await deliver(system, order, payments.attempt("processing"), payments.paid(order.order_id))
    row = await stored(system.database, order.order_id)
    assert (attached.verdict, again.verdict) == ("applied", "duplicate")
    assert row == after


# -------------------------------------------------------------------------------------------------------- creation


async def test_a_repeated_key_returns_the_order_it_created(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    key = IdempotencyKey("POST /v2/control/payments/sandbox", "k", b"same")
    first = await system.ask(account_id, CreateOrder(payments.request(account_id, "sandbox"), key))
    again = await system.ask(account_id, CreateOrder(payments.request(account_id, "sandbox"), key))
    assert again == Replayed(first)
    assert first.order.status == "pending"


async def test_an_account_has_only_so_many_unpaid_orders(start_system: StartSystem, payments: Any) -> None:
    system = await start_system(account_limits=AccountLimits(orders_pending_max=3))
    account_id, _ = await system.open_account()
    creates = [CreateOrder(payments.request(account_id, "sandbox")) for _ in range(8)]
    replies = await in_parallel([partial(system.ask, account_id, create) for create in creates])
    orders = [reply.order for reply in replies if isinstance(reply, OrderResult)]
    await system.ask(account_id, sandbox_payment(orders[0]))
    one_more = await system.ask(account_id, CreateOrder(payments.request(account_id, "sandbox")))
    refused = [reply for reply in replies if isinstance(reply, Refusal)]
    assert 1 <= len(orders) <= 3
    assert {refusal.code for refusal in refused} == {"too_many_open_orders"}
    assert isinstance(one_more, OrderResult)


async def test_orders_of_others_and_of_the_other_kind_are_not_found(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    other_id, _ = await system.open_account()
    card = await new_order(system, payments, account_id)
    sandbox = await new_order(system, payments, account_id, "sandbox")
    replies = [
        await system.ask(other_id, received(payments.paid(card.order_id), card.order_id)),
        await system.ask(account_id, received(payments.paid(sandbox.order_id), sandbox.order_id)),
        await system.ask(account_id, sandbox_payment(card)),
        await system.ask(account_id, AttachIntent("ord_never", "pi_1")),
    ]
    assert [reply.code for reply in replies] == ["payment_order_not_found"] * 4
    assert await read_totals(system.database, account_id) == (0, 0, 0)


# ------------------------------------------------------------------------------------------- money that goes back


async def test_new_holds_are_refused_while_reversals_leave_the_balance_negative(
    system: Any, payments: Any, new_task: Callable[..., CreateTask]
) -> None:
    account_id, key_id = await system.open_account()
    order = await new_order(system, payments, account_id)
    await deliver(system, order, payments.paid(order.order_id))
    running = await system.ask(account_id, new_task(key_id, hold_micro=7 * CREDIT))
    refunded = await deliver(system, order, payments.refunded(order.order_id, 4 * CREDIT))
    below = await read_totals(system.database, account_id)
    refused = await system.ask(account_id, new_task(key_id, hold_micro=0))
    disputed = await deliver(system, order, payments.disputed(order.order_id, "needs_response"))
    lowest = await read_totals(system.database, account_id)
    won = await deliver(system, order, payments.disputed(order.order_id, "won"))
    await system.ask(account_id, Recharge(5 * CREDIT))
    accepted = await system.ask(account_id, new_task(key_id, hold_micro=CREDIT))
    assert isinstance(running, TaskAccepted)
    assert below == (6 * CREDIT, 7 * CREDIT, 3)
    assert (refused.code, refused.available_micro) == ("insufficient_credit", -CREDIT)
    assert (refunded.statuses.reversal_status, disputed.statuses.reversal_status) == (
        "partially_refunded",
        "disputed",
    )
    assert lowest[:2] == (0, 7 * CREDIT)
    assert won.net_micro == 6 * CREDIT
    assert isinstance(accepted, TaskAccepted)
    assert_audit_clean(system.database)


async def test_a_payment_of_another_order_is_refused_and_stored(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    other_id, _ = await system.open_account()
    order = await new_order(system, payments, account_id)
    other = await new_order(system, payments, other_id)
    await deliver(system, order, payments.paid(order.order_id))
    event = payments.paid(order.order_id)
    refused = await system.ask(other_id, received(event, other.order_id))
    assert refused.code == "provider_event_mismatch"
    assert (event.event_id, "refused", True) in await stored_events(system.database)
    assert await read_totals(system.database, other_id) == (0, 0, 0)
    assert_audit_clean(system.database)


# ----------------------------------------------------------------------------------------------- time and looking


async def test_an_unpaid_order_expires_and_a_late_callback_is_refused(system: Any, payments: Any) -> None:
    past = utc_now() - timedelta(seconds=1)
    account_id, _ = await system.open_account()
    fresh = await new_order(system, payments, account_id, "sandbox")
    old = await new_order(system, payments, account_id, "sandbox", expires_at=past)
    too_early = await system.ask(account_id, ExpireOrder(fresh.order_id))
    late = await system.ask(account_id, sandbox_payment(old))
    expired = await system.ask(account_id, ExpireOrder(old.order_id))
    again = await system.ask(account_id, ExpireOrder(old.order_id))
    assert (too_early.verdict, too_early.order.status) == ("ignored", "pending")
    assert late.code == "payment_order_expired"
    assert (expired.verdict, expired.order.status, again.verdict) == ("applied", "expired", "ignored")
    assert await stored_events(system.database) == [(old.request.sandbox_event_id, "refused", True)]
    assert_audit_clean(system.database)


async def test_a_reconcile_credits_an_order_and_a_later_event_is_a_duplicate(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    order = await new_order(system, payments, account_id)
    await system.ask(account_id, AttachIntent(order.order_id, f"pi_{order.order_id}"))
    seen = msgspec.structs.replace(payments.paid(order.order_id), event_id="syn_1")
    snapshot = ProviderSnapshot(events=(seen,), state="succeeded")
    looked = await system.ask(account_id, ReconcileOrder(order.order_id, snapshot))
    away = await system.ask(account_id, ReconcileOrder(order.order_id, None))
    after = await deliver(system, order, payments.paid(order.order_id))
    row = await stored(system.database, order.order_id)
    assert (looked.order.status, looked.order.statuses.reconcile_status) == ("credited", "pending")
    assert away.order.statuses.reconcile_status == "error"
    assert after.net_micro == 10 * CREDIT
    assert row.wake_at is not None
    assert ("syn_1", "applied", True) in await stored_events(system.database)
    assert await read_totals(system.database, account_id) == (10 * CREDIT, 0, 1)
    assert_audit_clean(system.database)


# ------------------------------------------------------------------------------------------------------ any history


@pytest.mark.parametrize("seed", range(4))
async def test_any_mixture_of_events_through_two_processes_passes_the_audit(
    seed: int, database: Database, payments: Any, start_system: StartSystem
) -> None:
    chance = random.Random(seed)
    systems = [await start_system(limits=HARDY), await start_system(limits=HARDY)]
    account_id, _ = await systems[0].open_account()
    orders = [await new_order(systems[0], payments, account_id) for _ in range(3)]
    commands: list[Any] = []
    for order in orders:
        order_id = order.order_id
        pool: list[PaymentEvent] = [
            payments.paid(order_id),
            payments.paid(order_id, amount_micro=chance.choice([9, 10]) * CREDIT),
            payments.refunded(order_id, 3 * CREDIT),
            payments.refunded(order_id, 5 * CREDIT, name="re2"),
            payments.disputed(order_id, chance.choice(["needs_response", "lost", "won"])),
            payments.attempt(chance.choice(["failed", "canceled", "processing"])),
        ]
        events = [chance.choice(pool) for _ in range(8)]
        commands += [received(event, order_id) for event in events]
        commands += [AttachIntent(order_id, f"pi_{order_id}"), ExpireOrder(order_id)]
        commands.append(ReconcileOrder(order_id, None))
    chance.shuffle(commands)
    calls = [partial(chance.choice(systems).accounts.ref(account_id).ask, command) for command in commands]
    replies = await in_parallel(calls)
    rows = [await stored(database, order.order_id) for order in orders]
    assert all(isinstance(reply, OrderResult) for reply in replies)
    assert all(0 <= row.net_micro <= row.request.amount_micro for row in rows)
    assert (await read_totals(database, account_id))[0] == sum(row.net_micro for row in rows)
    assert_audit_clean(database)


def test_a_stored_reply_comes_back_whole(payments: Any) -> None:
    reply = OrderResult(create_order(payments.request(new_id("acct"), "sandbox")), "applied")
    assert msgspec.json.decode(msgspec.json.encode(reply), type=OrderResult) == reply
