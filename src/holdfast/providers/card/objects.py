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
from holdfast.ledger.orders.snapshots import ProviderSnapshot, SnapshotState, synthetic_events
from holdfast.providers.card.amounts import micro_per_minor

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
    if code(intent.get("status")) is None:
        raise Malformed("status is not a status")
    state = _STATES.get(intent.get("status"), "open")
    facts: list[Fact] = list(intent_facts(intent, paid=state == "succeeded", at=as_of, account=None))
    if state != "succeeded":
        facts.append(attempt_fact(intent, attempt_status(intent), at=as_of))
    for refund in refunds:
        facts += refund_facts(refund, payment_id=payment_id)
    for dispute in disputes:
        facts += dispute_facts(dispute, payment_id=payment_id)
    attempt_of = reference(intent.get("latest_charge")) or payment_id
    events = synthetic_events(facts, provider="cardprovider", at=as_of, attempt_of=attempt_of)
    return ProviderSnapshot(events=events, state=state)


def intent_facts(intent: Object, *, paid: bool, at: int, account: str | None) -> tuple[Fact, ...]:
    """Return the facts of an intent: its latest charge and, if it was ``paid``, how much was captured."""
    payment_id = object_id(intent)
    charge = intent.get("latest_charge")
    charge_id = reference(charge)
    facts: list[Fact] = []
    if paid:
        currency = currency_of(intent)
        received = intent.get("amount_received")
        facts.append(
            Paid(
                payment_id=payment_id,
                charge_id=charge_id,
                amount_micro=amount_of(intent, "amount" if received is None else "amount_received", currency),
                currency=currency,
                livemode=flag(intent, "livemode"),
                account=account,
                at=at,
            )
        )
    if isinstance(charge, dict):
        facts += charge_facts(charge, at=at, account=account, payment_id=payment_id)
    elif charge_id is not None:
        facts.append(ChargeSeen(charge_id=charge_id, payment_id=payment_id))
    for each in listed(intent.get("charges")):
        facts += charge_facts(each, at=at, account=account, payment_id=payment_id)
    return tuple(facts)


def attempt_fact(intent: Object, status: ProgressStatus, *, at: int) -> Attempt:
    """Return an attempt's status, with the provider's code if it failed or was canceled."""
    return Attempt(status=status, at=at, reason=failure_code(intent, status))


def attempt_status(intent: Object) -> ProgressStatus:
    """Return the status of an intent that was not paid. A declined attempt leaves a ``last_payment_error``."""
    status = intent.get("status")
    if status == "requires_payment_method":
        return "failed" if isinstance(intent.get("last_payment_error"), dict) else "pending"
    return _INTENT_ATTEMPTS.get(status, "pending") if isinstance(status, str) else "pending"


def failure_code(intent: Object, status: ProgressStatus) -> str | None:
    """Return the code of why an attempt ended; None if the intent has none."""
    error = intent.get("last_payment_error")
    if status == "failed" and isinstance(error, dict):
        return code(error.get("decline_code")) or code(error.get("code")) or code(error.get("type"))
    return code(intent.get("cancellation_reason")) if status == "canceled" else None


def charge_facts(
    charge: Object, *, at: int, account: str | None, payment_id: str | None = None
) -> tuple[Fact, ...]:
    """Return the facts of a charge: its payment, whether it was captured, and what was refunded of it."""
    charge_id = object_id(charge)
    payment_id = reference(charge.get("payment_intent")) or payment_id or charge_id
    currency = currency_of(charge)
    balance = charge.get("balance_transaction")
    facts: list[Fact] = [
        ChargeSeen(charge_id=charge_id, payment_id=payment_id, balance_transaction_id=reference(balance))
    ]
    if charge.get("paid") is True and charge.get("captured") is True and charge.get("status") != "failed":
        captured = charge.get("amount_captured")
        facts.append(
            Paid(
                payment_id=payment_id,
                charge_id=charge_id,
                amount_micro=amount_of(charge, "amount" if captured is None else "amount_captured", currency),
                currency=currency,
                livemode=flag(charge, "livemode"),
                account=account,
                at=at,
            )
        )
    if charge.get("amount_refunded") is not None:
        total = amount_of(charge, "amount_refunded", currency)
        if total:
            facts.append(RefundedTotal(charge_id=charge_id, payment_id=payment_id, amount_micro=total))
    for refund in listed(charge.get("refunds")):
        facts += refund_facts({"charge": charge_id, "currency": currency, **refund}, payment_id=payment_id)
    if isinstance(balance, dict):
        facts.append(balance_fact(balance, charge_id, "charge"))
    return tuple(facts)


def refund_facts(refund: Object, *, payment_id: str | None = None) -> tuple[Fact, ...]:
    """Return the facts of a refund. Old refunds have no status; they existed only once they had succeeded."""
    refund_id = object_id(refund)
    status = refund.get("status") or "succeeded"
    facts: list[Fact] = []
    if status in get_args(RefundStatus):
        facts.append(
            RefundSeen(
                refund_id=refund_id,
                status=cast(RefundStatus, status),
                amount_micro=amount_of(refund, "amount", currency_of(refund)),
                charge_id=reference(refund.get("charge")),
                payment_id=reference(refund.get("payment_intent")) or payment_id,
            )
        )
    for balance in (refund.get("balance_transaction"), refund.get("failure_balance_transaction")):
        if isinstance(balance, dict):
            facts.append(balance_fact(balance, refund_id, "refund"))
    return tuple(facts)


def dispute_facts(
    dispute: Object, *, withdrawn: bool = False, reinstated: bool = False, payment_id: str | None = None
) -> tuple[Fact, ...]:
    """Return the facts of a dispute: its status, and every movement of money that it lists."""
    dispute_id = object_id(dispute)
    status = dispute.get("status")
    currency = currency_of(dispute)
    facts: list[Fact] = [
        DisputeSeen(
            dispute_id=dispute_id,
            status=cast(DisputeStatus, status) if status in get_args(DisputeStatus) else None,
            amount_micro=amount_of(dispute, "amount", currency),
            currency=currency,
            reason=code(dispute.get("reason")),
            withdrawn=withdrawn,
            reinstated=reinstated,
            charge_id=reference(dispute.get("charge")),
            payment_id=reference(dispute.get("payment_intent")) or payment_id,
        )
    ]
    for entry in listed(dispute.get("balance_transactions")):
        balance = balance_fact(entry, dispute_id, "dispute")
        facts.append(balance)
        if balance.reporting_category in _DISPUTE_CATEGORIES and balance.amount_micro:
            facts.append(
                DisputeMoney(
                    dispute_id=dispute_id,
                    transaction_id=balance.transaction_id,
                    amount_micro=balance.amount_micro,
                    currency=balance.currency,
                )
            )
    return tuple(facts)


def warning_facts(warning: Object) -> tuple[Fact, ...]:
    """Return the facts of an early fraud warning."""
    return (FraudWarning(warning_id=object_id(warning)),)


def review_facts(review: Object, *, closed: bool) -> tuple[Fact, ...]:
    """Return the facts of a review; how it was closed is in ``closed_reason``, or else in ``reason``."""
    why = review.get("closed_reason") or review.get("reason")
    verdict: ReviewVerdict = "closed" if closed else "open"
    if closed and why in ("approved", "refunded_as_fraud"):
        verdict = why
    return (ReviewSeen(review_id=object_id(review), verdict=verdict),)


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
