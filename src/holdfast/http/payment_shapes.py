"""What payment orders and the statement look like outside: the interface's fields, null where unset.

An order has one set of fields, and each answer its own part of them. All parts are written from the order as a
value, so that an answer needs no read. Amounts are decimal strings; those of the provider's own books are in the
currency of settlement and may be below zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from holdfast.http.shapes import Amount, Time, time_or_none
from holdfast.ledger.account import AVAILABLE, HELD
from holdfast.ledger.clock import format_time
from holdfast.ledger.money import MICRO, format_amount
from holdfast.ledger.orders import (
    BalanceRef,
    Order,
    OrderRequest,
    OrderStatus,
    Provider,
    ReconcileStatus,
    ReversalStatus,
    RiskStatus,
    Source,
    StateEntry,
    balance_refs_of,
    breakdown_of,
    cursor_of,
    fx_of,
)
from holdfast.ledger.payment_facts import ProcessingStatus, micro_per_minor
from holdfast.ledger.sandbox_signature import SandboxValues
from holdfast.persistence.queries.ledger import StatementEntry

SandboxOutcome = Literal["paid", "failed", "canceled"]

# --------------------------------------------------------------------------------------------- requests

OrderAmount: TypeAlias = Annotated[
    str,
    msgspec.Meta(extra_json_schema={"pattern": r"^(0|[1-9][0-9]*)(\.[0-9]{1,2})?$", "examples": ["10.00"]}),
]
# Judged by the rules of the signature, which have their own codes.
SignedValue: TypeAlias = Annotated[
    Any, msgspec.Meta(extra_json_schema={"type": "string", "minLength": 1, "maxLength": 128})
]


class SandboxOrderRequest(msgspec.Struct, frozen=True):
    """The play money to order: a plain decimal string with at most 2 decimals.

    ``outcome`` is what the signed callback will say; anything but ``paid`` tries how a payment fails.
    """

    amount: OrderAmount
    outcome: SandboxOutcome = "paid"


class CardOrderRequest(msgspec.Struct, frozen=True):
    """The credit to buy by card: a plain decimal string with at most 2 decimals."""

    amount: OrderAmount


class SandboxCallbackRequest(msgspec.Struct, frozen=True):
    """The payload of a sandbox order's callback, its values as they were given; the event id may be left out."""

    order_id: SignedValue
    account_id: SignedValue
    amount: SignedValue
    currency: SignedValue
    status: SignedValue
    provider_event_id: SignedValue | None = None


# ------------------------------------------------------------------------------------------ parts of an order


class AmountBreakdownBody(msgspec.Struct, frozen=True):
    """What was ordered, what the provider keeps of it, and what is left. Credit given is the gross amount."""

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
    """A line of the provider's own books about this order."""

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
    """The five statuses after one change, and what made it."""

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
    """How far the order has been compared with its provider."""

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
    """What every answer about an order carries, except for the one that creates a sandbox order."""

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


# ---------------------------------------------------------------------------------------------- answers


class CallbackPayload(msgspec.Struct, frozen=True):
    """The body that pays a sandbox order."""

    order_id: str
    account_id: str
    amount: Amount
    currency: str
    status: SandboxOutcome
    provider_event_id: str


class CallbackDescriptor(msgspec.Struct, frozen=True):
    """How to pay: post ``payload`` to ``url`` with ``signature`` in the header ``signature_header``."""

    url: str
    signature_header: str
    payload: CallbackPayload
    signature: str


class SandboxOrderCreated(msgspec.Struct, frozen=True):
    """A sandbox order waits to be paid by its signed callback."""

    order_id: str
    provider: Provider
    status: OrderStatus
    amount: Amount
    currency: str
    operation_id: str
    expires_at: Time
    callback: CallbackDescriptor


class SandboxOrderBody(OrderPart, frozen=True, kw_only=True):
    """A sandbox order behind its callback."""

    credited_at: Time | None
    failed_at: Time | None


class CardOrderCreated(OrderPart, frozen=True, kw_only=True):
    """A card order and what the customer's browser needs to pay it. ``client_secret`` is shown here alone."""

    provider_payment_id: str | None
    provider_charge_id: str | None
    client_secret: str
    publishable_key: str | None
    expires_at: Time


