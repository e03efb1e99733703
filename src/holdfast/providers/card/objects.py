"""Parse the provider's objects (payment intents, charges, refunds, disputes, …) into facts about an order.

One reader for both ways by which objects arrive: in webhook events, and read by the reconciler. The provider omits
optional nulls, refers to other objects by id or embeds them, and adds values over the years. So everything optional
has a default, and an unknown status adds no fact by itself. A required field that is missing or has the wrong type
raises :class:`Malformed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, cast, get_args

from holdfast.ledger.orders.facts import (
    BalanceTransaction,
    DisputeFacts,
    DisputeMoney,
    DisputeStatus,
    OrderFacts,
    PaymentAttempt,
    PaymentFacts,
    ProgressStatus,
    RefundedTotal,
    RefundFacts,
    RefundStatus,
    ReviewVerdict,
    StatedPayment,
    join,
)
from holdfast.ledger.orders.snapshots import ProviderSnapshot, SnapshotState, synthetic_events
from holdfast.providers.card.base import CardDetails, micro_per_minor

Object = Mapping[str, object]
"""A JSON object; numbers with a fraction are decoded as strings, so that amounts are never floats."""

LISTED_MAX_COUNT = 500
"""How many entries of one list inside an object are parsed."""

AMOUNT_MINOR_MAX = 10**14
"""The largest amount accepted from the provider, in minor units; an object with more is malformed."""

_ID = re.compile(r"[!-~]{1,255}", re.ASCII)
_CURRENCY = re.compile(r"[A-Za-z]{3}", re.ASCII)
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_RATE = re.compile(r"[0-9]{1,12}(\.[0-9]{1,18})?", re.ASCII)
_MOMENT_MAX = 10**11
_LAST4 = re.compile(r"[0-9]{4}", re.ASCII)
YEAR_MAX = 9999

_DISPUTE_CATEGORIES = frozenset({"dispute", "dispute_reversal", ""})
_STATES: Mapping[object, SnapshotState] = {
    "processing": "processing",
    "succeeded": "succeeded",
    "canceled": "canceled",
}
_INTENT_ATTEMPTS: Mapping[str, ProgressStatus] = {
    "requires_confirmation": "pending",
    "requires_action": "requires_action",
    "processing": "processing",
    "canceled": "canceled",
}


class Malformed(Exception):
    """An object lacks a required field or a field has the wrong type; the text names the field."""


def snapshot_of(
    intent: Object, *, as_of: int, refunds: Iterable[Object] = (), disputes: Iterable[Object] = ()
) -> ProviderSnapshot:
    """Parse an intent read at ``as_of`` (unix seconds), and the refunds and disputes listed for it.

    The intent's latest charge, with its refunds and balance transactions, is parsed as far as it is expanded.
    """
    payment_id = object_id(intent)
    facts = join(
        intent_facts(intent, at=as_of, account=None),
        *(refund_facts(refund, payment_id=payment_id) for refund in refunds),
        *(dispute_facts(dispute, payment_id=payment_id) for dispute in disputes),
    )
    attempt_of = reference(intent.get("latest_charge")) or payment_id
    state = _STATES.get(intent_status(intent), "open")
    return ProviderSnapshot(events=synthetic_events(facts, at=as_of, attempt_of=attempt_of), state=state)


def intent_status(intent: Object) -> str:
    """Return an intent's status, which it always has."""
    status = code(intent.get("status"))
    if status is None:
        raise Malformed("status is not a status")
    return status


def intent_facts(intent: Object, *, at: int, account: str | None) -> OrderFacts:
    """Return the facts of an intent: its latest charge, and how much was captured or how the attempt stands."""
    payment_id = object_id(intent)
    charge = intent.get("latest_charge")
    charge_id = reference(charge)
    if intent_status(intent) == "succeeded":
        received = captured(intent, "amount_received", charge_id, at=at, account=account)
        facts = OrderFacts(payments={payment_id: received})
    else:
        facts = OrderFacts(attempt=attempt_fact(intent, at=at))
    facts = join(facts, OrderFacts(charges={} if charge_id is None else {charge_id: payment_id}))
    charges = listed([charge]) + listed(intent.get("charges"))
    return join(facts, *(charge_facts(each, at=at, account=account, payment_id=payment_id) for each in charges))


def captured(found: Object, key: str, charge_id: str | None, *, at: int, account: str | None) -> PaymentFacts:
    """Return what an intent or a charge says was captured: its ``key``, or else its whole amount."""
    currency = currency_of(found)
    stated = StatedPayment(
        amount_micro=amount_of(found, "amount" if found.get(key) is None else key, currency),
        currency=currency,
        livemode=flag(found, "livemode"),
        account=account,
    )
    return PaymentFacts(at=at, stated=(stated,), charge_ids=() if charge_id is None else (charge_id,))


