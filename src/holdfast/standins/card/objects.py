"""The objects of the API. Related ones are named by id; :mod:`.rendering` expands them on request."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Fields = dict[str, Any]

IntentStatus = Literal[
    "requires_payment_method", "requires_confirmation", "requires_action", "processing", "canceled", "succeeded"
]
CANCELABLE: frozenset[IntentStatus] = frozenset(
    {"requires_payment_method", "requires_confirmation", "requires_action", "processing"}
)


class PaymentIntent(msgspec.Struct, kw_only=True):
    """One payment, through all attempts at it."""

    id: str
    object: str = "payment_intent"
    amount: int
    amount_capturable: int = 0
    amount_received: int = 0
    automatic_payment_methods: Fields | None = None
    canceled_at: int | None = None
    cancellation_reason: str | None = None
    capture_method: str = "automatic_async"
    client_secret: str
    confirmation_method: str = "automatic"
    created: int
    currency: str
    customer: str | None = None
    description: str | None = None
    last_payment_error: Fields | None = None
    latest_charge: str | None = None
    livemode: bool = False
    metadata: dict[str, str] = {}
    next_action: Fields | None = None
    payment_method: str | None = None
    payment_method_types: list[str] = msgspec.field(default_factory=lambda: ["card"])
    review: str | None = None
    status: IntentStatus = "requires_payment_method"


class Charge(msgspec.Struct, kw_only=True):
    """One attempt to take money; ``amount_refunded`` is the sum of its refunds that did not fail."""

    id: str
    object: str = "charge"
    amount: int
    amount_captured: int = 0
    amount_refunded: int = 0
    balance_transaction: str | None = None
    captured: bool = False
    created: int
    currency: str
    description: str | None = None
    disputed: bool = False
    failure_balance_transaction: str | None = None
    failure_code: str | None = None
    failure_message: str | None = None
    livemode: bool = False
    metadata: dict[str, str] = {}
    paid: bool = False
    payment_intent: str
    payment_method: str | None = None
    refunded: bool = False
    status: Literal["succeeded", "pending", "failed"]


class Refund(msgspec.Struct, kw_only=True):
    """One refund; one that succeeded may still fail."""

    id: str
    object: str = "refund"
    amount: int
    balance_transaction: str | None = None
    charge: str
    created: int
    currency: str
    failure_balance_transaction: str | None = None
    failure_reason: str | None = None
    metadata: dict[str, str] = {}
    payment_intent: str
    reason: str | None = None
    status: Literal["pending", "succeeded", "failed", "canceled"]


class BalanceTransaction(msgspec.Struct, kw_only=True):
    """One movement of the account's balance."""

    id: str
    object: str = "balance_transaction"
    amount: int
    available_on: int
    created: int
    currency: str
    description: str | None = None
    exchange_rate: float | None = None
    fee: int = 0
    fee_details: list[Fields] = []
    net: int
    reporting_category: str
    source: str
    status: Literal["pending", "available"] = "pending"
    type: str


class Dispute(msgspec.Struct, kw_only=True):
    """A cardholder's dispute; ``warning_`` statuses are inquiries, in which no money moves."""

    id: str
    object: str = "dispute"
    amount: int
    balance_transactions: list[BalanceTransaction] = []
    charge: str
    created: int
    currency: str
    is_charge_refundable: bool = False
    livemode: bool = False
    metadata: dict[str, str] = {}
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
    pending_webhooks: int = 1
    request: Fields | None = None
    type: str
