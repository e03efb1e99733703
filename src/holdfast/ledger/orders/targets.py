"""What the facts about an order imply: what the ledger should hold for it, and what its statuses are.

Everything here is a function of the facts alone. The rule for money: each payment is worth what was captured minus
what was returned; the order is worth the sum of its payments, at most the amount ordered and at least zero. So
refunding a payment made twice costs the customer no credit, and neither does a fee.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.ledger.orders.facts import (
    LIVE_REFUND,
    DisputeFacts,
    DisputeStatus,
    OrderFacts,
    PaymentFacts,
    ProcessingStatus,
    RefundedTotal,
    RefundFacts,
    join_payments,
)
from holdfast.ledger.orders.order import OrderRequest, OrderStatus, ReversalStatus, RiskStatus, Statuses

OPEN_DISPUTE: frozenset[DisputeStatus] = frozenset(
    {"needs_response", "under_review", "appeal_needs_response", "appeal_under_review"}
)
"""The bank has taken the money and the dispute is undecided."""

INQUIRY: frozenset[DisputeStatus] = frozenset({"warning_needs_response", "warning_under_review"})
FORMAL: frozenset[DisputeStatus] = OPEN_DISPUTE | {"lost", "won"}

_Part = TypeVar("_Part", RefundFacts, DisputeFacts, RefundedTotal)


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """What the facts about an order imply: its statuses (except ``reconcile_status``) and its share of the balance.

    ``credit_micro`` is the order's worth when paid, ``net_micro`` what is left of it. ``payment_id`` is the payment
    that represents the order: the earliest that matches it, or else the earliest of all.
    """

    facts: OrderFacts
    statuses: Statuses
    was_refunded: bool
    was_disputed: bool
    was_lost: bool
    credit_micro: int
    net_micro: int
    payment_id: str | None


def assess(request: OrderRequest, facts: OrderFacts) -> Assessment:
    """Return what the facts imply for the order."""
    payments = _by_payment(facts)
    matching = [key for key, own in payments.items() if _matches(request, own.payments[key])]
    worth = _worth_micro(request, facts, payments, unaccepted=False)
    credit_micro = 0
    if matching:
        credit_micro = request.amount_micro
    elif payments and facts.resolution is not None:
        credit_micro = facts.resolution.amount_micro
    # What does not match the order waits for a decision, unless it was returned.
    is_unresolved = facts.resolution is None and any(
        key not in matching and _is_kept(own) for key, own in payments.items()
    )
    is_overpaid = bool(matching) and worth > credit_micro
    # A refund is full or partial of what matches the order, or else of what was received.
    basis_micro = request.amount_micro
    if payments and not matching:
        basis_micro = max(_received_micro(own.payments[key]) for key, own in payments.items())
    counted = {key: payments[key] for key in matching} or payments
    refunded_micro, ever_refunded_micro = (
        _refunded_of_order(basis_micro, facts, counted, ever=ever) for ever in (False, True)
    )
    attempted: ProcessingStatus = "pending" if facts.attempt is None else facts.attempt.status
    disputes = facts.disputes.values()
    return Assessment(
        facts=facts,
        statuses=Statuses(
            status=_status(facts, paid=bool(payments), credited=credit_micro > 0, held=is_unresolved),
            processing_status="succeeded" if payments else attempted,
            reversal_status=_reversal(facts, refunded_micro, basis_micro),
            risk_status="mismatch" if is_unresolved or is_overpaid else _risk(facts),
        ),
        was_refunded=ever_refunded_micro > 0,
        was_disputed=any(map(_was_formal, disputes)),
        was_lost=any("lost" in d.seen for d in disputes),
        credit_micro=credit_micro,
        net_micro=min(credit_micro, worth),
        payment_id=next(iter(counted), None),
    )


def provider_net_micro(request: OrderRequest, facts: OrderFacts) -> int:
    """Return the provider's net amount for the order, uncapped: captured less refunded, withdrawn and reinstated.

    A payment that an operator accepted counts as accepted; any other counts as received.
    """
    return _worth_micro(request, facts, _by_payment(facts), unaccepted=True)


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
    elif (dispute.reinstated and not dispute.money) or dispute.status in {"won", "warning_closed", "prevented"}:
        back = gross
    else:
        back = 0
    return gross - back


def received_micro(request: OrderRequest, facts: OrderFacts) -> int | None:
    """Return what was captured in the order's own currency; None if nothing was."""
    stated = (each for payment in facts.payments.values() for each in payment.stated)
    return max((each.amount_micro for each in stated if each.currency == request.currency), default=None)


def _by_payment(facts: OrderFacts) -> dict[str, OrderFacts]:
    """Return the facts of each payment, the earliest first; facts that name no payment are the first one's.

    Payments that name the same charge are one, also where one of them is the charge itself.
    """

    def key_of(name: str) -> str:
        charges = facts.payments[name].charge_ids if name in facts.payments else ()
        same = {name, *(facts.charges.get(charge_id, name) for charge_id in (name, *charges))}
        key = max(same, key=lambda each: (each not in facts.charges, each))
        return key if key == name else key_of(key)

    found: dict[str, PaymentFacts] = {}
    for payment_id, payment in facts.payments.items():
        key = key_of(payment_id)
        found[key] = join_payments(found[key], payment) if key in found else payment
    ordered = sorted(found, key=lambda key: (found[key].at, key))

    def own(key: str, parts: dict[str, _Part]) -> dict[str, _Part]:
        return {part_id: part for part_id, part in parts.items() if owner(part) == key}

    def owner(part: RefundFacts | DisputeFacts | RefundedTotal) -> str:
        return key_of(facts.charges.get(part.charge_id or "", part.payment_id or ordered[0]))

    return {
        key: OrderFacts(
            payments={key: found[key]},
            refunds=own(key, facts.refunds),
            totals=own(key, facts.totals),
            disputes=own(key, facts.disputes),
        )
        for key in ordered
    }


