"""Transitions of payment intents: created, attempted, paid, declined, canceled, and settled afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal

import msgspec

from holdfast_emulators.card.state import UNFINISHED, ApiError, Charge, Fields, PaymentIntent, PaymentMethod, Store

AMOUNT_MAX_MINOR: Final = 99_999_999
AMOUNT_MIN_MINOR: Final = 50
FEE_THOUSANDTHS: Final = 29
FEE_FIXED_MINOR: Final = 30

DECLINES: Final = (
    "generic_decline", "insufficient_funds", "lost_card", "stolen_card", "fraudulent", "authentication_required",
)  # fmt: skip
MESSAGES: Final[Mapping[str, str]] = {
    "insufficient_funds": "Your card has insufficient funds.",
    "authentication_required": "Your card was declined. This transaction requires authentication.",
}
"""What a cardholder reads; of any other decline only that it is one."""


def create(
    store: Store,
    *,
    amount: int,
    currency: str,
    metadata: dict[str, str],
    automatic_payment_methods: dict[str, object] | None = None,
    customer: str | None = None,
) -> PaymentIntent:
    """Create an intent."""
    code = currency.lower()
    if len(code) != 3 or not code.isascii() or not code.isalpha():
        raise ApiError(400, f"Invalid currency: {currency[:20]}", code="currency_invalid", param="currency")
    if amount < AMOUNT_MIN_MINOR:
        raise ApiError(400, "Amount is below the minimum.", code="amount_too_small", param="amount")
    if amount > AMOUNT_MAX_MINOR:
        raise ApiError(400, "Amount is above the maximum.", code="amount_too_large", param="amount")
    intent_id = store.new_id("pi")
    intent = PaymentIntent(
        id=intent_id,
        amount=amount,
        automatic_payment_methods=automatic_payment_methods,
        client_secret=f"{intent_id}_secret_{secrets.token_hex(12)}",
        created=store.now_s(),
        currency=code,
        customer=customer,
        metadata=metadata,
    )
    store.state.intents[intent_id] = intent
    store.emit("payment_intent.created", intent)
    return intent


def confirm(
    store: Store, intent: PaymentIntent, payment_method: str | None, redirect: Fields | None = None
) -> None:
    """Attempt to pay with a test card or a saved card. Raises :class:`ApiError`, also if it is declined.

    ``redirect`` is where a cardholder who must act is sent, and returns to.
    """
    if intent.status not in ("requires_payment_method", "requires_action") or payment_method is None:
        missing = "" if payment_method else " and no payment method is given"
        raise _wrong_state(f"You cannot confirm this PaymentIntent: its status is {intent.status}{missing}.")
    attempt = CARDS.get(payment_method)
    if attempt is None:
        attempt = ATTENDED[saved_card_of(store, intent.customer, payment_method).test_card]
    intent.payment_method = payment_method
    if attempt is require_action:
        require_action(store, intent, redirect)
        return
    outcome = attempt(store, intent)
    if isinstance(outcome, ApiError):
        raise outcome


def saved_card_of(store: Store, customer: str | None, card_id: str) -> PaymentMethod:
    """Return a customer's saved card. Raises :class:`ApiError`."""
    card = store.payment_method(card_id)
    if card.customer is None or card.customer != customer:
        message = "The payment method is not attached to this customer."
        raise ApiError(400, message, code="payment_method_unexpected_state", param="payment_method")
    return card


def charge_saved(store: Store, intent: PaymentIntent, card: PaymentMethod) -> None:
    """Charge a customer's saved card without its cardholder. Raises :class:`ApiError` if it is declined."""
    intent.payment_method = card.id
    outcome = SAVED_CARDS[card.test_card](store, intent)
    if isinstance(outcome, ApiError):
        outcome.body["error"]["payment_intent"] = msgspec.to_builtins(intent)
        raise outcome


def pay(
    store: Store, intent: PaymentIntent, *, amount_received: int | None = None, currency: str | None = None
) -> Charge:
    """Pay the intent. ``amount_received`` and ``currency`` produce a mismatched payment for tests."""
    _expect_unfinished(intent, "pay")
    received = intent.amount if amount_received is None else amount_received
    if currency is not None:
        intent.currency = currency.lower()
    charge = _charge(store, intent, amount=received, status="succeeded")
    charge.paid = charge.captured = True
    charge.amount_captured = received
    intent.status, intent.amount_received = "succeeded", received
    intent.last_payment_error = intent.next_action = None
    store.emit("charge.succeeded", charge)
    store.emit("payment_intent.succeeded", intent)
    return charge


