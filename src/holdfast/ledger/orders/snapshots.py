"""Snapshots of one order's objects at the provider, represented as synthetic events.

Each fact becomes one synthetic event whose id is derived from its content: reading twice yields the same ids, so
the second event is a duplicate, and a later webhook finds its facts known and nothing left to post.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from holdfast.ledger.orders.card_objects import (
    Object,
    attempt_fact,
    attempt_status,
    dispute_facts,
    intent_facts,
    object_id,
    reference,
    refund_facts,
)
from holdfast.ledger.orders.payment_facts import (
    Attempt,
    BalanceTransaction,
    ChargeSeen,
    DisputeMoney,
    DisputeSeen,
    Fact,
    FraudWarning,
    Paid,
    PaymentEvent,
    RefundedTotal,
    RefundSeen,
    ReviewSeen,
)
from holdfast.ledger.orders.transitions import CREDIT_REASON

SYNTHETIC_PREFIX = "syn_"


class ProviderSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One read of the provider. ``settled``: the intent has ended, so nothing more will be paid by it.

    ``unavailable`` is the reason why the read failed; then there are no events.
    """

    events: tuple[PaymentEvent, ...] = ()
    settled: bool = False
    unavailable: str | None = None


def snapshot_of(
    intent: Object,
    *,
    provider: str,
    as_of: int,
    refunds: Iterable[Object] = (),
    disputes: Iterable[Object] = (),
) -> ProviderSnapshot:
    """Parse an intent retrieved at ``as_of`` (unix seconds), preferably with its latest charge, that charge's
    refunds and its balance transaction expanded, and the refunds and disputes listed for it.

    Raises :class:`~holdfast.ledger.orders.card_objects.Malformed` for an object without its required fields.
    """
    payment_id = object_id(intent)
    status = intent.get("status")
    is_paid = status == "succeeded"
    facts: list[Fact] = list(intent_facts(intent, paid=is_paid, at=as_of, account=None))
    if not is_paid:
        facts.append(attempt_fact(intent, attempt_status(intent), at=as_of))
    for refund in refunds:
        facts += refund_facts(refund, payment_id=payment_id)
    for dispute in disputes:
        facts += dispute_facts(dispute)
    # Captures come first, so that reversals are applied to a paid order.
    facts.sort(key=lambda fact: not isinstance(fact, Paid))
    attempt_of = reference(intent.get("latest_charge")) or payment_id
    events: dict[str, PaymentEvent] = {}
    for fact in facts:
        event = _event(fact, provider=provider, at=as_of, attempt_of=attempt_of)
        events.setdefault(event.event_id, event)
    return ProviderSnapshot(events=tuple(events.values()), settled=status in ("succeeded", "canceled"))


def synthetic_event_id(provider: str, object_id: str, kind: str, status: str, amount_micro: int) -> str:
    """Return the id of a fact that was read from the provider: the same for the same fact, whenever it is read."""
    identity = "|".join((provider, object_id, kind, status, str(amount_micro)))
    return SYNTHETIC_PREFIX + hashlib.sha256(identity.encode()).hexdigest()[:26]


def _event(fact: Fact, *, provider: str, at: int, attempt_of: str) -> PaymentEvent:
    kind = str(fact.__struct_config__.tag)
    subject, status, amount_micro, reason = _identity(fact, attempt_of)
    return PaymentEvent(
        event_id=synthetic_event_id(provider, subject, kind, status, amount_micro),
        type=f"synthetic.{kind}",
        at=at,
        reason=reason,
        facts=(fact,),
        synthetic=True,
    )


def _identity(fact: Fact, attempt_of: str) -> tuple[str, str, int, str]:
    """Return what identifies a fact (the object, its status and amount) and the reason for the history."""
    match fact:
        case Paid():
            return fact.payment_id, f"succeeded:{fact.currency}", fact.amount_micro, CREDIT_REASON
        case Attempt():
            # Identified by its charge: a second attempt may have a status that the first one had.
            return attempt_of, fact.status, 0, f"payment_{fact.status}"
        case ChargeSeen():
            return fact.charge_id, fact.balance_transaction_id or "", 0, "charge_updated"
        case RefundSeen():
            return fact.refund_id, fact.status, fact.amount_micro, f"refund_{fact.status}"
        case RefundedTotal():
            return fact.charge_id, "", fact.amount_micro, "charge_refunded"
        case DisputeSeen():
            return fact.dispute_id, fact.status or "", fact.amount_micro, f"dispute_{fact.status or 'changed'}"
        case DisputeMoney():
            movement = "funds_withdrawn" if fact.amount_micro < 0 else "funds_reinstated"
            return fact.transaction_id, fact.dispute_id, fact.amount_micro, f"dispute_{movement}"
        case FraudWarning():
            return fact.warning_id, "", 0, "fraud_warning"
        case ReviewSeen():
            return fact.review_id, fact.verdict, 0, f"review_{fact.verdict}"
        case BalanceTransaction():
            return fact.transaction_id, fact.reporting_category, fact.net_micro, "balance_transaction"
