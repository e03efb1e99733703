"""Refunds, including partial and failing ones, and disputes from inquiry to decision."""

from __future__ import annotations

from typing import Final

from holdfast_emulators.card.state import ApiError, Charge, Dispute, Refund, Store

DISPUTE_FEE_MINOR: Final = 1500
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
    store: Store,
    charge: Charge,
    *,
    amount: int | None = None,
    metadata: dict[str, str] | None = None,
    pending: bool = False,
) -> Refund:
    """Refund ``amount`` (None: what is left). ``pending`` leaves the outcome to :func:`finish_refund`."""
    if not charge.paid:
        raise ApiError(400, "This charge was not paid.", code="charge_not_refundable")
    if any(each.charge == charge.id and each.status in _OPEN for each in store.state.disputes.values()):
        raise ApiError(400, "This charge is disputed.", code="charge_disputed")
    left = charge.amount_captured - charge.amount_refunded
    if left <= 0:
        raise ApiError(400, f"Charge {charge.id} has already been refunded.", code="charge_already_refunded")
    requested = left if amount is None else amount
    if requested <= 0:
        raise ApiError(400, "Invalid positive integer", code="parameter_invalid_integer", param="amount")
    if requested > left:
        message = f"Refund amount ({requested}) is greater than unrefunded amount on charge ({left})"
        raise ApiError(400, message, param="amount")
    created = Refund(
        id=store.new_id("re"),
        amount=requested,
        charge=charge.id,
        created=store.now_s(),
        currency=charge.currency,
        metadata=metadata or {},
        payment_intent=charge.payment_intent,
        status="pending" if pending else "succeeded",
    )
    store.state.refunds[created.id] = created
    if not pending:
        _pay_back(store, created)
    _sum_up(store, charge)
    store.emit("refund.created", created)
    store.emit("charge.refunded", charge)
    return created


def finish_refund(store: Store, refund: Refund) -> None:
    """Complete a pending refund."""
    if refund.status != "pending":
        raise ApiError(400, f"This refund is {refund.status}.", code="refund_unexpected_state")
    refund.status = "succeeded"
    _pay_back(store, refund)
    store.emit("refund.updated", refund)
    store.emit("charge.refund.updated", refund)


def fail_refund(store: Store, refund: Refund) -> None:
    """Fail a refund, even one that succeeded."""
    if refund.status not in ("pending", "succeeded"):
        raise ApiError(400, f"This refund is {refund.status}.", code="refund_unexpected_state")
    if refund.status == "succeeded":
        movement = store.move("refund_failure", "refund_failure", refund, amount=refund.amount)
        refund.failure_balance_transaction = movement.id
    refund.status = "failed"
    _sum_up(store, store.charge(refund.charge))
    store.emit("refund.failed", refund)
    store.emit("refund.updated", refund)
    store.emit("charge.refund.updated", refund)


def open_dispute(
    store: Store,
    charge: Charge,
    *,
    amount: int | None = None,
    reason: str = "fraudulent",
    inquiry: bool = False,
) -> Dispute:
    """Open a dispute; unless it is only an inquiry, the money is withdrawn at once, with a fee."""
    if not charge.paid:
        raise ApiError(400, "This charge was not paid.", code="charge_not_disputable")
    if any(each.charge == charge.id and each.status in _OPEN | _INQUIRY for each in store.state.disputes.values()):
        raise ApiError(400, "This charge is disputed already.", code="charge_disputed")
    if reason not in DISPUTE_REASONS:
        raise ApiError(400, "Invalid reason", param="reason")
    disputed = charge.amount_captured if amount is None else amount
    if not 0 < disputed <= charge.amount_captured:
        raise ApiError(400, "Invalid dispute amount", param="amount")
    dispute = Dispute(
        id=store.new_id("dp"),
        amount=disputed,
        charge=charge.id,
        created=store.now_s(),
        currency=charge.currency,
        payment_intent=charge.payment_intent,
        reason=reason,
        status="warning_needs_response" if inquiry else "needs_response",
    )
    store.state.disputes[dispute.id] = dispute
    charge.disputed = True
    if not inquiry:
        _move(store, dispute, "dispute", amount=-disputed, fee=DISPUTE_FEE_MINOR)
    store.emit("charge.dispute.created", dispute)
    if not inquiry:
        store.emit("charge.dispute.funds_withdrawn", dispute)
    return dispute


def escalate(store: Store, dispute: Dispute) -> None:
    """Turn an inquiry into a dispute: the money is withdrawn."""
    _expect(dispute, _INQUIRY)
    dispute.status = "needs_response"
    _move(store, dispute, "dispute", amount=-dispute.amount, fee=DISPUTE_FEE_MINOR)
    store.emit("charge.dispute.updated", dispute)
    store.emit("charge.dispute.funds_withdrawn", dispute)


def respond(store: Store, dispute: Dispute) -> None:
    """Submit evidence; the bank reviews it."""
    _expect(dispute, {"needs_response", "warning_needs_response"})
    dispute.status = "under_review" if dispute.status == "needs_response" else "warning_under_review"
    store.emit("charge.dispute.updated", dispute)


def win(store: Store, dispute: Dispute, *, amount: int | None = None) -> None:
    """Decide for the merchant: the money is returned, or ``amount`` of it."""
    _expect(dispute, _OPEN)
    back = dispute.amount if amount is None else amount
    if not 0 < back <= dispute.amount:
        raise ApiError(400, "Invalid amount", param="amount")
    dispute.status = "won"
    _move(store, dispute, "dispute_reversal", amount=back)
    store.emit("charge.dispute.closed", dispute)
    store.emit("charge.dispute.funds_reinstated", dispute)


def lose(store: Store, dispute: Dispute) -> None:
    """Decide for the cardholder: the money stays withdrawn."""
    _expect(dispute, _OPEN)
    dispute.status = "lost"
    store.emit("charge.dispute.closed", dispute)


def close_inquiry(store: Store, dispute: Dispute) -> None:
    """Close an inquiry without a dispute."""
    _expect(dispute, _INQUIRY)
    dispute.status = "warning_closed"
    store.emit("charge.dispute.closed", dispute)


def issue_fraud_warning(store: Store, charge: Charge) -> None:
    """Issue an early fraud warning; no money moves."""
    warning = {
        "id": store.new_id("issfr"),
        "object": "radar.early_fraud_warning",
        "charge": charge.id,
        "created": store.now_s(),
        "livemode": False,
        "payment_intent": charge.payment_intent,
    }
    store.emit("radar.early_fraud_warning.created", warning)


def _pay_back(store: Store, refund: Refund) -> None:
    refund.balance_transaction = store.move("refund", "refund", refund, amount=-refund.amount).id


def _move(store: Store, dispute: Dispute, category: str, *, amount: int, fee: int = 0) -> None:
    movement = store.move("adjustment", category, dispute, amount=amount, fee=fee)
    dispute.balance_transactions = [*dispute.balance_transactions, movement]


def _sum_up(store: Store, charge: Charge) -> None:
    standing = (each for each in store.state.refunds.values() if each.charge == charge.id)
    charge.amount_refunded = sum(each.amount for each in standing if each.status in ("pending", "succeeded"))
    charge.refunded = charge.amount_refunded >= charge.amount_captured


def _expect(dispute: Dispute, statuses: frozenset[str] | set[str]) -> None:
    if dispute.status not in statuses:
        raise ApiError(400, f"This dispute is {dispute.status}.", code="dispute_unexpected_state")
