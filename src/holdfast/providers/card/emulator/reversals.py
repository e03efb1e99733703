"""Money on its way back: refunds, partial and failing ones too, and disputes from the first question to the end."""

from __future__ import annotations

from typing import Final

from holdfast.providers.card.emulator.books import Books
from holdfast.providers.card.emulator.errors import WireError
from holdfast.providers.card.emulator.objects import Charge, Dispute, Refund

DISPUTE_FEE_MINOR: Final = 1500
REFUND_REASONS: Final = frozenset({"duplicate", "fraudulent", "requested_by_customer"})
DISPUTE_REASONS: Final = (
    "fraudulent",
    "general",
    "product_not_received",
    "product_unacceptable",
    "duplicate",
    "credit_not_processed",
    "unrecognized",
)

_OPEN: Final = frozenset({"needs_response", "under_review"})
_INQUIRY: Final = frozenset({"warning_needs_response", "warning_under_review"})


def refund(
    books: Books,
    charge: Charge,
    *,
    amount: int | None = None,
    reason: str | None = None,
    metadata: dict[str, str] | None = None,
    pending: bool = False,
) -> Refund:
    """Give back ``amount`` (None: what is left). ``pending`` leaves the outcome to :func:`finish_refund`."""
    if not charge.paid:
        raise WireError(400, "This charge was not paid.", code="charge_not_refundable")
    if any(each.charge == charge.id and each.status in _OPEN for each in books.state.disputes.values()):
        raise WireError(400, "This charge is disputed.", code="charge_disputed")
    left = charge.amount_captured - charge.amount_refunded
    if left <= 0:
        raise WireError(400, f"Charge {charge.id} has already been refunded.", code="charge_already_refunded")
    wanted = left if amount is None else amount
    if wanted <= 0:
        raise WireError(400, "Invalid positive integer", code="parameter_invalid_integer", param="amount")
    if wanted > left:
        message = f"Refund amount ({wanted}) is greater than unrefunded amount on charge ({left})"
        raise WireError(400, message, param="amount")
    if reason is not None and reason not in REFUND_REASONS:
        raise WireError(400, "Invalid reason", param="reason")
    made = Refund(
        id=books.new_id("re"),
        amount=wanted,
        charge=charge.id,
        created=books.now_s(),
        currency=charge.currency,
        metadata=metadata or {},
        payment_intent=charge.payment_intent,
        reason=reason,
        status="pending" if pending else "succeeded",
    )
    books.state.refunds[made.id] = made
    if not pending:
        _pay_back(books, made)
    _sum_up(books, charge)
    books.emit("refund.created", made)
    books.emit("charge.refunded", charge)
    return made


def finish_refund(books: Books, made: Refund) -> None:
    """A pending refund reached the cardholder."""
    if made.status != "pending":
        raise WireError(400, f"This refund is {made.status}.", code="refund_unexpected_state")
    made.status = "succeeded"
    _pay_back(books, made)
    books.emit("refund.updated", made)
    books.emit("charge.refund.updated", made)


def fail_refund(books: Books, made: Refund, reason: str = "lost_or_stolen_card") -> None:
    """The refund came back, though it may have counted as succeeded."""
    if made.status not in ("pending", "succeeded"):
        raise WireError(400, f"This refund is {made.status}.", code="refund_unexpected_state")
    if made.status == "succeeded":
        movement = books.move(
            "refund_failure", "refund_failure", made.id, amount=made.amount, currency=made.currency
        )
        made.failure_balance_transaction = movement.id
    made.status, made.failure_reason = "failed", reason[:100]
    _sum_up(books, books.charge(made.charge))
    books.emit("refund.failed", made)
    books.emit("refund.updated", made)
    books.emit("charge.refund.updated", made)


