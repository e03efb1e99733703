"""Whose payment it is: events that contradict each other credit each payment to one order at most."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, text
from sqlalchemy import event as sql_events

from holdfast.actors.account.messages import AttachIntent, ReconcileOrder
from holdfast.ledger.orders.facts import PaymentEvent, provider_objects_of
from holdfast.ledger.orders.order import Order, OrderBonus, OrderResult
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.orders import order_of_event
from holdfast.persistence.server.database import Database
from holdfast.providers.card.events import parse_card_event
from holdfast.providers.card.objects import snapshot_of

from .account_checks import CREDIT, StartSystem, assert_audit_clean, in_parallel, read_totals
from .order_checks import HARDY, deliver, new_order, received, stored

TEN = 10 * CREDIT


def intent(payment_id: str, charge_id: str | None, order_id: str | None, **fields: object) -> dict[str, Any]:
    return {
        "object": "payment_intent", "id": payment_id, "status": "succeeded", "amount": 1000, "currency": "usd",
        "latest_charge": charge_id, "metadata": {"order_id": order_id}, **fields,
    }  # fmt: skip


def charge(charge_id: str, payment_id: str | None, order_id: str | None, **fields: object) -> dict[str, Any]:
    return {
        "object": "charge", "id": charge_id, "status": "succeeded", "paid": True, "captured": True, "amount": 1000,
        "currency": "usd", "payment_intent": payment_id, "metadata": {"order_id": order_id}, **fields,
    }  # fmt: skip


def refund(refund_id: str, charge_id: str, payment_id: str | None) -> dict[str, Any]:
    return {
        "object": "refund", "id": refund_id, "status": "succeeded", "amount": 300, "currency": "usd",
        "charge": charge_id, "payment_intent": payment_id,
    }  # fmt: skip


KINDS = {"payment_intent": "payment_intent.succeeded", "charge": "charge.succeeded", "refund": "refund.created"}


def event_of(number: int, found: dict[str, Any]) -> PaymentEvent:
    """Return the provider's event of an object, as the service reads it."""
    body = {"id": f"evt_{number}", "type": KINDS[found["object"]], "created": number, "data": {"object": found}}
    event = parse_card_event(json.dumps(body).encode())
    assert isinstance(event, PaymentEvent)
    return event


async def send(system: Any, event: PaymentEvent) -> OrderResult | Refusal | None:
    """Deliver an event as the webhook does; None if it names no known order."""
    order = await system.database.read(partial(order_of_event, provider="cardprovider", event=event))
    if order is None:
        return None
    reply: OrderResult | Refusal = await system.ask(order.account_id, received(event, order.order_id))
    return reply


async def two_orders(system: Any, payments: Any, **fields: Any) -> list[Order]:
    """Return an order of each of two accounts."""
    accounts = [(await system.open_account())[0] for _ in range(2)]
    return [await new_order(system, payments, account_id, **fields) for account_id in accounts]


async def credited_micro(database: Database) -> int:
    sql = text("select coalesce(sum(balance_micro), 0) from accounts")
    return int(await database.read(lambda rows: rows.execute(sql).scalar_one()))


CONTRADICTIONS = {
    "a charge, first without its payment": lambda a, b: [charge("ch_1", None, a), charge("ch_1", "pi_1", b)],
    "a charge, last without its payment": lambda a, b: [charge("ch_1", "pi_1", a), charge("ch_1", None, b)],
    "two payments of one charge": lambda a, b: [intent("pi_1", "ch_1", a), intent("pi_2", "ch_1", b)],
    "a former payment": lambda a, b: [
        intent("pi_1", "ch_1", a), charge("ch_1", "pi_2", a), intent("pi_1", None, b)
    ],
    "a former payment that paid nothing": lambda a, b: [
        intent("pi_2", "ch_1", a), charge("ch_1", "pi_1", a, paid=False), intent("pi_1", None, b)
    ],
    "a payment named by its refund": lambda a, b: [
        intent("pi_2", "ch_1", a), refund("re_1", "ch_1", "pi_1"), intent("pi_1", None, b)
    ],
}  # fmt: skip


