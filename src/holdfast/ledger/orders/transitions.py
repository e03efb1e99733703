"""Apply new facts to an order: compute the ledger moves, the history entries and the order's next version.

The facts determine what the ledger should hold, the sum of the moves is what it does hold, and only the difference
is posted. So a payment reported twice, or by two types of event, is posted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.ledger.orders.facts import provider_objects_of
from holdfast.ledger.orders.order import (
    LedgerMove,
    Order,
    OrderRequest,
    OrderResult,
    OrderState,
    OrderStatus,
    ReconcileStatus,
    Source,
    StateEntry,
)
from holdfast.ledger.orders.targets import Assessment, reversal_refs_of
from holdfast.ledger.refusals import StepVerdict

NewOperationId = Callable[[], str]

CREDIT_REASON = "payment_succeeded"
TOP_UP_REASON = "top_up_succeeded"
LATE_REASON = "late_payment"
MISMATCH_REASON = "payment_mismatch"
REVERSED_EARLIER_REASON = "reversed_before_payment_was_reported"

RECONCILE_INTERVAL_MIN_S = 60
RECONCILE_INTERVAL_MAX_S = 6 * 3600
RECONCILE_PERIOD_S = 30 * 24 * 3600
"""How long after its creation an order is reconciled: as long as providers retain their events."""
INTENT_OVERDUE_S = 120
"""How long after its creation a card order without an intent is first checked: its create call was lost."""
CHECK_AGAIN_S = 300
"""After how long an order is checked again if its timer was due and did not end it."""


def no_operation_id() -> str:
    """Raise: the decision posts nothing beyond the reserved credit."""
    raise AssertionError("this decision posts nothing beyond the reserved credit")


def with_assessment(
    order: Order,
    implied: Assessment,
    now: datetime,
    *,
    source: Source,
    reason: str,
    new_operation_id: NewOperationId = no_operation_id,
    event_id: str | None = None,
    reconcile_status: ReconcileStatus | None = None,
    reconcile_tries: int = 0,
    verdict: StepVerdict = "applied",
    named: Iterable[str] = (),
    **state: Any,
) -> OrderResult:
    """Return the order with the assessed facts: post the difference, set the statuses, extend the history.

    ``named`` are payments and charges that the cause names: of two payments of one charge, the facts retain one.
    ``state`` names further fields of :class:`OrderState`. The reserved operation id is used for the first credit
    only. A new history entry, an intent or a reconcile schedules the next reconcile.
    """
    before, request, facts = order.state, order.request, implied.facts
    status = implied.statuses.status
    if source != "operator":
        reason = _reason_of_change(order, status, now) or reason
    moves = _difference(order, implied, reason, new_operation_id)
    if reconcile_status is None:
        # Events that move money, or end a mismatch, require a new reconcile.
        reconcile_status = before.statuses.reconcile_status
        if implied.statuses.risk_status == "mismatch":
            reconcile_status = "mismatch"
        elif moves or before.statuses.risk_status == "mismatch":
            reconcile_status = "unreconciled"
    statuses = msgspec.structs.replace(implied.statuses, reconcile_status=reconcile_status)
    entries: tuple[StateEntry, ...] = ()
    if moves or statuses != before.statuses:
        entries = tuple(
            StateEntry(
                statuses=statuses,
                source=source,
                at=now,
                reason=reason if move is None else move.reason,
                event_id=event_id,
                operation_id=None if move is None else move.operation_id,
            )
            for move in (moves or (None,))
        )
    happened = {
        "credited_at": status == "credited",
        "failed_at": status in ("failed", "canceled") and status != before.statuses.status,
        "refunded_at": implied.was_refunded,
        "disputed_at": implied.was_disputed,
        "chargeback_at": implied.was_lost,
    }
    fields: dict[str, Any] = {name: now for name, did in happened.items() if did and getattr(before, name) is None}
    if request.provider == "cardprovider":
        intent_id = state.get("intent_id", before.intent_id)
        fields |= _provider_ids(implied, intent_id)
        objects = {*before.provider_object_ids, *provider_objects_of(facts), *named}
        fields["provider_object_ids"] = tuple(sorted(objects if intent_id is None else {*objects, intent_id}))
    after = msgspec.structs.replace(
        before,
        statuses=statuses,
        facts=facts,
        moves=(*before.moves, *moves),
        history=(*before.history, *entries),
        reversal_refs=tuple(dict.fromkeys((*before.reversal_refs, *reversal_refs_of(facts)))),
        **(fields | state),
    )
    if after == before and source != "reconcile":
        return OrderResult(order, verdict)
    is_attached = after.intent_id != before.intent_id and before.reconcile_due_at is None
    if entries or source == "reconcile" or is_attached:
        due_at = _next_reconcile_at(request, after.payment_id, reconcile_tries, now)
        after = msgspec.structs.replace(after, reconcile_tries=reconcile_tries, reconcile_due_at=due_at)
    return OrderResult(
        msgspec.structs.replace(
            order,
            version=order.version + 1,
            updated_at=now,
            wake_at=next_check_at(request, after, now),
            state=after,
        ),
        verdict,
    )


def can_expire(request: OrderRequest, status: OrderStatus) -> bool:
    """Whether an order in this state can expire. A failed card attempt may be followed by another one.

    A top-up cannot: only its provider knows whether it was charged, and the next one waits for that.
    """
    if request.origin == "top_up":
        return False
    return status == "pending" or (status == "failed" and request.provider == "cardprovider")


def _next_reconcile_at(request: OrderRequest, payment_id: str | None, tries: int, now: datetime) -> datetime | None:
    """Return when to reconcile next: the interval doubles with each unchanged result, up to a limit.

    None if the provider has no object to compare with, or if the reconciling period is over.
    """
    if payment_id is None or request.provider != "cardprovider":
        return None
    interval_s = RECONCILE_INTERVAL_MIN_S * 2 ** min(tries, 16)
    due = now + timedelta(seconds=min(RECONCILE_INTERVAL_MAX_S, interval_s))
    return due if due <= request.created_at + timedelta(seconds=RECONCILE_PERIOD_S) else None


def next_check_at(request: OrderRequest, state: OrderState, now: datetime) -> datetime | None:
    """Return when a worker should check the order: at its expiry while unpaid, or to reconcile it; after ``now``.

    While the provider is processing a payment only the reconcile counts: such an order does not expire. A card
    order without an intent is checked early, and then at twice its age each time. A top-up is charged at once, and
    checked until its outcome is known, however long that takes.
    """
    due_at, status = state.reconcile_due_at, state.statuses.status
    if request.origin == "top_up" and status == "pending":
        if state.payment_id is None:
            return now
        return due_at if due_at is not None and due_at > now else now + timedelta(seconds=RECONCILE_INTERVAL_MAX_S)
    times = [] if due_at is None else [due_at]
    under_way = state.statuses.processing_status == "processing" and bool(times)
    if can_expire(request, status) and not under_way:
        times.append(request.expires_at)
    if not times:
        return None
    if request.provider == "cardprovider" and status == "pending" and state.payment_id is None:
        times.append(now + max(now - request.created_at, timedelta(seconds=INTENT_OVERDUE_S)))
    if min(times) > now:
        return min(times)
    return due_at if due_at is not None and due_at > now else now + timedelta(seconds=CHECK_AGAIN_S)


def _reason_of_change(order: Order, status: OrderStatus, now: datetime) -> str | None:
    """Return the reason recorded for a payment's effect, whichever type of event reported it first."""
    was = order.status
    if status == "credited" and was != "credited":
        is_late = was in ("expired", "canceled", "failed") or now > order.request.expires_at
        if is_late:
            return LATE_REASON
        return TOP_UP_REASON if order.request.origin == "top_up" else CREDIT_REASON
    return MISMATCH_REASON if status == "held" and was != "held" else None


