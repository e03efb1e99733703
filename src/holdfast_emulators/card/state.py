"""The objects of the card provider's API, and the emulator's state: what our client and its webhooks read of them.

Related objects are named by id. A change of the state runs without awaiting and leaves its events in
``new_events``; the caller takes them from there, has the state written to disk, and only then responds and sends
them.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from holdfast.ledger.values import Now, utc_now

Fields = dict[str, Any]

IntentStatus = Literal["requires_payment_method", "requires_action", "processing", "canceled", "succeeded"]
UNFINISHED: frozenset[IntentStatus] = frozenset({"requires_payment_method", "requires_action", "processing"})

API_VERSION: Final = "2026-10-28.endive"
OBJECTS_MAX_COUNT: Final = 2000
"""How many payments, events and responses under idempotency keys are retained, each."""
AVAILABLE_AFTER_S: Final = 2 * 24 * 3600
_ALPHABET = string.ascii_letters + string.digits
T = TypeVar("T")


class ApiError(Exception):
    """An error response, ``{"error": {type, code, message, …}}``, with its status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        decline_code: str | None = None,
        payment_intent: Fields | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        error = {
            "type": kind, "code": code, "message": message, "param": param, "decline_code": decline_code,
            "payment_intent": payment_intent,
        }  # fmt: skip
        self.body = {"error": {name: value for name, value in error.items() if value is not None}}


class Amount(msgspec.Struct, kw_only=True):
    """What all objects with an amount have, in minor units of the currency."""

    id: str
    amount: int
    created: int
    currency: str


class PaymentIntent(Amount, kw_only=True):
    """One payment, through all attempts at it."""

    object: str = "payment_intent"
    amount_received: int = 0
    automatic_payment_methods: Fields | None = None
    cancellation_reason: str | None = None
    client_secret: str
    customer: str | None = None
    last_payment_error: Fields | None = None
    latest_charge: str | None = None
    livemode: bool = False
    metadata: dict[str, str] = {}
    next_action: Fields | None = None
    payment_method: str | None = None
    status: IntentStatus = "requires_payment_method"


class Customer(msgspec.Struct, kw_only=True):
    """Someone with saved cards."""

    id: str
    object: str = "customer"
    created: int
    livemode: bool = False
    metadata: dict[str, str] = {}


class SetupIntent(msgspec.Struct, kw_only=True):
    """One attempt of a customer to save a card."""

    id: str
    object: str = "setup_intent"
    client_secret: str
    created: int
    customer: str
    last_setup_error: Fields | None = None
    livemode: bool = False
    metadata: dict[str, str] = {}
    payment_method: str | None = None
    status: Literal["requires_payment_method", "succeeded", "canceled"] = "requires_payment_method"
    usage: str = "off_session"


class PaymentMethod(msgspec.Struct, kw_only=True):
    """A saved card; without a customer once it is detached. ``test_card`` is which of the test cards it is."""

    id: str
    object: str = "payment_method"
    card: Fields
    created: int
    customer: str | None
    livemode: bool = False
    test_card: str
    type: str = "card"


class Charge(Amount, kw_only=True):
    """One attempt to take money; ``amount_refunded`` is the sum of its refunds that did not fail."""

    object: str = "charge"
    amount_captured: int = 0
    amount_refunded: int = 0
    balance_transaction: str | None = None
    captured: bool = False
    disputed: bool = False
    livemode: bool = False
    metadata: dict[str, str] = {}
    paid: bool = False
    payment_intent: str
    refunded: bool = False
    status: Literal["succeeded", "failed"]


class Refund(Amount, kw_only=True):
    """One refund; one that succeeded may still fail."""

    object: str = "refund"
    balance_transaction: str | None = None
    charge: str
    failure_balance_transaction: str | None = None
    metadata: dict[str, str] = {}
    payment_intent: str
    status: Literal["pending", "succeeded", "failed"]


class BalanceTransaction(Amount, kw_only=True):
    """One movement of the account's balance."""

    object: str = "balance_transaction"
    available_on: int
    fee: int = 0
    net: int
    reporting_category: str
    source: str
    type: str


class Dispute(Amount, kw_only=True):
    """A cardholder's dispute; ``warning_`` statuses are inquiries, in which no money moves."""

    object: str = "dispute"
    balance_transactions: list[BalanceTransaction] = []
    charge: str
    payment_intent: str
    reason: str
    status: str


class Event(msgspec.Struct, kw_only=True):
    """An event, with the object as it was then."""

    id: str
    object: str = "event"
    api_version: str
    created: int
    data: Fields
    livemode: bool = False
    type: str


class StoredResponse(msgspec.Struct, kw_only=True):
    """The response stored under an idempotency key."""

    fingerprint: str
    status: int
    body: msgspec.Raw


class Outbound(msgspec.Struct, kw_only=True):
    """The delivery status of an event. Only a sender that injects faults holds or drops events."""

    state: Literal["waiting", "held", "heard", "dropped", "given_up"] = "waiting"
    tries: int = 0