@pytest.mark.parametrize("names", CONTRADICTIONS)
async def test_a_payment_credits_the_order_that_named_it_first(system: Any, payments: Any, names: str) -> None:
    one, other = await two_orders(system, payments)
    *events, last = [
        event_of(number, found) for number, found in enumerate(CONTRADICTIONS[names](one.order_id, other.order_id))
    ]
    for event in events:
        assert isinstance(await send(system, event), OrderResult)
    before = await credited_micro(system.database)
    refused = await send(system, last)
    assert isinstance(refused, Refusal)
    assert refused.code == "provider_event_mismatch"
    verdict = text("select verdict, order_id from payment_events where event_id = :event_id")
    row = await system.database.read(lambda rows: rows.execute(verdict, {"event_id": last.event_id}).one())
    assert tuple(row) == ("refused", other.order_id)
    assert 0 < await credited_micro(system.database) == before <= TEN
    assert (await stored(system.database, other.order_id)).status == "pending"
    assert_audit_clean(system.database)


@pytest.mark.parametrize("named", [0, 1], ids=["the payment's order", "the charge's order"])
async def test_a_late_link_between_two_credited_orders_is_a_mismatch(
    system: Any, payments: Any, named: int
) -> None:
    orders = await two_orders(system, payments)
    one, other = orders
    # Nothing tells yet that they are one payment.
    for number, found in enumerate([intent("pi_1", None, one.order_id), charge("ch_1", None, other.order_id)]):
        assert isinstance(await send(system, event_of(number, found)), OrderResult)
    before = await credited_micro(system.database)
    link = event_of(3, charge("ch_1", "pi_1", orders[named].order_id))
    versions = set()
    for _ in range(2):
        refused = await send(system, link)
        assert isinstance(refused, Refusal)
        assert refused.code == "provider_event_mismatch"
        versions.add((await stored(system.database, orders[named].order_id)).version)
    # The provider sends what is refused again and again: that changes nothing more.
    assert len(versions) == 1
    after = [await stored(system.database, order.order_id) for order in orders]
    mismatch = after[named].statuses.reconcile_status, after[named].state.history[-1].reason
    assert mismatch == ("mismatch", "payment_of_another_order")
    assert after[1 - named].statuses.reconcile_status != "mismatch"
    assert await credited_micro(system.database) == before == 2 * TEN
    assert_audit_clean(system.database)


async def test_two_processes_that_receive_one_payment_at_once_credit_one_order(
    start_system: StartSystem, payments: Any
) -> None:
    systems = [await start_system(limits=HARDY), await start_system(limits=HARDY)]
    orders = await two_orders(systems[0], payments)
    replies: list[object] = []

    async def receive(number: int) -> None:
        try:
            event = event_of(number, charge("ch_1", f"pi_{number}", orders[number].order_id))
            replies.append(await send(systems[number], event))
        except Exception as lost:  # as an event whose answer is an error, it comes again
            replies.append(lost)

    await in_parallel([partial(receive, number) for number in range(2)])
    await in_parallel([partial(receive, number) for number in range(2)])
    again = replies[2:]
    assert sorted(type(each).__name__ for each in again) == ["OrderResult", "Refusal"]
    assert await credited_micro(systems[0].database) == TEN
    assert_audit_clean(systems[0].database)


async def test_a_record_that_names_the_payment_of_another_order_is_a_mismatch(system: Any, payments: Any) -> None:
    one, other = await two_orders(system, payments)
    await deliver(system, one, event_of(1, charge("ch_1", None, one.order_id)))
    await system.ask(other.account_id, AttachIntent(other.order_id, "pi_1"))
    snapshot = snapshot_of(intent("pi_1", "ch_1", other.order_id), as_of=5)
    for _ in range(2):
        reply = await system.ask(other.account_id, ReconcileOrder(other.order_id, snapshot))
        assert isinstance(reply, OrderResult)
        assert (reply.order.status, reply.order.statuses.reconcile_status) == ("pending", "mismatch")
    assert reply.order.state.history[-1].reason == "payment_of_another_order"
    assert await read_totals(system.database, other.account_id) == (0, 0, 0)
    assert_audit_clean(system.database)


class Statement(NamedTuple):
    """An event of a random history: the charge it is about, and whether it says that the charge is paid."""

    event: PaymentEvent
    charge_id: str
    pays: bool
    refunds: bool