def attempt_fact(intent: Object, *, at: int) -> PaymentAttempt:
    """Return how an unpaid intent's attempt stands, with the provider's code if it failed or was canceled."""
    reason, error = None, intent.get("last_payment_error")
    status = _INTENT_ATTEMPTS.get(intent_status(intent), "pending")
    if isinstance(error, dict) and intent_status(intent) == "requires_payment_method":
        status = "failed"
        reason = code(error.get("decline_code")) or code(error.get("code")) or code(error.get("type"))
    elif status == "canceled":
        reason = code(intent.get("cancellation_reason"))
    return PaymentAttempt(status=status, at=at, reason=reason)


def charge_facts(charge: Object, *, at: int, account: str | None, payment_id: str | None = None) -> OrderFacts:
    """Return the facts of a charge: its payment, whether it was captured, and what was refunded of it."""
    charge_id = object_id(charge)
    payment_id = reference(charge.get("payment_intent")) or payment_id or charge_id
    currency = currency_of(charge)
    line = charge.get("balance_transaction")
    line_id = reference(line)
    payments, totals = {}, {}
    if charge.get("paid") is True and charge.get("captured") is True and charge.get("status") == "succeeded":
        payments[payment_id] = captured(charge, "amount_captured", charge_id, at=at, account=account)
    refunded = 0 if charge.get("amount_refunded") is None else amount_of(charge, "amount_refunded", currency)
    if refunded:
        totals[charge_id] = RefundedTotal(charge_id=charge_id, payment_id=payment_id, amount_micro=refunded)
    facts = OrderFacts(
        payments=payments,
        charges={charge_id: payment_id},
        totals=totals,
        balance=_balance([line], charge_id, "charge"),
        charge_balances={} if line_id is None else {charge_id: line_id},
    )
    refunds = ({"charge": charge_id, "currency": currency, **each} for each in listed(charge.get("refunds")))
    return join(facts, *(refund_facts(refund, payment_id=payment_id) for refund in refunds))


def refund_facts(refund: Object, *, payment_id: str | None = None) -> OrderFacts:
    """Return the facts of a refund. Old refunds have no status; they existed only once they had succeeded."""
    refund_id = object_id(refund)
    lines = (refund.get("balance_transaction"), refund.get("failure_balance_transaction"))
    balance = _balance(lines, refund_id, "refund")
    status = refund.get("status") or "succeeded"
    if status not in get_args(RefundStatus):
        return OrderFacts(balance=balance)
    known = cast(RefundStatus, status)
    part = RefundFacts(
        status=known,
        seen=(known,),
        amount_micro=amount_of(refund, "amount", currency_of(refund)),
        charge_id=reference(refund.get("charge")),
        payment_id=reference(refund.get("payment_intent")) or payment_id,
    )
    return OrderFacts(refunds={refund_id: part}, charges=_charges(part), balance=balance)


def dispute_facts(
    dispute: Object, *, withdrawn: bool = False, reinstated: bool = False, payment_id: str | None = None
) -> OrderFacts:
    """Return the facts of a dispute: its status, and every movement of money that it lists."""
    dispute_id = object_id(dispute)
    status = (
        cast(DisputeStatus, dispute.get("status")) if dispute.get("status") in get_args(DisputeStatus) else None
    )
    currency = currency_of(dispute)
    balance = _balance(listed(dispute.get("balance_transactions")), dispute_id, "dispute")
    part = DisputeFacts(
        status=status,
        seen=() if status is None else (status,),
        amount_micro=amount_of(dispute, "amount", currency),
        currency=currency,
        reason=code(dispute.get("reason")),
        withdrawn=withdrawn,
        reinstated=reinstated,
        charge_id=reference(dispute.get("charge")),
        payment_id=reference(dispute.get("payment_intent")) or payment_id,
        money={
            line_id: DisputeMoney(
                dispute_id=dispute_id,
                transaction_id=line_id,
                amount_micro=line.amount_micro,
                currency=line.currency,
            )
            for line_id, line in balance.items()
            if line.reporting_category in _DISPUTE_CATEGORIES and line.amount_micro
        },
    )
    return OrderFacts(disputes={dispute_id: part}, charges=_charges(part), balance=balance)


