"""Payment orders of all accounts: those that need attention, and one of them with its account."""

from __future__ import annotations

import hashlib
from typing import Final, Unpack, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.actors.account.messages import ResolveOrder
from holdfast.http.endpoints.payments.card import CARD_ERRORS, NOT_CONFIGURED, PROVIDER, refusal_of_card
from holdfast.http.endpoints.payments.orders import order_not_found, position_of
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import (
    FORMAT,
    PAGE,
    CsvFile,
    ListOptions,
    Position,
    StoredListBody,
    TotalledListBody,
    columns_of,
    csv_media,
    filter_by,
    list_for_operators,
)
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.values import ORDER_DECIMALS_MAX, invalid_parameter, read_amount
from holdfast.http.schemas.operators import ActionRequest, Note, Reason, text_of
from holdfast.http.schemas.payments import OrderAmount, PaymentOrderBody, in_units, payment_order_body, render_order
from holdfast.ledger.orders.order import Order, OrderStatus, Origin, Provider, ReconcileStatus
from holdfast.ledger.orders.targets import received_micro
from holdfast.ledger.public_types import AccountId, Amount
from holdfast.ledger.refusals import IDEMPOTENCY_KEY_REUSED, Refusal
from holdfast.ledger.values import format_amount
from holdfast.persistence.queries.accounts import email_of_account
from holdfast.persistence.queries.newest import list_orders
from holdfast.persistence.queries.orders import OrderTrouble, TroubledOrder, order_by_id, troubled_orders
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast.providers.card.base import CardFault, CardRejected, micro_per_minor, minor_from_micro

route = OperatorRoutes("Payments")

TROUBLE: Final = filter_by(
    "trouble",
    "`held`: the payment waits for a decision. `mismatched`: the order differs from its provider's record. "
    "`unreconciled`: paid, and not compared yet, or the comparison failed. Without it all but `held`.",
    get_args(OrderTrouble),
)


class ReceivedPayment(msgspec.Struct, frozen=True):
    """What an event says was captured for a payment."""

    payment_id: str
    """The provider's id of the payment."""
    amount: str
    """A decimal string in units of its currency."""
    currency: str
    """The currency of the payment, ISO 4217."""


class OrderDetails(msgspec.Struct, frozen=True):
    """A payment order and its account."""

    account_id: AccountId
    email: str | None
    """The account's e-mail address; null while it cannot be read."""
    order: PaymentOrderBody
    """The order."""
    received: list[ReceivedPayment]
    """What was paid for it, which may differ from its amount."""


class HeldOrder(PaymentOrderBody, frozen=True, kw_only=True):
    """A held payment order, with the account it belongs to."""

    account_id: AccountId
    email: str | None
    """The account's e-mail address; null while it cannot be read."""


class HeldOrderList(StoredListBody[HeldOrder], frozen=True):
    """A page of held payment orders, oldest first."""


class OrderDetailsList(StoredListBody[OrderDetails], frozen=True):
    """A page of payment orders, oldest first."""


@route.read(
    "/ops/api/orders",
    "List the payment orders that need attention; oldest first",
    OrderDetailsList,
    parameters=(TROUBLE, *PAGE),
)
async def list_troubled_orders(call: Call) -> Outcome:
    """Settled orders are not listed."""
    return await list_for_operators(call, troubled_orders, _details, _position)


@route.read(
    "/ops/api/payments",
    "List the held payment orders of all accounts; oldest first",
    HeldOrderList,
    parameters=PAGE,
)
async def list_held_orders(call: Call) -> Outcome:
    """The same as the orders whose trouble is ``held``."""
    return await list_for_operators(call, _held_orders, _held_order, _position)


class AllOrders(TotalledListBody[OrderDetails], frozen=True):
    """A page of all payment orders, with how many there are by status and currency, and their sums."""


