"""Rendering of payment orders: everything is computed from the order, without a further read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypeVar

from holdfast.http.schemas.payments import (
    AmountBreakdownBody,
    BalanceTransactionBody,
    FxSnapshotBody,
    OrderPart,
    PaymentOrderBody,
    ReconcileCursorBody,
    SandboxOutcome,
    StateBody,
)
from holdfast.http.schemas.rendering import render
from holdfast.ledger.money import MICRO, format_amount
from holdfast.ledger.orders.order import (
    Order,
    OrderRequest,
    balance_readings_of,
    fee_micro_of,
    fx_of,
)
from holdfast.ledger.orders.sandbox_signature import SandboxValues
from holdfast.providers.card.base import minor_decimals

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
