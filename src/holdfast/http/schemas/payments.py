"""The request and response bodies of the payment endpoints: the interface's fields, null where unset.

Each response has its own subset of an order's fields. Amounts are decimal strings; those of the provider's balance
transactions are in the currency of settlement and may be negative.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from holdfast.http.kit.listing import StoredListBody
from holdfast.http.schemas.common import render
from holdfast.ledger.money import MICRO, format_amount
from holdfast.ledger.orders.facts import ProcessingStatus
from holdfast.ledger.orders.order import (
    Order,
    OrderRequest,
    OrderStatus,
    Provider,
    ReconcileStatus,
    ReversalStatus,
    RiskStatus,
    Source,
    balance_readings_of,
    fee_micro_of,
    fx_of,
)
from holdfast.ledger.orders.sandbox_signature import SandboxValues
from holdfast.ledger.public_types import Amount, Time
from holdfast.providers.card.base import minor_decimals

SandboxOutcome = Literal["paid", "failed", "canceled"]

# --------------------------------------------------------------------------------------------- requests

OrderAmount: TypeAlias = Annotated[
    str,
    msgspec.Meta(extra_json_schema={"pattern": r"^(0|[1-9][0-9]*)(\.[0-9]{1,2})?$", "examples": ["10.00"]}),
]
# Validated by the rules of the signature, which have their own codes.
SignedValue: TypeAlias = Annotated[
    Any, msgspec.Meta(extra_json_schema={"type": "string", "minLength": 1, "maxLength": 128})
]


class SandboxOrderRequest(msgspec.Struct, frozen=True):
    """The sandbox credit to order: a plain decimal string with at most 2 decimals.

    ``outcome`` is the status in the signed callback; anything but ``paid`` simulates a failed payment.
    """

    amount: OrderAmount
    outcome: SandboxOutcome = "paid"


class CardOrderRequest(msgspec.Struct, frozen=True):
    """The credit to buy by card: a plain decimal string with at most 2 decimals."""

    amount: OrderAmount


class SandboxCallbackRequest(msgspec.Struct, frozen=True):
    """The payload of a sandbox order's callback, with its values unchanged; the event id may be omitted."""

    order_id: Annotated[SignedValue, msgspec.Meta(examples=["ord_01935f6c2b7d7c3e8a4d5e6f70819203"])]
    account_id: Annotated[SignedValue, msgspec.Meta(examples=["acct_01935f6c2b7d7c3e8a4d5e6f70819203"])]
    amount: Annotated[SignedValue, msgspec.Meta(examples=["10.00"])]
    currency: Annotated[SignedValue, msgspec.Meta(examples=["USD"])]
    status: Annotated[SignedValue, msgspec.Meta(examples=["paid"])]
    provider_event_id: SignedValue | None = None


# ------------------------------------------------------------------------------------------ parts of an order


class AmountBreakdownBody(msgspec.Struct, frozen=True):
    """What was ordered, the provider's fee, and what is left. Credit given is the gross amount."""

    gross: Amount
    fee: Amount
    tax: Amount
    net: Amount
    currency: str


class FxSnapshotBody(msgspec.Struct, frozen=True):
    """The exchange rate: presented amount times ``rate`` is settled amount."""

    base: str
    quote: str
    rate: str
    credits_per_unit: str
    source: str
    captured_at: Time


class BalanceTransactionBody(msgspec.Struct, frozen=True):
    """One of the provider's balance transactions for this order."""

    id: str
    source_id: str
    source_type: Literal["charge", "refund", "dispute"]
    event_id: str
    type: str
    reporting_category: str
    amount: str
    fee: str
    net: str
    currency: str
    available_on: Time | None
    scanned_at: Time


class StateBody(msgspec.Struct, frozen=True):
    """The five statuses after one change, and its cause."""

    status: OrderStatus
    processing_status: ProcessingStatus
    reversal_status: ReversalStatus
    risk_status: RiskStatus
    reconcile_status: ReconcileStatus
    source: Source
    at: Time
    event_id: str | None
    operation_id: str | None
    reason: str


class ReconcileCursorBody(msgspec.Struct, frozen=True):
    """How far the order has been reconciled with its provider."""

    provider: Provider
    brand_id: str
    provider_account_id: str
    provider_object_type: str | None
    provider_object_id: str | None
    event_id: str | None
    event_type: str | None
    synthetic_event_id: str | None
    scan_strategy: str
    reconciled_at: Time | None