class PaymentOrderBody(OrderPart, frozen=True, kw_only=True):
    """A payment order with everything known of it."""

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
    """The event was received and concerns no payment order of this service."""

    event_id: str
    received: bool = True
    ignored: bool = True


class PaymentOrderList(msgspec.Struct, frozen=True):
    """A page of payment orders, newest first."""

    data: list[PaymentOrderBody]
    next_cursor: str | None


class PostingBody(msgspec.Struct, frozen=True):
    """One line of an operation; the amounts of an operation's postings sum to zero."""

    ledger_account: str
    amount: Amount


class StatementEntryBody(msgspec.Struct, frozen=True):
    """One operation on the account and the totals behind it.

    ``balance_change`` is what it added to the balance; a hold moves credit inside the balance and changes nothing.
    """

    operation_id: str
    number: int
    kind: Literal["credit", "hold", "capture", "release", "reversal"]
    amount: Amount
    balance_change: Amount
    balance: Amount
    held_total: Amount
    available_balance: Amount
    reference: str
    reason: str
    at: Time
    postings: list[PostingBody]


class Statement(msgspec.Struct, frozen=True):
    """A page of the account's operations, newest first."""

    data: list[StatementEntryBody]
    next_cursor: str | None


# -------------------------------------------------------------------------------------------- rendering


def sandbox_values(request: OrderRequest, outcome: SandboxOutcome) -> SandboxValues:
    """The values that a sandbox order's callback carries and its signature covers."""
    return SandboxValues(
        order_id=request.order_id,
        account_id=request.account_id,
        amount=format_amount(request.amount_micro),
        currency=request.currency,
        status=outcome,
        provider_event_id=request.sandbox_event_id,
    )


def sandbox_order_created(order: Order, callback: CallbackDescriptor) -> SandboxOrderCreated:
    """Write a sandbox order as it is first answered."""
    request = order.request
    return SandboxOrderCreated(
        order_id=order.order_id,
        provider=request.provider,
        status=order.status,
        amount=format_amount(request.amount_micro),
        currency=request.currency,
        operation_id=request.operation_id,
        expires_at=format_time(request.expires_at),
        callback=callback,
    )


def sandbox_order_body(order: Order) -> SandboxOrderBody:
    """Write a sandbox order behind its callback."""
    return SandboxOrderBody(
        **_part(order),
        credited_at=time_or_none(order.state.credited_at),
        failed_at=time_or_none(order.state.failed_at),
    )


def card_order_created(order: Order, *, client_secret: str, publishable_key: str | None) -> CardOrderCreated:
    """Write a card order as it is first answered."""
    return CardOrderCreated(
        **_part(order),
        provider_payment_id=order.state.payment_id,
        provider_charge_id=order.state.charge_id,
        client_secret=client_secret,
        publishable_key=publishable_key,
        expires_at=format_time(order.request.expires_at),
    )


def payment_order_body(order: Order) -> PaymentOrderBody:
    """Write everything known of an order."""
    state = order.state
    return PaymentOrderBody(
        **_part(order),
        provider_payment_id=state.payment_id,
        provider_charge_id=state.charge_id,
        credited_at=time_or_none(state.credited_at),
        failed_at=time_or_none(state.failed_at),
        refunded_at=time_or_none(state.refunded_at),
        disputed_at=time_or_none(state.disputed_at),
        chargeback_at=time_or_none(state.chargeback_at),
        reconciled_at=time_or_none(state.reconciled_at),
        expires_at=format_time(order.request.expires_at),
    )


def statement_entry_body(entry: StatementEntry) -> StatementEntryBody:
    """Write one operation of the statement."""
    change_micro = sum(amount for account, amount in entry.postings if account in {AVAILABLE, HELD})
    return StatementEntryBody(
        operation_id=entry.operation_id,
        number=entry.number,
        kind=entry.kind.value,
        amount=format_amount(entry.amount_micro),
        balance_change=format_amount(change_micro),
        balance=format_amount(entry.balance_after_micro),
        held_total=format_amount(entry.held_after_micro),
        available_balance=format_amount(entry.balance_after_micro - entry.held_after_micro),
        reference=entry.reference,
        reason=entry.reason,
        at=format_time(entry.at),
        postings=[PostingBody(account, format_amount(amount)) for account, amount in entry.postings],
    )


