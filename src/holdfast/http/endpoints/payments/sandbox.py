"""Sandbox payments: an order comes with a signed callback, and sending the callback pays it."""

from __future__ import annotations

from typing import Final

from holdfast.actors.account.messages import PaySandboxOrder
from holdfast.http.endpoints.payments.orders import CREATE_ERRORS, write_order
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.other_cells import require_here, require_place
from holdfast.http.kit.refused_callbacks import count_refused
from holdfast.http.kit.responses import reply_outcome
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Outcome, Parameter, RouteTable
from holdfast.http.kit.values import ORDER_DECIMALS_MAX, read_amount
from holdfast.http.schemas.common import render
from holdfast.http.schemas.payments import (
    CallbackDescriptor,
    CallbackPayload,
    SandboxCallbackRequest,
    SandboxOrderBody,
    SandboxOrderCreated,
    SandboxOrderRequest,
    SandboxOutcome,
    order_bonus_body,
    render_order,
    sandbox_values,
)
from holdfast.ledger.api_keys import ORDERS_WRITE
from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.sandbox_signature import SIGNATURE_HEADER, read_values, sign, verify_sandbox
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import place_carried_by
from holdfast.persistence.queries.orders import order_by_id

route = RouteTable("Payments")

CALLBACK_PATH: Final = "/v2/control/payments/sandbox/callback"

_DISABLED: Final = Refusal(code="sandbox_disabled", message="Sandbox payments are disabled.")


@route(
    "POST",
    "/v2/control/payments/sandbox",
    summary="Create a sandbox payment order; the response has the callback that pays it",
    auth=Auth.SESSION_OR_KEY,
    scope=ORDERS_WRITE,
    body=SandboxOrderRequest,
    reply=SandboxOrderCreated,
    parameters=(IDEMPOTENCY_KEY,),
    errors=(*CREATE_ERRORS, "sandbox_disabled"),
)
async def create_sandbox_order(call: Call) -> Outcome:
    """The order is paid by sending the callback's payload with its signature."""
    settings = call.deps.settings
    body = call.body(SandboxOrderRequest)
    amount_micro: int | Refusal = _DISABLED
    if settings.sandbox_enabled:
        amount_micro = read_amount(body.amount, max_micro=settings.order_max_micro, decimals_max=ORDER_DECIMALS_MAX)
    written = await write_order(call, "sandbox", amount_micro, ttl_s=settings.sandbox_order_ttl_s)
    return reply_outcome(call, written, lambda result: _created(call, result.order, body.outcome))


@route(
    "POST",
    CALLBACK_PATH,
    summary="Pay a sandbox order with its callback",
    auth=Auth.SANDBOX_SIGNATURE,
    body=SandboxCallbackRequest,
    reply=SandboxOrderBody,
    parameters=(
        Parameter(
            name=SIGNATURE_HEADER,
            location="header",
            description="The signature from the order's callback, unchanged.",
            required=True,
        ),
    ),
    errors=(
        "missing_signature",
        "invalid_signature",
        "provider_event_mismatch",
        "payment_order_expired",
        "payment_order_not_payable",
        "sandbox_disabled",
    ),
)
async def receive_sandbox_callback(call: Call) -> Outcome:
    """A replay returns the order as it is. An unknown order is refused like a wrong signature."""
    outcome = await _receive(call)
    count_refused(call, "sandbox", outcome)
    return outcome


async def _receive(call: Call) -> Outcome:
    deps = call.deps
    if not deps.settings.sandbox_enabled:
        return _DISABLED
    values = read_values(call.json)
    if isinstance(values, Refusal):
        return values
    place = place_carried_by(values.order_id)
    require_place(call.deps, call.request, place)
    order = await call.deps.find_by_id(order_by_id, values.order_id)
    if order is None:
        await require_here(call.deps, call.request, place)
    event_id = None if order is None else order.request.sandbox_event_id
    header = ",".join(call.request.headers.getlist(SIGNATURE_HEADER))
    refusal = verify_sandbox(header, values, [deps.settings.sandbox_secret], event_id=event_id)
    if refusal is not None:
        return refusal
    assert order is not None
    command = PaySandboxOrder(order_id=order.order_id, values=values, body=call.raw)
    reply = await call.ask(deps.accounts.ref(order.account_id), command)
    return reply if isinstance(reply, Refusal) else render_order(SandboxOrderBody, reply.order)


def _created(call: Call, order: Order, outcome: SandboxOutcome) -> SandboxOrderCreated:
    request = order.request
    assert request.sandbox_event_id is not None
    assert request.signed_at is not None
    values = sandbox_values(request, outcome)
    secret = call.deps.settings.sandbox_secret
    signature = sign(secret, values, event_id=request.sandbox_event_id, at=request.signed_at)
    callback = CallbackDescriptor(
        url=call.deps.urls.base + CALLBACK_PATH,
        signature_header=SIGNATURE_HEADER,
        payload=render(CallbackPayload, values),
        signature=signature,
    )
    return render(SandboxOrderCreated, order, request, callback=callback, bonus=order_bonus_body(order))
