"""Apply new facts to an order: compute the ledger moves, the history entries and the order's next version.

The facts determine what the ledger should hold, the sum of the moves is what it does hold, and only the difference
is posted. So a payment reported twice, or by two types of event, is posted once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.ledger.orders.facts import OrderFacts
from holdfast.ledger.orders.order import (
    LedgerMove,
    Order,
    OrderRequest,
    OrderState,
    OrderStatus,
    ReconcileStatus,
    Source,
    StateEntry,
    Statuses,
)
from holdfast.ledger.orders.targets import Assessment, assess, reversal_refs_of
from holdfast.ledger.refusals import StepVerdict

NewOperationId = Callable[[], str]

CREDIT_REASON = "payment_succeeded"
LATE_REASON = "late_payment"
MISMATCH_REASON = "payment_mismatch"
REVERSED_EARLIER_REASON = "reversed_before_payment_was_told"

RECONCILE_INTERVAL_MIN_S = 60
RECONCILE_INTERVAL_MAX_S = 6 * 3600
RECONCILE_PERIOD_S = 30 * 24 * 3600
"""How long after its creation an order is reconciled: as long as providers retain their events."""


@dataclass(frozen=True, slots=True)
class OrderStep:
    """The result of a decision: the order after it (the same object if unchanged) and what is committed with it.

    ``moves`` must be committed together with ``order``; ``entries`` are the new history entries.

    ``verdict``: ``duplicate`` was applied before; ``stale`` is older than what is known and only recorded;
    ``ignored`` requires nothing.
    """

    order: Order
    verdict: StepVerdict
    moves: tuple[LedgerMove, ...] = ()
    entries: tuple[StateEntry, ...] = ()


def unchanged(order: Order, verdict: StepVerdict) -> OrderStep:
    """Return a step that leaves the order as it is."""
    return OrderStep(order=order, verdict=verdict)


def moved(
    order: Order,
    facts: OrderFacts,
    now: datetime,
    *,
    source: Source,
    reason: str,
    new_operation_id: NewOperationId,
    event_id: str | None = None,
    reconcile_status: ReconcileStatus | None = None,
    verdict: StepVerdict = "applied",
    **state: Any,
) -> OrderStep:
    """Return the order with these facts: post the difference, derive the statuses, extend the history.

    ``state`` names further fields of :class:`OrderState`. The reserved operation id is used for the first credit
    only.
    """
    before = order.state
    request = order.request
    outcome = assess(request, facts)
    if source != "operator":
        reason = _reason_of_change(order, outcome.status, now) or reason
    moves = _difference(order, outcome, reason, new_operation_id)
    statuses = Statuses(
        status=outcome.status,
        processing_status=outcome.processing_status,
        reversal_status=outcome.reversal_status,
        risk_status=outcome.risk_status,
        reconcile_status=reconcile_status
        or _reconcile_status(order, mismatch=outcome.mismatch, posted=bool(moves)),
    )
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
    went_wrong = outcome.status in ("failed", "canceled") and statuses.status != before.statuses.status
    after = msgspec.structs.replace(
        before,
        statuses=statuses,
        facts=facts,
        moves=(*before.moves, *moves),
        history=(*before.history, *entries),
        reversal_refs=tuple(dict.fromkeys((*before.reversal_refs, *reversal_refs_of(facts)))),
        credited_at=_first(before.credited_at, outcome.status == "credited", now),
        failed_at=_first(before.failed_at, went_wrong, now),
        refunded_at=_first(before.refunded_at, outcome.was_refunded, now),
        disputed_at=_first(before.disputed_at, outcome.was_disputed, now),
        chargeback_at=_first(before.chargeback_at, outcome.was_lost, now),
        **_provider_ids(order, facts, outcome.primary_payment, state.get("intent_id", before.intent_id)),
    )
    after = msgspec.structs.replace(after, **state)
    if after == before:
        return unchanged(order, verdict)
    if entries and reconcile_status is None and request.provider == "cardprovider":
        after = msgspec.structs.replace(
            after, reconcile_tries=0, reconcile_due_at=next_reconcile_at(order, now, tries=0, after=after)
        )
    return OrderStep(
        order=msgspec.structs.replace(
            order, version=order.version + 1, updated_at=now, wake_at=wake_at(order, after), state=after
        ),
        verdict=verdict,
        moves=moves,
        entries=entries,
    )


def can_expire(request: OrderRequest, status: OrderStatus) -> bool:
    """Whether an order in this state can expire. A failed card attempt may be followed by another one."""
    return status == "pending" or (status == "failed" and request.provider == "cardprovider")


def next_reconcile_at(order: Order, now: datetime, *, tries: int, after: OrderState) -> datetime | None:
    """Return when to reconcile next: the interval doubles with each unchanged result, up to a limit.

    None if the provider has no object to compare with, or if the reconciling period is over.
    """
    if after.payment_id is None or order.request.provider != "cardprovider":
        return None
    due = now + timedelta(seconds=min(RECONCILE_INTERVAL_MAX_S, RECONCILE_INTERVAL_MIN_S * 2 ** min(tries, 16)))
    return due if due <= order.request.created_at + timedelta(seconds=RECONCILE_PERIOD_S) else None


def wake_at(order: Order, state: OrderState) -> datetime | None:
    """Return when the order's next timer is due: its expiry while unpaid, or the next reconcile.

    While the provider is processing a payment only the reconcile counts: such an order does not expire.
    """
    times = [] if state.reconcile_due_at is None else [state.reconcile_due_at]
    under_way = state.statuses.processing_status == "processing" and bool(times)
    if can_expire(order.request, state.statuses.status) and not under_way:
        times.append(order.request.expires_at)
    return min(times, default=None)


def _reason_of_change(order: Order, status: OrderStatus, now: datetime) -> str | None:
    """Return the reason recorded for a payment's effect, whichever type of event reported it first."""
    was = order.status
    if status == "credited" and was != "credited":
        is_late = was in ("expired", "canceled", "failed") or now > order.request.expires_at
        return LATE_REASON if is_late else CREDIT_REASON
    return MISMATCH_REASON if status == "held" and was != "held" else None


