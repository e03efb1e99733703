"""Card orders and the card provider's webhook over HTTP: the fields of each response, and each refusal."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.clients import refused

from holdfast.actors.account.messages import (
    AttachIntent,
    CreateOrder,
    ReceivePaymentEvent,
    RecordIntentRefused,
)
from holdfast.providers.card.base import CardRateLimited, CardRejected, CardTimeout, CardUnavailable
from holdfast.providers.signatures import sign

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.order_stand_ins import FakeCard, FakeUnmatchedEvents, OrderRules

CREATE, WEBHOOK = "/v2/control/payments/cardprovider", "/v2/control/payments/cardprovider/webhook"
HEADER = "Cardprovider-Signature"
SECRET = "card-webhook-secret"

PART = {
    "order_id", "provider", "status", "processing_status", "reversal_status", "risk_status", "reconcile_status",
    "amount", "currency", "operation_id", "brand_id", "legal_entity_id", "merchant_of_record",
    "provider_account_id", "amount_breakdown", "fx_snapshot", "provider_payment_id", "provider_charge_id",
    "provider_event_id", "provider_event_ids", "ledger_operation_refs", "reversal_operation_ids", "reversal_refs",
    "provider_balance_transaction_ids", "provider_balance_transaction_refs", "state_history", "reconcile_cursor",
    "bonus",
}  # fmt: skip
TIMES = {"credited_at", "failed_at", "refunded_at", "disputed_at", "chargeback_at", "reconciled_at", "expires_at"}


@pytest.fixture
def rules(api: Api) -> OrderRules:
    return api.use_order_rules()


@pytest.fixture
def fakes(api: Api) -> tuple[FakeCard, FakeUnmatchedEvents]:
    return api.configure_card()


async def create(api: Api, amount: str = "10.00", key: str | None = None) -> httpx2.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await api.as_session("POST", CREATE, json={"amount": amount}, headers=headers)


def paid_event(order: dict[str, Any], event_id: str = "evt_1", **intent: Any) -> dict[str, Any]:
    """The provider's event of a paid intent."""
    amount = intent.get("amount_received", 1000)
    found = {
        "id": f"pi_{order['order_id']}",
        "object": "payment_intent",
        "status": "succeeded",
        "amount": 1000,
        "amount_received": amount,
        "currency": "usd",
        "livemode": False,
        "latest_charge": "ch_1",
        "metadata": {"order_id": order["order_id"], "account_id": "x", "env": "development"},
        **intent,
    }
    return event("payment_intent.succeeded", found, event_id)


def event(kind: str, found: dict[str, Any], event_id: str = "evt_1") -> dict[str, Any]:
    return {"id": event_id, "object": "event", "type": kind, "created": 1795608000, "data": {"object": found}}


async def send(
    api: Api, event: Any, *, secret: str = SECRET, at_s: int = 0, header: str = HEADER
) -> httpx2.Response:
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    signature = sign(secret, body, at=int(api.now.timestamp()) + at_s)
    return await api.call("POST", WEBHOOK, content=body, headers={header: signature})


