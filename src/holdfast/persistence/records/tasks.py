"""Rows of tasks, their usage entries, their stored outputs and the callbacks received for them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.ledger.tasks.inputs import input_until
from holdfast.ledger.tasks.task import StatusEntry, Task, TaskRequest, TaskState
from holdfast.persistence.records import tables
from holdfast.persistence.records.mapping import attributes_of, fields_of, selected
from holdfast.persistence.records.row_types import AssetRow, TaskEventRow, UsageEntry

OCCUPIES = "t.status <> 'review' and coalesce(t.state -> 'hosting' ->> 'status', 'pending') = 'pending'"
"""SQL: whether the job of a dispatched task ``t`` may still be running at its provider."""


class TaskChangedRow(msgspec.Struct, frozen=True, tag=True):
    """A task after a transition made by the process ``owner``."""

    task: Task
    owner: str | None = None

    @property
    def input_until(self) -> datetime | None:
        """When the large input of an ended task expires."""
        return input_until(self.task)


class TaskRequestRow(msgspec.Struct, frozen=True, tag=True):
    """What was requested of a task, without its input."""

    request_id: str
    request: TaskRequest


class UsageChangedRow(msgspec.Struct, frozen=True, tag=True):
    """The usage entry of a task after its public status changed."""

    task: Task


class AssetsExpiryRow(msgspec.Struct, frozen=True, tag=True):
    """The new expiry of all assets of a task."""

    account_id: str
    request_id: str
    expires_at: datetime


class AssetsDeletedRow(msgspec.Struct, frozen=True, tag=True):
    """The deletion of all assets of a task."""

    account_id: str
    request_id: str


TASKS = attributes_of(tables.tasks, Task, Task.__struct_fields__)
# Found by its id alone: with the account, the plan might read all of its tasks.
CHANGED_TASKS = attributes_of(
    tables.tasks,
    TaskChangedRow,
    [
        "task.request_id", "task.version", "task.status", "task.updated_at", "task.wake_at", "task.dispatched",
        "task.state", "owner", "input_until",
    ],
)  # fmt: skip
CHANGED_REQUESTS = fields_of(tables.tasks, TaskRequestRow)
TASK_EVENTS = fields_of(tables.task_events, TaskEventRow)
_USAGE_CHANGES = (
    "account_id", "request_id", "status", "latency_ms", "state.billable_units", "state.tokens_in",
    "state.tokens_out", "state.cost_micro", "state.error", "state.operation_id", "state.status_history",
)  # fmt: skip
USAGE_ENTRIES = attributes_of(
    tables.usage_entries,
    Task,
    (*_USAGE_CHANGES, "model", "request.terms.modality", "request.api_key_id"),
    ts="created_at",
)
CHANGED_USAGE_ENTRIES = attributes_of(
    tables.usage_entries, UsageChangedRow, (f"task.{path}" for path in _USAGE_CHANGES), ts="task.created_at"
)
ASSETS = fields_of(tables.assets, AssetRow)
ASSET_EXPIRIES = fields_of(tables.assets, AssetsExpiryRow)
DELETED_ASSETS = fields_of(tables.assets, AssetsDeletedRow)

TASK = selected(tables.tasks, TASKS.columns)
USAGE_ENTRY = selected(tables.usage_entries, USAGE_ENTRIES.columns)
ASSET = selected(tables.assets, ASSETS.columns)

_REQUEST = msgspec.json.Decoder(TaskRequest)
_STATE = msgspec.json.Decoder(TaskState)
_HISTORY = msgspec.json.Decoder(tuple[StatusEntry, ...])


def task_of(row: Any) -> Task:
    """Return the task of a row of :data:`TASK`."""
    columns = row._asdict()
    columns["request"] = _REQUEST.decode(columns["request"])
    columns["state"] = _STATE.decode(columns["state"])
    return Task(**columns)


def usage_entry_of(row: Any) -> UsageEntry:
    """Return the usage entry of a row of :data:`USAGE_ENTRY`."""
    columns = row._asdict()
    columns["status_history"] = _HISTORY.decode(columns["status_history"])
    return UsageEntry(**columns)


def new_asset_rows(before: Task, after: Task) -> tuple[AssetRow, ...]:
    """Return the rows of the assets that a step added to the task's output."""
    known = {item.asset_id for item in before.state.output}
    rows = []
    for item in after.state.output:
        if item.asset_id is None or item.asset_id in known:
            continue
        assert item.sha256 is not None
        assert item.bytes is not None
        assert item.content_type is not None
        assert item.expires_at is not None
        rows.append(
            AssetRow(
                after.account_id,
                after.request_id,
                item.index,
                item.asset_id,
                item.sha256,
                item.bytes,
                item.content_type,
                after.updated_at,
                item.expires_at,
            )
        )
    return tuple(rows)


def ended_assets_row(task: Task) -> AssetsExpiryRow | AssetsDeletedRow:
    """Return what happens to the assets that an ended task had stored: a new expiry, or their deletion."""
    expiries = [item.expires_at for item in task.state.output if item.expires_at is not None]
    if task.status == "succeeded" and expiries:
        # Their retention begins with the end of the task: a review may have taken longer than the retention.
        return AssetsExpiryRow(task.account_id, task.request_id, max(expiries))
    # Without a row the asset sweeper deletes the content.
    return AssetsDeletedRow(task.account_id, task.request_id)
