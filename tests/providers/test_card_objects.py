"""A payment is read by one rule, whether it arrives in a webhook or is retrieved."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.ledger.orders.facts import OrderFacts, join
from holdfast.providers.card.objects import intent_facts, snapshot_of

AT = 1_790_000_000
CHARGE = {
    "id": "ch_1", "payment_intent": "pi_1", "paid": True, "captured": True, "status": "succeeded", "amount": 1000,
    "amount_refunded": 0, "currency": "usd", "livemode": False,
}  # fmt: skip


def amounts(facts: OrderFacts) -> set[tuple[str, int]]:
    return {
        (payment_id, claim.amount_micro) for payment_id, paid in facts.payments.items() for claim in paid.stated
    }


@pytest.mark.parametrize("charge", [None, "ch_1", CHARGE])
@pytest.mark.parametrize(
    ("received", "amount_micro"),
    [({}, 10_000_000), ({"amount_received": None}, 10_000_000), ({"amount_received": 1000}, 10_000_000),
     ({"amount_received": 700}, 7_000_000)],
)  # fmt: skip
def test_the_amount_received_is_the_same_by_webhook_and_snapshot(
    charge: object, received: dict[str, object], amount_micro: int
) -> None:
    if isinstance(charge, dict):
        charge = {**charge, "amount_captured": amount_micro // 10_000}
    intent: dict[str, Any] = {
        "id": "pi_1", "status": "succeeded", "amount": 1000, "currency": "usd", "livemode": False, "created": AT,
        "latest_charge": charge, **received,
    }  # fmt: skip
    notified = amounts(intent_facts(intent, at=AT, account=None))
    seen = snapshot_of(intent, as_of=AT)
    assert notified == amounts(join(*(event.facts for event in seen.events))) == {("pi_1", amount_micro)}
