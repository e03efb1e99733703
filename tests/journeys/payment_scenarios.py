"""Scenarios of a card payment, each with its expected end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg

from .card_provider import CardProviderProcess, Payer
from .service_process import Service

Scenario = Callable[["Payment"], Awaitable[None]]


def make_order_due(service: Service, order_id: str) -> None:
    """Make an order due now, which it would be within a minute."""
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        connection.execute("update orders set wake_at = now() where order_id = %s", (order_id,))


def check_consistency(order: dict[str, Any], statement: list[dict[str, Any]]) -> None:
    """Check that an order's fields agree with each other and with the ledger."""
    last = order["state_history"][-1]
    for name in ("status", "processing_status", "reversal_status", "risk_status", "reconcile_status"):
        assert last[name] == order[name], name
    moves = [each for each in statement if each["reference"] == order["order_id"]]
    assert [each["operation_id"] for each in moves] == order["ledger_operation_refs"]
    net = sum(Decimal(each["balance_change"]) for each in moves)
    assert 0 <= net <= Decimal(order["amount"])
    assert len(set(order["provider_event_ids"])) == len(order["provider_event_ids"])


@dataclass
class Payment:
    """One payment, with the actions on it."""

    card_provider: CardProviderProcess
    intent_id: str
    charge_id: str = ""

    async def pay(self, **how: object) -> None:
        await self.card_provider.act("payment_intents", self.intent_id, "pay", **how)
        self.charge_id = await self.card_provider.charge_of(self.intent_id)

    async def intent(self, action: str, **how: object) -> None:
        await self.card_provider.act("payment_intents", self.intent_id, action, **how)

    async def charge(self, action: str, **how: object) -> str:
        return await self.card_provider.act("charges", self.charge_id, action, **how)


async def paid(payment: Payment) -> None:
    await payment.pay()


async def declined(payment: Payment) -> None:
    await payment.intent("decline", decline_code="insufficient_funds")


async def declined_then_paid(payment: Payment) -> None:
    await payment.intent("decline")
    await payment.pay()


async def canceled(payment: Payment) -> None:
    await payment.intent("cancel")


async def refunded(payment: Payment) -> None:
    await payment.pay()
    await payment.charge("refund")


async def refunded_in_two_parts(payment: Payment) -> None:
    await payment.pay()
    await payment.charge("refund", amount=300)
    await payment.charge("refund", amount=400)


async def refund_fails_later(payment: Payment) -> None:
    await payment.pay()
    refund_id = await payment.charge("refund")
    await payment.card_provider.act("refunds", refund_id, "fail")


async def refund_of_two_fails(payment: Payment) -> None:
    await payment.pay()
    await payment.charge("refund", amount=300)
    refund_id = await payment.charge("refund", amount=200, pending=True)
    await payment.card_provider.act("refunds", refund_id, "fail")


async def disputed(payment: Payment) -> None:
    await payment.pay()
    await payment.charge("dispute", reason="product_not_received")


async def refunded_and_then_disputed(payment: Payment) -> None:
    await payment.pay()
    await payment.charge("refund", amount=300)
    await payment.charge("dispute", amount=700)


async def dispute_lost(payment: Payment) -> None:
    await payment.pay()
    dispute_id = await payment.charge("dispute", reason="fraudulent")
    await payment.card_provider.act("disputes", dispute_id, "lose")


async def dispute_won(payment: Payment) -> None:
    await payment.pay()
    dispute_id = await payment.charge("dispute")
    await payment.card_provider.act("disputes", dispute_id, "respond")
    await payment.card_provider.act("disputes", dispute_id, "win")


async def dispute_won_in_part(payment: Payment) -> None:
    await payment.pay()
    dispute_id = await payment.charge("dispute")
    await payment.card_provider.act("disputes", dispute_id, "win", amount=600)


async def inquiry(payment: Payment) -> None:
    await payment.pay()
    await payment.charge("dispute", inquiry=True)


async def inquiry_closed(payment: Payment) -> None:
    await payment.pay()
    dispute_id = await payment.charge("dispute", inquiry=True)
    await payment.card_provider.act("disputes", dispute_id, "close")


