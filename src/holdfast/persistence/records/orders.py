"""Rows of payment orders and of the events applied to them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import Order, OrderRequest, OrderState
from holdfast.persistence.records import tables
from holdfast.persistence.records.mapping import attributes_of, fields_of, selected

INTENT_OVERDUE_S = 120
"""How long after its creation a card order without an intent is first checked: its create call was lost."""

CHECK_AGAIN_S = 300
"""After how long an order is checked again if its timer was due and did not end it."""


class OrderRow(NamedTuple):
    """A new payment order, and when a worker should check it (:func:`next_check_at`)."""

    order: Order
    wake_at: datetime | None


class OrderChangedRow(OrderRow):
    """A payment order after a transition."""


class PaymentEventRow(NamedTuple):
    """An event that was applied to its order, as received. It replaces a stored one that had no effect."""

    provider: str
    event_id: str
    account_id: str | None
    order_id: str | None
    type: str
    received_at: datetime
    verdict: str
    body: bytes


class UnappliedPaymentEventRow(PaymentEventRow):
    """An event without effect: refused, ignored, or of an unknown order. The first one received is stored."""


_STATE_PATHS = [
    "order.account_id", "order.order_id", "order.version", "order.status", "order.statuses.reconcile_status",
    "order.updated_at", "wake_at", "order.state",
]  # fmt: skip
_STATE_RENAMED = {"provider_payment_id": "order.state.payment_id", "provider_charge_id": "order.state.charge_id"}

ORDERS = attributes_of(
    tables.orders,
    OrderRow,
    [
        *_STATE_PATHS, "order.request.provider", "order.request.created_at", "order.request.expires_at",
        "order.request",
    ],
    **_STATE_RENAMED,
)  # fmt: skip
CHANGED_ORDERS = attributes_of(tables.orders, OrderChangedRow, _STATE_PATHS, **_STATE_RENAMED)
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


def next_check_at(order: Order, now: datetime) -> datetime | None:
    """Return when a worker should check the order: ``wake_at``, but never in the past.

    A card order without an intent is checked early, and then at twice its age each time.
    """
    wake_at, request = order.wake_at, order.request
    if wake_at is None:
        return None
    if request.provider == "cardprovider" and order.status == "pending" and order.state.payment_id is None:
        age = now - request.created_at
        wake_at = min(wake_at, now + max(age, timedelta(seconds=INTENT_OVERDUE_S)))
    if wake_at > now:
        return wake_at
    due_at = order.state.reconcile_due_at
    return due_at if due_at is not None and due_at > now else now + timedelta(seconds=CHECK_AGAIN_S)
