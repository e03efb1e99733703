"""What the facts about an order imply: what the ledger should hold for it, and what its statuses are.

Everything here is a function of the facts alone. The rule for money: each payment is worth what was captured minus
what was returned; the order is worth the sum of its payments, at most the amount ordered and at least zero. So
refunding a payment made twice costs the customer no credit, and neither does a fee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.ledger.orders.facts import LIVE_REFUND, Claim, DisputeFacts, OrderFacts, RefundFacts
from holdfast.ledger.orders.order import OrderRequest, OrderStatus, ReversalStatus, RiskStatus
from holdfast.ledger.orders.payment_facts import DisputeStatus, ProcessingStatus

OPEN_DISPUTE: frozenset[DisputeStatus] = frozenset(
    {"needs_response", "under_review", "appeal_needs_response", "appeal_under_review"}
)
"""The bank has taken the money and the dispute is undecided."""

INQUIRY: frozenset[DisputeStatus] = frozenset({"warning_needs_response", "warning_under_review"})
FORMAL: frozenset[DisputeStatus] = OPEN_DISPUTE | {"lost", "won"}


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """What the facts about an order imply: four statuses, what ever happened, and the order's share of the balance.

    ``credit_micro`` is the order's worth when paid, ``net_micro`` what is left of it. ``mismatch``: the payment
    differs from the order, or more was paid than ordered, and no operator has decided. ``primary_payment`` is the
    payment that represents the order: the earliest that matches it, or else the earliest of all.
    """

    status: OrderStatus
    processing_status: ProcessingStatus
    reversal_status: ReversalStatus
    risk_status: RiskStatus
    mismatch: bool
    was_refunded: bool
    was_disputed: bool
    was_lost: bool
    credit_micro: int
    net_micro: int
    primary_payment: str | None


class _Payment:
    """One payment with all its refunds and disputes, whichever ids they were reported under."""

    __slots__ = ("at", "claims", "disputes", "key", "refunds", "totals_micro")

    def __init__(self, key: str) -> None:
        self.key = key
        self.at = 0
        self.claims: list[Claim] = []
        self.refunds: list[RefundFacts] = []
        self.disputes: list[DisputeFacts] = []
        self.totals_micro = 0

    def refunded_micro(self, *, ever: bool = False) -> int:
        """Return what was refunded and has not failed; ``ever`` also counts what failed later."""
        live = sum(r.amount_micro for r in self.refunds if r.status in LIVE_REFUND or (ever and _was_live(r)))
        dead = 0 if ever else sum(r.amount_micro for r in self.refunds if r.status not in LIVE_REFUND)
        return max(live, self.totals_micro - dead)

    def gone_micro(self) -> int:
        """Return what was returned to the payer or to the bank."""
        return self.refunded_micro() + sum(map(taken_micro, self.disputes))


def assess(request: OrderRequest, facts: OrderFacts) -> Assessment:
    """Return what the facts imply for the order."""
    payments = _payments(facts)
    matching = [payment for payment in payments if _matches(request, payment)]
    accepted = _accepted(request, facts, payments)
    worth = sum(_worth(payment, accepted.get(payment.key, 0), request.currency) for payment in payments)
    if matching:
        credit_micro = request.amount_micro
    else:
        credit_micro = facts.resolution.amount_micro if facts.resolution is not None and payments else 0
    overpaid = bool(matching) and worth > credit_micro
    mismatch = (len(matching) < len(payments) and facts.resolution is None) or overpaid
    attempted: ProcessingStatus = "pending" if facts.attempt is None else facts.attempt.status
    disputes = tuple(facts.disputes.values())
    return Assessment(
        status=_status(facts, paid=bool(payments), credited=credit_micro > 0),
        processing_status="succeeded" if payments else attempted,
        reversal_status=_reversal(request, facts, payments),
        risk_status="mismatch" if mismatch else _risk(facts),
        mismatch=mismatch,
        was_refunded=_refunded_micro(request, facts, payments, ever=True) > 0,
        was_disputed=any(map(_was_formal, disputes)),
        was_lost=any("lost" in d.seen for d in disputes),
        credit_micro=credit_micro,
        net_micro=min(credit_micro, worth),
        primary_payment=min(((p.at, p.key) for p in matching or payments), default=(0, None))[1],
    )


def provider_net_micro(request: OrderRequest, facts: OrderFacts) -> int:
    """Return the provider's net amount for the order, uncapped: captured less refunded, withdrawn and reinstated.

    A payment that an operator accepted counts as accepted; any other counts as received.
    """
    payments = _payments(facts)
    accepted = _accepted(request, facts, payments)
    total = 0
    for payment in payments:
        received = _received(payment)
        total += _worth(payment, accepted.get(payment.key, received), request.currency)
    return total


def reversal_refs_of(facts: OrderFacts) -> tuple[str, ...]:
    """Return the provider's ids of refunds that were ever pending and of disputes that ever withdrew money."""
    refunds = (each for each, refund in facts.refunds.items() if _was_live(refund))
    disputes = (each for each, dispute in facts.disputes.items() if _was_formal(dispute))
    return (*refunds, *disputes)


