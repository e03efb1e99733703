"""Parse the provider's webhook events: their type, the order they belong to, and the facts they state.

The signature over the same bytes has already been verified. An event is handled if its type is one that changes
orders and it carries an id by which an order can be found; every other event is answered with 200 and ignored,
since a provider account may serve other systems too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from holdfast.ledger.orders.facts import OrderFacts, PaymentEvent
from holdfast.ledger.orders.transitions import CREDIT_REASON
from holdfast.ledger.refusals import Refusal
from holdfast.providers.card.objects import (
    Malformed,
    Object,
    charge_facts,
    code,
    dispute_facts,
    flag,
    intent_facts,
    moment,
    object_id,
    reference,
    refund_facts,
    review_facts,
)

EVENT_BYTES_MAX = 1024 * 1024

HANDLED_TYPES = (
    "payment_intent.succeeded",
    "payment_intent.processing",
    "payment_intent.requires_action",
    "payment_intent.payment_failed",
    "payment_intent.canceled",
    "charge.succeeded",
    "charge.captured",
    "charge.updated",
    "charge.refunded",
    "charge.refund.updated",
    "refund.created",
    "refund.updated",
    "refund.failed",
    "charge.dispute.created",
    "charge.dispute.updated",
    "charge.dispute.closed",
    "charge.dispute.funds_withdrawn",
    "charge.dispute.funds_reinstated",
    "radar.early_fraud_warning.created",
    "radar.early_fraud_warning.updated",
    "review.opened",
    "review.closed",
)
"""Every event type that changes an order; a webhook endpoint subscribes to these."""

SETUP_SUCCEEDED = "setup_intent.succeeded"
"""The event type by which a customer's card is saved; a webhook endpoint subscribes to it, too."""

_ORDER_ID = re.compile(r"ord_[0-9A-Za-z_-]{1,64}", re.ASCII)
_DECODER = msgspec.json.Decoder(float_hook=str)


def parse_card_event(body: bytes) -> PaymentEvent | Refusal:
    """Parse the body of a verified webhook. An event that is not handled names no order and states no facts.

    Refuses: ``invalid_event`` for a body that is not a JSON event with ``id``, ``type``, ``created`` and
    ``data.object``, or whose object does not match its type.
    """
    if len(body) > EVENT_BYTES_MAX:
        return _invalid("The event is too large.")
    try:
        event = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _invalid("The body is not JSON.")
    if not isinstance(event, dict):
        return _invalid("The body is not a JSON object.")
    try:
        return _parse(event)
    except Malformed as fault:
        return _invalid(f"The event is not well-formed: {fault}.")


class SavedByCustomer(NamedTuple):
    """What a succeeded setup intent says: whose card was saved, by our own id and by the provider's."""

    account_id: str
    customer_id: str
    card_id: str


def parse_setup(body: bytes) -> SavedByCustomer | None:
    """Parse a :data:`SETUP_SUCCEEDED` that :func:`parse_card_event` has accepted; None if it is not ours."""
    intent = _DECODER.decode(body)["data"]["object"]
    metadata = intent.get("metadata")
    account_id = metadata.get("account_id") if isinstance(metadata, dict) else None
    customer_id, card_id = reference(intent.get("customer")), reference(intent.get("payment_method"))
    if not isinstance(account_id, str) or customer_id is None or card_id is None:
        return None
    return SavedByCustomer(account_id, customer_id, card_id)


def _parse(body: Object) -> PaymentEvent:
    kind = code(body.get("type"))
    if kind is None:
        raise Malformed("type is not an event type")
    data = body.get("data")
    found = data.get("object") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise Malformed("data.object is missing")
    event = PaymentEvent(
        event_id=object_id(body), type=kind, at=moment(body, "created"), reason="", facts=OrderFacts()
    )
    if kind not in HANDLED_TYPES:
        return event
    metadata = found.get("metadata")
    order_id = metadata.get("order_id") if isinstance(metadata, dict) else None
    if not isinstance(order_id, str) or _ORDER_ID.fullmatch(order_id) is None:
        order_id = None
    family, _, change = kind.rpartition(".")
    payment_id, charge_id = reference(found.get("payment_intent")), reference(found.get("charge"))
    if family == "payment_intent":
        payment_id, charge_id = object_id(found), reference(found.get("latest_charge"))
    elif family == "charge":
        charge_id = object_id(found)
    if (order_id or payment_id or charge_id) is None:
        return event
    if flag(found, "livemode") is None and flag(body, "livemode") is not None:
        found = {**found, "livemode": body["livemode"]}
    facts, reason = _facts(family, change, found, at=event.at, account=reference(body.get("account")))
    return msgspec.structs.replace(
        event, facts=facts, reason=reason, order_id=order_id, payment_id=payment_id, charge_id=charge_id
    )


def _facts(family: str, change: str, found: Object, *, at: int, account: str | None) -> tuple[OrderFacts, str]:
    """Return the facts of an object of a handled type, and the reason for the order's history."""
    match family:
        case "payment_intent":
            facts = intent_facts(found, at=at, account=account)
            if facts.attempt is None:
                return facts, CREDIT_REASON
            # Only the attempt: a stale event then adds nothing.
            reason = _reason(f"payment_{facts.attempt.status}", facts.attempt.reason)
            return OrderFacts(attempt=facts.attempt), reason
        case "charge":
            return charge_facts(found, at=at, account=account), f"charge_{change}"
        case "refund" | "charge.refund":
            return refund_facts(found), _joined("refund", code(found.get("status")))
        case "charge.dispute":
            happened = change if change in ("funds_withdrawn", "funds_reinstated") else code(found.get("status"))
            # Its list of movements says what was withdrawn and returned; only without one the event's name does.
            named = None if isinstance(found.get("balance_transactions"), list) else change
            facts = dispute_facts(
                found, withdrawn=named == "funds_withdrawn", reinstated=named == "funds_reinstated"
            )
            return facts, _joined("dispute", happened)
        case "review":
            detail = code(found.get("closed_reason")) or code(found.get("reason"))
            is_open = flag(found, "open")
            closed = change == "closed" if is_open is None else not is_open
            return review_facts(found, closed=closed), _reason(f"review_{change}", detail)
        case _:
            return OrderFacts(warnings=(object_id(found),)), "fraud_warning"


def _joined(what: str, status: str | None) -> str:
    return what if status is None else f"{what}_{status}"


def _reason(what: str, detail: str | None) -> str:
    return what if detail is None else f"{what}: {detail}"


def _invalid(message: str) -> Refusal:
    return Refusal(code="invalid_event", message=message)