async def inquiry_grows_and_is_lost(payment: Payment) -> None:
    await payment.pay()
    dispute_id = await payment.charge("dispute", inquiry=True, reason="duplicate")
    await payment.card_provider.act("disputes", dispute_id, "escalate")
    await payment.card_provider.act("disputes", dispute_id, "lose")


async def too_little(payment: Payment) -> None:
    await payment.pay(amount_received=900)


async def too_much(payment: Payment) -> None:
    await payment.pay(amount_received=1100)


async def other_currency(payment: Payment) -> None:
    await payment.pay(currency="eur")


# Each with the end it must come to: status, processing, reversal, risk, and what is left of 10.00.
SCENARIOS: dict[Scenario, tuple[str, str, str, str, str]] = {
    paid: ("credited", "succeeded", "none", "none", "10.00"),
    declined: ("failed", "failed", "none", "none", "0.00"),
    declined_then_paid: ("credited", "succeeded", "none", "none", "10.00"),
    canceled: ("canceled", "canceled", "none", "none", "0.00"),
    refunded: ("credited", "succeeded", "refunded", "none", "0.00"),
    refunded_in_two_parts: ("credited", "succeeded", "partially_refunded", "none", "3.00"),
    refund_fails_later: ("credited", "succeeded", "none", "none", "10.00"),
    refund_of_two_fails: ("credited", "succeeded", "partially_refunded", "none", "7.00"),
    disputed: ("credited", "succeeded", "disputed", "disputed", "0.00"),
    refunded_and_then_disputed: ("credited", "succeeded", "disputed", "disputed", "0.00"),
    dispute_lost: ("credited", "succeeded", "chargeback", "fraud", "0.00"),
    dispute_won: ("credited", "succeeded", "reinstated", "cleared", "10.00"),
    dispute_won_in_part: ("credited", "succeeded", "reinstated", "cleared", "6.00"),
    inquiry: ("credited", "succeeded", "none", "inquiry", "10.00"),
    inquiry_closed: ("credited", "succeeded", "none", "cleared", "10.00"),
    inquiry_grows_and_is_lost: ("credited", "succeeded", "chargeback", "disputed", "0.00"),
    too_little: ("held", "succeeded", "none", "mismatch", "0.00"),
    too_much: ("held", "succeeded", "none", "mismatch", "0.00"),
    other_currency: ("held", "succeeded", "none", "mismatch", "0.00"),
}


def end_of(scenario: Scenario) -> dict[str, Any]:
    names = ("status", "processing_status", "reversal_status", "risk_status")
    return dict(zip(names, SCENARIOS[scenario], strict=False))


async def tell_tales(payer: Payer) -> dict[Scenario, dict[str, Any]]:
    """Have each scenario happen to an order of its own; the orders as they were created."""
    orders: dict[Scenario, dict[str, Any]] = {}
    for scenario in SCENARIOS:
        order = await payer.order()
        await scenario(Payment(payer.card_provider, order["provider_payment_id"]))
        orders[scenario] = order
    return orders


async def ends_well(payer: Payer, orders: dict[Scenario, dict[str, Any]]) -> dict[Scenario, dict[str, Any]]:
    """Wait until every order has its expected end and agrees with the ledger; return the orders."""
    found = {}
    for scenario, order in orders.items():
        found[scenario] = await payer.wait_for(order["order_id"], **end_of(scenario))
    for order in found.values():
        await payer.card_provider.quiet(order["provider_payment_id"])
    statement = await payer.statement()
    for scenario, order in list(found.items()):
        now = found[scenario] = await payer.read(order["order_id"])
        check_consistency(now, statement)
        moves = [each for each in statement if each["reference"] == order["order_id"]]
        left = sum((Decimal(each["balance_change"]) for each in moves), Decimal(0))
        assert left == Decimal(SCENARIOS[scenario][-1]), scenario.__name__
        assert {name: now[name] for name in end_of(scenario)} == end_of(scenario), scenario.__name__
    balance = sum(Decimal(SCENARIOS[scenario][-1]) for scenario in orders)
    assert (await payer.customer.totals()).balance == balance
    return found
