"""Transitions of payment intents: created, attempted, paid, declined, canceled, and settled afterwards."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.providers.card.amounts import minor_decimals
from holdfast.standins.card.errors import ApiError, unexpected_state
from holdfast.standins.card.objects import CANCELABLE, Charge, PaymentIntent
from holdfast.standins.card.state import Store

AMOUNT_MAX_MINOR: Final = 99_999_999
AMOUNT_MIN_MAJOR_HUNDREDTHS: Final = 50
FEE_THOUSANDTHS: Final = 29
FEE_FIXED_MINOR: Final = 30

CANCELLATION_REASONS: Final = frozenset({"duplicate", "fraudulent", "requested_by_customer", "abandoned"})

_DECLINES: Final = {
    "generic_decline": ("card_declined", "Your card was declined."),
    "insufficient_funds": ("card_declined", "Your card has insufficient funds."),
    "lost_card": ("card_declined", "Your card was declined."),
    "stolen_card": ("card_declined", "Your card was declined."),
    "fraudulent": ("card_declined", "Your card was declined."),
    "expired_card": ("expired_card", "Your card has expired."),
    "incorrect_cvc": ("incorrect_cvc", "Your card's security code is incorrect."),
    "processing_error": ("processing_error", "An error occurred while processing your card. Try again later."),
}
DECLINES: Final = tuple(_DECLINES)


@dataclass(frozen=True, slots=True)
class Method:
    """What a test payment method does when it is confirmed. ``after`` names what follows a success."""

    decline: str | None = None
    action: bool = False
    processing: bool = False
    after: str | None = None


METHODS: Final = {
    "pm_card_visa": Method(),
    "pm_card_mastercard": Method(),
    "pm_card_chargeDeclined": Method(decline="generic_decline"),
    "pm_card_visa_chargeDeclined": Method(decline="generic_decline"),
    "pm_card_chargeDeclinedInsufficientFunds": Method(decline="insufficient_funds"),
    "pm_card_visa_chargeDeclinedInsufficientFunds": Method(decline="insufficient_funds"),
    "pm_card_visa_chargeDeclinedLostCard": Method(decline="lost_card"),
    "pm_card_visa_chargeDeclinedStolenCard": Method(decline="stolen_card"),
    "pm_card_chargeDeclinedExpiredCard": Method(decline="expired_card"),
    "pm_card_chargeDeclinedIncorrectCvc": Method(decline="incorrect_cvc"),
    "pm_card_chargeDeclinedProcessingError": Method(decline="processing_error"),
    "pm_card_threeDSecure2Required": Method(action=True),
    "pm_card_authenticationRequired": Method(action=True),
    "pm_card_processing": Method(processing=True),
    "pm_card_createDispute": Method(after="dispute"),
    "pm_card_createDisputeInquiry": Method(after="inquiry"),
}


def create(
    store: Store,
    *,
    amount: int,
    currency: str,
    metadata: dict[str, str],
    capture_method: str = "automatic_async",
    automatic_payment_methods: dict[str, object] | None = None,
    payment_method: str | None = None,
    description: str | None = None,
) -> PaymentIntent:
    """Create an intent."""
    code = currency.lower()
    if len(code) != 3 or not code.isascii() or not code.isalpha():
        raise ApiError(400, f"Invalid currency: {currency[:20]}", code="currency_invalid", param="currency")
    least = AMOUNT_MIN_MAJOR_HUNDREDTHS * 10 ** minor_decimals(code) // 100
    if amount < max(1, least):
        raise ApiError(400, "Amount is below the minimum.", code="amount_too_small", param="amount")
    if amount > AMOUNT_MAX_MINOR:
        raise ApiError(400, "Amount is above the maximum.", code="amount_too_large", param="amount")
    if capture_method not in ("automatic", "automatic_async"):
        raise ApiError(400, "Only automatic capture is supported.", param="capture_method")
    if payment_method is not None:
        method_of(payment_method)
    intent_id = store.new_id("pi")
    intent = PaymentIntent(
        id=intent_id,
        amount=amount,
        automatic_payment_methods=automatic_payment_methods,
        capture_method=capture_method,
        client_secret=f"{intent_id}_secret_{secrets.token_hex(12)}",
        created=store.now_s(),
        currency=code,
        description=description,
        metadata=metadata,
        payment_method=payment_method,
        status="requires_payment_method" if payment_method is None else "requires_confirmation",
    )
    store.state.intents[intent_id] = intent
    store.emit("payment_intent.created", intent)
    return intent


def method_of(name: str) -> Method:
    """Return the test payment method with that name. Raises :class:`ApiError`."""
    method = METHODS.get(name)
    if method is None:
        raise ApiError(
            400, f"No such PaymentMethod: '{name[:80]}'", code="resource_missing", param="payment_method"
        )
    return method


def begin(intent: PaymentIntent, payment_method: str | None) -> Method:
    """Begin a confirmation: check that the intent may be attempted and record its payment method."""
    if intent.status in ("succeeded", "canceled", "processing", "requires_action"):
        raise unexpected_state(
            f"You cannot confirm this PaymentIntent because it has a status of {intent.status}.",
            msgspec.to_builtins(intent),
        )
    chosen = payment_method or intent.payment_method
    if chosen is None:
        raise unexpected_state(
            "You cannot confirm this PaymentIntent because it's missing a payment method.",
            msgspec.to_builtins(intent),
        )
    method = method_of(chosen)
    intent.payment_method = chosen
    return method


def pay(
    store: Store, intent: PaymentIntent, *, amount_received: int | None = None, currency: str | None = None
) -> Charge:
    """Pay the intent. ``amount_received`` and ``currency`` produce a mismatched payment for tests."""
    _must_be_open(intent, "pay")
    received = intent.amount if amount_received is None else amount_received
    if currency is not None:
        intent.currency = currency.lower()
    charge = _charge(store, intent, amount=received, status="succeeded")
    charge.paid = charge.captured = True
    charge.amount_captured = received
    intent.status, intent.amount_received = "succeeded", received
    intent.last_payment_error = intent.next_action = None
    if intent.capture_method == "automatic":
        _book(store, charge)
    store.emit("charge.succeeded", charge)
    store.emit("payment_intent.succeeded", intent)
    return charge


def settle(store: Store, charge_id: str) -> bool:
    """Record a paid charge on the account's balance, as happens some time after an asynchronous capture."""
    charge = store.state.charges.get(charge_id)
    if charge is None or not charge.paid or charge.balance_transaction is not None:
        return False
    _book(store, charge)
    store.emit("charge.updated", charge)
    return True


