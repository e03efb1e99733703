"""Snapshots of one order's objects at the provider, represented as synthetic events.

Each fact becomes one synthetic event whose id is derived from its content: reading twice yields the same ids, so
the second event is a duplicate, and a later webhook finds its facts known and nothing left to post.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec

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

SnapshotState = Literal["open", "processing", "succeeded", "canceled"]


class ProviderSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One read of an order's payment at its provider.

    ``state`` is the intent's: ``open`` can still be paid or canceled, ``processing`` awaits its money; the other
    two are final. ``unavailable`` is the reason why the read failed; then there are no events.
    """

    events: tuple[PaymentEvent, ...] = ()
    state: SnapshotState = "open"
    unavailable: str | None = None


def synthetic_events(facts: Iterable[Fact], *, provider: str, at: int, attempt_of: str) -> tuple[PaymentEvent, ...]:
    """Return the events of facts read at ``at`` (unix seconds): one for each, captures first.

    Captures come first so that reversals are applied to a paid order. ``attempt_of`` is the charge of the newest
    attempt: a second attempt may have a status that the first one had.
    """
    events: dict[str, PaymentEvent] = {}
    for fact in sorted(facts, key=lambda fact: not isinstance(fact, Paid)):
        kind = str(fact.__struct_config__.tag)
        subject, status, amount_micro, reason = _identity(fact, attempt_of)
        event_id = synthetic_event_id(provider, subject, kind, status, amount_micro)
        event = PaymentEvent(
            event_id=event_id, type=f"synthetic.{kind}", at=at, reason=reason, facts=(fact,), synthetic=True
        )
        events.setdefault(event_id, event)
    return tuple(events.values())


def synthetic_event_id(provider: str, object_id: str, kind: str, status: str, amount_micro: int) -> str:
    """Return the id of a fact that was read from the provider: the same for the same fact, whenever it is read."""
    identity = "|".join((provider, object_id, kind, status, str(amount_micro)))
    return SYNTHETIC_PREFIX + hashlib.sha256(identity.encode()).hexdigest()[:26]


def _identity(fact: Fact, attempt_of: str) -> tuple[str, str, int, str]:
    """Return what identifies a fact (the object, its status and amount) and the reason for the history."""
    match fact:
        case Paid():
            return fact.payment_id, f"succeeded:{fact.currency}", fact.amount_micro, CREDIT_REASON
        case Attempt():
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
