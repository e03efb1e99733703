"""Load payment orders for the code that changes them."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, select

from holdfast.ledger.orders.order import Order, OrderRequest, OrderState
from holdfast.persistence.records import tables
from holdfast.persistence.records.unreadable import read_row


def load_order(connection: Connection, order_id: str, *, account_id: str | None = None) -> Order | None:
    """Load an order; None if it does not exist, or is not one of ``account_id``.

    Raises :class:`~holdfast.persistence.records.unreadable.UnreadableRow`.
    """
    query = select(tables.orders).where(tables.orders.c.order_id == order_id)
    if account_id is not None:
        query = query.where(tables.orders.c.account_id == account_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else read_row(order_of, row, "orders", order_id)


def order_of(row: Any) -> Order:
    """Return the order of a row of the table."""
    return Order(
        version=row.version,
        updated_at=row.updated_at,
        wake_at=row.wake_at,
        request=msgspec.convert(row.request, OrderRequest),
        state=msgspec.convert(row.state, OrderState),
    )


def payment_of_another_order(connection: Connection, provider: str, payment_id: str, order_id: str) -> bool:
    """Whether a provider's payment already belongs to an order other than ``order_id``."""
    orders = tables.orders
    found = connection.execute(
        select(orders.c.order_id).where(
            orders.c.provider == provider,
            orders.c.provider_payment_id == payment_id,
            orders.c.order_id != order_id,
        )
    ).first()
    return found is not None


def event_of_another_order(connection: Connection, provider: str, event_id: str, order_id: str) -> bool:
    """Whether a provider's event with this id was applied to an order other than ``order_id``."""
    events = tables.payment_events
    found = connection.execute(
        select(events.c.order_id).where(
            events.c.provider == provider,
            events.c.event_id == event_id,
            events.c.order_id != order_id,
            events.c.verdict.in_(("applied", "stale")),
        )
    ).first()
    return found is not None