def _difference(
    order: Order, money: Assessment, reason: str, new_operation_id: NewOperationId
) -> tuple[LedgerMove, ...]:
    """Return the moves from what the ledger holds for the order to what it should hold."""
    assert 0 <= money.net_micro <= money.credit_micro <= order.request.amount_micro
    posted = order.net_micro
    moves: list[LedgerMove] = []
    if money.credit_micro > 0 and not order.state.moves:
        moves.append(
            LedgerMove(
                kind="credit",
                amount_micro=money.credit_micro,
                operation_id=order.request.operation_id,
                reason=reason,
            )
        )
        posted += money.credit_micro
        reason = REVERSED_EARLIER_REASON
    if money.net_micro != posted:
        moves.append(
            LedgerMove(
                kind="credit" if money.net_micro > posted else "reversal",
                amount_micro=abs(money.net_micro - posted),
                operation_id=new_operation_id(),
                reason=reason,
            )
        )
    return tuple(moves)


def _reconcile_status(order: Order, *, mismatch: bool, posted: bool) -> ReconcileStatus:
    """Events that move money require a new reconcile; a payment that does not match the order is a mismatch."""
    if mismatch:
        return "mismatch"
    if posted or order.statuses.risk_status == "mismatch":
        return "unreconciled"
    return order.state.statuses.reconcile_status


def _provider_ids(
    order: Order, facts: OrderFacts, payment_id: str | None, intent_id: str | None
) -> dict[str, str | None]:
    """Return the ids of the order's payment and of the charge that paid it. A sandbox order has neither."""
    if order.request.provider == "sandbox":
        return {}
    if payment_id is None:
        seen = sorted(set(facts.charges.values()))
        payment_id = intent_id or next(iter(seen), None)
    paid_by = facts.payments.get(payment_id or "")
    charges = paid_by.charge_ids if paid_by else ()
    charges = charges or tuple(sorted(c for c, p in facts.charges.items() if p == payment_id))
    return {"payment_id": payment_id, "charge_id": charges[0] if charges else None}


def _first(known: datetime | None, happened: bool, now: datetime) -> datetime | None:
    return now if known is None and happened else known
