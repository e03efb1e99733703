"""Sandbox orders: the callback, its rules, and the exact fields of responses."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from tests.clients import refused

from holdfast.actors.account.messages import CreateOrder
from holdfast.ledger.orders.sandbox_signature import NOT_OF_THIS_ORDER, SandboxValues, sign, verify_sandbox

from .identities import SANDBOX_SECRET

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.order_stand_ins import OrderRules

CREATE, CALLBACK = "/v2/control/payments/sandbox", "/v2/control/payments/sandbox/callback"
HEADER = "X-Sandbox-Payment-Signature"

PART = {
    "order_id", "provider", "status", "processing_status", "reversal_status", "risk_status", "reconcile_status",
    "amount", "currency", "operation_id", "brand_id", "legal_entity_id", "merchant_of_record",
    "provider_account_id", "amount_breakdown", "fx_snapshot", "provider_event_id", "provider_event_ids",
    "ledger_operation_refs", "reversal_operation_ids", "reversal_refs", "provider_balance_transaction_ids",
    "provider_balance_transaction_refs", "state_history", "reconcile_cursor", "bonus",
}  # fmt: skip


@pytest.fixture
def rules(api: Api) -> OrderRules:
    return api.use_order_rules()


async def create(api: Api, amount: str = "10.00", **more: Any) -> dict[str, Any]:
    headers = more.pop("headers", None)
    response = await api.as_session("POST", CREATE, json={"amount": amount, **more}, headers=headers)
    assert response.status_code == 200, response.content
    body: dict[str, Any] = response.json()
    return body


async def pay(api: Api, created: dict[str, Any], **changed: Any) -> httpx2.Response:
    """Send the callback as it was given; ``changed`` values of None leave the field out."""
    callback = created["callback"]
    signature = changed.pop("signature", callback["signature"])
    payload = {name: value for name, value in {**callback["payload"], **changed}.items() if value is not None}
    headers = {} if signature is None else {callback["signature_header"]: signature}
    return await api.call("POST", CALLBACK, json=payload, headers=headers)


async def test_creating_an_order_returns_the_callback_that_pays_it(api: Api, rules: OrderRules) -> None:
    created = await create(api)
    [(account_id, command)] = api.accounts.asked
    assert isinstance(command, CreateOrder)
    request = command.request
    assert account_id == request.account_id == api.account_id
    assert created == {
        "order_id": request.order_id,
        "provider": "sandbox",
        "status": "pending",
        "amount": "10.00",
        "currency": "USD",
        "operation_id": request.operation_id,
        "expires_at": "2026-11-20T12:30:00.000Z",
        "callback": {
            "url": f"https://holdfast.example{CALLBACK}",
            "signature_header": HEADER,
            "payload": {
                "order_id": request.order_id,
                "account_id": api.account_id,
                "amount": "10.00",
                "currency": "USD",
                "status": "paid",
                "provider_event_id": request.sandbox_event_id,
            },
            "signature": created["callback"]["signature"],
        },
        "bonus": None,
    }
    values = msgspec.convert(created["callback"]["payload"], SandboxValues)
    signature = created["callback"]["signature"]
    assert verify_sandbox(signature, values, [SANDBOX_SECRET], event_id=request.sandbox_event_id) is None


async def test_the_callback_credits_the_order_and_returns_its_fields(api: Api, rules: OrderRules) -> None:
    created = await create(api)
    response = await pay(api, created)
    body = response.json()
    assert response.status_code == 200
    assert set(body) == PART | {"credited_at", "failed_at"}
    assert (body["status"], body["processing_status"], body["reconcile_status"]) == (
        "credited", "succeeded", "unreconciled"
    )  # fmt: skip
    assert (body["credited_at"], body["failed_at"]) == ("2026-11-20T12:00:00.000Z", None)
    event_id = created["callback"]["payload"]["provider_event_id"]
    assert (body["provider_event_id"], body["provider_event_ids"]) == (event_id, [event_id])
    assert body["ledger_operation_refs"] == [body["operation_id"]] == [created["operation_id"]]
    assert body["amount_breakdown"] == {
        "gross": "10.00", "fee": "0.00", "tax": "0.00", "net": "10.00", "currency": "USD"
    }  # fmt: skip
    assert body["fx_snapshot"] == {
        "base": "USD",
        "quote": "USD",
        "rate": "1",
        "credits_per_unit": "1",
        "source": "identity",
        "captured_at": "2026-11-20T12:00:00.000Z",
    }
    assert [(each["source"], each["reason"]) for each in body["state_history"]] == [
        ("api", "order_created"), ("sandbox_callback", "payment_succeeded")
    ]  # fmt: skip
    last = body["state_history"][-1]
    assert (last["event_id"], last["operation_id"], last["status"]) == (event_id, body["operation_id"], "credited")
    assert body["reconcile_cursor"] == {
        "provider": "sandbox",
        "brand_id": "holdfast",
        "provider_account_id": "holdfast",
        "provider_object_type": None,
        "provider_object_id": None,
        "event_id": event_id,
        "event_type": "sandbox_payment.paid",
        "synthetic_event_id": None,
        "scan_strategy": "order_retrieve",
        "reconciled_at": None,
    }
    for name in ("reversal_operation_ids", "reversal_refs", "provider_balance_transaction_refs"):
        assert body[name] == []


@pytest.mark.parametrize(
    "altered",
    [{"amount": "10.01"}, {"order_id": "ord_" + "9" * 32}, {"order_id": "ord';drop"}, {"order_id": "ORD"}],
)
async def test_altered_values_and_unknown_orders_get_the_same_refusal(
    api: Api, rules: OrderRules, altered: dict[str, str]
) -> None:
    created = await create(api)
    await create(api)
    response = await pay(api, created, **altered)
    error = refused(response, 401, "invalid_signature")
    assert error["message"] == NOT_OF_THIS_ORDER.message
    assert "WWW-Authenticate" not in response.headers
    assert rules.orders[created["order_id"]].status == "pending"


async def test_a_missing_signature_and_one_with_another_secret(api: Api, rules: OrderRules) -> None:
    created = await create(api)
    error = refused(await pay(api, created, signature=None), 401, "missing_signature")
    assert error["message"] == f"The header {HEADER} is missing."
    refused(await pay(api, created, signature=" "), 401, "missing_signature")
    values = msgspec.convert(created["callback"]["payload"], SandboxValues)
    event_id = str(values.provider_event_id)
    forged = sign("another secret", values, event_id=event_id, at=int(api.now.timestamp()))
    refused(await pay(api, created, signature=forged), 401, "invalid_signature")


async def test_an_expired_order_is_a_final_conflict(api: Api, rules: OrderRules) -> None:
    created = await create(api)
    rules.now = api.now + timedelta(minutes=30)
    response = await pay(api, created)
    refused(response, 409, "payment_order_expired")
    assert response.headers["X-Should-Retry"] == "false"


@pytest.mark.parametrize("amount", ["0", "1.001", "10000.01", 10, None])
async def test_an_invalid_amount_creates_no_order(api: Api, rules: OrderRules, amount: object) -> None:
    response = await api.as_session("POST", CREATE, json={"amount": amount})
    error = refused(response, 400, "invalid_amount")
    assert (error["param"], api.accounts.asked) == ("amount", [])


async def test_the_largest_order_is_a_setting(api: Api, rules: OrderRules) -> None:
    api.configure(order_max_micro=5_000_000, sandbox_order_ttl_s=60)
    refused(await api.as_session("POST", CREATE, json={"amount": "5.01"}), 400, "invalid_amount")
    created = await create(api, "5")
    assert (created["amount"], created["expires_at"]) == ("5.00", "2026-11-20T12:01:00.000Z")


async def test_a_disabled_sandbox_refuses_orders_and_callbacks(api: Api, rules: OrderRules) -> None:
    created = await create(api, headers={"Idempotency-Key": "one"})
    api.configure(sandbox_enabled=False)
    refused(await api.as_session("POST", CREATE, json={"amount": "1"}), 403, "sandbox_disabled")
    refused(await pay(api, created), 403, "sandbox_disabled")


async def test_the_brand_is_stored_with_the_order(api: Api, rules: OrderRules) -> None:
    api.configure(brand_id="acme", legal_entity_id="acme-ltd", merchant_of_record="Acme Ltd")
    created = await create(api)
    api.configure(brand_id="other")
    body = (await pay(api, created)).json()
    assert (body["brand_id"], body["legal_entity_id"], body["merchant_of_record"]) == (
        "acme", "acme-ltd", "Acme Ltd"
    )  # fmt: skip


async def test_a_callback_that_is_not_json_is_a_4xx(api: Api, rules: OrderRules) -> None:
    for body, status, code in (
        (b"", 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b"[1]", 400, "invalid_json"),
        (b'{"order_id": "a", "order_id": "b"}', 400, "invalid_json"),
        (b'{"order_id": "\\u0000"}', 400, "invalid_json"),
        (b'{"a":' * 2500, 400, "invalid_json"),
        (b"{" + b" " * 10_000_000 + b"}", 413, "request_too_large"),
    ):
        headers = {"Content-Type": "application/json", HEADER: "t=1,v1=" + "0" * 64}
        refused(await api.call("POST", CALLBACK, content=body, headers=headers), status, code)
