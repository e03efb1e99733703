"""The decisions about a payment order: each takes the order and an event, and returns what follows.

All of them are pure. Refusals come first, in the order each docstring lists them; after that nothing may fail. The
caller supplies the time and, where more than the reserved credit may be posted, a source of operation ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.ledger.money import format_amount
from holdfast.ledger.orders.facts import OrderFacts, OrderResolution, with_fact
from holdfast.ledger.orders.order import (
    BalanceReading,
    LedgerMove,
    Order,
    OrderRequest,
    OrderState,
    ReconcileStatus,
    Source,
    StateEntry,
    Statuses,
)
from holdfast.ledger.orders.payment_facts import Attempt, BalanceTransaction, Paid, PaymentEvent
from holdfast.ledger.orders.sandbox_signature import SandboxValues
from holdfast.ledger.orders.snapshots import ProviderSnapshot
from holdfast.ledger.orders.targets import provider_net_micro, received_micro
from holdfast.ledger.orders.transitions import (
    CREDIT_REASON,
    NewOperationId,
    OrderStep,
    can_expire,
    moved,
    next_reconcile_at,
    unchanged,
)
from holdfast.ledger.refusals import Refusal

SANDBOX_EVENT_TYPE = "sandbox_payment"


def create_order(request: OrderRequest) -> Order:
    """Return a new order as first stored, before any call to the provider: pending in all respects."""
    assert request.amount_micro > 0
    assert (request.provider == "sandbox") == (request.sandbox_event_id is not None)
    statuses = Statuses()
    entry = StateEntry(statuses=statuses, source="api", at=request.created_at, reason="order_created")
    return Order(
        version=1,
        updated_at=request.created_at,
        wake_at=request.expires_at,
        request=request,
        state=OrderState(statuses=statuses, history=(entry,)),
    )


def attach_intent(order: Order, payment_id: str, now: datetime) -> OrderStep:
    """Record the intent that the provider created for the order. Its events may have arrived before."""
    assert order.request.provider == "cardprovider"
    if order.state.intent_id is not None:
        return unchanged(order, "duplicate")
    named = msgspec.structs.replace(order.state, payment_id=payment_id)
    return moved(
        order,
        order.state.facts,
        now,
        source="api",
        reason="intent_created",
        new_operation_id=_none_needed,
        intent_id=payment_id,
        reconcile_due_at=order.state.reconcile_due_at or next_reconcile_at(order, now, tries=0, after=named),
    )


def on_create_refused(order: Order, reason: str, now: datetime) -> OrderStep:
    """Record that the provider finally refused to create an intent; ``reason`` is its code."""
    if order.state.intent_id is not None or order.status != "pending":
        return unchanged(order, "ignored")
    attempt = Attempt(status="failed", at=int(now.timestamp()), reason=reason)
    facts = with_fact(order.state.facts, attempt)
    return moved(order, facts, now, source="api", reason=f"create_refused: {reason}", new_operation_id=_none_needed)


def on_event(
    order: Order,
    event: PaymentEvent,
    now: datetime,
    *,
    new_operation_id: NewOperationId,
    source: Source = "provider_webhook",
) -> OrderStep:
    """Apply a provider event. An event applied before changes nothing; a stale one is only recorded.

    A sandbox order accepts its own callback only: no card event can pay it, even one that names it.
    """
    state = order.state
    if (order.request.provider == "sandbox") != (source == "sandbox_callback"):
        return unchanged(order, "ignored")
    if event.event_id in state.event_ids:
        return unchanged(order, "duplicate")
    facts, is_new = state.facts, False
    for fact in event.facts:
        joined = with_fact(facts, fact)
        is_new |= joined != facts
        facts = joined
    progress_only = bool(event.facts) and all(isinstance(fact, Attempt) for fact in event.facts)
    stale = progress_only and (not is_new or bool(state.facts.payments))
    recorded: dict[str, Any] = {"event_ids": (*state.event_ids, event.event_id)}
    if event.synthetic:
        recorded["synthetic_event_id"] = event.event_id
    elif not stale:
        recorded |= {"real_event_id": event.event_id, "real_event_type": event.type}
    if not stale:
        recorded["applied_event_id"] = event.event_id
        recorded["balance_readings"] = _readings(state, event, now)
    return moved(
        order,
        facts,
        now,
        source=source,
        reason=event.reason,
        new_operation_id=new_operation_id,
        event_id=event.event_id,
        verdict="stale" if stale else "applied",
        **recorded,
    )


def on_sandbox_callback(order: Order, values: SandboxValues, now: datetime) -> OrderStep | Refusal:
    """Apply a sandbox callback whose signature has been verified against this order.

    Refuses: 1. ``invalid_signature`` (signed values that are not this order's); 2. ``provider_event_mismatch``;
    3. ``payment_order_expired``; 4. ``payment_order_not_payable``. A repeated callback is a ``duplicate``, even
    after the order has expired.
    """
    request = order.request
    event_id = request.sandbox_event_id
    own = (request.order_id, request.account_id, request.amount_micro, request.currency)
    if event_id is None or values.signed_parts() != own or values.status not in ("paid", "failed", "canceled"):
        return Refusal(code="invalid_signature", message="The signature does not belong to this payment order.")
    if values.provider_event_id not in (None, event_id):
        return Refusal(
            code="provider_event_mismatch",
            message=f"The event id '{str(values.provider_event_id)[:80]}' does not belong to this payment order.",
            param="provider_event_id",
        )
    if order.status == {"paid": "credited"}.get(values.status, values.status):
        return unchanged(order, "duplicate")
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
    fact: Paid | Attempt
    if values.status == "paid":
        fact = Paid(
            payment_id=request.order_id, amount_micro=request.amount_micro, currency=request.currency, at=at
        )
    else:
        fact = Attempt(status="failed" if values.status == "failed" else "canceled", at=at)
    event = PaymentEvent(
        event_id=event_id,
        type=f"{SANDBOX_EVENT_TYPE}.{values.status}",
        at=at,
        reason=CREDIT_REASON if values.status == "paid" else f"payment_{values.status}",
        facts=(fact,),
    )
    return on_event(order, event, now, new_operation_id=_none_needed, source="sandbox_callback")


def on_expiry(order: Order, now: datetime) -> OrderStep:
    """Expire an unpaid order whose deadline has passed; ``ignored`` if that does not apply.

    The caller cancels a card order's intent first: if the cancel finds it paid, that is an event, not an expiry. An
    attempt that the provider is still processing keeps the order open, since its money may still arrive. The
    cancellation's own event may be applied before this call: an order canceled after its deadline has expired.
    """
    may_end = can_expire(order.request, order.status) or _ended_by_time(order)
    if not may_end or now < order.request.expires_at:
        return unchanged(order, "ignored")
    if order.statuses.processing_status == "processing":
        return unchanged(order, "ignored")
    facts = msgspec.structs.replace(order.state.facts, expired=True)
    return moved(order, facts, now, source="expiry", reason="expired_unpaid", new_operation_id=_none_needed)


def on_reconciled(
    order: Order, snapshot: ProviderSnapshot, now: datetime, *, new_operation_id: NewOperationId
) -> OrderStep:
    """Apply a snapshot of the provider's objects as synthetic events, and compare the totals.

    A failed read gives ``error`` and changes nothing else. ``reconciled`` requires equal totals and a balance
    transaction for each payment; ``pending`` waits for one, or for the payment itself.
    """
    events = snapshot.events
    moves: list[LedgerMove] = []
    entries: list[StateEntry] = []
    changed = False
    current = order
    for event in events:
        facts = current.state.facts
        for fact in event.facts:
            facts = with_fact(facts, fact)
        if facts == current.state.facts:
            # Already known from a webhook event: recording it again would only lengthen the list of ids.
            continue
        step = on_event(current, event, now, new_operation_id=new_operation_id, source="reconcile")
        changed |= bool(step.entries)
        moves += step.moves
        entries += step.entries
        current = step.order
    status = _compared(current, snapshot)
    tries = 0 if changed or status != order.statuses.reconcile_status else order.state.reconcile_tries + 1
    last = moved(
        current,
        current.state.facts,
        now,
        source="reconcile",
        reason="provider_unreachable" if status == "error" else f"compared_{status}",
        new_operation_id=new_operation_id,
        reconcile_status=status,
        reconcile_tries=tries,
        reconcile_due_at=next_reconcile_at(order, now, tries=tries, after=current.state),
        reconciled_at=now if status == "reconciled" else current.state.reconciled_at,
    )
    # Everything is one commit, so it is one version.
    final = msgspec.structs.replace(last.order, version=order.version + 1)
    return OrderStep(
        order=final,
        verdict="applied",
        moves=(*moves, *last.moves),
        entries=(*entries, *last.entries),
    )


def resolve_held(
    order: Order,
    decision: Literal["credit", "cancel"],
    now: datetime,
    *,
    reason: str,
    new_operation_id: NewOperationId,
    amount_micro: int | None = None,
) -> OrderStep | Refusal:
    """Apply an operator's decision on a payment that does not match its order: give credit for it, or give none.

    Without ``amount_micro`` the credit is the amount received in the order's currency, at most the amount ordered.
    Repeating a decision is a ``duplicate``.

    Refuses: 1. ``payment_order_not_payable`` (the order is not held); 2. ``invalid_amount`` (above the order's,
    not above zero, or not given where another currency was received).
    """
    known = order.state.facts.resolution
    if known is not None and known.decision == decision and amount_micro in (None, known.amount_micro):
        return unchanged(order, "duplicate")
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
    return moved(order, facts, now, source="operator", reason=reason, new_operation_id=new_operation_id)


def _ended_by_time(order: Order) -> bool:
    """Whether the order's attempt was canceled at or after the order's deadline."""
    attempt = order.state.facts.attempt
    return (
        order.status == "canceled"
        and attempt is not None
        and attempt.at >= order.request.expires_at.timestamp() - 1
    )


def _compared(order: Order, snapshot: ProviderSnapshot) -> ReconcileStatus:
    if snapshot.unavailable is not None:
        return "error"
    seen = OrderFacts(resolution=order.state.facts.resolution)
    for event in snapshot.events:
        for fact in event.facts:
            seen = with_fact(seen, fact)
    if order.statuses.risk_status == "mismatch":
        return "mismatch"
    if provider_net_micro(order.request, seen) != order.net_micro:
        return "mismatch"
    if snapshot.state not in ("succeeded", "canceled"):
        return "pending"
    booked = {t.source_id for t in seen.balance.values() if t.source_type == "charge"}
    waiting = any(not booked.intersection(payment.charge_ids) for payment in seen.payments.values())
    return "pending" if waiting else "reconciled"


def _readings(state: OrderState, event: PaymentEvent, now: datetime) -> dict[str, BalanceReading]:
    """Return under which event each balance transaction was first read."""
    fresh: Sequence[BalanceTransaction] = [
        fact
        for fact in event.facts
        if isinstance(fact, BalanceTransaction) and fact.transaction_id not in state.balance_readings
    ]
    reading = BalanceReading(event_id=event.event_id, scanned_at=now)
    return {**state.balance_readings, **{each.transaction_id: reading for each in fresh}}


def _none_needed() -> str:
    raise AssertionError("this decision posts nothing beyond the reserved credit")
