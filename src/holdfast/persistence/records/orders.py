"""Rows of payment orders and of the events applied to them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import Order, OrderRequest, OrderState
from holdfast.persistence.records import tables
from holdfast.persistence.records.mapping import attributes_of, fields_of, selected
from holdfast.persistence.records.row_types import OrderPaymentRow, PaymentEventRow


class OrderChangedRow(NamedTuple):
    """A payment order after a transition."""

    order: Order


class UnappliedPaymentEventRow(PaymentEventRow):
    """An event without effect: refused, ignored, or of an unknown order. The first one received is stored."""


_CHANGES = (
    "account_id",
    "order_id",
    "version",
    "status",
    "statuses.reconcile_status",
    "updated_at",
    "wake_at",
    "state",
)

ORDERS = attributes_of(
    tables.orders,
    Order,
    (*_CHANGES, "request.provider", "request.created_at", "request.expires_at", "request"),
)
CHANGED_ORDERS = attributes_of(
    tables.orders,
    OrderChangedRow,
    (f"order.{path}" for path in _CHANGES),
)
ORDER_PAYMENTS = fields_of(tables.order_payments, OrderPaymentRow)
PAYMENT_EVENTS = fields_of(tables.payment_events, PaymentEventRow)
UNAPPLIED_PAYMENT_EVENTS = fields_of(tables.payment_events, UnappliedPaymentEventRow)

ORDER = selected(tables.orders, ORDERS.columns)

_REQUEST = msgspec.json.Decoder(OrderRequest)
_STATE = msgspec.json.Decoder(OrderState)


def order_of(row: Any) -> Order:
    """Return the order of a row of :data:`ORDER`."""
    return Order(
        version=row.version,
        updated_at=row.updated_at,
        wake_at=row.wake_at,
        request=_REQUEST.decode(row.request),
        state=_STATE.decode(row.state),
    )


def payment_rows(before: Order, after: Order) -> tuple[OrderPaymentRow, ...]:
    """Return the rows of the payments and charges that a decision was the first to name for its order."""
    new = set(after.state.provider_object_ids).difference(before.state.provider_object_ids)
    return tuple(
        OrderPaymentRow(after.request.provider, each, after.account_id, after.order_id) for each in sorted(new)
    )


def synthetic_event_rows(
    before: Order, after: Order, events: Iterable[PaymentEvent], now: datetime
) -> tuple[PaymentEventRow, ...]:
    """Return the rows of the synthetic events that a reconcile has applied to the order."""
    new = set(after.state.event_ids).difference(before.state.event_ids)
    return tuple(
        PaymentEventRow(
            after.request.provider,
            event.event_id,
            after.account_id,
            after.order_id,
            event.type,
            now,
            "applied",
            msgspec.json.encode(event),
        )
        for event in events
        if event.event_id in new
    )