def _matches(request: OrderRequest, payment: PaymentFacts) -> bool:
    return any(
        each.amount_micro == request.amount_micro
        and each.currency == request.currency
        and (each.livemode is None or request.livemode is None or each.livemode == request.livemode)
        and (each.account is None or each.account == request.provider_account_id)
        for each in payment.stated
    )


def _received_micro(payment: PaymentFacts) -> int:
    return max(each.amount_micro for each in payment.stated)


def _worth_micro(
    request: OrderRequest, facts: OrderFacts, payments: dict[str, OrderFacts], *, unaccepted: bool
) -> int:
    """Return what the payments are worth after everything that was returned.

    A payment is accepted as the amount ordered if it matches. Of the others the one of which most is left is
    accepted as the operator decided, so that a further payment takes nothing away. Any other counts as what was
    received if ``unaccepted``, else as nothing.
    """
    decided_micro = 0 if facts.resolution is None else facts.resolution.amount_micro
    others = [own for key, own in payments.items() if not _matches(request, own.payments[key])]
    decided = (
        max(others, key=lambda own: _left_micro(request, own, decided_micro)) if decided_micro and others else None
    )
    worth = 0
    for key, own in payments.items():
        payment = own.payments[key]
        accepted = _received_micro(payment) if unaccepted else 0
        if _matches(request, payment):
            accepted = request.amount_micro
        elif own is decided:
            accepted = decided_micro
        worth += _left_micro(request, own, accepted)
    return worth


def _left_micro(request: OrderRequest, own: OrderFacts, accepted_micro: int) -> int:
    """Return what is left of a payment that is accepted as this amount, after what was returned of it."""
    (payment,) = own.payments.values()
    received = _received_micro(payment)
    gone = _refunded_micro(own) + sum(map(taken_micro, own.disputes.values()))
    if any(each.currency == request.currency for each in payment.stated):
        return min(accepted_micro, max(0, received - gone))
    # Amounts in another currency only show which share was returned.
    return accepted_micro - min(accepted_micro, -(-accepted_micro * gone // received) if received else 0)


def _refunded_micro(facts: OrderFacts, *, ever: bool = False) -> int:
    """Return what was refunded and has not failed; ``ever`` also counts what failed later."""
    refunds = facts.refunds.values()
    live = sum(r.amount_micro for r in refunds if r.status in LIVE_REFUND or (ever and _was_live(r)))
    dead = 0 if ever else sum(r.amount_micro for r in refunds if r.status not in LIVE_REFUND)
    return max(live, sum(total.amount_micro for total in facts.totals.values()) - dead)


def _refunded_of_order(basis_micro: int, facts: OrderFacts, counted: dict[str, OrderFacts], *, ever: bool) -> int:
    """Return how much of the order is refunded, not counting refunds of what was paid in excess."""
    if not counted:
        return min(basis_micro, _refunded_micro(facts, ever=ever))
    left = (
        max(0, _received_micro(own.payments[key]) - _refunded_micro(own, ever=ever)) for key, own in counted.items()
    )
    return max(0, basis_micro - sum(left))


def _was_live(refund: RefundFacts) -> bool:
    return bool(LIVE_REFUND.intersection(refund.seen))


def _is_kept(own: OrderFacts) -> bool:
    """Whether a part of a payment was neither refunded nor lost in a dispute; an open dispute decides nothing."""
    (payment,) = own.payments.values()
    lost = (taken_micro(dispute) for dispute in own.disputes.values() if not _is_open(dispute))
    return _received_micro(payment) > _refunded_micro(own) + sum(lost)


def _status(facts: OrderFacts, *, paid: bool, credited: bool, held: bool) -> OrderStatus:
    if credited:
        return "credited"
    if paid:
        return "held" if held else "canceled"
    if facts.expired:
        return "expired"
    if facts.attempt is not None and facts.attempt.status in ("failed", "canceled"):
        return "failed" if facts.attempt.status == "failed" else "canceled"
    return "pending"


def _reversal(facts: OrderFacts, refunded_micro: int, basis_micro: int) -> ReversalStatus:
    disputes = facts.disputes.values()
    if any(d.status == "lost" for d in disputes):
        return "chargeback"
    if any(map(_is_open, disputes)):
        return "disputed"
    if refunded_micro:
        return "refunded" if refunded_micro >= basis_micro else "partially_refunded"
    return "reinstated" if any(d.status == "won" for d in disputes) else "none"


def _risk(facts: OrderFacts) -> RiskStatus:
    disputes, reviews = facts.disputes.values(), facts.reviews.values()
    lost = [d for d in disputes if d.status == "lost"]
    if "refunded_as_fraud" in reviews or any(d.reason == "fraudulent" for d in lost):
        return "fraud"
    if lost or any(map(_is_open, disputes)):
        return "disputed"
    if any(d.status in INQUIRY for d in disputes):
        return "inquiry"
    if "open" in reviews:
        return "manual_review"
    if facts.warnings:
        return "fraud_warning"
    is_cleared = "approved" in reviews or any(d.status in {"won", "warning_closed"} for d in disputes)
    return "cleared" if is_cleared else "none"


def _was_formal(dispute: DisputeFacts) -> bool:
    """Whether the dispute was more than an inquiry: the bank withdraws its money at once."""
    return bool(FORMAL.intersection(dispute.seen) or dispute.withdrawn or dispute.money)


def _is_open(dispute: DisputeFacts) -> bool:
    """Whether the dispute is undecided and its money withdrawn."""
    return dispute.status not in {"lost", "won", "warning_closed", "prevented"} and taken_micro(dispute) > 0
