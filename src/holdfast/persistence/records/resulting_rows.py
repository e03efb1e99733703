"""The rows that follow from what was decided about a task or an order: their state before, and after it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import Order
from holdfast.ledger.tasks.events import events_of, public_snapshot
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.records.rows import (
    AssetRow,
    AssetsDeletedRow,
    AssetsExpiryRow,
    OrderPaymentRow,
    OutboxRow,
    PaymentEventRow,
    UsageCountedRow,
)


def payment_rows(before: Order, after: Order) -> tuple[OrderPaymentRow, ...]:
    """Return the rows of the payments and charges that a decision was the first to name for its order."""
    new = set(after.state.provider_object_ids).difference(before.state.provider_object_ids)
    provider = after.request.provider
    return tuple(OrderPaymentRow(provider, each, after.account_id, after.order_id) for each in sorted(new))


def synthetic_event_rows(
    before: Order, after: Order, events: Iterable[PaymentEvent], now: datetime
) -> tuple[PaymentEventRow, ...]:
    """Return the rows of the synthetic events that a reconcile has applied to the order."""
    new = set(after.state.event_ids).difference(before.state.event_ids)
    return tuple(
        PaymentEventRow(
            after.request.provider,
            event.event_id,
            after.account_id,
            after.order_id,
            event.type,
            now,
            "applied",
            msgspec.json.encode(event),
        )
        for event in events
        if event.event_id in new
    )


def new_asset_rows(before: Task, after: Task) -> tuple[AssetRow, ...]:
    """Return the rows of the assets that a step added to the task's output."""
    known = {None, *(item.asset_id for item in before.state.output)}
    task = {"account_id": after.account_id, "request_id": after.request_id, "created_at": after.updated_at}
    return tuple(
        msgspec.convert({**msgspec.structs.asdict(item), **task, "position": item.index}, AssetRow)
        for item in after.state.output
        if item.asset_id not in known
    )


def usage_counted_row(task: Task) -> UsageCountedRow:
    """Return the row that counts the usage of a task that has just ended."""
    request, cost_micro = task.request, task.state.cost_micro
    about = task.account_id, task.created_at, task.model, request.api_key_id, task.status, request.end_user
    return UsageCountedRow(*about, cost_micro)


def ended_assets_row(task: Task) -> AssetsExpiryRow | AssetsDeletedRow:
    """Return what happens to the assets that an ended task had stored: a new expiry, or their deletion."""
    expiries = [item.expires_at for item in task.state.output if item.expires_at is not None]
    if task.status == "succeeded" and expiries:
        # Their retention begins with the end of the task: a review may have taken longer than the retention.
        return AssetsExpiryRow(task.account_id, task.request_id, max(expiries))
    # Without a row the asset sweeper deletes the content.
    return AssetsDeletedRow(task.account_id, task.request_id)


def new_event_rows(before: Task, after: Task) -> tuple[OutboxRow, ...]:
    """Return the events of a task's transition, due immediately. An event has the same id at every delivery."""
    kinds = events_of(before, after)
    if not kinds:
        return ()
    url, at = after.request.webhook_url, after.updated_at
    assert url is not None
    snapshot = public_snapshot(after)
    return tuple(
        OutboxRow(
            account_id=after.account_id,
            request_id=after.request_id,
            # All tasks of the account have one turn at their own webhook_url.
            receiver=after.account_id,
            kind=kind,
            url=url,
            created_at=at,
            due_at=at,
            round_at=at,
            snapshot=snapshot,
        )
        for kind in kinds
    )
