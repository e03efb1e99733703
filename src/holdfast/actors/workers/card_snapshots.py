"""What a card provider shows of a payment, put into the words of the order's rules.

A snapshot is written as the objects it was read from, so that there is one reader of such objects, and a fact has
the same synthetic event id whichever way it was learned.
"""

from __future__ import annotations

from typing import Any

from holdfast.ledger.orders.snapshots import ProviderSnapshot, snapshot_of
from holdfast.providers.card.base import CardBalanceTransaction, CardDispute, CardRefund, CardSnapshot


def look_at(snapshot: CardSnapshot, *, provider: str, as_of: int) -> ProviderSnapshot:
    """The facts of a snapshot taken at ``as_of`` (unix seconds).

    Raises :class:`~holdfast.ledger.orders.card_objects.Malformed` for values no provider would send.
    """
    intent: dict[str, Any] = {
        "id": snapshot.provider_payment_id,
        "status": snapshot.status,
        "amount": snapshot.amount_minor,
        "amount_received": snapshot.amount_received_minor,
        "currency": snapshot.currency,
        "livemode": snapshot.livemode,
        "cancellation_reason": snapshot.cancellation_reason,
        "latest_charge": None if snapshot.charge_id is None else _charge(snapshot, snapshot.charge_id),
    }
    if snapshot.failure_code is not None:
        intent["last_payment_error"] = {"code": snapshot.failure_code}
    return snapshot_of(
        intent,
        provider=provider,
        as_of=as_of,
        refunds=[_refund(snapshot, refund) for refund in snapshot.refunds],
        disputes=[_dispute(snapshot, dispute) for dispute in snapshot.disputes],
    )


def _charge(snapshot: CardSnapshot, charge_id: str) -> dict[str, Any]:
    return {
        "id": charge_id,
        "payment_intent": snapshot.provider_payment_id,
        "paid": snapshot.charge_paid,
        "captured": snapshot.charge_captured,
        # What was captured of the payment as a whole: the charge's own amount is not part of a snapshot.
        "amount": snapshot.amount_minor,
        "amount_captured": snapshot.amount_received_minor,
        "amount_refunded": snapshot.charge_amount_refunded_minor,
        "currency": snapshot.currency,
        "livemode": snapshot.livemode,
        "balance_transaction": next(iter(_lines(snapshot, "charge", charge_id)), None),
    }


def _refund(snapshot: CardSnapshot, refund: CardRefund) -> dict[str, Any]:
    return {
        "id": refund.id,
        "status": refund.status,
        "amount": refund.amount_minor,
        "currency": refund.currency,
        "charge": refund.charge_id or snapshot.charge_id,
        "payment_intent": snapshot.provider_payment_id,
        "balance_transaction": next(iter(_lines(snapshot, "refund", refund.id)), None),
    }


def _dispute(snapshot: CardSnapshot, dispute: CardDispute) -> dict[str, Any]:
    named = {line.id: line for line in snapshot.balance_transactions}
    return {
        "id": dispute.id,
        "status": dispute.status,
        "amount": dispute.amount_minor,
        "currency": dispute.currency,
        "reason": dispute.reason,
        "charge": dispute.charge_id or snapshot.charge_id,
        "payment_intent": snapshot.provider_payment_id,
        "balance_transactions": [_line(named[each]) for each in dispute.balance_transaction_ids if each in named],
    }


def _lines(snapshot: CardSnapshot, source_type: str, source_id: str) -> list[dict[str, Any]]:
    return [
        _line(line)
        for line in snapshot.balance_transactions
        if line.source_type == source_type and line.source_id == source_id
    ]


def _line(line: CardBalanceTransaction) -> dict[str, Any]:
    return {
        "id": line.id,
        "source": line.source_id,
        "type": line.type,
        "reporting_category": line.reporting_category,
        "amount": line.amount_minor,
        "fee": line.fee_minor,
        "net": line.net_minor,
        "currency": line.currency,
        "exchange_rate": line.exchange_rate,
        "available_on": None if line.available_on is None else int(line.available_on.timestamp()),
    }