def decline(store: Store, intent: PaymentIntent, reason: str = "generic_decline") -> ApiError:
    """Fail an attempt; the intent may be tried again. Returns the error for the caller."""
    _must_be_open(intent, "decline")
    if reason not in _DECLINES:
        raise ApiError(400, f"No such decline code: {reason[:80]}", param="decline_code")
    code, message = _DECLINES[reason]
    charge = _charge(store, intent, amount=intent.amount, status="failed")
    charge.failure_code, charge.failure_message = code, message
    failure = {"charge": charge.id, "code": code, "decline_code": reason, "message": message, "type": "card_error"}
    intent.status, intent.payment_method, intent.next_action = "requires_payment_method", None, None
    intent.last_payment_error = dict(failure)
    store.emit("charge.failed", charge)
    store.emit("payment_intent.payment_failed", intent)
    more = {"charge": charge.id, "decline_code": reason, "payment_intent": msgspec.to_builtins(intent)}
    return ApiError(402, message, kind="card_error", code=code, more=more)


def require_action(store: Store, intent: PaymentIntent) -> None:
    """Require an action of the cardholder, such as 3-D Secure."""
    _must_be_open(intent, "ask for action on")
    intent.status = "requires_action"
    intent.next_action = {"type": "use_stripe_sdk", "use_stripe_sdk": {}}
    store.emit("payment_intent.requires_action", intent)


def process(store: Store, intent: PaymentIntent) -> None:
    """Leave the outcome open for a while, as bank debits do."""
    _must_be_open(intent, "process")
    intent.status, intent.next_action = "processing", None
    store.emit("payment_intent.processing", intent)


def cancel(store: Store, intent: PaymentIntent, reason: str | None = None) -> None:
    """Cancel the intent so that it can no longer be paid."""
    if reason is not None and reason not in CANCELLATION_REASONS:
        raise ApiError(400, "Invalid cancellation_reason", param="cancellation_reason")
    if intent.status not in CANCELABLE:
        raise unexpected_state(
            f"You cannot cancel this PaymentIntent because it has a status of {intent.status}.",
            msgspec.to_builtins(intent),
        )
    intent.status, intent.canceled_at, intent.cancellation_reason = "canceled", store.now_s(), reason
    intent.next_action = None
    store.emit("payment_intent.canceled", intent)


def _must_be_open(intent: PaymentIntent, what: str) -> None:
    if intent.status not in CANCELABLE:
        raise unexpected_state(
            f"You cannot {what} this PaymentIntent because it has a status of {intent.status}.",
            msgspec.to_builtins(intent),
        )


def _charge(store: Store, intent: PaymentIntent, *, amount: int, status: str) -> Charge:
    charge = Charge(
        id=store.new_id("ch"),
        amount=amount,
        created=store.now_s(),
        currency=intent.currency,
        description=intent.description,
        metadata=dict(intent.metadata),
        payment_intent=intent.id,
        payment_method=intent.payment_method,
        status="succeeded" if status == "succeeded" else "failed",
    )
    store.state.charges[charge.id] = charge
    intent.latest_charge = charge.id
    return charge


def _book(store: Store, charge: Charge) -> None:
    fee = (charge.amount * FEE_THOUSANDTHS + 500) // 1000 + FEE_FIXED_MINOR
    movement = store.move("charge", "charge", charge.id, amount=charge.amount, currency=charge.currency, fee=fee)
    charge.balance_transaction = movement.id