def settle(store: Store, charge_id: str) -> None:
    """Record a paid charge on the account's balance, as happens some time after its capture."""
    charge = store.state.charges.get(charge_id)
    if charge is not None and charge.paid and charge.balance_transaction is None:
        fee = (charge.amount * FEE_THOUSANDTHS + 500) // 1000 + FEE_FIXED_MINOR
        charge.balance_transaction = store.move("charge", "charge", charge, amount=charge.amount, fee=fee).id
        store.emit("charge.updated", charge)


def decline(
    store: Store, intent: PaymentIntent, reason: str = "generic_decline", *, code: str = "card_declined"
) -> ApiError:
    """Fail an attempt; the intent may be tried again. Returns the error for the caller."""
    _expect_unfinished(intent, "decline")
    if reason not in DECLINES:
        raise ApiError(400, f"No such decline code: {reason[:80]}", param="decline_code")
    charge = _charge(store, intent, amount=intent.amount, status="failed")
    message = MESSAGES.get(reason, "Your card was declined.")
    intent.status, intent.payment_method, intent.next_action = "requires_payment_method", None, None
    intent.last_payment_error = {
        "type": "card_error",
        "charge": charge.id,
        "code": code,
        "decline_code": reason,
        "message": message,
    }
    store.emit("charge.failed", charge)
    store.emit("payment_intent.payment_failed", intent)
    return ApiError(402, message, kind="card_error", code=code, decline_code=reason)


def require_action(store: Store, intent: PaymentIntent, redirect: Fields | None = None) -> None:
    """Require an action of the cardholder, such as 3-D Secure, at the page of ``redirect`` if there is one."""
    _expect_unfinished(intent, "ask for action on")
    intent.status = "requires_action"
    kind, how = ("use_stripe_sdk", {}) if redirect is None else ("redirect_to_url", redirect)
    intent.next_action = {"type": kind, kind: how}
    store.emit("payment_intent.requires_action", intent)


def fail_authentication(store: Store, intent: PaymentIntent) -> None:
    """Fail an attempt because its cardholder was not authenticated; the intent may be tried again."""
    _expect_unfinished(intent, "fail the authentication of")
    intent.status, intent.payment_method, intent.next_action = "requires_payment_method", None, None
    intent.last_payment_error = {
        "type": "invalid_request_error",
        "code": "payment_intent_authentication_failure",
        "message": "We are unable to authenticate your payment method.",
    }
    store.emit("payment_intent.payment_failed", intent)


def process(store: Store, intent: PaymentIntent) -> None:
    """Leave the outcome open for a while, as bank debits do."""
    _expect_unfinished(intent, "process")
    intent.status, intent.next_action = "processing", None
    store.emit("payment_intent.processing", intent)


def cancel(store: Store, intent: PaymentIntent, reason: str | None = None) -> None:
    """Cancel the intent so that it can no longer be paid."""
    _expect_unfinished(intent, "cancel")
    intent.status, intent.cancellation_reason, intent.next_action = "canceled", reason, None
    store.emit("payment_intent.canceled", intent)


CARDS: Final[Mapping[str, Callable[[Store, PaymentIntent], object]]] = {
    "pm_card_visa": pay,
    "pm_card_chargeDeclined": decline,
    "pm_card_chargeDeclinedInsufficientFunds": partial(decline, reason="insufficient_funds"),
    "pm_card_threeDSecure2Required": require_action,
}
"""What an attempt with each of the provider's test cards does."""


SAVED_CARDS: Final[Mapping[str, Callable[[Store, PaymentIntent], object]]] = {
    "pm_card_visa": pay,
    "pm_card_mastercard": pay,
    "pm_card_chargeCustomerFail": decline,
    "pm_card_authenticationRequired": partial(
        decline, code="authentication_required", reason="authentication_required"
    ),
    "pm_card_slow": process,
}
"""What a charge of a saved test card does without its cardholder. Of the slow one the outcome is left open."""

ATTENDED: Final[Mapping[str, Callable[[Store, PaymentIntent], object]]] = {
    **SAVED_CARDS,
    "pm_card_authenticationRequired": require_action,
}
"""What a charge of a saved test card does while its cardholder is there."""


def _expect_unfinished(intent: PaymentIntent, what: str) -> None:
    if intent.status not in UNFINISHED:
        raise _wrong_state(f"You cannot {what} this PaymentIntent because it has a status of {intent.status}.")


def _wrong_state(message: str) -> ApiError:
    return ApiError(400, message, code="payment_intent_unexpected_state")


def _charge(store: Store, intent: PaymentIntent, *, amount: int, status: Literal["succeeded", "failed"]) -> Charge:
    charge = Charge(
        id=store.new_id("ch"),
        amount=amount,
        created=store.now_s(),
        currency=intent.currency,
        metadata=dict(intent.metadata),
        payment_intent=intent.id,
        status=status,
    )
    store.state.charges[charge.id] = charge
    intent.latest_charge = charge.id
    return charge