def open_dispute(
    books: Books,
    charge: Charge,
    *,
    amount: int | None = None,
    reason: str = "fraudulent",
    inquiry: bool = False,
) -> Dispute:
    """The cardholder objects; unless it is only an inquiry, the money is withdrawn at once, with a fee."""
    if not charge.paid:
        raise WireError(400, "This charge was not paid.", code="charge_not_disputable")
    if any(each.charge == charge.id and each.status in _OPEN | _INQUIRY for each in books.state.disputes.values()):
        raise WireError(400, "This charge is disputed already.", code="charge_disputed")
    if reason not in DISPUTE_REASONS:
        raise WireError(400, "Invalid reason", param="reason")
    wanted = charge.amount_captured if amount is None else amount
    if not 0 < wanted <= charge.amount_captured:
        raise WireError(400, "Invalid dispute amount", param="amount")
    made = Dispute(
        id=books.new_id("dp"),
        amount=wanted,
        charge=charge.id,
        created=books.now_s(),
        currency=charge.currency,
        is_charge_refundable=inquiry,
        payment_intent=charge.payment_intent,
        reason=reason,
        status="warning_needs_response" if inquiry else "needs_response",
    )
    books.state.disputes[made.id] = made
    charge.disputed = True
    if not inquiry:
        _withdraw(books, made)
    books.emit("charge.dispute.created", made)
    if not inquiry:
        books.emit("charge.dispute.funds_withdrawn", made)
    return made


def escalate(books: Books, made: Dispute) -> None:
    """An inquiry becomes a dispute: now the money is withdrawn."""
    _expect(made, _INQUIRY)
    made.status, made.is_charge_refundable = "needs_response", False
    _withdraw(books, made)
    books.emit("charge.dispute.updated", made)
    books.emit("charge.dispute.funds_withdrawn", made)


def respond(books: Books, made: Dispute) -> None:
    """Evidence was handed in; now the bank looks at it."""
    _expect(made, {"needs_response", "warning_needs_response"})
    made.status = "under_review" if made.status == "needs_response" else "warning_under_review"
    books.emit("charge.dispute.updated", made)


def win(books: Books, made: Dispute, *, amount: int | None = None) -> None:
    """The bank finds for the merchant: the money comes back, or ``amount`` of it."""
    _expect(made, _OPEN)
    back = made.amount if amount is None else amount
    if not 0 < back <= made.amount:
        raise WireError(400, "Invalid amount", param="amount")
    made.status = "won"
    movement = books.move("adjustment", "dispute_reversal", made.id, amount=back, currency=made.currency)
    made.balance_transactions = [*made.balance_transactions, movement]
    books.emit("charge.dispute.closed", made)
    books.emit("charge.dispute.funds_reinstated", made)


def lose(books: Books, made: Dispute) -> None:
    """The bank finds for the cardholder: the money stays away."""
    _expect(made, _OPEN)
    made.status = "lost"
    books.emit("charge.dispute.closed", made)


def close_inquiry(books: Books, made: Dispute) -> None:
    """The inquiry ends without a dispute."""
    _expect(made, _INQUIRY)
    made.status = "warning_closed"
    books.emit("charge.dispute.closed", made)


def warn_of_fraud(books: Books, charge: Charge) -> None:
    """The issuer thinks the card was misused; no money moves."""
    warning = {
        "id": books.new_id("issfr"),
        "object": "radar.early_fraud_warning",
        "actionable": not charge.refunded and not charge.disputed,
        "charge": charge.id,
        "created": books.now_s(),
        "fraud_type": "made_with_stolen_card",
        "livemode": False,
        "payment_intent": charge.payment_intent,
    }
    books.emit("radar.early_fraud_warning.created", warning)


def _pay_back(books: Books, made: Refund) -> None:
    movement = books.move("refund", "refund", made.id, amount=-made.amount, currency=made.currency)
    made.balance_transaction = movement.id


def _withdraw(books: Books, made: Dispute) -> None:
    movement = books.move(
        "adjustment", "dispute", made.id, amount=-made.amount, currency=made.currency, fee=DISPUTE_FEE_MINOR
    )
    made.balance_transactions = [*made.balance_transactions, movement]


def _sum_up(books: Books, charge: Charge) -> None:
    standing = (each for each in books.state.refunds.values() if each.charge == charge.id)
    charge.amount_refunded = sum(each.amount for each in standing if each.status in ("pending", "succeeded"))
    charge.refunded = charge.amount_refunded >= charge.amount_captured


def _expect(made: Dispute, statuses: frozenset[str] | set[str]) -> None:
    if made.status not in statuses:
        raise WireError(400, f"This dispute is {made.status}.", code="dispute_unexpected_state")
