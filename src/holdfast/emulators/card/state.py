"""The emulator's state, and what every change of it needs: ids, times, events.

A change runs without awaiting and leaves its events in ``new_events``; the caller takes them from there, has the
state written to disk, and only then responds and sends them.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from holdfast.emulators.card.objects import (
    Amount,
    ApiError,
    BalanceTransaction,
    Charge,
    Dispute,
    Event,
    PaymentIntent,
    Refund,
)
from holdfast.ledger.clock import Now, utc_now

API_VERSION: Final = "2026-10-28.endive"
OBJECTS_MAX_COUNT: Final = 2000
"""How many payments, events and responses under idempotency keys are retained, each."""
AVAILABLE_AFTER_S: Final = 2 * 24 * 3600

_ALPHABET = string.ascii_letters + string.digits


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
    charges: dict[str, Charge] = {}
    refunds: dict[str, Refund] = {}
    disputes: dict[str, Dispute] = {}
    transactions: dict[str, BalanceTransaction] = {}
    events: dict[str, Event] = {}
    outbound: dict[str, Outbound] = {}
    answers: dict[str, StoredResponse] = {}


T = TypeVar("T")


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

    def emit(self, kind: str, shown: object) -> Event:
        """Record an event with the object as it is now."""
        event = Event(
            id=self.new_id("evt"),
            api_version=API_VERSION,
            created=self.now_s(),
            data={"object": msgspec.to_builtins(shown)},
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
        for key in _surplus(state.answers):
            del state.answers[key]


def _of(collection: dict[str, T], given: str, kind: str) -> T:
    found = collection.get(given)
    if found is None:
        raise ApiError(404, f"No such {kind}: '{given}'", code="resource_missing", param="id")
    return found


def _surplus(collection: Mapping[str, object]) -> list[str]:
    return list(collection)[: max(0, len(collection) - OBJECTS_MAX_COUNT)]
