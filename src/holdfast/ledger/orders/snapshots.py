"""Snapshots of one order's objects at the provider, represented as synthetic events.

Each fact becomes one synthetic event whose id is derived from its content: reading twice yields the same ids, so
the second event is a duplicate, and a later webhook finds its facts known and nothing left to post.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Literal

import msgspec

from holdfast.ledger.orders.facts import DisputeFacts, OrderFacts, PaymentEvent
from holdfast.ledger.orders.transitions import CREDIT_REASON

SYNTHETIC_PREFIX = "syn_"

SnapshotState = Literal["open", "processing", "succeeded", "canceled"]


class ProviderSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One read of an order's payment at its provider.

    ``state`` is the intent's: ``open`` can still be paid or canceled, ``processing`` awaits its money; the other
    two are final.
    """

    events: tuple[PaymentEvent, ...]
    state: SnapshotState


def synthetic_events(facts: OrderFacts, *, at: int, attempt_of: str) -> tuple[PaymentEvent, ...]:
    """Return the events of facts read at ``at`` (unix seconds), one for each; payments come last.

    So an order's history names the payment where a payment and its refunds are found together, as it does where
    the refunds were reported earlier.

    ``attempt_of`` is the charge of the newest attempt: a second attempt may have a status that the first one had.
    """
    events: dict[str, PaymentEvent] = {}
    for kind, subject, status, amount_micro, reason, fact in _single_facts(facts, attempt_of):
        event_id = synthetic_event_id("cardprovider", subject, kind, status, amount_micro)
        event = PaymentEvent(event_id=event_id, type=f"synthetic.{kind}", at=at, reason=reason, facts=fact)
        events.setdefault(event_id, event)
    return tuple(events.values())


def synthetic_event_id(provider: str, object_id: str, kind: str, status: str, amount_micro: int) -> str:
    """Return the id of a fact that was read from the provider: the same for the same fact, whenever it is read."""
    identity = "|".join((provider, object_id, kind, status, str(amount_micro)))
    return SYNTHETIC_PREFIX + hashlib.sha256(identity.encode()).hexdigest()[:26]


def _single_facts(facts: OrderFacts, attempt_of: str) -> Iterator[tuple[str, str, str, int, str, OrderFacts]]:
    """Yield what identifies each fact (its kind, object, status and amount), its reason, and the fact."""
    for charge_id, payment_id in facts.charges.items():
        balance_id = facts.charge_balances.get(charge_id)
        balances = {} if balance_id is None else {charge_id: balance_id}
        charge = OrderFacts(charges={charge_id: payment_id}, charge_balances=balances)
        yield "charge", charge_id, balance_id or "", 0, "charge_updated", charge
    for each, line in facts.balance.items():
        one = OrderFacts(balance={each: line})
        yield "balance", each, line.reporting_category, line.net_micro, "balance_transaction", one
    if facts.attempt is not None:
        status = facts.attempt.status
        yield "attempt", attempt_of, status, 0, f"payment_{status}", OrderFacts(attempt=facts.attempt)
    for each, total in facts.totals.items():
        yield "refunded_total", each, "", total.amount_micro, "charge_refunded", OrderFacts(totals={each: total})
    for each, refund in facts.refunds.items():
        one = OrderFacts(refunds={each: refund})
        yield "refund", each, refund.status, refund.amount_micro, f"refund_{refund.status}", one
    for each, dispute in facts.disputes.items():
        for line_id, movement in dispute.money.items():
            one = OrderFacts(disputes={each: DisputeFacts(money={line_id: movement})})
            reason = "dispute_funds_withdrawn" if movement.amount_micro < 0 else "dispute_funds_reinstated"
            yield "dispute_money", line_id, each, movement.amount_micro, reason, one
        one = OrderFacts(disputes={each: msgspec.structs.replace(dispute, money={})})
        reason = f"dispute_{dispute.status or 'changed'}"
        yield "dispute", each, dispute.status or "", dispute.amount_micro, reason, one
    for each, paid in facts.payments.items():
        for (currency, amount_micro), stated in groupby(paid.stated, attrgetter("currency", "amount_micro")):
            one = OrderFacts(payments={each: msgspec.structs.replace(paid, stated=tuple(stated))})
            yield "paid", each, f"succeeded:{currency}", amount_micro, CREDIT_REASON, one
