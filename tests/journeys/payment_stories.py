"""What may happen to a card payment, each with the end it must come to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg

from .card_bank import CardBank, Payer
from .house import Service

Story = Callable[["Tale"], Awaitable[None]]


def look_now(service: Service, order_id: str) -> None:
    """Have the workers look at an order at once, which they would do by themselves in a minute."""
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        connection.execute("update orders set wake_at = now() where order_id = %s", (order_id,))


def agrees(order: dict[str, Any], statement: list[dict[str, Any]]) -> None:
    """An order's own account of itself holds together, and with the ledger."""
    last = order["state_history"][-1]
    for name in ("status", "processing_status", "reversal_status", "risk_status", "reconcile_status"):
        assert last[name] == order[name], name
    moves = [each for each in statement if each["reference"] == order["order_id"]]
    assert [each["operation_id"] for each in moves] == order["ledger_operation_refs"]
    net = sum(Decimal(each["balance_change"]) for each in moves)
    assert 0 <= net <= Decimal(order["amount"])
    assert len(set(order["provider_event_ids"])) == len(order["provider_event_ids"])


@dataclass
class Tale:
    """One payment under way, with the buttons that move it."""

    bank: CardBank
    intent_id: str
    charge_id: str = ""

    async def pay(self, **how: object) -> None:
        await self.bank.press("payment_intents", self.intent_id, "pay", **how)
        self.charge_id = await self.bank.charge_of(self.intent_id)

    async def intent(self, action: str, **how: object) -> None:
        await self.bank.press("payment_intents", self.intent_id, action, **how)

    async def charge(self, action: str, **how: object) -> str:
        return await self.bank.press("charges", self.charge_id, action, **how)


async def paid(tale: Tale) -> None:
    await tale.pay()


async def declined(tale: Tale) -> None:
    await tale.intent("decline", decline_code="insufficient_funds")


async def declined_then_paid(tale: Tale) -> None:
    await tale.intent("decline")
    await tale.pay()


async def canceled(tale: Tale) -> None:
    await tale.intent("cancel")


async def refunded(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("refund")


async def refunded_in_two_parts(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("refund", amount=300)
    await tale.charge("refund", amount=400)


async def refund_fails_later(tale: Tale) -> None:
    await tale.pay()
    refund_id = await tale.charge("refund")
    await tale.bank.press("refunds", refund_id, "fail")


async def refund_of_two_fails(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("refund", amount=300)
    refund_id = await tale.charge("refund", amount=200, pending=True)
    await tale.bank.press("refunds", refund_id, "fail")


async def disputed(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("dispute", reason="product_not_received")


async def refunded_and_then_disputed(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("refund", amount=300)
    await tale.charge("dispute", amount=700)


async def dispute_lost(tale: Tale) -> None:
    await tale.pay()
    dispute_id = await tale.charge("dispute", reason="fraudulent")
    await tale.bank.press("disputes", dispute_id, "lose")


async def dispute_won(tale: Tale) -> None:
    await tale.pay()
    dispute_id = await tale.charge("dispute")
    await tale.bank.press("disputes", dispute_id, "respond")
    await tale.bank.press("disputes", dispute_id, "win")


async def dispute_won_in_part(tale: Tale) -> None:
    await tale.pay()
    dispute_id = await tale.charge("dispute")
    await tale.bank.press("disputes", dispute_id, "win", amount=600)


async def inquiry(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("dispute", inquiry=True)


async def inquiry_closed(tale: Tale) -> None:
    await tale.pay()
    dispute_id = await tale.charge("dispute", inquiry=True)
    await tale.bank.press("disputes", dispute_id, "close")


async def inquiry_grows_and_is_lost(tale: Tale) -> None:
    await tale.pay()
    dispute_id = await tale.charge("dispute", inquiry=True, reason="duplicate")
    await tale.bank.press("disputes", dispute_id, "escalate")
    await tale.bank.press("disputes", dispute_id, "lose")


async def too_little(tale: Tale) -> None:
    await tale.pay(amount_received=900)


async def too_much(tale: Tale) -> None:
    await tale.pay(amount_received=1100)


async def other_currency(tale: Tale) -> None:
    await tale.pay(currency="eur")


# Each with the end it must come to: status, processing, reversal, risk, and what is left of 10.00.
STORIES: dict[Story, tuple[str, str, str, str, str]] = {
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


def end_of(story: Story) -> dict[str, Any]:
    names = ("status", "processing_status", "reversal_status", "risk_status")
    return dict(zip(names, STORIES[story], strict=False))


async def tell_tales(payer: Payer) -> dict[Story, dict[str, Any]]:
    """Have each story happen to an order of its own; the orders as they were created."""
    orders: dict[Story, dict[str, Any]] = {}
    for story in STORIES:
        order = await payer.order()
        await story(Tale(payer.bank, order["provider_payment_id"]))
        orders[story] = order
    return orders


async def ends_well(payer: Payer, orders: dict[Story, dict[str, Any]]) -> dict[Story, dict[str, Any]]:
    """Every story comes to its end, and the ledger agrees; the orders as they stand then."""
    found = {}
    for story, order in orders.items():
        found[story] = await payer.becomes(order["order_id"], **end_of(story))
    for order in found.values():
        await payer.bank.quiet(order["provider_payment_id"])
    statement = await payer.statement()
    for story, order in list(found.items()):
        now = found[story] = await payer.read(order["order_id"])
        agrees(now, statement)
        moves = [each for each in statement if each["reference"] == order["order_id"]]
        left = sum((Decimal(each["balance_change"]) for each in moves), Decimal(0))
        assert left == Decimal(STORIES[story][-1]), story.__name__
        assert {name: now[name] for name in end_of(story)} == end_of(story), story.__name__
    balance = sum(Decimal(STORIES[story][-1]) for story in orders)
    assert (await payer.customer.totals()).balance == balance
    return found