def random_history(chance: random.Random, order_ids: list[str]) -> list[Statement]:
    """Return events about four charges that name orders and payments at random, often those of others."""
    history = []
    for number in range(40):
        mine = chance.randrange(4)
        charge_id = f"ch_{mine}"
        payment_id = f"pi_{mine if chance.random() < 0.7 else chance.randrange(4)}"
        order_id = chance.choice([*order_ids, None])
        paid = chance.random() < 0.8
        kind = chance.choice(["intent", "charge", "refund"])
        if kind == "intent":
            found = intent(payment_id, charge_id, order_id, status="succeeded" if paid else "processing")
        elif kind == "charge":
            found = charge(charge_id, chance.choice([payment_id, None]), order_id, paid=paid)
        else:
            found = refund(f"re_{mine}", charge_id, chance.choice([payment_id, None]))
        history.append(Statement(event_of(number, found), charge_id, kind != "refund" and paid, kind == "refund"))
    return history


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
async def test_no_history_of_events_credits_more_than_the_provider_took(
    system: Any, payments: Any, seed: int
) -> None:
    """Against a naive model: who named a payment or charge first owns it, and money is what its charges took.

    The bonus of an order is the share that is left of its amount.
    """
    chance = random.Random(seed)
    bonus = OrderBonus(credit_micro=3 * CREDIT, expires_days=1)
    orders = [*await two_orders(system, payments, bonus=bonus), *await two_orders(system, payments)]
    orders.append(await new_order(system, payments, orders[0].account_id))
    owners: dict[str, str] = {}
    paid: set[str] = set()
    refunded: set[str] = set()
    for each in random_history(chance, [order.order_id for order in orders]):
        event = each.event
        named = provider_objects_of(event.facts)
        asked = event.order_id or owners.get(event.payment_id or "") or owners.get(event.charge_id or "")
        reply = await send(system, event)
        if asked is None:
            assert reply is None
        elif any(owners.get(name, asked) != asked for name in named):
            assert isinstance(reply, Refusal)
        else:
            assert isinstance(reply, OrderResult)
            assert reply.order.order_id == asked
            owners |= dict.fromkeys(named, asked)
            if each.pays:
                paid.add(each.charge_id)
            if each.refunds:
                refunded.add(each.charge_id)
    rows = [await stored(system.database, order.order_id) for order in orders]
    for order in rows:
        took = {each for each in paid if owners[each] == order.order_id}
        assert order.net_micro <= sum(7 * CREDIT if each in refunded else TEN for each in took)
        assert order.bonus_micro == (order.net_micro * 3 // 10 if order.request.bonus else 0)
        assert {*order.state.provider_object_ids} == {name for name, of in owners.items() if of == order.order_id}
    assert await credited_micro(system.database) == sum(order.net_micro + order.bonus_micro for order in rows)
    assert_audit_clean(system.database)


async def test_an_event_takes_one_read_before_its_accounts_turn_and_one_in_it(
    start_system: StartSystem, payments: Any
) -> None:
    """Also of an order that this process has not read before."""
    first = await start_system(limits=HARDY)
    [order, cached] = await two_orders(first, payments)
    system = await start_system(limits=HARDY)
    read: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if any(f"FROM {table}" in statement for table in ("orders", "order_payments", "payment_events")):
            read.append(statement)

    sql_events.listen(Engine, "before_cursor_execute", note)
    try:
        for of_system, each, number in ((system, order, 1), (first, cached, 2)):
            named = intent(f"pi_{number}", f"ch_{number}", each.order_id)
            assert isinstance(await send(of_system, event_of(number, named)), OrderResult)
            assert len(read) == 2
            read.clear()
            refunded = event_of(10 + number, refund(f"re_{number}", f"ch_{number}", f"pi_unknown_{number}"))
            assert isinstance(await send(of_system, refunded), OrderResult)
            assert len(read) == 2
            read.clear()
            repeated = await send(of_system, refunded)
            assert isinstance(repeated, OrderResult)
            assert repeated.verdict == "duplicate"
            assert len(read) == 1
            read.clear()
    finally:
        sql_events.remove(Engine, "before_cursor_execute", note)
    assert await credited_micro(first.database) == 2 * TEN - 6 * CREDIT
    assert_audit_clean(first.database)