async def test_an_order_is_stored_before_the_provider_is_called(
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents]
) -> None:
    card, _ = fakes
    api.configure(card_order_ttl_s=3600)
    response = await create(api, "12.34")
    body = response.json()
    assert response.status_code == 200
    assert set(body) == PART | {"client_secret", "publishable_key", "expires_at"}
    order_id = body["order_id"]
    assert [type(command) for _, command in api.accounts.asked] == [CreateOrder, AttachIntent]
    assert card.asked == [(order_id, api.account_id, 1234, "USD", "development")]
    assert (body["provider"], body["status"], body["amount"], body["currency"]) == (
        "cardprovider", "pending", "12.34", "USD"
    )  # fmt: skip
    assert (body["provider_payment_id"], body["provider_charge_id"]) == (f"pi_{order_id}", None)
    assert (body["client_secret"], body["publishable_key"]) == (f"pi_{order_id}_secret", "pk_test")
    assert body["expires_at"] == "2026-11-20T13:00:00.000Z"
    assert body["reconcile_cursor"]["provider_object_type"] == "payment_intent"
    assert body["reconcile_cursor"]["provider_object_id"] == f"pi_{order_id}"
    assert [each["reason"] for each in body["state_history"]] == ["order_created"]
    assert rules.orders[order_id].state.payment_id == f"pi_{order_id}"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (CardUnavailable("connection refused"), 502, "provider_unavailable"),
        (CardTimeout("too slow"), 504, "provider_timeout"),
        (CardRateLimited(17), 503, "provider_rate_limited"),
    ],
)
async def test_a_provider_fault_leaves_the_order_pending_and_the_key_reusable(  # noqa: PLR0917 - cases
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents], fault: Any, status: int, code: str
) -> None:
    card, _ = fakes
    card.fault = fault
    response = await create(api, key="one")
    error = refused(response, status, code)
    assert error["type"] == "provider_error"
    assert "connection refused" not in error["message"]
    if code == "provider_rate_limited":
        assert response.headers["Retry-After"] == "17"
    [order] = rules.orders.values()
    assert order.status == "pending"
    card.fault = None
    again = await create(api, key="one")
    body = again.json()
    assert (again.status_code, body["order_id"]) == (200, order.order_id)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert [asked[0] for asked in card.asked] == [order.order_id] * 2
    assert rules.orders[order.order_id].state.intent_id == body["provider_payment_id"]


async def test_a_provider_refusal_fails_the_order_and_returns_its_code(
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents]
) -> None:
    card, _ = fakes
    card.fault = CardRejected("amount_too_odd")
    response = await create(api)
    error = refused(response, 502, "provider_rejected")
    assert error["provider_code"] == "amount_too_odd"
    assert response.headers["X-Should-Retry"] == "false"
    assert isinstance(api.accounts.asked[-1][1], RecordIntentRefused)
    [order] = rules.orders.values()
    assert (order.status, order.state.history[-1].reason) == ("failed", "create_refused: amount_too_odd")


@pytest.mark.parametrize(
    ("amount", "code"),
    [("0.49", "amount_too_small"), ("1.001", "invalid_amount"), ("0", "invalid_amount"), (5, "invalid_amount"),
     ("10000.01", "invalid_amount")],
)  # fmt: skip
async def test_amounts_outside_the_card_limits_are_refused(
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents], amount: Any, code: str
) -> None:
    error = refused(await create(api, amount), 400, code)
    assert (error["param"], api.accounts.asked) == ("amount", [])


async def test_an_amount_above_the_card_maximum_is_refused(
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents]
) -> None:
    api.configure(order_max_micro=10**13)
    refused(await create(api, "1000000.00"), 400, "amount_too_large")
    assert (await create(api, "999999.99")).status_code == 200


async def test_without_a_provider_there_are_no_card_orders_and_no_webhook(api: Api, rules: OrderRules) -> None:
    refused(await create(api), 503, "provider_not_configured")
    refused(await create(api, "x"), 400, "invalid_amount")
    refused(await send(api, {}), 503, "provider_not_configured")
    assert rules.orders == {}


@pytest.mark.parametrize("secrets", [(), ("",), (" ", "")])
async def test_an_empty_webhook_secret_disables_the_webhook(api: Api, secrets: tuple[str, ...]) -> None:
    api.configure_card(webhook_secrets=secrets)
    refused(await send(api, {}), 503, "provider_not_configured")


