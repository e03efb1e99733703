"""Parse a card provider's webhook events: their type, the order they belong to, and the facts they carry.

The signature over the same bytes has already been verified. An event is ``handled`` if its type is one that changes
orders and it carries an id by which an order can be found; every other event is answered with 200 and ignored,
since a provider account may serve other systems too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from holdfast.ledger.orders.card_objects import (
    Malformed,
    Object,
    attempt_fact,
    charge_facts,
    code,
    dispute_facts,
    failure_code,
    flag,
    intent_facts,
    moment,
    object_id,
    reference,
    refund_facts,
    review_facts,
    warning_facts,
)
from holdfast.ledger.orders.payment_facts import Fact, PaymentEvent
from holdfast.ledger.orders.transitions import CREDIT_REASON
from holdfast.ledger.refusals import Refusal

Handling = Literal["handled", "unhandled_type", "not_ours"]

EVENT_BYTES_MAX = 1024 * 1024
METADATA_ORDER_KEY = "order_id"
"""The key of a provider object's metadata that holds our order's id."""

_ORDER_ID = re.compile(r"ord_[0-9A-Za-z_-]{1,64}", re.ASCII)
_DECODER = msgspec.json.Decoder(float_hook=str)


class CardEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A card provider's event. ``created`` and ``PaymentEvent.at`` are unix seconds of its clock.

    ``order_id`` is taken from the object's metadata; refunds, disputes and the like carry none, and their order is
    found by ``payment_id`` or ``charge_id``. ``payment`` is None unless the event is handled.
    """

    event_id: str
    type: str
    created: int
    handling: Handling
    order_id: str | None = None
    payment_id: str | None = None
    charge_id: str | None = None
    payment: PaymentEvent | None = None


class _Context(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an event that its object's reader needs."""

    at: int
    account: str | None
    type: str


_Reader = Callable[[Object, _Context], tuple[tuple[Fact, ...], str]]
"""Returns the facts of an object, and the reason for the history."""


def parse_card_event(body: bytes) -> CardEvent | Refusal:
    """Parse the body of a verified webhook.

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
        return _read(event)
    except Malformed as fault:
        return _invalid(f"The event is not well-formed: {fault}.")


def _read(event: Object) -> CardEvent:
    event_id = object_id(event)
    kind = event.get("type")
    if not isinstance(kind, str) or code(kind) is None:
        raise Malformed("type is not an event type")
    created = moment(event, "created")
    data = event.get("data")
    found = data.get("object") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise Malformed("data.object is missing")
    reader = _READERS.get(kind)
    if reader is None:
        return CardEvent(event_id=event_id, type=kind, created=created, handling="unhandled_type")
    order_id, payment_id, charge_id = _names(kind, found)
    if order_id is None and payment_id is None and charge_id is None:
        return CardEvent(event_id=event_id, type=kind, created=created, handling="not_ours")
    context = _Context(at=created, account=reference(event.get("account")), type=kind)
    if flag(found, "livemode") is None and flag(event, "livemode") is not None:
        found = {**found, "livemode": event["livemode"]}
    facts, reason = reader(found, context)
    return CardEvent(
        event_id=event_id,
        type=kind,
        created=created,
        handling="handled",
        order_id=order_id,
        payment_id=payment_id,
        charge_id=charge_id,
        payment=PaymentEvent(event_id=event_id, type=kind, at=created, reason=reason, facts=facts),
    )


def _names(kind: str, found: Object) -> tuple[str | None, str | None, str | None]:
    """Return the order id, payment id and charge id that an object names."""
    metadata = found.get("metadata")
    named = metadata.get(METADATA_ORDER_KEY) if isinstance(metadata, dict) else None
    order_id = named if isinstance(named, str) and _ORDER_ID.fullmatch(named) else None
    if kind.startswith("payment_intent."):
        return order_id, object_id(found), reference(found.get("latest_charge"))
    payment_id = reference(found.get("payment_intent"))
    if kind.startswith("charge.") and kind.count(".") == 1:
        return order_id, payment_id, object_id(found)
    return order_id, payment_id, reference(found.get("charge"))


def _intent_paid(found: Object, context: _Context) -> tuple[tuple[Fact, ...], str]:
    return intent_facts(found, paid=True, at=context.at, account=context.account), CREDIT_REASON


def _attempt(status: Literal["requires_action", "processing", "failed", "canceled"]) -> _Reader:
    def read(found: Object, context: _Context) -> tuple[tuple[Fact, ...], str]:
        failure = failure_code(found, status)
        reason = f"payment_{status}" if failure is None else f"payment_{status}: {failure}"
        # Only the attempt: a stale event then adds nothing.
        return (attempt_fact(found, status, at=context.at),), reason

    return read


def _charge(reason: str) -> _Reader:
    def read(found: Object, context: _Context) -> tuple[tuple[Fact, ...], str]:
        return charge_facts(found, at=context.at, account=context.account), reason

    return read


def _refund(found: Object, _context: _Context) -> tuple[tuple[Fact, ...], str]:
    status = code(found.get("status"))
    return refund_facts(found), "refund" if status is None else f"refund_{status}"


def _dispute(found: Object, context: _Context) -> tuple[tuple[Fact, ...], str]:
    facts = dispute_facts(
        found,
        withdrawn=context.type.endswith(".funds_withdrawn"),
        reinstated=context.type.endswith(".funds_reinstated"),
    )
    if context.type.endswith((".funds_withdrawn", ".funds_reinstated")):
        return facts, "dispute_" + context.type.rpartition(".")[2]
    status = code(found.get("status"))
    return facts, "dispute" if status is None else f"dispute_{status}"


def _warning(found: Object, _context: _Context) -> tuple[tuple[Fact, ...], str]:
    return warning_facts(found), "fraud_warning"


def _review(found: Object, context: _Context) -> tuple[tuple[Fact, ...], str]:
    closed = context.type == "review.closed"
    detail = code(found.get("closed_reason")) or code(found.get("reason"))
    reason = "review_closed" if closed else "review_opened"
    return review_facts(found, closed=closed), reason if detail is None else f"{reason}: {detail}"


_READERS: Mapping[str, _Reader] = {
    "payment_intent.succeeded": _intent_paid,
    "payment_intent.processing": _attempt("processing"),
    "payment_intent.requires_action": _attempt("requires_action"),
    "payment_intent.payment_failed": _attempt("failed"),
    "payment_intent.canceled": _attempt("canceled"),
    "charge.succeeded": _charge(CREDIT_REASON),
    "charge.captured": _charge(CREDIT_REASON),
    "charge.updated": _charge("charge_updated"),
    "charge.refunded": _charge("charge_refunded"),
    "charge.refund.updated": _refund,
    "refund.created": _refund,
    "refund.updated": _refund,
    "refund.failed": _refund,
    "charge.dispute.created": _dispute,
    "charge.dispute.updated": _dispute,
    "charge.dispute.closed": _dispute,
    "charge.dispute.funds_withdrawn": _dispute,
    "charge.dispute.funds_reinstated": _dispute,
    "radar.early_fraud_warning.created": _warning,
    "radar.early_fraud_warning.updated": _warning,
    "review.opened": _review,
    "review.closed": _review,
}

HANDLED_TYPES = tuple(_READERS)
"""Every event type that changes an order; a webhook endpoint subscribes to these."""


def _invalid(message: str) -> Refusal:
    return Refusal(code="invalid_event", message=message)