_COLUMNS: Final = columns_of(
    "order.order_id",
    "order.account_id",
    "email",
    *(f"order.request.{name}" for name in ("created_at", "provider", "origin", "amount_micro", "currency")),
    *(f"order.statuses.{name}" for name in ("status", "reversal_status", "reconcile_status")),
)
_STATUS_FILTERS: Final = (
    filter_by("status", "Only orders with this status.", get_args(OrderStatus)),
    filter_by("reconcile_status", "Only orders that compare so with their provider.", get_args(ReconcileStatus)),
    filter_by("provider", "Only orders paid by this provider.", get_args(Provider)),
    filter_by("origin", "Only orders that customers made, or automatic top-ups.", get_args(Origin)),
)


@route.read(
    "/ops/api/all-orders",
    "List all payment orders of all accounts with their totals; newest first, or as a CSV file",
    AllOrders,
    parameters=(*_STATUS_FILTERS, *PAGE, FORMAT),
    media=(csv_media(_COLUMNS),),
)
async def list_all_orders(call: Call) -> Outcome:
    """With a filter a page reads 20,000 orders at most, so it may have fewer entries than others follow."""
    file = CsvFile("orders.csv", _COLUMNS)
    return await list_for_operators(call, list_orders, _details, _position, file=file, totals="orders")


@route.read(
    "/ops/api/orders/{order_id}",
    "Retrieve a payment order of any account",
    OrderDetails,
    errors=("payment_order_not_found",),
)
async def read_order_details(call: Call) -> Outcome:
    """It has all that was received for the order."""
    order_id = call.path["order_id"]
    order = await call.deps.find_by_id(order_by_id, order_id)
    if order is None:
        return order_not_found(order_id)
    email = await call.deps.database.read(lambda rows: email_of_account(rows, order.account_id))
    return _details(TroubledOrder(order, email))


def _held_orders(rows: Connection, /, **options: Unpack[ListOptions]) -> list[TroubledOrder | UnreadableEntry]:
    options["filters"] = {"trouble": "held"}
    return troubled_orders(rows, **options)


def _held_order(found: TroubledOrder) -> HeldOrder:
    return render_order(HeldOrder, found.order, email=found.email)


def _position(found: TroubledOrder) -> Position:
    return position_of(found.order)


def _details(found: TroubledOrder) -> OrderDetails:
    order = found.order
    received = [
        ReceivedPayment(payment_id, in_units(each.amount_micro, each.currency), each.currency)
        for payment_id, payment in order.state.facts.payments.items()
        for each in payment.stated
    ]
    return OrderDetails(
        account_id=order.account_id, email=found.email, order=payment_order_body(order), received=received
    )


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """How to resolve a held payment order."""

    credit: bool
    """Whether to give credit; false ends the order without any."""
    reason: Reason
    amount: OrderAmount | None = None
    """The credit to give. Null or omitted: what was received, at most what was ordered; a payment in another
    currency needs one.
    """
    note: Note | None = None
    """Recorded in the order's history; null or omitted: none."""


class RefundRequest(msgspec.Struct, frozen=True):
    """What to refund."""

    reason: Reason
    amount: OrderAmount | None = None
    """The amount to refund; null or omitted: all that is left of the payment."""


class RefundBody(msgspec.Struct, frozen=True):
    """A refund, and its order after it."""

    provider_refund_id: str
    """The provider's id of the refund."""
    amount: Amount
    """What is refunded."""
    currency: str
    """The currency of the payment, ISO 4217."""
    status: str
    """The provider's status of the refund, which may still change, such as `pending` or `succeeded`."""
    order: PaymentOrderBody
    """The order afterwards."""


_on_payment: Final = route.below("/ops/api/payments/{order_id}", errors=("payment_order_not_found",))


