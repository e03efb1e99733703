"""What became of an order, and why a top-up is off, in plain sentences for the owner of the account."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple

from holdfast.http.schemas.payments import PaymentOrderBody
from holdfast_console.formats import Tone, read_moment

BY_BANK: Final = "the bank declined the card"
REASONS: Final[Mapping[str, str]] = {
    "insufficient_funds": "the card has insufficient funds",
    "expired_card": "the card has expired",
    "incorrect_cvc": "the security code is wrong",
    "invalid_cvc": "the security code is wrong",
    "incorrect_number": "the card number is wrong",
    "invalid_number": "the card number is wrong",
    "invalid_expiry_month": "the expiry date is wrong",
    "invalid_expiry_year": "the expiry date is wrong",
    "card_not_supported": "the card cannot be used for this payment",
    "currency_not_supported": "the card cannot be used in this currency",
    "processing_error": "the bank could not process it just now",
    "try_again_later": "the bank could not process it just now",
    "authentication_required": "the bank wants you to approve the payment",
    "payment_intent_authentication_failure": "it was not approved at the bank",
}
"""By the provider's codes. What they say of lost and stolen cards is not shown."""

SWITCHED_OFF: Final[Mapping[str, str]] = {
    "disputed": "a payment of a top-up was disputed",
    "card_removed": "the last saved card was removed",
    "operator": "the operator of this service switched it off",
    "canceled": "a charge was canceled",
}


def switched_off_words(reason: str) -> str:
    """Return why a top-up was switched off."""
    return SWITCHED_OFF.get(reason) or f"a charge failed: {REASONS.get(reason, BY_BANK)}"


class OrderShown(NamedTuple):
    """An order: its state in a word with its colour, the sentence, and whether it can be paid now."""

    order: PaymentOrderBody
    label: str
    tone: Tone
    text: str
    can_pay: bool


def shown_order(order: PaymentOrderBody, now: datetime, returned: str = "") -> OrderShown:
    """Return an order as it is shown; ``returned`` is how the provider says that its page was left."""
    can_pay = (
        order.provider == "cardprovider"
        and order.origin == "customer"
        and order.status in ("pending", "failed")
        and order.processing_status != "processing"
        and now < read_moment(order.expires_at)
    )
    label, tone, text = _state_of(order, returned, is_over=now >= read_moment(order.expires_at))
    if order.risk_status == "manual_review":
        text += " The payment is being reviewed."
    elif order.risk_status == "inquiry":
        text += " The bank has asked about it; your credit stays as it is meanwhile."
    if order.reconcile_status == "mismatch" and order.status != "held":
        text += " It is being compared with the card provider's records."
    return OrderShown(order, label, tone, text, can_pay)


def _state_of(order: PaymentOrderBody, returned: str, *, is_over: bool) -> tuple[str, Tone, str]:
    match order.status:
        case "credited":
            return _after_credit(order)
        case "failed":
            why = REASONS.get(order.failure_code or "", BY_BANK)
            return "declined", "bad", f"The payment did not go through: {why}. Nothing was charged."
        case "canceled":
            return "canceled", "idle", "No credit was added."
        case "held":
            why = "What was paid differs from what was ordered, so a person looks at it before credit is added."
            return "held", "warn", why
        case "pending" if not is_over or order.origin == "top_up":
            return _before_payment(order, returned)
        case _:
            return "expired", "idle", "It was not paid in time. Nothing was charged."


def _before_payment(order: PaymentOrderBody, returned: str) -> tuple[str, Tone, str]:
    if order.origin == "top_up":
        return "being charged", "live", "Your saved card is being charged."
    if order.processing_status == "processing":
        return "processing", "live", "The bank is processing the payment. The credit is added when it has."
    if returned in ("succeeded", "pending"):
        why = "Thank you. The credit is added as soon as the card provider confirms the payment."
        return "confirming", "live", why
    if returned == "failed":
        return "not paid", "warn", "The payment was not approved. Nothing was charged."
    if order.processing_status == "requires_action":
        return "not paid", "warn", "The bank wants you to approve the payment."
    return "not paid", "idle", "It waits for your payment."


def _after_credit(order: PaymentOrderBody) -> tuple[str, Tone, str]:
    match order.reversal_status:
        case "partially_refunded":
            refunded = _refunded(order)
            part = "Part of it" if refunded is None else f"{refunded:.2f} {order.currency} of it"
            why = f"{part} went back to your card, and that much credit was taken back."
            return "partly refunded", "idle", why
        case "refunded":
            return "refunded", "idle", "The money went back to your card, and the credit was taken back."
        case "disputed":
            why = "The cardholder disputes this payment. Its credit is taken back until the bank decides."
            return "disputed", "bad", why
        case "chargeback":
            why = "The bank returned the money to the cardholder after a dispute, and the credit was taken back."
            return "charged back", "bad", why
        case "reinstated":
            return "paid", "ok", f"A dispute of it has ended, and {order.amount} credits are yours again."
        case _:
            bonus = f", and {order.bonus.given} as a bonus" if order.bonus and order.bonus.operation_ids else ""
            return "paid", "ok", f"{order.amount} credits were added{bonus}."


def _refunded(order: PaymentOrderBody) -> Decimal | None:
    """Return what the provider's balance says was refunded; None if it does not, or in another currency."""
    refunds = [each for each in order.provider_balance_transaction_refs if each.source_type == "refund"]
    if not refunds or any(each.currency.upper() != order.currency for each in refunds):
        return None
    return -sum((Decimal(each.amount) for each in refunds), Decimal(0))
