"""The reads about payment orders that an account's actor needs for its decisions."""

from __future__ import annotations

from holdfast.ledger.orders.order import Order
from holdfast.persistence.queries import orders
from holdfast.persistence.server.database import Database


class OrderReads:
    """Reads over a database. They raise :class:`~holdfast.persistence.server.database_faults.DatabaseAway`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def order(self, account_id: str, order_id: str) -> Order | None:
        """Return an order of the account."""
        return await self._database.read(orders.order_of_account, account_id, order_id)

    async def payment_of_another_order(self, provider: str, payment_id: str, order_id: str) -> bool:
        """Whether the payment already belongs to another order, of any account."""
        return await self._database.read(orders.payment_of_another_order, provider, payment_id, order_id)

    async def event_of_another_order(self, provider: str, event_id: str, order_id: str) -> bool:
        """Whether an event with this id was applied to another order, of any account."""
        return await self._database.read(orders.event_of_another_order, provider, event_id, order_id)

    async def pending_count(self, account_id: str) -> int:
        """Return how many orders of the account are pending."""
        return await self._database.read(orders.pending_order_count, account_id)
