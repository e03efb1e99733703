"""Refunds by operators over HTTP, with a card provider that only records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.clients import refused

from holdfast.ledger.orders.facts import OrderFacts, PaymentFacts, StatedPayment
from holdfast.providers.card.base import CardRateLimited, CardRejected, CardTimeout, CardUnavailable

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api


async def refund(api: Api, order_id: str = "ord_1", **body: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}", "Idempotency-Key": "k"}
    path = f"/ops/api/payments/{order_id}/refund"
    return await api.call("POST", path, json={"reason": "agreed", **body}, headers=headers)


async def add_paid_order(api: Api, order_id: str = "ord_1", **fields: Any) -> None:
    order = api.order(order_id, **fields)
    paid = PaymentFacts(
        at=1, stated=(StatedPayment(amount_micro=10_000_000, currency="USD"),), charge_ids=("ch_1",)
    )
    state = msgspec.structs.replace(order.state, payment_id="pi_1", facts=OrderFacts(payments={"pi_1": paid}))
    await api.add_order(msgspec.structs.replace(order, state=state))


async def test_a_refund_is_expected_then_made_then_compared(api: Api) -> None:
    card, _ = api.configure_card()
    await add_paid_order(api)
    response = await refund(api, amount="2.50")
    body = response.json()
    assert response.status_code == 200, body
    assert (body["provider_refund_id"], body["amount"], body["order"]["order_id"]) == ("re_1", "2.50", "ord_1")
    [((payment_id, _), made)] = card.refunds.items()
    assert (payment_id, made.amount_minor) == ("pi_1", 250)
    assert api.deps.payments.order_checks.done == [("expected", "ord_1"), ("checked", "ord_1")]  # type: ignore[attr-defined]
    assert (await refund(api, amount="2.50")).json() == body
    assert len(card.refunds) == 1


async def test_one_idempotency_key_refunds_once_whatever_the_body(api: Api) -> None:
    card, _ = api.configure_card()
    await add_paid_order(api)
    assert (await refund(api, amount="2.50")).status_code == 200
    for other in ({"amount": "1.00"}, {}, {"amount": "2.50", "reason": "a better one"}):
        refused(await refund(api, **other), 422, "idempotency_key_reused")
    assert len(card.refunds) == 1


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (CardTimeout("late"), 504, "provider_timeout"),
        (CardUnavailable("gone"), 502, "provider_unavailable"),
        (CardRateLimited(7), 503, "provider_rate_limited"),
        (CardRejected("charge_disputed"), 502, "provider_rejected"),
        (CardRejected("idempotency_error"), 422, "idempotency_key_reused"),
        (CardRejected("charge_already_refunded"), 409, "payment_order_not_refundable"),
    ],
)
async def test_a_fault_of_the_provider_is_answered_as_such(api: Api, fault: Any, status: int, code: str) -> None:
    card, _ = api.configure_card()
    card.fault = fault
    await add_paid_order(api)
    refused(await refund(api), status, code)
    assert api.deps.payments.order_checks.done == [("expected", "ord_1")]  # type: ignore[attr-defined]


async def test_what_cannot_be_refunded_calls_no_provider(api: Api) -> None:
    await add_paid_order(api)
    refused(await refund(api), 503, "provider_not_configured")
    card, _ = api.configure_card()
    await api.add_order(api.order("ord_2"))
    await add_paid_order(api, "ord_3", provider="sandbox", sandbox_event_id="evt_3")
    for order_id, body, status, code in (
        ("ord_2", {}, 409, "payment_order_not_refundable"),
        ("ord_3", {}, 409, "payment_order_not_refundable"),
        ("ord_9", {}, 404, "payment_order_not_found"),
        ("ord_1", {"amount": "10.01"}, 400, "invalid_amount"),
        ("ord_1", {"amount": "0.001"}, 400, "invalid_amount"),
        ("ord_1", {"amount": "-1"}, 400, "invalid_amount"),
        ("ord_1", {"reason": ""}, 400, "invalid_parameter"),
    ):
        refused(await refund(api, order_id, **body), status, code)
    assert card.refunds == {}
