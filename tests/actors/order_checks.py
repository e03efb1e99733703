"""Orders and events for tests of account actors, and what the rows say of them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.running_bank import RunningBank, running_bank

from holdfast.actors.account.messages import (
    CreateOrder,
    ReceivePaymentEvent,
)
from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import Order, OrderResult
from holdfast.persistence.queries.orders import order_by_id
from holdfast.persistence.server.database import Database
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.supervision.spec import Backoff

from .account_checks import assert_audit_clean, read_totals

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


@dataclass
class BankSetup:
    """An account with orders at the card emulator, whose workers are run step by step."""

    system: Any
    bank: RunningBank
    account_id: str

    @property
    def database(self) -> Database:
        database: Database = self.system.database
        return database

    async def balance(self) -> int:
        return (await read_totals(self.database, self.account_id))[0]

    def assert_audit_clean(self) -> None:
        assert_audit_clean(self.database)


def silent_bank(folder: Path, **options: Any) -> AbstractAsyncContextManager[RunningBank]:
    """Run a card emulator whose webhooks go nowhere."""
    adapter = {"retries_count": 0, "timeout_s": 60.0}
    return running_bank(folder, adapter=adapter, webhook_secret="whsec_unused", webhook_url=lambda: "", **options)


async def stored(database: Database, order_id: str) -> Order:
    order = await database.read(lambda connection: order_by_id(connection, order_id))
    assert order is not None
    return order