def taken_micro(dispute: DisputeFacts) -> int:
    """Return how much of a dispute's money is still withdrawn.

    The movements of money decide where they are known, the events about them otherwise, and the dispute's status
    where neither is: a dispute can be lost although its money was returned, and won for a part of it only.
    """
    went = -sum(m.amount_micro for m in dispute.money.values() if m.amount_micro < 0)
    came = sum(m.amount_micro for m in dispute.money.values() if m.amount_micro > 0)
    if went:
        # In another currency than the charge's: use the dispute's own amount, and shares of it.
        foreign = any(m.currency != dispute.currency for m in dispute.money.values()) and dispute.currency != ""
        gross = dispute.amount_micro if foreign else went
    else:
        went = gross = dispute.amount_micro if dispute.withdrawn or dispute.status in FORMAL else 0
    if came:
        back = min(gross, gross * came // went) if went else gross
    elif dispute.reinstated or dispute.status in {"won", "warning_closed", "prevented"}:
        back = gross
    else:
        back = 0
    return gross - back


def received_micro(request: OrderRequest, facts: OrderFacts) -> int | None:
    """Return what was captured in the order's own currency; None if nothing was."""
    payments = _payments(facts)
    own = [c.amount_micro for p in payments for c in p.claims if c.currency == request.currency]
    return max(own, default=None)


def _payments(facts: OrderFacts) -> list[_Payment]:
    """Group the facts by payment, the earliest first; facts that name no payment go to the first one."""

    def root(key: str) -> str:
        return facts.charges.get(key, key)

    found: dict[str, _Payment] = {}
    for key, paid in facts.payments.items():
        payment = found.setdefault(root(key), _Payment(root(key)))
        payment.at = min(payment.at or paid.at, paid.at)
        payment.claims += [claim for claim in paid.claims if claim not in payment.claims]
    payments = sorted(found.values(), key=lambda each: (each.at, each.key))
    if not payments:
        return []

    def owner(payment_id: str | None, charge_id: str | None) -> _Payment | None:
        if payment_id is not None:
            return found.get(root(payment_id))
        if charge_id is not None and charge_id in facts.charges:
            return found.get(facts.charges[charge_id])
        return payments[0]

    for refund in facts.refunds.values():
        if (its := owner(refund.payment_id, refund.charge_id)) is not None:
            its.refunds.append(refund)
    for dispute in facts.disputes.values():
        if (its := owner(dispute.payment_id, dispute.charge_id)) is not None:
            its.disputes.append(dispute)
    for total in facts.totals.values():
        if (its := owner(total.payment_id, total.charge_id)) is not None:
            its.totals_micro += total.amount_micro
    return payments


def _matches(request: OrderRequest, payment: _Payment) -> bool:
    return any(
        claim.amount_micro == request.amount_micro
        and claim.currency == request.currency
        and (claim.livemode is None or request.livemode is None or claim.livemode == request.livemode)
        and (claim.account is None or claim.account == request.provider_account_id)
        for claim in payment.claims
    )


def _received(payment: _Payment) -> int:
    return max(claim.amount_micro for claim in payment.claims)


def _accepted(request: OrderRequest, facts: OrderFacts, payments: Iterable[_Payment]) -> dict[str, int]:
    """Return each payment's accepted amount: the order's if it matches, the operator's for the first mismatch."""
    accepted: dict[str, int] = {}
    resolved = facts.resolution is None
    for payment in payments:
        if _matches(request, payment):
            accepted[payment.key] = request.amount_micro
        elif not resolved and facts.resolution is not None and facts.resolution.decision == "credit":
            accepted[payment.key] = facts.resolution.amount_micro
            resolved = True
    return accepted


def _worth(payment: _Payment, accepted_micro: int, currency: str) -> int:
    """Return what a payment accepted as ``accepted_micro`` is worth after everything that was returned."""
    received, gone = _received(payment), payment.gone_micro()
    if any(claim.currency == currency for claim in payment.claims):
        return min(accepted_micro, max(0, received - gone))
    # Amounts in another currency only show which share was returned.
    return accepted_micro - min(accepted_micro, -(-accepted_micro * gone // received) if received else 0)


def _was_live(refund: RefundFacts) -> bool:
    return bool(LIVE_REFUND.intersection(refund.seen))


def _status(facts: OrderFacts, *, paid: bool, credited: bool) -> OrderStatus:
    if credited:
        return "credited"
    if paid:
        return "held" if facts.resolution is None else "canceled"
    if facts.expired:
        return "expired"
    if facts.attempt is not None and facts.attempt.status in ("failed", "canceled"):
        return "failed" if facts.attempt.status == "failed" else "canceled"
    return "pending"


def _basis_micro(request: OrderRequest, payments: list[_Payment]) -> int:
    """Return the whole against which a refund is full or partial."""
    if not payments or any(_matches(request, payment) for payment in payments):
        return request.amount_micro
    return max(map(_received, payments))


def _refunded_micro(request: OrderRequest, facts: OrderFacts, payments: list[_Payment], *, ever: bool) -> int:
    """Return how much of the order is refunded, not counting refunds of what was paid in excess."""
    basis = _basis_micro(request, payments)
    if not payments:
        alone = _Payment("")
        alone.refunds = list(facts.refunds.values())
        alone.totals_micro = sum(total.amount_micro for total in facts.totals.values())
        return min(basis, alone.refunded_micro(ever=ever))
    counted = [p for p in payments if _matches(request, p)] or payments
    return max(0, basis - sum(max(0, _received(p) - p.refunded_micro(ever=ever)) for p in counted))


def _reversal(request: OrderRequest, facts: OrderFacts, payments: list[_Payment]) -> ReversalStatus:
    disputes = tuple(facts.disputes.values())
    refunded = _refunded_micro(request, facts, payments, ever=False)
    if any(d.status == "lost" for d in disputes):
        return "chargeback"
    if any(map(_is_open, disputes)):
        return "disputed"
    if refunded:
        return "refunded" if refunded >= _basis_micro(request, payments) else "partially_refunded"
    return "reinstated" if any(d.status == "won" for d in disputes) else "none"


def _risk(facts: OrderFacts) -> RiskStatus:
    disputes, reviews = tuple(facts.disputes.values()), tuple(facts.reviews.values())
    lost = [d for d in disputes if d.status == "lost"]
    rules: tuple[tuple[RiskStatus, Callable[[], bool]], ...] = (
        ("fraud", lambda: "refunded_as_fraud" in reviews or any(d.reason == "fraudulent" for d in lost)),
        ("disputed", lambda: bool(lost) or any(map(_is_open, disputes))),
        ("inquiry", lambda: any(d.status in INQUIRY for d in disputes)),
        ("manual_review", lambda: "open" in reviews),
        ("fraud_warning", lambda: bool(facts.warnings)),
        ("cleared", lambda: "approved" in reviews or any(d.status in {"won", "warning_closed"} for d in disputes)),
    )
    return next((status for status, holds in rules if holds()), "none")


def _was_formal(dispute: DisputeFacts) -> bool:
    """Whether the dispute was more than an inquiry: the bank withdraws its money at once."""
    return bool(FORMAL.intersection(dispute.seen) or dispute.withdrawn or dispute.money)


def _is_open(dispute: DisputeFacts) -> bool:
    """Whether the dispute is undecided and its money withdrawn."""
    return dispute.status not in {"lost", "won", "warning_closed", "prevented"} and taken_micro(dispute) > 0
