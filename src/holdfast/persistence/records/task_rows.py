"""A task as rows: what the journal writes of one, new or changed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.ledger.ids import new_id
from holdfast.ledger.tasks.events import events_of, public_snapshot
from holdfast.ledger.tasks.inputs import input_until
from holdfast.ledger.tasks.task import Task, usage_of
from holdfast.ledger.tasks.transitions import HostedOutput, HostingFailure
from holdfast.persistence.records.outbox_rows import OutboxRow
from holdfast.persistence.records.rows import (
    AssetRow,
    AssetsDeletedRow,
    AssetsExpiryRow,
    TaskChangedRow,
    TaskRequestRow,
    TaskRow,
    UsageChangedRow,
    UsageRow,
)

_json = msgspec.json.Encoder()


def new_task_rows(task: Task) -> tuple[TaskRow, UsageRow]:
    """The rows of a task as it is accepted."""
    usage = usage_of(task)
    return (
        TaskRow(
            task.account_id,
            task.request_id,
            task.version,
            task.status,
            task.model,
            task.provider,
            task.created_at,
            task.updated_at,
            task.wake_at,
            task.dispatched,
            _json.encode(task.request).decode(),
            _json.encode(task.state).decode(),
        ),
        UsageRow(
            usage.account_id,
            usage.request_id,
            usage.ts,
            usage.model,
            usage.modality,
            usage.api_key_id,
            usage.status,
            usage.billable_units,
            usage.tokens_in,
            usage.tokens_out,
            usage.latency_ms,
            usage.cost_micro,
            usage.error,
            usage.operation_id,
            _json.encode(usage.status_history).decode(),
        ),
    )


def changed_task_row(task: Task, owner: str | None = None) -> TaskChangedRow:
    """The row of a task after a step that the process ``owner`` took."""
    return TaskChangedRow(
        task.request_id,
        task.version,
        task.status,
        task.updated_at,
        task.wake_at,
        task.dispatched,
        _json.encode(task.state).decode(),
        owner,
        input_until(task),
    )


def changed_request_row(task: Task) -> TaskRequestRow:
    """The row of a task whose input was dropped."""
    return TaskRequestRow(task.request_id, _json.encode(task.request).decode())


def changed_usage_row(task: Task) -> UsageChangedRow:
    """The usage entry of a task after its public status changed."""
    usage = usage_of(task)
    return UsageChangedRow(
        usage.account_id,
        usage.request_id,
        usage.ts,
        usage.status,
        usage.billable_units,
        usage.tokens_in,
        usage.tokens_out,
        usage.latency_ms,
        usage.cost_micro,
        usage.error,
        usage.operation_id,
        _json.encode(usage.status_history).decode(),
    )


def new_event_rows(before: Task, after: Task) -> tuple[OutboxRow, ...]:
    """The events that a step announces, due at once. Their ids are fixed here, for every delivery to come."""
    kinds = events_of(before, after)
    if not kinds:
        return ()
    url, at = after.request.webhook_url, after.updated_at
    assert url is not None
    snapshot = _json.encode(public_snapshot(after)).decode()
    return tuple(
        OutboxRow(
            account_id=after.account_id,
            event_id=new_id("evt"),
            request_id=after.request_id,
            kind=kind,
            url=url,
            created_at=at,
            due_at=at,
            status="pending",
            attempts=0,
            round_at=at,
            tries=0,
            snapshot=snapshot,
        )
        for kind in kinds
    )


def new_asset_rows(
    before: Task, after: Task, results: Iterable[HostedOutput | HostingFailure]
) -> tuple[AssetRow, ...]:
    """The rows of the assets that a step took from the results of a hosting round."""
    known = {item.asset_id for item in before.state.output}
    stored = {item.asset_id: item for item in after.state.output if item.asset_id not in known}
    return tuple(
        AssetRow(
            after.account_id,
            after.request_id,
            result.position,
            result.asset_id,
            result.sha256,
            result.bytes,
            result.content_type,
            after.updated_at,
            stored[result.asset_id].expires_at or result.expires_at,
        )
        for result in results
        if isinstance(result, HostedOutput) and result.asset_id in stored
    )


def ended_assets_row(task: Task) -> AssetsExpiryRow | AssetsDeletedRow:
    """What becomes of the assets that an ended task had stored before it ended."""
    expiries = [item.expires_at for item in task.state.output if item.expires_at is not None]
    if task.status == "succeeded" and expiries:
        # Their retention begins with the delivery: a review may have taken longer than it.
        return AssetsExpiryRow(task.account_id, task.request_id, max(expiries))
    # Without a row the sweeper removes the content.
    return AssetsDeletedRow(task.account_id, task.request_id)