def _part(order: Order) -> dict[str, Any]:
    """The fields of :class:`OrderPart`."""
    request, statuses = order.request, order.statuses
    return {
        "order_id": order.order_id,
        "provider": request.provider,
        "status": statuses.status,
        "processing_status": statuses.processing_status,
        "reversal_status": statuses.reversal_status,
        "risk_status": statuses.risk_status,
        "reconcile_status": statuses.reconcile_status,
        "amount": format_amount(request.amount_micro),
        "currency": request.currency,
        "operation_id": request.operation_id,
        "brand_id": request.brand_id,
        "legal_entity_id": request.legal_entity_id,
        "merchant_of_record": request.merchant_of_record,
        "provider_account_id": request.provider_account_id,
        "amount_breakdown": _breakdown(order),
        "fx_snapshot": _fx(order),
        "provider_event_id": order.provider_event_id,
        "provider_event_ids": list(order.state.event_ids),
        "ledger_operation_refs": list(order.ledger_operation_refs),
        "reversal_operation_ids": list(order.reversal_operation_ids),
        "reversal_refs": list(order.state.reversal_refs),
        "provider_balance_transaction_ids": list(order.balance_transaction_ids),
        "provider_balance_transaction_refs": _balance_refs(balance_refs_of(order)),
        "state_history": [_state(entry) for entry in order.state.history],
        "reconcile_cursor": _cursor(order),
    }


def _breakdown(order: Order) -> AmountBreakdownBody:
    found = breakdown_of(order)
    return AmountBreakdownBody(
        gross=format_amount(found.gross_micro),
        fee=format_amount(found.fee_micro),
        tax=format_amount(found.tax_micro),
        net=format_amount(found.net_micro),
        currency=found.currency,
    )


def _fx(order: Order) -> FxSnapshotBody:
    found = fx_of(order)
    return FxSnapshotBody(
        base=found.base,
        quote=found.quote,
        rate=found.rate,
        credits_per_unit=found.credits_per_unit,
        source=found.source,
        captured_at=format_time(found.captured_at),
    )


def _balance_refs(refs: Sequence[BalanceRef]) -> list[BalanceTransactionBody]:
    bodies = []
    for ref in refs:
        line = ref.transaction
        available_on = line.available_on
        bodies.append(
            BalanceTransactionBody(
                id=line.transaction_id,
                source_id=line.source_id,
                source_type=line.source_type,
                event_id=ref.event_id,
                type=line.type,
                reporting_category=line.reporting_category,
                amount=_units(line.amount_micro, line.currency),
                fee=_units(line.fee_micro, line.currency),
                net=_units(line.net_micro, line.currency),
                currency=line.currency,
                available_on=None if available_on is None else _unix_time(available_on),
                scanned_at=format_time(ref.scanned_at),
            )
        )
    return bodies


def _units(amount_micro: int, currency: str) -> str:
    """An amount in whole units of its currency, with as many decimals as the currency has."""
    decimals = len(str(MICRO // micro_per_minor(currency))) - 1
    return f"{Decimal(amount_micro) / MICRO:.{decimals}f}"


def _state(entry: StateEntry) -> StateBody:
    statuses = entry.statuses
    return StateBody(
        status=statuses.status,
        processing_status=statuses.processing_status,
        reversal_status=statuses.reversal_status,
        risk_status=statuses.risk_status,
        reconcile_status=statuses.reconcile_status,
        source=entry.source,
        at=format_time(entry.at),
        event_id=entry.event_id,
        operation_id=entry.operation_id,
        reason=entry.reason,
    )


def _cursor(order: Order) -> ReconcileCursorBody:
    found = cursor_of(order)
    return ReconcileCursorBody(
        provider=order.request.provider,
        brand_id=found.brand_id,
        provider_account_id=found.provider_account_id,
        provider_object_type=found.provider_object_type,
        provider_object_id=found.provider_object_id,
        event_id=found.event_id,
        event_type=found.event_type,
        synthetic_event_id=found.synthetic_event_id,
        scan_strategy=found.scan_strategy,
        reconciled_at=time_or_none(found.reconciled_at),
    )


def _unix_time(at_s: int) -> str:
    return format_time(datetime.fromtimestamp(at_s, UTC))
