"""The objects of the API: what our client and its webhooks read of them. Related ones are named by id."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Fields = dict[str, Any]

IntentStatus = Literal["requires_payment_method", "requires_action", "processing", "canceled", "succeeded"]
UNFINISHED: frozenset[IntentStatus] = frozenset({"requires_payment_method", "requires_action", "processing"})


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
    ) -> None:
        super().__init__(message)
        self.status = status
        error = {"type": kind, "code": code, "message": message, "param": param, "decline_code": decline_code}
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
    last_payment_error: Fields | None = None
    latest_charge: str | None = None
    livemode: bool = False
    metadata: dict[str, str] = {}
    next_action: Fields | None = None
    payment_method: str | None = None
    status: IntentStatus = "requires_payment_method"


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