def _difference(
    order: Order, implied: Assessment, reason: str, new_operation_id: NewOperationId
) -> tuple[LedgerMove, ...]:
    """Return the moves from what the ledger holds for the order to what it should hold."""
    assert 0 <= implied.net_micro <= implied.credit_micro <= order.request.amount_micro
    posted = order.net_micro
    moves: list[LedgerMove] = []
    if implied.credit_micro > 0 and not order.state.moves:
        moves.append(
            LedgerMove(
                kind="credit",
                amount_micro=implied.credit_micro,
                operation_id=order.request.operation_id,
                reason=reason,
            )
        )
        posted += implied.credit_micro
        reason = REVERSED_EARLIER_REASON
    if implied.net_micro != posted:
        moves.append(
            LedgerMove(
                kind="credit" if implied.net_micro > posted else "reversal",
                amount_micro=abs(implied.net_micro - posted),
                operation_id=new_operation_id(),
                reason=reason,
            )
        )
    return tuple(moves)


def _provider_ids(implied: Assessment, intent_id: str | None) -> dict[str, str | None]:
    """Return the ids of the order's payment and of the charge that paid it."""
    facts = implied.facts
    payment_id = implied.payment_id or intent_id or min(facts.charges.values(), default=None)
    paid_by = facts.payments.get(payment_id or "")
    charges = paid_by.charge_ids if paid_by else ()
    charges = charges or tuple(sorted(c for c, p in facts.charges.items() if p == payment_id))
    return {"payment_id": payment_id, "charge_id": charges[0] if charges else None}