class State(msgspec.Struct, kw_only=True):
    """The whole state as stored on disk. Everything is in order of creation."""

    intents: dict[str, PaymentIntent] = {}
    customers: dict[str, Customer] = {}
    setup_intents: dict[str, SetupIntent] = {}
    payment_methods: dict[str, PaymentMethod] = {}
    charges: dict[str, Charge] = {}
    refunds: dict[str, Refund] = {}
    disputes: dict[str, Dispute] = {}
    transactions: dict[str, BalanceTransaction] = {}
    events: dict[str, Event] = {}
    outbound: dict[str, Outbound] = {}
    answers: dict[str, StoredResponse] = {}


class Store:
    """The state and the operations that changes share. Raises :class:`ApiError` for objects that do not exist."""

    def __init__(self, state: State | None = None, *, now: Now = utc_now) -> None:
        self.state = state or State()
        self.new_events: list[Event] = []
        self._now = now

    def now_s(self) -> int:
        """Return the time in unix seconds."""
        return int(self._now().timestamp())

    def new_id(self, prefix: str) -> str:
        """Return a new id in the provider's format."""
        return f"{prefix}_{''.join(secrets.choice(_ALPHABET) for _ in range(24))}"

    def intent(self, intent_id: str) -> PaymentIntent:
        """Return the payment intent with that id."""
        return _of(self.state.intents, intent_id, "payment_intent")

    def customer(self, customer_id: str) -> Customer:
        """Return the customer with that id."""
        return _of(self.state.customers, customer_id, "customer")

    def setup_intent(self, setup_intent_id: str) -> SetupIntent:
        """Return the setup intent with that id."""
        return _of(self.state.setup_intents, setup_intent_id, "setup_intent")

    def payment_method(self, payment_method_id: str) -> PaymentMethod:
        """Return the saved card with that id."""
        return _of(self.state.payment_methods, payment_method_id, "payment_method")

    def charge(self, charge_id: str) -> Charge:
        """Return the charge with that id."""
        return _of(self.state.charges, charge_id, "charge")

    def refund(self, refund_id: str) -> Refund:
        """Return the refund with that id."""
        return _of(self.state.refunds, refund_id, "refund")

    def dispute(self, dispute_id: str) -> Dispute:
        """Return the dispute with that id."""
        return _of(self.state.disputes, dispute_id, "dispute")

    def event(self, event_id: str) -> Event:
        """Return the event with that id."""
        return _of(self.state.events, event_id, "event")

    def move(self, kind: str, category: str, source: Amount, *, amount: int, fee: int = 0) -> BalanceTransaction:
        """Record a movement of the account's balance; ``amount`` is signed."""
        now_s = self.now_s()
        movement = BalanceTransaction(
            id=self.new_id("txn"),
            amount=amount,
            available_on=now_s + AVAILABLE_AFTER_S,
            created=now_s,
            currency=source.currency,
            fee=fee,
            net=amount - fee,
            reporting_category=category,
            source=source.id,
            type=kind,
        )
        self.state.transactions[movement.id] = movement
        return movement

    def emit(self, kind: str, shown: object, *, previous: Fields | None = None) -> Event:
        """Record an event with the object as it is now, and what of it was otherwise before."""
        event = Event(
            id=self.new_id("evt"),
            api_version=API_VERSION,
            created=self.now_s(),
            data={"object": msgspec.to_builtins(shown)} | ({"previous_attributes": previous} if previous else {}),
            type=kind,
        )
        self.state.events[event.id] = event
        self.state.outbound[event.id] = Outbound()
        self.new_events.append(event)
        return event

    def take_new_events(self) -> list[Event]:
        """Return the events not taken yet, in the order they happened."""
        taken, self.new_events = self.new_events, []
        return taken

    def prune(self) -> None:
        """Delete the oldest objects above the limit; undelivered events never."""
        state = self.state
        if old := set(_surplus(state.intents)):
            parts: tuple[dict[str, Any], ...] = (state.charges, state.refunds, state.disputes)
            old |= {key for part in parts for key, each in part.items() if each.payment_intent in old}
            old |= {key for key, each in state.transactions.items() if each.source in old}
            for collection in (state.intents, *parts, state.transactions):
                for key in old & collection.keys():
                    del collection[key]
        surplus = _surplus(state.events)
        delivered = [key for key, each in state.outbound.items() if each.state not in ("waiting", "held")]
        for key in delivered[: len(surplus)]:
            del state.events[key], state.outbound[key]
        for collection in (state.answers, state.setup_intents):
            for key in _surplus(collection):
                del collection[key]


def _of(collection: dict[str, T], given: str, kind: str) -> T:
    found = collection.get(given)
    if found is None:
        raise ApiError(404, f"No such {kind}: '{given}'", code="resource_missing", param="id")
    return found


def _surplus(collection: Mapping[str, object]) -> list[str]:
    return list(collection)[: max(0, len(collection) - OBJECTS_MAX_COUNT)]
