"""The decisions about a payment order: each takes the order and an event, and returns what follows.

All of them are pure. Refusals come first, in the order each docstring lists them; after that nothing may fail. The
caller supplies the time and, where more than the reserved credit may be posted, a source of operation ids.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.ledger.orders.facts import (
    OrderFacts,
    OrderResolution,
    PaymentAttempt,
    PaymentEvent,
    PaymentFacts,
    StatedPayment,
    join,
    provider_objects_of,
)
from holdfast.ledger.orders.order import (
    BalanceReading,
    Order,
    OrderRequest,
    OrderResult,
    OrderState,
    ReconcileStatus,
    Source,
    StateEntry,
    Statuses,
)
from holdfast.ledger.orders.sandbox_signature import NOT_OF_THIS_ORDER, SandboxValues
from holdfast.ledger.orders.snapshots import ProviderSnapshot
from holdfast.ledger.orders.targets import Assessment, assess, provider_net_micro, received_micro
from holdfast.ledger.orders.transitions import (
    CREDIT_REASON,
    NewOperationId,
    can_expire,
    next_check_at,
    no_operation_id,
    with_assessment,
)
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount

SANDBOX_EVENT_TYPE = "sandbox_payment"
BOOKKEEPING_TYPES = ("synthetic.charge", "synthetic.balance")
"""Synthetic events that change neither statuses nor credit."""


def create_order(request: OrderRequest) -> Order:
    """Return a new order as first stored, before any call to the provider: pending in all respects."""
    assert request.amount_micro > 0
    assert (request.provider == "sandbox") == (request.sandbox_event_id is not None)
    statuses = Statuses()
    entry = StateEntry(statuses=statuses, source="api", at=request.created_at, reason="order_created")
    state = OrderState(statuses=statuses, history=(entry,))
    wake_at = next_check_at(request, state, request.created_at)
    return Order(version=1, updated_at=request.created_at, wake_at=wake_at, request=request, state=state)


def attach_intent(order: Order, payment_id: str, now: datetime) -> OrderResult:
    """Record the intent that the provider created for the order. Its events may have arrived before."""
    assert order.request.provider == "cardprovider"
    if order.state.intent_id is not None:
        return OrderResult(order, "duplicate")
    implied = assess(order.request, order.state.facts)
    return with_assessment(order, implied, now, source="api", reason="intent_created", intent_id=payment_id)


def on_create_refused(order: Order, reason: str, now: datetime) -> OrderResult:
    """Record that the provider finally refused to create an intent; ``reason`` is its code."""
    if order.state.intent_id is not None or order.status != "pending":
        return OrderResult(order, "ignored")
    attempt = PaymentAttempt(status="failed", at=int(now.timestamp()), reason=reason)
    implied = assess(order.request, join(order.state.facts, OrderFacts(attempt=attempt)))
    return with_assessment(order, implied, now, source="api", reason=f"create_refused: {reason}")


def on_event(
    order: Order,
    event: PaymentEvent,
    now: datetime,
    *,
    new_operation_id: NewOperationId,
    source: Source = "provider_webhook",
) -> OrderResult:
    """Apply a provider event. An event applied before changes nothing; a stale one is only recorded.

    A sandbox order accepts its own callback only: no card event can pay it, even one that names it.
    """
    state = order.state
    if (order.request.provider == "sandbox") != (source == "sandbox_callback"):
        return OrderResult(order, "ignored")
    if event.event_id in state.event_ids:
        return OrderResult(order, "duplicate")
    facts, attempt = join(state.facts, event.facts), event.facts.attempt
    is_attempt_only = attempt is not None and event.facts == OrderFacts(attempt=attempt)
    is_stale = is_attempt_only and (facts == state.facts or bool(state.facts.payments))
    recorded: dict[str, Any] = {"event_ids": (*state.event_ids, event.event_id)}
    if not is_stale:
        recorded |= {
            "real_event_id": event.event_id,
            "real_event_type": event.type,
            "applied_event_id": event.event_id,
            "balance_readings": _readings(event, now) | state.balance_readings,
        }
    return with_assessment(
        order,
        assess(order.request, facts),
        now,
        source=source,
        reason=event.reason,
        new_operation_id=new_operation_id,
        event_id=event.event_id,
        verdict="stale" if is_stale else "applied",
        named=provider_objects_of(event.facts),
        **recorded,
    )


def on_sandbox_callback(order: Order, values: SandboxValues, now: datetime) -> OrderResult | Refusal:
    """Apply a sandbox callback whose signature has been verified against this order.

    Refuses: 1. ``invalid_signature`` (signed values that are not this order's); 2. ``provider_event_mismatch``;
    3. ``payment_order_expired``; 4. ``payment_order_not_payable``. A repeated callback is a ``duplicate``, even
    after the order has expired.
    """
    request = order.request
    event_id = request.sandbox_event_id
    own = (request.order_id, request.account_id, request.amount_micro, request.currency)
    if event_id is None or values.signed_parts() != own or values.status not in ("paid", "failed", "canceled"):
        return NOT_OF_THIS_ORDER
    if values.provider_event_id not in (None, event_id):
        return Refusal(
            code="provider_event_mismatch",
            message=f"The event id '{str(values.provider_event_id)[:80]}' does not belong to this payment order.",
            param="provider_event_id",
        )
    if order.status == {"paid": "credited"}.get(values.status, values.status):
        return OrderResult(order, "duplicate")
    if order.status == "expired" or (order.status == "pending" and now >= request.expires_at):
        return Refusal(
            code="payment_order_expired",
            message=f"The payment order '{request.order_id}' expired before it was paid.",
            final=True,
        )
    if order.status != "pending":
        return Refusal(
            code="payment_order_not_payable",
            message=f"The payment order '{request.order_id}' is already {order.status}.",
            final=True,
        )
    at = int(now.timestamp())
    if values.status == "paid":
        stated = StatedPayment(amount_micro=request.amount_micro, currency=request.currency)
        facts = OrderFacts(payments={request.order_id: PaymentFacts(at=at, stated=(stated,))})
    else:
        facts = OrderFacts(
            attempt=PaymentAttempt(status="failed" if values.status == "failed" else "canceled", at=at)
        )
    event = PaymentEvent(
        event_id=event_id,
        type=f"{SANDBOX_EVENT_TYPE}.{values.status}",
        at=at,
        reason=CREDIT_REASON if values.status == "paid" else f"payment_{values.status}",
        facts=facts,
    )
    return on_event(order, event, now, new_operation_id=no_operation_id, source="sandbox_callback")


def on_expiry(order: Order, now: datetime) -> OrderResult:
    """Expire an unpaid order whose deadline has passed; ``ignored`` if that does not apply.

    The caller cancels a card order's intent first: if the cancel finds it paid, that is an event, not an expiry. An
    attempt that the provider is still processing keeps the order open, since its money may still arrive. The
    cancellation's own event may be applied before this call: an order canceled after its deadline has expired.
    """
    may_end = can_expire(order.request, order.status) or _ended_by_time(order)
    if not may_end or now < order.request.expires_at:
        return OrderResult(order, "ignored")
    if order.statuses.processing_status == "processing":
        return OrderResult(order, "ignored")
    facts = msgspec.structs.replace(order.state.facts, expired=True)
    return with_assessment(order, assess(order.request, facts), now, source="expiry", reason="expired_unpaid")


def on_reconciled(
    order: Order, snapshot: ProviderSnapshot | None, now: datetime, *, new_operation_id: NewOperationId
) -> OrderResult:
    """Apply a snapshot of the provider's objects as synthetic events, and compare the totals.

    None, a failed read, gives ``error`` and changes nothing else. ``reconciled`` requires equal totals and a
    balance transaction for each payment; ``pending`` waits for one, or for the payment itself. All new facts are
    assessed at once: one difference is posted, under the last of their events.
    """
    state, facts = order.state, order.state.facts
    readings: dict[str, BalanceReading] = {}
    new: list[PaymentEvent] = []
    for event in () if snapshot is None else snapshot.events:
        joined = join(facts, event.facts)
        # What a webhook event stated is not recorded again.
        if joined != facts and event.event_id not in state.event_ids:
            facts = joined
            readings |= _readings(event, now)
            new.append(event)
    implied = assess(order.request, facts)
    status = _compared(order.request, implied, snapshot)
    recorded: dict[str, Any] = {}
    if new:
        recorded = {
            "event_ids": (*state.event_ids, *(event.event_id for event in new)),
            "synthetic_event_id": new[-1].event_id,
            "applied_event_id": new[-1].event_id,
            "balance_readings": readings | state.balance_readings,
        }
    if status == "reconciled":
        recorded["reconciled_at"] = now
    is_unchanged = not new and status == order.statuses.reconcile_status
    cause = new[-1] if new and new[-1].type not in BOOKKEEPING_TYPES else None
    compared = "provider_unreachable" if status == "error" else f"compared_{status}"
    return with_assessment(
        order,
        implied,
        now,
        source="reconcile",
        reason=compared if cause is None else cause.reason,
        new_operation_id=new_operation_id,
        event_id=None if cause is None else cause.event_id,
        reconcile_status=status,
        reconcile_tries=state.reconcile_tries + 1 if is_unchanged else 0,
        named=set[str]().union(*(provider_objects_of(event.facts) for event in new)),
        **recorded,
    )


def on_foreign_payment(order: Order, now: datetime, *, source: Source) -> OrderResult:
    """Record that a snapshot or event names a payment or charge of another order: nothing of it is applied."""
    return with_assessment(
        order,
        assess(order.request, order.state.facts),
        now,
        source=source,
        reason="payment_of_another_order",
        reconcile_status="mismatch",
        reconcile_tries=order.state.reconcile_tries + 1,
    )


def resolve_held(
    order: Order,
    decision: Literal["credit", "cancel"],
    now: datetime,
    *,
    reason: str,
    new_operation_id: NewOperationId,
    amount_micro: int | None = None,
) -> OrderResult | Refusal:
    """Apply an operator's decision on a payment that does not match its order: give credit for it, or give none.

    Without ``amount_micro`` the credit is the amount received in the order's currency, at most the amount ordered.
    Repeating a decision is a ``duplicate``.

    Refuses: 1. ``payment_order_not_payable`` (the order is not held); 2. ``invalid_amount`` (above the order's,
    not above zero, or not given where another currency was received).
    """
    known = order.state.facts.resolution
    if known is not None and known.decision == decision and amount_micro in (None, known.amount_micro):
        return OrderResult(order, "duplicate")
    if order.status != "held":
        return Refusal(
            code="payment_order_not_payable",
            message=f"The payment order '{order.order_id}' is {order.status}; only a held one can be resolved.",
        )
    given = 0
    if decision == "credit":
        received = received_micro(order.request, order.state.facts)
        given = min(received or 0, order.request.amount_micro) if amount_micro is None else amount_micro
        if not 0 < given <= order.request.amount_micro:
            return Refusal(
                code="invalid_amount",
                message=(
                    f"The credit {format_amount(given)} is not above zero and at most the amount ordered, "
                    f"{format_amount(order.request.amount_micro)}."
                ),
                param="amount",
            )
    resolution = OrderResolution(decision=decision, amount_micro=given)
    facts = msgspec.structs.replace(order.state.facts, resolution=resolution)
    implied = assess(order.request, facts)
    return with_assessment(order, implied, now, source="operator", reason=reason, new_operation_id=new_operation_id)


def _ended_by_time(order: Order) -> bool:
    """Whether the order's attempt was canceled at or after the order's deadline."""
    attempt = order.state.facts.attempt
    return (
        order.status == "canceled"
        and attempt is not None
        and attempt.at >= order.request.expires_at.timestamp() - 1
    )


def _compared(request: OrderRequest, implied: Assessment, snapshot: ProviderSnapshot | None) -> ReconcileStatus:
    if snapshot is None:
        return "error"
    seen = join(OrderFacts(resolution=implied.facts.resolution), *(event.facts for event in snapshot.events))
    if implied.statuses.risk_status == "mismatch" or provider_net_micro(request, seen) != implied.net_micro:
        return "mismatch"
    if snapshot.state not in ("succeeded", "canceled"):
        # A declined top-up is not tried again, and no customer can pay it.
        is_over = request.origin == "top_up" and implied.statuses.status == "failed"
        return "reconciled" if is_over else "pending"
    booked = {line.source_id for line in seen.balance.values() if line.source_type == "charge"}
    waiting = any(not booked.intersection(payment.charge_ids) for payment in seen.payments.values())
    return "pending" if waiting else "reconciled"


def _readings(event: PaymentEvent, now: datetime) -> dict[str, BalanceReading]:
    """Return the readings of the event's balance transactions; only the first one of each is recorded."""
    return {each: BalanceReading(event_id=event.event_id, scanned_at=now) for each in event.facts.balance}
