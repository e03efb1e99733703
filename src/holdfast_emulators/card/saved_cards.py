"""Customers and their saved cards: set up by the cardholder, charged later without."""

from __future__ import annotations

import secrets
from typing import Final

from holdfast_emulators.card.intents import CARDS, SAVED_CARDS
from holdfast_emulators.card.state import ApiError, Customer, PaymentMethod, SetupIntent, Store

LAST4: Final = {"pm_card_mastercard": "4444", "pm_card_chargeCustomerFail": "0341"}
EXPIRES_IN: Final = 2035


def create_customer(store: Store, *, metadata: dict[str, str]) -> Customer:
    """Create a customer."""
    customer = Customer(id=store.new_id("cus"), created=store.now_s(), metadata=metadata)
    store.state.customers[customer.id] = customer
    store.emit("customer.created", customer)
    return customer


def create_setup_intent(store: Store, customer: Customer, *, usage: str, metadata: dict[str, str]) -> SetupIntent:
    """Create an intent to save a card."""
    intent_id = store.new_id("seti")
    intent = SetupIntent(
        id=intent_id,
        client_secret=f"{intent_id}_secret_{secrets.token_hex(12)}",
        created=store.now_s(),
        customer=customer.id,
        metadata=metadata,
        usage=usage,
    )
    store.state.setup_intents[intent_id] = intent
    store.emit("setup_intent.created", intent)
    return intent


def confirm(store: Store, intent: SetupIntent, test_card: str | None) -> None:
    """Save a test card. Raises :class:`ApiError`, also if it is declined."""
    if intent.status != "requires_payment_method" or test_card is None:
        message = f"You cannot confirm this SetupIntent: its status is {intent.status}."
        raise ApiError(400, message, code="setup_intent_unexpected_state")
    if test_card not in SAVED_CARDS:
        if test_card not in CARDS:
            message = f"No such PaymentMethod: '{test_card[:80]}'"
            raise ApiError(400, message, code="resource_missing", param="payment_method")
        message = "Your card was declined."
        intent.last_setup_error = {"type": "card_error", "code": "card_declined", "message": message}
        store.emit("setup_intent.setup_failed", intent)
        raise ApiError(402, message, kind="card_error", code="card_declined", decline_code="generic_decline")
    card = PaymentMethod(
        id=store.new_id("pm"),
        card={
            "brand": "mastercard" if test_card == "pm_card_mastercard" else "visa",
            "last4": LAST4.get(test_card, "4242"),
            "exp_month": 12,
            "exp_year": EXPIRES_IN,
        },
        created=store.now_s(),
        customer=intent.customer,
        test_card=test_card,
    )
    store.state.payment_methods[card.id] = card
    intent.payment_method, intent.status, intent.last_setup_error = card.id, "succeeded", None
    store.emit("payment_method.attached", card)
    store.emit("setup_intent.succeeded", intent)


def detach(store: Store, card: PaymentMethod) -> None:
    """Detach a card: it cannot be charged any more."""
    if card.customer is None:
        raise ApiError(400, "The payment method you provided is not attached to a customer.")
    customer, card.customer = card.customer, None
    store.emit("payment_method.detached", card, previous={"customer": customer})
