"""Stand-ins for the parts that payment orders need: an account, a card provider, a store of unmatched events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tests.made_requests import make_order_request

from holdfast.actors.account.messages import (
    AttachIntent,
    CreateOrder,
    PaySandboxOrder,
    ReceivePaymentEvent,
    RecordIntentRefused,
)
from holdfast.actors.runtime.messages import Command, Replayed
from holdfast.actors.unfenced import UnmatchedEventStore
from holdfast.actors.workers.order_checks import Checked, OrderChecks
from holdfast.ledger.orders.decisions import (
    attach_intent,
    create_order,
    on_create_refused,
    on_event,
    on_sandbox_callback,
)
from holdfast.ledger.orders.order import Order, OrderResult
from holdfast.ledger.orders.snapshots import ProviderSnapshot
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id
from holdfast.providers.card.base import CardDetails, CardFault, IntentCreated, RefundMade, SetupIntentCreated


@dataclass
class FakeCard:
    """A card provider that creates intents, saves cards and refunds, or raises ``fault``; nothing else."""

    fault: CardFault | None = None
    asked: list[tuple[str, str, int, str, str]] = field(default_factory=list)
    payers: list[str | None] = field(default_factory=list)
    """The customers whose cards may pay, one for each time."""
    refunds: dict[tuple[str, str], RefundMade] = field(default_factory=dict)
    """The refunds by payment and key."""
    customers: list[str] = field(default_factory=list)
    """The accounts that a customer was created for."""
    cards: dict[str, CardDetails] = field(default_factory=dict)
    """The saved cards, by id."""

    async def create_intent(
        self,
        order_id: str,
        account_id: str,
        amount_minor: int,
        currency: str,
        *,
        env: str,
        customer_id: str | None = None,
    ) -> IntentCreated:
        self.payers.append(customer_id)
        self.asked.append((order_id, account_id, amount_minor, currency, env))
        if self.fault is not None:
            raise self.fault
        return IntentCreated(f"pi_{order_id}", f"pi_{order_id}_secret")

    async def retrieve(self, provider_payment_id: str, *, as_of: int) -> ProviderSnapshot:
        raise AssertionError("the endpoints never read at the provider")

    async def cancel_intent(self, provider_payment_id: str, *, as_of: int) -> ProviderSnapshot:
        raise AssertionError("the endpoints never cancel at the provider")

    async def refund(
        self, provider_payment_id: str, amount_minor: int | None, *, key: str, request: str
    ) -> RefundMade:
        if self.fault is not None:
            raise self.fault
        made = RefundMade(f"re_{len(self.refunds) + 1}", amount_minor or 1000, "succeeded", request)
        return self.refunds.setdefault((provider_payment_id, key), made)

    async def create_customer(self, account_id: str, *, env: str) -> str:
        self.customers.append(account_id)
        if self.fault is not None:
            raise self.fault
        return f"cus_{account_id}"

    async def create_setup_intent(self, customer_id: str, account_id: str, *, env: str) -> SetupIntentCreated:
        if self.fault is not None:
            raise self.fault
        return SetupIntentCreated(f"seti_{customer_id}", f"seti_{customer_id}_secret")

    async def retrieve_card(self, card_id: str) -> CardDetails:
        if self.fault is not None:
            raise self.fault
        return self.cards[card_id]

    async def detach_card(self, card_id: str) -> None:
        if self.fault is not None:
            raise self.fault
        self.cards[card_id] = replace(self.cards[card_id], customer_id=None)

    async def charge_saved_card(
        self,
        order_id: str,
        account_id: str,
        amount_minor: int,
        currency: str,
        *,
        customer_id: str,
        card_id: str,
        env: str,
    ) -> str:
        raise AssertionError("the endpoints never charge")

    async def find_intent(self, order_id: str, customer_id: str, *, since: datetime) -> str | None:
        raise AssertionError("the endpoints never look for a charge")

    async def close(self) -> None:
        pass


@dataclass
class FakeOrderChecks(OrderChecks):
    """Records what is expected and checked, in order."""

    done: list[tuple[str, str]] = field(default_factory=list)

    async def expect_change(self, order: Order) -> None:
        self.done.append(("expected", order.order_id))

    async def check_order(self, order: Order) -> Checked:
        self.done.append(("checked", order.order_id))
        return Checked("reconciled", order)


@dataclass
class FakeUnmatchedEvents(UnmatchedEventStore):
    """Keeps events in memory."""

    stored: list[tuple[str, str, str, bytes]] = field(default_factory=list)

    async def store(self, event_id: str, kind: str, verdict: str, body: bytes) -> None:
        self.stored.append((event_id, kind, verdict, body))


@dataclass
class OrderRules:
    """An account's actor as far as orders go: the real rules, in memory, and rows where there is a database."""

    now: datetime
    orders: dict[str, Order] = field(default_factory=dict)
    keys: dict[str, OrderResult] = field(default_factory=dict)
    write: Callable[[Order], Awaitable[None]] | None = None

    async def __call__(self, account_id: str, command: Command[Any]) -> object:
        if isinstance(command, CreateOrder):
            key = "" if command.idempotency is None else command.idempotency.key
            if key in self.keys:
                return Replayed(self.keys[key])
            result = OrderResult(create_order(command.request), "applied")
            if key:
                self.keys[key] = result
            return await self._store(result)
        assert isinstance(command, AttachIntent | RecordIntentRefused | ReceivePaymentEvent | PaySandboxOrder)
        order = self.orders[command.order_id]
        assert order.account_id == account_id
        match command:
            case AttachIntent():
                step = attach_intent(order, command.payment_id, self.now)
            case RecordIntentRefused():
                step = on_create_refused(order, command.reason, self.now)
            case ReceivePaymentEvent():
                step = on_event(order, command.event, self.now, new_operation_id=lambda: new_id("op"))
            case PaySandboxOrder():
                called = on_sandbox_callback(order, command.values, self.now)
                if isinstance(called, Refusal):
                    return called
                step = called
        return await self._store(step)

    async def _store(self, result: OrderResult) -> OrderResult:
        self.orders[result.order.order_id] = result.order
        if self.write is not None:
            await self.write(result.order)
        return result


def make_order(order_id: str, account_id: str, at: datetime, **fields: Any) -> Order:
    """An order of 10.00 as it is first written; ``fields`` replace the request's own."""
    return create_order(
        make_order_request(order_id, account_id, at, **{"operation_id": "op_" + order_id[4:]} | fields)
    )