async def test_the_webhook_credits_and_returns_the_order_without_secret(
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents]
) -> None:
    order = (await create(api)).json()
    event = paid_event(order)
    response = await send(api, event)
    body = response.json()
    assert response.status_code == 200, body
    assert set(body) == PART | TIMES | {"origin", "failure_code"}
    assert (body["status"], body["processing_status"], body["credited_at"]) == (
        "credited", "succeeded", "2026-11-20T12:00:00.000Z"
    )  # fmt: skip
    assert (body["provider_charge_id"], body["provider_event_ids"]) == ("ch_1", ["evt_1"])
    assert body["ledger_operation_refs"] == [order["operation_id"]]
    (_, command) = api.accounts.asked[-1]
    assert isinstance(command, ReceivePaymentEvent)
    assert command.body == json.dumps(event).encode()
    again = await send(api, event)
    assert (again.status_code, again.json()) == (200, body)


async def test_a_declined_order_has_the_providers_code_until_it_is_paid(
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents]
) -> None:
    order = (await create(api)).json()
    path = f"/v2/control/payments/{order['order_id']}"
    assert (await api.as_session("GET", path)).json()["failure_code"] is None
    error = {"code": "card_declined", "decline_code": "insufficient_funds", "type": "card_error"}
    failed = paid_event(order, status="requires_payment_method", last_payment_error=error, amount_received=0)
    failed["data"]["object"]["latest_charge"] = None
    await send(api, {**failed, "type": "payment_intent.payment_failed"})
    body = (await api.as_session("GET", path)).json()
    assert (body["status"], body["failure_code"]) == ("failed", "insufficient_funds")
    body = (await send(api, paid_event(order, "evt_2"))).json()
    assert (body["status"], body["failure_code"]) == ("credited", None)


async def test_the_stored_event_lacks_only_its_client_secret(
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents]
) -> None:
    order = (await create(api)).json()
    event = paid_event(order, client_secret='pi_1_secret_"\\x')
    assert (await send(api, event)).status_code == 200
    (_, command) = api.accounts.asked[-1]
    assert isinstance(command, ReceivePaymentEvent)
    assert json.loads(command.body) == paid_event(order, client_secret=None)
    unmatched = paid_event({"order_id": "ord_" + "9" * 32}, client_secret="pi_2_secret")
    await send(api, unmatched)
    assert b"pi_2_secret" not in fakes[1].stored[0][3]


async def test_the_providers_own_signature_header_is_accepted(
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents]
) -> None:
    order = (await create(api)).json()
    assert (await send(api, paid_event(order), header="Stripe-Signature")).status_code == 200


async def test_an_event_of_an_unknown_order_is_refused_and_stored(
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents]
) -> None:
    event = paid_event({"order_id": "ord_" + "9" * 32})
    refused(await send(api, event), 404, "payment_order_not_found")
    assert fakes[1].stored == [("evt_1", "payment_intent.succeeded", "unmatched", json.dumps(event).encode())]


@pytest.mark.parametrize(
    ("event", "verdict"),
    [
        (event("customer.created", {"id": "cus_1", "object": "customer"}), "ignored"),
        (event("charge.succeeded", {"id": "ch_9", "object": "charge", "paid": True, "captured": True, "amount": 5,
                                    "amount_captured": 5, "currency": "usd", "payment_intent": "pi_theirs"}),
         "unmatched"),
    ],
)  # fmt: skip
async def test_foreign_events_are_acknowledged_ignored_and_stored(
    api: Api, fakes: tuple[FakeCard, FakeUnmatchedEvents], event: dict[str, Any], verdict: str
) -> None:
    response = await send(api, event)
    assert response.status_code == 200
    assert response.json() == {"received": True, "ignored": True, "event_id": "evt_1"}
    assert [(stored[0], stored[2]) for stored in fakes[1].stored] == [("evt_1", verdict)]
    assert api.accounts.asked == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff\xfe\x00", json.dumps(paid_event({"order_id": "ord_1"}, amount_received=-5)).encode(),
    ],
)  # fmt: skip
async def test_a_signed_malformed_event_is_a_400_and_stored(
    api: Api, fakes: tuple[FakeCard, FakeUnmatchedEvents], body: bytes
) -> None:
    refused(await send(api, body), 400, "invalid_event")
    assert [(verdict, stored) for _, _, verdict, stored in fakes[1].stored] == [("invalid_event", body)]
    assert api.accounts.asked == []


