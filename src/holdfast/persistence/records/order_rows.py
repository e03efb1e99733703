"""The rows that the journal writes for a payment order, new or changed, and for the events applied to it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.payment_facts import PaymentEvent
from holdfast.persistence.records.rows import OrderChangedRow, OrderRow, PaymentEventRow

INTENT_OVERDUE_S = 120
"""How long after its creation a card order without an intent is first checked: its create call was lost."""

CHECK_AGAIN_S = 300
"""After how long an order is checked again if its timer was due and did not end it."""

_json = msgspec.json.Encoder()


def new_order_row(order: Order, now: datetime) -> OrderRow:
    """Return the row of a new order."""
    request, state = order.request, order.state
    return OrderRow(
        request.account_id,
        request.order_id,
        order.version,
        request.provider,
        state.statuses.status,
        state.statuses.reconcile_status,
        state.payment_id,
        state.charge_id,
        request.created_at,
        order.updated_at,
        request.expires_at,
        next_check_at(order, now),
        _json.encode(request).decode(),
        _json.encode(state).decode(),
    )


def changed_order_row(order: Order, now: datetime) -> OrderChangedRow:
    """Return the row of an order after a transition."""
    state = order.state
    return OrderChangedRow(
        order.account_id,
        order.order_id,
        order.version,
        state.statuses.status,
        state.statuses.reconcile_status,
        state.payment_id,
        state.charge_id,
        order.updated_at,
        next_check_at(order, now),
        _json.encode(state).decode(),
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
            _json.encode(event),
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