class OrderPart(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every response about an order, except for the one that creates a sandbox order."""

    order_id: str
    provider: Provider
    status: OrderStatus
    processing_status: ProcessingStatus
    reversal_status: ReversalStatus
    risk_status: RiskStatus
    reconcile_status: ReconcileStatus
    amount: Amount
    currency: str
    operation_id: str
    brand_id: str
    legal_entity_id: str
    merchant_of_record: str
    provider_account_id: str
    amount_breakdown: AmountBreakdownBody
    fx_snapshot: FxSnapshotBody
    provider_event_id: str | None
    provider_event_ids: list[str]
    ledger_operation_refs: list[str]
    reversal_operation_ids: list[str]
    reversal_refs: list[str]
    provider_balance_transaction_ids: list[str]
    provider_balance_transaction_refs: list[BalanceTransactionBody]
    state_history: list[StateBody]
    reconcile_cursor: ReconcileCursorBody


# ------------------------------------------------------------------------------------------- responses


class CallbackPayload(msgspec.Struct, frozen=True):
    """The body that pays a sandbox order."""

    order_id: str
    account_id: str
    amount: Amount
    currency: str
    status: SandboxOutcome
    provider_event_id: str


class CallbackDescriptor(msgspec.Struct, frozen=True):
    """How to pay: POST ``payload`` to ``url`` with ``signature`` in the header ``signature_header``."""

    url: str
    signature_header: str
    payload: CallbackPayload
    signature: str


class SandboxOrderCreated(msgspec.Struct, frozen=True):
    """A new sandbox order, to be paid by its signed callback."""

    order_id: str
    provider: Provider
    status: OrderStatus
    amount: Amount
    currency: str
    operation_id: str
    expires_at: Time
    callback: CallbackDescriptor


class SandboxOrderBody(OrderPart, frozen=True, kw_only=True):
    """A sandbox order after its callback."""

    credited_at: Time | None
    failed_at: Time | None


class CardOrderCreated(OrderPart, frozen=True, kw_only=True):
    """A new card order and what the customer's browser needs to pay it. ``client_secret`` is returned only here."""

    provider_payment_id: str | None
    provider_charge_id: str | None
    client_secret: str
    publishable_key: str | None
    expires_at: Time


class PaymentOrderBody(OrderPart, frozen=True, kw_only=True):
    """A payment order with all its fields.

    ``operation_id`` is the id of the credit, ``ledger_operation_refs`` are all operations so far.
    """

    provider_payment_id: str | None
    provider_charge_id: str | None
    credited_at: Time | None
    failed_at: Time | None
    refunded_at: Time | None
    disputed_at: Time | None
    chargeback_at: Time | None
    reconciled_at: Time | None
    expires_at: Time


class EventIgnored(msgspec.Struct, frozen=True):
    """The event was received and belongs to no payment order of this service."""

    event_id: str
    received: bool = True
    ignored: bool = True


class PaymentOrderList(StoredListBody[PaymentOrderBody], frozen=True):
    """A page of payment orders, newest first. ``unreadable``: ids of those that cannot be read now."""


S = TypeVar("S", bound=OrderPart)


def sandbox_values(request: OrderRequest, outcome: SandboxOutcome) -> SandboxValues:
    """Return the values that a sandbox order's callback carries and its signature covers."""
    return SandboxValues(
        order_id=request.order_id,
        account_id=request.account_id,
        amount=format_amount(request.amount_micro),
        currency=request.currency,
        status=outcome,
        provider_event_id=request.sandbox_event_id,
    )


def payment_order_body(order: Order) -> PaymentOrderBody:
    """Render an order with all its fields."""
    return render_order(PaymentOrderBody, order)


def render_order(shape: type[S], order: Order, **fields: object) -> S:
    """Render an order as ``shape``; ``fields`` are those that an order does not have."""
    request, state, fee_micro = order.request, order.state, fee_micro_of(order)
    is_card = request.provider == "cardprovider"
    return render(
        shape,
        order,
        order.statuses,
        order.request,
        state,
        amount_breakdown=AmountBreakdownBody(
            gross=format_amount(request.amount_micro),
            fee=format_amount(fee_micro),
            tax=format_amount(0),
            net=format_amount(request.amount_micro - fee_micro),
            currency=request.currency,
        ),
        fx_snapshot=render(FxSnapshotBody, fx_of(order)),
        provider_charge_id=state.charge_id,
        provider_event_ids=state.event_ids,
        provider_balance_transaction_ids=order.balance_transaction_ids,
        provider_balance_transaction_refs=list(_balance_transactions(order)),
        state_history=[render(StateBody, entry, entry.statuses) for entry in state.history],
        reconcile_cursor=render(
            ReconcileCursorBody,
            request,
            state,
            provider_object_type="payment_intent" if is_card else None,
            provider_object_id=state.payment_id if is_card else None,
            event_id=state.real_event_id,
            event_type=state.real_event_type,
            scan_strategy="order_retrieve",
        ),
        provider_payment_id=state.payment_id,
        **fields,
    )


def _balance_transactions(order: Order) -> Iterator[BalanceTransactionBody]:
    for transaction, reading in balance_readings_of(order):
        available_on = transaction.available_on
        yield render(
            BalanceTransactionBody,
            transaction,
            reading,
            id=transaction.transaction_id,
            amount=in_units(transaction.amount_micro, transaction.currency),
            fee=in_units(transaction.fee_micro, transaction.currency),
            net=in_units(transaction.net_micro, transaction.currency),
            available_on=None if available_on is None else datetime.fromtimestamp(available_on, UTC),
        )


def in_units(amount_micro: int, currency: str) -> str:
    """Format an amount in units of its currency, with as many decimals as the currency has."""
    return f"{Decimal(amount_micro) / MICRO:.{minor_decimals(currency)}f}"
