"""Parse the provider's webhook events: their type, the order they belong to, and the facts they carry.

The signature over the same bytes has already been verified. An event is handled if its type is one that changes
orders and it carries an id by which an order can be found; every other event is answered with 200 and ignored,
since a provider account may serve other systems too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from holdfast.ledger.orders.payment_facts import Fact, PaymentEvent, ProgressStatus
from holdfast.ledger.orders.transitions import CREDIT_REASON
from holdfast.ledger.refusals import Refusal
from holdfast.providers.card.objects import (
    Malformed,
    Object,
    attempt_fact,
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
    warning_facts,
)

EVENT_BYTES_MAX = 1024 * 1024

_ORDER_ID = re.compile(r"ord_[0-9A-Za-z_-]{1,64}", re.ASCII)
_DECODER = msgspec.json.Decoder(float_hook=str)


class CardEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's event, and the ids by which its order is found; without any of them it is not handled.

    ``order_id`` is taken from the object's metadata. Refunds, disputes and the like carry none; their order is
    found by ``payment_id`` or ``charge_id``.
    """

    event: PaymentEvent
    order_id: str | None = None
    payment_id: str | None = None
    charge_id: str | None = None

    @property
    def is_handled(self) -> bool:
        """Whether the event is about an order."""
        return (self.order_id or self.payment_id or self.charge_id) is not None


_Facts = tuple[tuple[Fact, ...], str]
"""The facts of an object, and the reason for the order's history."""


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
        return _parse(event)
    except Malformed as fault:
        return _invalid(f"The event is not well-formed: {fault}.")


def _parse(body: Object) -> CardEvent:
    kind = code(body.get("type"))
    if kind is None:
        raise Malformed("type is not an event type")
    data = body.get("data")
    found = data.get("object") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise Malformed("data.object is missing")
    event = PaymentEvent(event_id=object_id(body), type=kind, at=moment(body, "created"), reason="", facts=())
    read = _READERS.get(kind)
    named = CardEvent(event=event) if read is None else _names(event, found)
    if read is None or not named.is_handled:
        return named
    if flag(found, "livemode") is None and flag(body, "livemode") is not None:
        found = {**found, "livemode": body["livemode"]}
    facts, reason = read(found, event, reference(body.get("account")))
    return msgspec.structs.replace(named, event=msgspec.structs.replace(event, facts=facts, reason=reason))


def _names(event: PaymentEvent, found: Object) -> CardEvent:
    """Return the event with the ids that its object names."""
    metadata = found.get("metadata")
    order_id = metadata.get("order_id") if isinstance(metadata, dict) else None
    payment_id, charge_id = reference(found.get("payment_intent")), reference(found.get("charge"))
    if event.type.startswith("payment_intent."):
        payment_id, charge_id = object_id(found), reference(found.get("latest_charge"))
    elif event.type.startswith("charge.") and event.type.count(".") == 1:
        charge_id = object_id(found)
    return CardEvent(
        event=event,
        order_id=order_id if isinstance(order_id, str) and _ORDER_ID.fullmatch(order_id) else None,
        payment_id=payment_id,
        charge_id=charge_id,
    )


def _paid(found: Object, event: PaymentEvent, account: str | None) -> _Facts:
    return intent_facts(found, paid=True, at=event.at, account=account), CREDIT_REASON


def _attempt(found: Object, event: PaymentEvent, _account: str | None) -> _Facts:
    status = cast(ProgressStatus, event.type.removeprefix("payment_intent.").removeprefix("payment_"))
    # Only the attempt: a stale event then adds nothing.
    attempt = attempt_fact(found, status, at=event.at)
    return (attempt,), f"payment_{status}" + ("" if attempt.reason is None else f": {attempt.reason}")


def _charge(found: Object, event: PaymentEvent, account: str | None) -> _Facts:
    reason = event.type.replace(".", "_") if event.type in ("charge.updated", "charge.refunded") else CREDIT_REASON
    return charge_facts(found, at=event.at, account=account), reason


def _refund(found: Object, _event: PaymentEvent, _account: str | None) -> _Facts:
    status = code(found.get("status"))
    return refund_facts(found), "refund" if status is None else f"refund_{status}"


def _dispute(found: Object, event: PaymentEvent, _account: str | None) -> _Facts:
    what = event.type.rpartition(".")[2]
    withdrawn, reinstated = what == "funds_withdrawn", what == "funds_reinstated"
    status = what if withdrawn or reinstated else code(found.get("status"))
    facts = dispute_facts(found, withdrawn=withdrawn, reinstated=reinstated)
    return facts, "dispute" if status is None else f"dispute_{status}"


def _warning(found: Object, _event: PaymentEvent, _account: str | None) -> _Facts:
    return warning_facts(found), "fraud_warning"


def _review(found: Object, event: PaymentEvent, _account: str | None) -> _Facts:
    detail = code(found.get("closed_reason")) or code(found.get("reason"))
    reason = event.type.replace(".", "_")
    facts = review_facts(found, closed=event.type == "review.closed")
    return facts, reason if detail is None else f"{reason}: {detail}"


_READERS: Mapping[str, Callable[[Object, PaymentEvent, str | None], _Facts]] = {
    "payment_intent.succeeded": _paid,
    "payment_intent.processing": _attempt,
    "payment_intent.requires_action": _attempt,
    "payment_intent.payment_failed": _attempt,
    "payment_intent.canceled": _attempt,
    "charge.succeeded": _charge,
    "charge.captured": _charge,
    "charge.updated": _charge,
    "charge.refunded": _charge,
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
