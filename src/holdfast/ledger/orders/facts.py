"""The facts known about a payment order, and how a new fact is merged into them.

Merging is a join: sets grow, the higher rank or the later time wins, and ties are broken by value. The result does
not depend on how often or in which order facts are merged, and neither do the order's statuses and credit, which
are functions of the facts (:mod:`holdfast.ledger.orders.targets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from holdfast.ledger.orders.payment_facts import (
    Attempt,
    BalanceTransaction,
    ChargeSeen,
    DisputeMoney,
    DisputeSeen,
    DisputeStatus,
    Fact,
    FraudWarning,
    Paid,
    ProgressStatus,
    RefundedTotal,
    RefundSeen,
    RefundStatus,
    ReviewSeen,
    ReviewVerdict,
)

PROGRESS_RANK: Mapping[ProgressStatus, int] = {
    "pending": 0,
    "requires_action": 1,
    "processing": 2,
    "failed": 3,
    "canceled": 4,
}
"""Breaks ties between attempts reported in the same second."""

REFUND_RANK: Mapping[RefundStatus, int] = {
    "pending": 0,
    "requires_action": 1,
    "succeeded": 2,
    "canceled": 3,
    "failed": 4,
}

DISPUTE_RANK: Mapping[DisputeStatus, int] = {
    "warning_needs_response": 0,
    "warning_under_review": 1,
    "needs_response": 2,
    "under_review": 3,
    "appeal_needs_response": 4,
    "appeal_under_review": 5,
    "warning_closed": 6,
    "prevented": 7,
    "lost": 8,
    "won": 9,
}
"""A dispute's status only moves up. An appeal follows a loss, but the dispute stays lost until it is won."""

REVIEW_RANK: Mapping[ReviewVerdict, int] = {"open": 0, "closed": 1, "approved": 2, "refunded_as_fraud": 3}

LIVE_REFUND: frozenset[RefundStatus] = frozenset({"pending", "requires_action", "succeeded"})
"""A refund counts from its request until it fails or is canceled."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one event says was captured for a payment."""

    amount_micro: int
    currency: str
    livemode: bool | None = None
    account: str | None = None


class PaymentFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A succeeded payment. ``at`` is the time of its first report; ``charge_ids`` are the charges that paid it."""

    at: int
    claims: tuple[Claim, ...]
    charge_ids: tuple[str, ...] = ()


class RefundFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One refund; ``seen`` are all statuses ever reported for it."""

    status: RefundStatus
    seen: tuple[RefundStatus, ...]
    amount_micro: int
    charge_id: str | None = None
    payment_id: str | None = None


class DisputeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One dispute; ``money`` are its movements by transaction id, ``seen`` all statuses ever reported for it."""

    status: DisputeStatus | None = None
    seen: tuple[DisputeStatus, ...] = ()
    amount_micro: int = 0
    currency: str = ""
    reason: str | None = None
    withdrawn: bool = False
    reinstated: bool = False
    charge_id: str | None = None
    payment_id: str | None = None
    money: dict[str, DisputeMoney] = {}


class OrderResolution(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's decision about a held order. ``amount_micro`` is the credit given, 0 for a cancel."""

    decision: Literal["credit", "cancel"]
    amount_micro: int


class OrderFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything known about one order. ``totals`` are refunded running totals by charge."""

    payments: dict[str, PaymentFacts] = {}
    charges: dict[str, str] = {}
    attempt: Attempt | None = None
    refunds: dict[str, RefundFacts] = {}
    totals: dict[str, RefundedTotal] = {}
    disputes: dict[str, DisputeFacts] = {}
    warnings: tuple[str, ...] = ()
    reviews: dict[str, ReviewVerdict] = {}
    balance: dict[str, BalanceTransaction] = {}
    charge_balances: dict[str, str] = {}
    expired: bool = False
    resolution: OrderResolution | None = None


_T = TypeVar("_T")


def with_fact(known: OrderFacts, fact: Fact) -> OrderFacts:
    """Return the facts with one more; equal to ``known`` if the fact adds nothing."""
    replace = msgspec.structs.replace
    match fact:
        case Paid():
            payments = _put(known.payments, fact.payment_id, _paid(known.payments.get(fact.payment_id), fact))
            return replace(known, payments=payments, charges=_link_charge(known.charges, fact))
        case Attempt():
            newest = fact if known.attempt is None else max(known.attempt, fact, key=_attempt_key)
            return replace(known, attempt=newest)
        case ChargeSeen():
            balances = known.charge_balances
            if fact.balance_transaction_id is not None:
                balances = _put(balances, fact.charge_id, fact.balance_transaction_id)
            charges = _map_charge(known.charges, fact.charge_id, fact.payment_id)
            return replace(known, charges=charges, charge_balances=balances)
        case RefundSeen():
            refunds = _put(known.refunds, fact.refund_id, _refund(known.refunds.get(fact.refund_id), fact))
            return replace(known, refunds=refunds, charges=_link_charge(known.charges, fact))
        case RefundedTotal():
            highest = max(known.totals.get(fact.charge_id, fact), fact, key=lambda each: each.amount_micro)
            charges = _map_charge(known.charges, fact.charge_id, fact.payment_id)
            return replace(known, totals=_put(known.totals, fact.charge_id, highest), charges=charges)
        case DisputeSeen():
            dispute = _dispute(known.disputes.get(fact.dispute_id, DisputeFacts()), fact)
            disputes = _put(known.disputes, fact.dispute_id, dispute)
            return replace(known, disputes=disputes, charges=_link_charge(known.charges, fact))
        case DisputeMoney():
            before = known.disputes.get(fact.dispute_id, DisputeFacts())
            one = _settled(before.money.get(fact.transaction_id), fact)
            dispute = replace(before, money=_put(before.money, fact.transaction_id, one))
            return replace(known, disputes=_put(known.disputes, fact.dispute_id, dispute))
        case FraudWarning():
            return replace(known, warnings=_union(known.warnings, (fact.warning_id,)))
        case ReviewSeen():
            seen = known.reviews.get(fact.review_id, "open")
            verdict = max(seen, fact.verdict, key=lambda each: REVIEW_RANK[each])
            return replace(known, reviews=_put(known.reviews, fact.review_id, verdict))
        case BalanceTransaction():
            transaction = _settled(known.balance.get(fact.transaction_id), fact)
            return replace(known, balance=_put(known.balance, fact.transaction_id, transaction))


def _paid(known: PaymentFacts | None, fact: Paid) -> PaymentFacts:
    claim = Claim(
        amount_micro=fact.amount_micro, currency=fact.currency, livemode=fact.livemode, account=fact.account
    )
    charge_ids = () if fact.charge_id is None else (fact.charge_id,)
    if known is None:
        return PaymentFacts(at=fact.at, claims=(claim,), charge_ids=charge_ids)
    claims = {*known.claims, claim}
    return PaymentFacts(
        at=min(known.at, fact.at),
        claims=tuple(sorted(claims, key=repr)),
        charge_ids=_union(known.charge_ids, charge_ids),
    )


def _refund(known: RefundFacts | None, fact: RefundSeen) -> RefundFacts:
    if known is None:
        return RefundFacts(
            status=fact.status,
            seen=(fact.status,),
            amount_micro=fact.amount_micro,
            charge_id=fact.charge_id,
            payment_id=fact.payment_id,
        )
    return RefundFacts(
        status=max(known.status, fact.status, key=lambda each: REFUND_RANK[each]),
        seen=_union(known.seen, (fact.status,)),
        amount_micro=max(known.amount_micro, fact.amount_micro),
        charge_id=_either(known.charge_id, fact.charge_id),
        payment_id=_either(known.payment_id, fact.payment_id),
    )


def _dispute(known: DisputeFacts, fact: DisputeSeen) -> DisputeFacts:
    return DisputeFacts(
        status=_further(known.status, fact.status),
        seen=_union(known.seen, () if fact.status is None else (fact.status,)),
        amount_micro=max(known.amount_micro, fact.amount_micro),
        currency=max(known.currency, fact.currency),
        reason=_either(known.reason, fact.reason),
        withdrawn=known.withdrawn or fact.withdrawn,
        reinstated=known.reinstated or fact.reinstated,
        charge_id=_either(known.charge_id, fact.charge_id),
        payment_id=_either(known.payment_id, fact.payment_id),
        money=known.money,
    )


def _further(one: DisputeStatus | None, other: DisputeStatus | None) -> DisputeStatus | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda each: DISPUTE_RANK[each])


def _settled(known: _T | None, reported: _T) -> _T:
    """A booked transaction does not change; if two reports differ, the choice does not depend on their order."""
    return reported if known is None else max(known, reported, key=msgspec.json.encode)


def _attempt_key(attempt: Attempt) -> tuple[int, int, str]:
    return (attempt.at, PROGRESS_RANK[attempt.status], attempt.reason or "")


def _link_charge(charges: dict[str, str], fact: Paid | RefundSeen | DisputeSeen) -> dict[str, str]:
    """Link a charge to its payment where the fact names both."""
    if fact.charge_id is None or fact.payment_id is None:
        return charges
    return _map_charge(charges, fact.charge_id, fact.payment_id)


def _map_charge(charges: dict[str, str], charge_id: str, payment_id: str) -> dict[str, str]:
    """A charge reported without its intent counts as its own payment until an event names the intent."""
    known = charges.get(charge_id)
    if known is not None and known != charge_id:
        return charges if payment_id == charge_id else _put(charges, charge_id, max(known, payment_id))
    return _put(charges, charge_id, payment_id)


def _either(one: str | None, other: str | None) -> str | None:
    """Return the value that is known; of two that differ, the greater one."""
    return max(each for each in (one or "", other or "")) or None


def _union(known: tuple[_T, ...], more: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(sorted({*known, *more}, key=str))


def _put(known: dict[str, _T], key: str, value: _T) -> dict[str, _T]:
    return known if known.get(key) == value else {**known, key: value}
