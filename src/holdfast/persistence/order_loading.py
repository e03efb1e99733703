"""Load payment orders for the code that changes them."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, func, select

from holdfast.ledger.orders import Order, OrderRequest, OrderState
from holdfast.persistence import tables
from holdfast.persistence.database import Database
from holdfast.persistence.unreadable import read_row


def load_order(connection: Connection, order_id: str, *, account_id: str | None = None) -> Order | None:
    """Load an order; None if it does not exist, or is not one of ``account_id``.

    Raises :class:`~holdfast.persistence.unreadable.UnreadableRow`.
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


class OrderReads:
    """What an account's actor reads about its orders while it decides."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def order(self, account_id: str, order_id: str) -> Order | None:
        """Load an order of the account."""
        return await self._database.read(lambda c: load_order(c, order_id, account_id=account_id))

    async def payment_of_another_order(self, provider: str, payment_id: str, order_id: str) -> bool:
        """Whether the payment already belongs to another order, of any account."""
        return await self._database.read(lambda c: payment_of_another_order(c, provider, payment_id, order_id))

    async def event_of_another_order(self, provider: str, event_id: str, order_id: str) -> bool:
        """Whether an event with this id was applied to another order, of any account."""
        return await self._database.read(lambda c: event_of_another_order(c, provider, event_id, order_id))

    async def pending_count(self, account_id: str) -> int:
        """Return how many orders of the account are pending."""
        orders = tables.orders
        query = select(func.count()).where(orders.c.account_id == account_id, orders.c.status == "pending")
        return await self._database.read(lambda c: int(c.execute(query).scalar_one()))