async def test_a_body_of_ten_megabytes_is_413(api: Api, fakes: tuple[FakeCard, FakeUnmatchedEvents]) -> None:
    body = b'{"id": "' + b"x" * 10_000_000 + b'"}'
    signature = sign(SECRET, body, at=int(api.now.timestamp()))
    for headers in ({}, {"Content-Length": str(len(body))}):
        response = await api.call("POST", WEBHOOK, content=body, headers={HEADER: signature, **headers})
        refused(response, 413, "request_too_large")


async def test_missing_invalid_and_expired_signatures_are_refused(
    api: Api, fakes: tuple[FakeCard, FakeUnmatchedEvents]
) -> None:
    event = paid_event({"order_id": "ord_1"})
    for headers in ({}, {HEADER: ""}, {HEADER: "  "}):
        refused(await api.call("POST", WEBHOOK, content=b"{}", headers=headers), 401, "missing_signature")
    refused(await send(api, event, secret="another"), 401, "invalid_signature")
    refused(await send(api, event, at_s=-301), 401, "signature_expired")
    refused(await send(api, event, at_s=301), 401, "signature_expired")
    assert fakes[1].stored == []


async def test_a_live_order_is_not_paid_by_a_test_payment(api: Api, rules: OrderRules) -> None:
    api.configure_card(livemode=True)
    order = (await create(api)).json()
    body = (await send(api, paid_event(order))).json()
    assert (body["status"], body["risk_status"]) == ("held", "mismatch")


CONTINUE = "/v2/control/payments/{}/client-secret"


async def test_an_order_is_paid_from_a_page_that_is_opened_again(
    api: Api, rules: OrderRules, fakes: tuple[FakeCard, FakeUnmatchedEvents]
) -> None:
    created = (await create(api, "12.34")).json()
    again = await api.as_session("POST", CONTINUE.format(created["order_id"]))
    assert again.status_code == 200
    assert again.json() == created
    card, _ = fakes
    card.fault = CardTimeout("too slow")
    refused(await api.as_session("POST", CONTINUE.format(created["order_id"])), 504, "provider_timeout")
    card.fault = None
    failed = event("payment_intent.payment_failed", paid_event(created)["data"]["object"], "evt_failed")
    failed["data"]["object"] |= {
        "status": "requires_payment_method",
        "amount_received": 0,
        "last_payment_error": {"code": "card_declined"},
    }
    assert (await send(api, failed)).json()["status"] == "failed"
    after = await api.as_session("POST", CONTINUE.format(created["order_id"]))
    assert (after.status_code, after.json()["client_secret"]) == (200, created["client_secret"])


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"provider": "sandbox", "sandbox_event_id": "evt_1", "signed_at": 0}, 409, "payment_order_not_payable"),
        ({"provider": "cardprovider", "origin": "top_up"}, 409, "payment_order_not_payable"),
        ({"provider": "cardprovider", "expired_s": 0}, 409, "payment_order_expired"),
        ({"provider": "cardprovider", "account_id": "acct_" + "9" * 32}, 404, "payment_order_not_found"),
    ],
)
async def test_an_order_that_cannot_be_paid_has_no_secret(
    api: Api, fakes: tuple[FakeCard, FakeUnmatchedEvents], fields: dict[str, Any], status: int, code: str
) -> None:
    expired_s = fields.pop("expired_s", -60)
    order = api.order(**fields, expires_at=api.now - timedelta(seconds=expired_s))
    await api.add_order(order)
    refused(await api.as_session("POST", CONTINUE.format(order.order_id)), status, code)
    assert fakes[0].asked == []
