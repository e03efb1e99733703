"""A task as rows: what the journal writes of one, new or changed."""

from __future__ import annotations

import msgspec

from holdfast.ledger.tasks import Task, usage_of
from holdfast.persistence.rows import TaskChangedRow, TaskRow, UsageChangedRow, UsageRow

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


def changed_task_row(task: Task) -> TaskChangedRow:
    """The row of a task after a step."""
    return TaskChangedRow(
        task.account_id,
        task.request_id,
        task.version,
        task.status,
        task.updated_at,
        task.wake_at,
        task.dispatched,
        _json.encode(task.state).decode(),
    )


def changed_usage_row(task: Task) -> UsageChangedRow:
    """The usage entry of a task after its public status changed."""
    usage = usage_of(task)
    return UsageChangedRow(
        usage.account_id,
        usage.request_id,
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
