"""Render payment orders as responses, from the order's value alone, so that no further read is needed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from holdfast.http.schemas.payments import (
    AmountBreakdownBody,
    BalanceTransactionBody,
    CallbackDescriptor,
    CardOrderCreated,
    FxSnapshotBody,
    PaymentOrderBody,
    ReconcileCursorBody,
    SandboxOrderBody,
    SandboxOrderCreated,
    SandboxOutcome,
    StateBody,
)
from holdfast.ledger.clock import format_time
from holdfast.ledger.money import MICRO, format_amount
from holdfast.ledger.orders.order import (
    BalanceRef,
    Order,
    OrderRequest,
    StateEntry,
    balance_refs_of,
    breakdown_of,
    cursor_of,
    fx_of,
)
from holdfast.ledger.orders.sandbox_signature import SandboxValues
from holdfast.ledger.public_types import time_or_none
from holdfast.providers.card.amounts import minor_decimals


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


def sandbox_order_created(order: Order, callback: CallbackDescriptor) -> SandboxOrderCreated:
    """Render a new sandbox order."""
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
    """Render a sandbox order after its callback."""
    return SandboxOrderBody(
        **_part(order),
        credited_at=time_or_none(order.state.credited_at),
        failed_at=time_or_none(order.state.failed_at),
    )


def card_order_created(order: Order, *, client_secret: str, publishable_key: str | None) -> CardOrderCreated:
    """Render a new card order."""
    return CardOrderCreated(
        **_part(order),
        provider_payment_id=order.state.payment_id,
        provider_charge_id=order.state.charge_id,
        client_secret=client_secret,
        publishable_key=publishable_key,
        expires_at=format_time(order.request.expires_at),
    )


def payment_order_body(order: Order) -> PaymentOrderBody:
    """Render an order with all its fields."""
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


def _part(order: Order) -> dict[str, Any]:
    """Return the fields of :class:`OrderPart`."""
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
        transaction = ref.transaction
        available_on = transaction.available_on
        bodies.append(
            BalanceTransactionBody(
                id=transaction.transaction_id,
                source_id=transaction.source_id,
                source_type=transaction.source_type,
                event_id=ref.event_id,
                type=transaction.type,
                reporting_category=transaction.reporting_category,
                amount=_units(transaction.amount_micro, transaction.currency),
                fee=_units(transaction.fee_micro, transaction.currency),
                net=_units(transaction.net_micro, transaction.currency),
                currency=transaction.currency,
                available_on=None if available_on is None else _unix_time(available_on),
                scanned_at=format_time(ref.scanned_at),
            )
        )
    return bodies


def _units(amount_micro: int, currency: str) -> str:
    """Format an amount in units of its currency, with as many decimals as the currency has."""
    return f"{Decimal(amount_micro) / MICRO:.{minor_decimals(currency)}f}"


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