@_on_payment.action(
    "/resolve",
    "Resolve a held payment order: give credit for its payment, or none",
    name="resolve_payment",
    errors=("payment_order_not_payable", "invalid_amount", "amount_too_large"),
)
async def resolve_payment_order(run: ActionRun, given: Resolution, order_id: str) -> PaymentOrderBody | Refusal:
    """The order's account decides; the response is the order afterwards."""
    if given.amount is not None and not given.credit:
        return invalid_parameter("amount", "is allowed only with credit")
    most_micro = run.deps.settings.order_max_micro
    amount_micro = None
    if given.amount is not None:
        amount_micro = read_amount(given.amount, max_micro=most_micro, decimals_max=ORDER_DECIMALS_MAX)
    if isinstance(amount_micro, Refusal):
        return amount_micro
    order = await _order_for(run, order_id)
    if isinstance(order, Refusal):
        return order
    command = ResolveOrder(order.order_id, given.credit, amount_micro, text_of(given.note))
    reply = await run.ask(run.deps.accounts.ref(order.account_id), command)
    if isinstance(reply, Refusal):
        return reply
    resolution = reply.order.state.facts.resolution
    assert resolution is not None
    run.note(decision=resolution.decision, amount=format_amount(resolution.amount_micro))
    return payment_order_body(reply.order)


@_on_payment.action(
    "/refund",
    "Refund a card payment, or a part of it; the credit is reversed",
    errors=(*CARD_ERRORS, "payment_order_not_refundable", "invalid_amount", "idempotency_key_reused"),
    needs_key=True,
)
async def refund_payment(run: ActionRun, given: RefundRequest, order_id: str) -> RefundBody | Refusal:
    """A repeat with the same Idempotency-Key returns the refund that was made, also after a lost response.

    Another request with the key, as with another reason, refunds nothing.
    """
    deps, card = run.deps, run.deps.payments.card
    order = await _order_for(run, order_id)
    if isinstance(order, Refusal):
        return order
    if card is None:
        return NOT_CONFIGURED
    amount_minor = _amount_minor(order, given.amount)
    if isinstance(amount_minor, Refusal):
        return amount_minor
    assert order.state.payment_id is not None
    await deps.payments.order_checks.expect_change(order)
    key = hashlib.sha256(run.key.key.encode()).hexdigest()[:40]
    request = run.key.fingerprint.hex()[:40]
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
    run.note(amount=amount, currency=currency, status=made.status, provider_refund_id=made.provider_refund_id)
    checked = await deps.payments.order_checks.check_order(order)
    return RefundBody(
        provider_refund_id=made.provider_refund_id,
        amount=amount,
        currency=currency,
        status=made.status,
        order=payment_order_body(checked.order),
    )


@_on_payment.action(
    "/reconcile", "Compare a payment order with the card provider now", errors=("provider_not_configured",)
)
async def reconcile_payment(run: ActionRun, _: ActionRequest, order_id: str) -> PaymentOrderBody | Refusal:
    """The response is the order afterwards; ``reconcile_status`` is ``error`` if the provider did not answer."""
    order = await _order_for(run, order_id)
    if isinstance(order, Refusal):
        return order
    if run.deps.payments.card is None:
        return NOT_CONFIGURED
    after = (await run.deps.payments.order_checks.check_order(order)).order
    run.note(reconcile_status=after.statuses.reconcile_status)
    return payment_order_body(after)


async def _order_for(run: ActionRun, order_id: str) -> Order | Refusal:
    """Return the order, whose account the action concerns. Refuses with ``payment_order_not_found``."""
    order = await run.deps.find_by_id(order_by_id, order_id)
    if order is None:
        return order_not_found(order_id)
    run.concern(order.account_id)
    return order


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
    amount_micro = read_amount(given, max_micro=received, decimals_max=ORDER_DECIMALS_MAX)
    if isinstance(amount_micro, Refusal):
        return amount_micro
    return minor_from_micro(amount_micro, order.request.currency)


def _not_refundable(order: Order, why: str) -> Refusal:
    return Refusal(
        code="payment_order_not_refundable",
        message=f"The payment order {order.order_id} cannot be refunded: {why}.",
    )
