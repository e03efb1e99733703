"""What operators do with a payment: decide on a held one, refund it, compare it with the card provider.

A refund is made at the provider; the credit is reversed by what the provider reports of it, as for every other
refund. Before the call the order is scheduled to be compared, so that a refund whose response is lost is found.
"""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.actors.account.messages import ResolveOrder
from holdfast.http.endpoints.operators.money.orders import order_of_path
from holdfast.http.endpoints.payments.card import CARD_ERRORS, NOT_CONFIGURED, PROVIDER, refusal_of_card
from holdfast.http.kit.actions import note_effect
from holdfast.http.kit.amounts import read_amount
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import REQUIRED_IDEMPOTENCY_KEY, Outcome, RouteTable
from holdfast.http.kit.shown import invalid_parameter
from holdfast.http.schemas.common import AmountGiven
from holdfast.http.schemas.operators import ActionRequest, Note, Reason, text_of
from holdfast.http.schemas.payment_rendering import payment_order_body
from holdfast.http.schemas.payments import PaymentOrderBody
from holdfast.ledger.money import format_amount
from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.targets import received_micro
from holdfast.ledger.public_types import Amount
from holdfast.ledger.refusals import IDEMPOTENCY_KEY_REUSED, Refusal
from holdfast.providers.card.base import CardFault, CardRejected, micro_per_minor, minor_from_micro

route = RouteTable("Operators")


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to give credit, and a note that is recorded in the order's history.

    Without ``amount`` the amount received is credited, at most the amount ordered; a payment in another currency
    needs one.
    """

    credit: bool
    reason: Reason
    amount: AmountGiven | None = None
    note: Note | None = None


class RefundRequest(msgspec.Struct, frozen=True):
    """The amount to refund, by default all that is left of the payment."""

    reason: Reason
    amount: AmountGiven | None = None


class RefundBody(msgspec.Struct, frozen=True):
    """A refund, and its order after it. ``status`` is the provider's, and may still change."""

    provider_refund_id: str
    amount: Amount
    currency: str
    status: str
    order: PaymentOrderBody


@route(
    "POST",
    "/ops/api/payments/{order_id}/resolve",
    summary="Resolve a held payment order: give credit for its payment, or none",
    auth=Auth.OPERATOR_ACT,
    action="resolve_payment",
    body=Resolution,
    reply=PaymentOrderBody,
    errors=("payment_order_not_found", "payment_order_not_payable", "invalid_amount", "amount_too_large"),
)
async def resolve_payment_order(call: Call) -> Outcome:
    """The order's account decides; the response is the order afterwards."""
    body = call.body(Resolution)
    if body.amount is not None and not body.credit:
        return invalid_parameter("amount", "is allowed only with credit")
    most_micro = call.deps.settings.order_max_micro
    amount_micro = None if body.amount is None else read_amount(body.amount, max_micro=most_micro)
    if isinstance(amount_micro, Refusal):
        return amount_micro
    order = await order_of_path(call)
    if isinstance(order, Refusal):
        return order
    command = ResolveOrder(order.order_id, body.credit, amount_micro, text_of(body.note))
    reply = await call.ask(call.deps.accounts.ref(order.account_id), command)
    if isinstance(reply, Refusal):
        return reply
    resolution = reply.order.state.facts.resolution
    assert resolution is not None
    note_effect(call, decision=resolution.decision, amount=format_amount(resolution.amount_micro))
    return payment_order_body(reply.order)


@route(
    "POST",
    "/ops/api/payments/{order_id}/refund",
    summary="Refund a card payment, or a part of it; the credit is reversed",
    auth=Auth.OPERATOR_ACT,
    action="refund_payment",
    body=RefundRequest,
    reply=RefundBody,
    parameters=(REQUIRED_IDEMPOTENCY_KEY,),
    errors=(
        "payment_order_not_found",
        *CARD_ERRORS,
        "payment_order_not_refundable",
        "invalid_amount",
        "idempotency_key_reused",
    ),
)
async def refund_payment(call: Call) -> Outcome:
    """A repeat with the same Idempotency-Key returns the refund that was made, also after a lost response.

    Another request with the key, as with another reason, refunds nothing.
    """
    deps, card = call.deps, call.deps.card
    idempotency = call.required_idempotency()
    if isinstance(idempotency, Refusal):
        return idempotency
    order = await order_of_path(call)
    if isinstance(order, Refusal):
        return order
    if card is None:
        return NOT_CONFIGURED
    amount_minor = _amount_minor(order, call.body(RefundRequest).amount)
    if isinstance(amount_minor, Refusal):
        return amount_minor
    assert order.state.payment_id is not None
    await deps.order_checks.expect_change(order)
    key = hashlib.sha256(idempotency.key.encode()).hexdigest()[:40]
    request = idempotency.fingerprint.hex()[:40]
    try:
        made = await card.provider.refund(order.state.payment_id, amount_minor, key=key, request=request)
    except CardFault as fault:
        match fault:
            case CardRejected(provider_code="charge_already_refunded"):
                return _not_refundable(order, "it is refunded already")
            case CardRejected(provider_code="idempotency_error"):
                return IDEMPOTENCY_KEY_REUSED
        return refusal_of_card(fault)
    if made.request != request:
        return IDEMPOTENCY_KEY_REUSED
    currency = order.request.currency
    amount = format_amount(made.amount_minor * micro_per_minor(currency))
    note_effect(
        call, amount=amount, currency=currency, status=made.status, provider_refund_id=made.provider_refund_id
    )
    checked = await deps.order_checks.check_order(order)
    return RefundBody(
        provider_refund_id=made.provider_refund_id,
        amount=amount,
        currency=currency,
        status=made.status,
        order=payment_order_body(checked.order),
    )


@route(
    "POST",
    "/ops/api/payments/{order_id}/reconcile",
    summary="Compare a payment order with the card provider now",
    auth=Auth.OPERATOR_ACT,
    action="reconcile_payment",
    body=ActionRequest,
    body_optional=True,
    reply=PaymentOrderBody,
    errors=("payment_order_not_found", "provider_not_configured"),
)
async def reconcile_payment(call: Call) -> Outcome:
    """The response is the order afterwards; ``reconcile_status`` is ``error`` if the provider did not answer."""
    order = await order_of_path(call)
    if isinstance(order, Refusal):
        return order
    if call.deps.card is None:
        return NOT_CONFIGURED
    after = (await call.deps.order_checks.check_order(order)).order
    note_effect(call, reconcile_status=after.statuses.reconcile_status)
    return payment_order_body(after)


def _amount_minor(order: Order, given: str | None) -> int | Refusal | None:
    """Return the amount to refund in minor units, None for all that is left.

    Refuses: 1. ``payment_order_not_refundable``; 2. ``invalid_amount``. How much is left the provider knows best.
    """
    if order.request.provider != PROVIDER:
        return _not_refundable(order, "it was not paid by card")
    received = received_micro(order.request, order.state.facts)
    if order.state.payment_id is None or received is None:
        return _not_refundable(order, "nothing was received for it")
    if given is None:
        return None
    amount_micro = read_amount(given, max_micro=received)
    if isinstance(amount_micro, Refusal):
        return amount_micro
    return minor_from_micro(amount_micro, order.request.currency)


def _not_refundable(order: Order, why: str) -> Refusal:
    return Refusal(
        code="payment_order_not_refundable",
        message=f"The payment order {order.order_id} cannot be refunded: {why}.",
    )
