"""Orders and events for tests of account actors, and what the rows say of them."""

from __future__ import annotations

from typing import Any

from holdfast.actors.account.messages import (
    CreateOrder,
    ReceivePaymentEvent,
)
from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import Order, OrderResult
from holdfast.persistence.queries.orders import order_by_id
from holdfast.persistence.server.database import Database
from holdfast.supervision.keyed_child import KeyedLimits
from holdfast.supervision.spec import Backoff

HARDY = KeyedLimits(voids_in_row_max=10**6, backoff=Backoff(0.0, 0.0, jitter=0.0))


def received(event: PaymentEvent, order_id: str) -> ReceivePaymentEvent:
    return ReceivePaymentEvent(order_id, event, b'{"signed": "body"}')


async def new_order(
    system: Any, payments: Any, account_id: str, provider: str = "cardprovider", **fields: Any
) -> Order:
    reply = await system.ask(account_id, CreateOrder(payments.request(account_id, provider, **fields)))
    assert isinstance(reply, OrderResult)
    order: Order = reply.order
    return order


async def deliver(system: Any, order: Order, *events: PaymentEvent) -> Order:
    newest = order
    for event in events:
        reply = await system.ask(order.account_id, received(event, order.order_id))
        assert isinstance(reply, OrderResult)
        newest = reply.order
    return newest


async def stored(database: Database, order_id: str) -> Order:
    order = await database.read(lambda connection: order_by_id(connection, order_id))
    assert order is not None
    return order
