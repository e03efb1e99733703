"""Parse the provider's objects from plain dictionaries, tolerating missing fields.

The provider omits optional fields, gives related objects either by id or embedded, and adds fields and values at
any time. Only what no decision can do without is required: without it :class:`Unreadable` is raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from holdfast.providers.card.base import CardBalanceTransaction, CardDispute, CardRefund, CardSnapshot

Fields = Mapping[str, Any]

TEXT_MAX_CHARS = 200


class Unreadable(Exception):
    """A required field of a provider's object is missing or invalid; the text names the field, never its value."""


def snapshot(intent: Fields, refunds: list[Fields], disputes: list[Fields]) -> CardSnapshot:
    """Combine an intent (with its latest charge expanded), its refunds and its disputes in one snapshot."""
    charge = related(intent.get("latest_charge"))
    movements = {movement.id: movement for movement in _movements(charge, refunds, disputes)}
    failure = related(intent.get("last_payment_error"))
    return CardSnapshot(
        provider_payment_id=text(intent, "id"),
        status=text(intent, "status"),
        amount_minor=whole(intent, "amount"),
        amount_received_minor=optional_whole(intent, "amount_received"),
        currency=text(intent, "currency").upper(),
        livemode=intent.get("livemode") is True,
        charge_id=reference(intent.get("latest_charge")),
        charge_paid=charge.get("paid") is True,
        charge_captured=charge.get("captured") is True,
        charge_amount_refunded_minor=whole(charge, "amount_refunded", 0),
        refunds=tuple(_refund(each) for each in refunds),
        disputes=tuple(_dispute(each) for each in disputes),
        balance_transactions=tuple(sorted(movements.values(), key=lambda each: (each.created, each.id))),
        failure_code=short_text(failure.get("decline_code")) or short_text(failure.get("code")),
        cancellation_reason=short_text(intent.get("cancellation_reason")),
        created=moment(intent, "created"),
        metadata={key: value for key, value in related(intent.get("metadata")).items() if isinstance(value, str)},
    )


def text(fields: Fields, name: str) -> str:
    """Return a required non-empty string."""
    value = short_text(fields.get(name))
    if value is None:
        raise Unreadable(name)
    return value


def short_text(value: object) -> str | None:
    """Return a short non-empty string, or None."""
    return value[:TEXT_MAX_CHARS] if isinstance(value, str) and value else None


def whole(fields: Fields, name: str, default: int | None = None) -> int:
    """Return an integer; a missing or null one is the default, if there is one."""
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unreadable(name)
    return value


def optional_whole(fields: Fields, name: str) -> int | None:
    """An integer, or None where it is missing or null."""
    return None if fields.get(name) is None else whole(fields, name)


def moment(fields: Fields, name: str) -> datetime:
    """Return a required unix time."""
    try:
        return datetime.fromtimestamp(whole(fields, name), UTC)
    except (OverflowError, OSError, ValueError):
        raise Unreadable(name) from None


def related(value: object) -> Fields:
    """Return an embedded related object, or an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def reference(value: object) -> str | None:
    """Return the id of a related object, given by id or embedded."""
    return short_text(related(value).get("id")) if isinstance(value, Mapping) else short_text(value)


def items(value: object) -> list[Fields]:
    """Return the embedded objects of a list object or array."""
    found = related(value).get("data") if isinstance(value, Mapping) else value
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _refund(fields: Fields) -> CardRefund:
    return CardRefund(
        id=text(fields, "id"),
        amount_minor=whole(fields, "amount"),
        currency=text(fields, "currency").upper(),
        status=text(fields, "status"),
        charge_id=reference(fields.get("charge")),
        reason=short_text(fields.get("reason")),
        failure_reason=short_text(fields.get("failure_reason")),
        created=moment(fields, "created"),
    )


def _dispute(fields: Fields) -> CardDispute:
    return CardDispute(
        id=text(fields, "id"),
        amount_minor=whole(fields, "amount"),
        currency=text(fields, "currency").upper(),
        status=text(fields, "status"),
        reason=short_text(fields.get("reason")),
        charge_id=reference(fields.get("charge")),
        balance_transaction_ids=tuple(text(each, "id") for each in items(fields.get("balance_transactions"))),
        created=moment(fields, "created"),
    )


def _movements(charge: Fields, refunds: list[Fields], disputes: list[Fields]) -> Iterator[CardBalanceTransaction]:
    """Yield every embedded balance transaction, with the object that it was read from."""
    if charge:
        yield from _of(charge, "charge", charge.get("balance_transaction"))
    for refund in refunds:
        yield from _of(
            refund, "refund", refund.get("balance_transaction"), refund.get("failure_balance_transaction")
        )
    for dispute in disputes:
        yield from _of(dispute, "dispute", *items(dispute.get("balance_transactions")))


def _of(owner: Fields, kind: str, *found: object) -> Iterator[CardBalanceTransaction]:
    for fields in map(related, found):
        if fields:
            yield _movement(fields, text(owner, "id"), kind)


def _movement(fields: Fields, owner_id: str, kind: str) -> CardBalanceTransaction:
    rate = fields.get("exchange_rate")
    amount, fee = whole(fields, "amount"), whole(fields, "fee", 0)
    return CardBalanceTransaction(
        id=text(fields, "id"),
        source_id=reference(fields.get("source")) or owner_id,
        source_type=kind,
        type=short_text(fields.get("type")) or "",
        reporting_category=short_text(fields.get("reporting_category")) or "",
        amount_minor=amount,
        fee_minor=fee,
        net_minor=whole(fields, "net", amount - fee),
        currency=text(fields, "currency").upper(),
        exchange_rate=None if rate is None else str(rate),
        available_on=None if fields.get("available_on") is None else moment(fields, "available_on"),
        created=moment(fields, "created"),
    )