def review_facts(review: Object, *, closed: bool) -> OrderFacts:
    """Return the facts of a review; how it was closed is in ``closed_reason``, or else in ``reason``."""
    why = review.get("closed_reason") or review.get("reason")
    verdict: ReviewVerdict = "closed" if closed else "open"
    if closed and why in ("approved", "refunded_as_fraud"):
        verdict = why
    return OrderFacts(reviews={object_id(review): verdict})


def _charges(part: RefundFacts | DisputeFacts) -> dict[str, str]:
    """Link a charge to its payment where both are named."""
    return {} if part.charge_id is None or part.payment_id is None else {part.charge_id: part.payment_id}


def _balance(
    lines: Iterable[object], source_id: str, source_type: Literal["charge", "refund", "dispute"]
) -> dict[str, BalanceTransaction]:
    """Return those balance transactions of the object ``source_id`` that are expanded, by id."""
    found = (balance_fact(line, source_id, source_type) for line in lines if isinstance(line, dict))
    return {line.transaction_id: line for line in found}


def balance_fact(
    entry: Object, source_id: str, source_type: Literal["charge", "refund", "dispute"]
) -> BalanceTransaction:
    """Return a balance transaction, found in the object ``source_id``."""
    currency = currency_of(entry)
    amount = amount_of(entry, "amount", currency, signed=True)
    fee = amount_of(entry, "fee", currency, signed=True) if entry.get("fee") is not None else 0
    net = amount_of(entry, "net", currency, signed=True) if entry.get("net") is not None else amount - fee
    rate = entry.get("exchange_rate")
    available_on = entry.get("available_on")
    return BalanceTransaction(
        transaction_id=object_id(entry),
        source_id=reference(entry.get("source")) or source_id,
        source_type=source_type,
        type=code(entry.get("type")) or "",
        reporting_category=code(entry.get("reporting_category")) or "",
        amount_micro=amount,
        fee_micro=fee,
        net_micro=net,
        currency=currency,
        available_on=None if available_on is None else moment(entry, "available_on"),
        exchange_rate=str(rate) if rate is not None and _RATE.fullmatch(str(rate)) else None,
    )


def card_of(method: Object) -> CardDetails:
    """Return a saved card. What is shown of it may be missing; it is then empty or zero."""
    shown = method.get("card")
    card = shown if isinstance(shown, dict) else {}
    last4 = card.get("last4")

    def number(name: str) -> int:
        value = card.get(name)
        return value if isinstance(value, int) and 0 <= value <= YEAR_MAX else 0

    return CardDetails(
        card_id=object_id(method),
        customer_id=reference(method.get("customer")),
        brand=code(card.get("brand")) or "unknown",
        last4=last4 if isinstance(last4, str) and _LAST4.fullmatch(last4) else "",
        exp_month=number("exp_month"),
        exp_year=number("exp_year"),
    )


def object_id(found: Object) -> str:
    """Return an object's own id."""
    given = found.get("id")
    if not isinstance(given, str) or _ID.fullmatch(given) is None:
        raise Malformed("an object has no usable id")
    return given


def reference(value: object) -> str | None:
    """Return the id of another object, which is named by a string or embedded."""
    given = value.get("id") if isinstance(value, dict) else value
    return given if isinstance(given, str) and _ID.fullmatch(given) else None


def amount_of(found: Object, key: str, currency: str, *, signed: bool = False) -> int:
    """Return an amount in minor units of ``currency`` as micro-units."""
    value = found.get(key)
    least = -AMOUNT_MINOR_MAX if signed else 0
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= AMOUNT_MINOR_MAX:
        raise Malformed(f"{key} is not an amount")
    return value * micro_per_minor(currency)


def currency_of(found: Object) -> str:
    """Return an object's currency in upper case."""
    value = found.get("currency")
    if not isinstance(value, str) or _CURRENCY.fullmatch(value) is None:
        raise Malformed("currency is not a currency code")
    return value.upper()


def moment(found: Object, key: str) -> int:
    """Return a time in unix seconds."""
    value = found.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOMENT_MAX:
        raise Malformed(f"{key} is not a time")
    return value


def code(value: object) -> str | None:
    """Return one of the provider's machine-readable codes; None for anything else, so that no free text gets in."""
    return value if isinstance(value, str) and _CODE.fullmatch(value) else None


def flag(found: Object, key: str) -> bool | None:
    """Return a boolean, or None if it is missing."""
    value = found.get(key)
    return value if isinstance(value, bool) else None


def listed(value: object) -> list[Object]:
    """Return the objects of a list, bare or inside a list object; bare ids are skipped."""
    found = value.get("data") if isinstance(value, dict) else value
    return [each for each in found[:LISTED_MAX_COUNT] if isinstance(each, dict)] if isinstance(found, list) else []
