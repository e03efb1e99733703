"""The request and response bodies of tasks and of the usage log. Every field is present, null if unset."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.actors.account.messages import TaskAccepted
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import StoredListBody
from holdfast.http.schemas.common import Input, ModelId, render
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.tasks.public import EstimatedCost, PublicTask, public_task, task_urls
from holdfast.ledger.tasks.task import EventKind, Task
from holdfast.persistence.records.rows import UsageEntry


class CreateTaskRequest(msgspec.Struct, frozen=True):
    """The task to run. With ``quote_id`` it is charged at that quote's price.

    ``webhook_events`` chooses the events sent to ``webhook_url``; the default is all but ``task.processing``.
    """

    model: ModelId
    input: Input
    quote_id: str | None = None
    metadata: dict[str, str] | None = None
    webhook_url: str | None = None
    webhook_events: list[EventKind] | None = None


class TaskCreated(msgspec.Struct, frozen=True):
    """A new task, whose credit is held."""

    request_id: str
    quote_id: str
    status: str
    retry_of: str | None
    estimated_cost: EstimatedCost
    urls: dict[str, str]


class ProgressBody(msgspec.Struct, frozen=True):
    """One report of the task's progress."""

    ts: Time
    status: str
    source_ref: str
    percent: int | None
    stage: str | None
    message: str | None
    raw_status: str | None


class TaskBody(PublicTask, frozen=True):
    """A media task. ``usage`` is empty until the task has ended."""

    provider_progress: list[ProgressBody]


class TaskList(StoredListBody[TaskBody], frozen=True):
    """A page of tasks, newest first. ``unreadable``: ids of those that cannot be read now."""


class UsageStatus(msgspec.Struct, frozen=True):
    """One change of a task's status, with the charge so far."""

    status: str
    ts: Time
    cost_credits: Amount
    error: str | None


class UsageBody(msgspec.Struct, frozen=True):
    """The usage of one request. ``cost_credits`` is the charge so far."""

    request_id: str
    model: str
    api_key_id: str | None
    status: str
    modality: str
    ts: Time
    billable_units: int
    tokens_in: int
    tokens_out: int
    latency_ms: int | None
    cost_credits: Amount
    error: str | None
    operation_id: str | None
    status_history: list[UsageStatus]


class UsageList(StoredListBody[UsageBody], frozen=True):
    """A page of the usage log, newest first. ``unreadable``: ids of those that cannot be read now."""


def task_created(deps: Dependencies, accepted: TaskAccepted) -> TaskCreated:
    """Render the acceptance of a task."""
    return TaskCreated(
        request_id=accepted.request_id,
        quote_id=accepted.quote_id,
        status=accepted.status,
        retry_of=accepted.retry_of,
        estimated_cost=EstimatedCost(credits=format_amount(accepted.estimated_micro), basis=accepted.basis),
        urls=task_urls(deps.urls, accepted.request_id),
    )


def task_body(
    deps: Dependencies, task: Task, *, now: datetime | None = None, for_operators: bool = False
) -> TaskBody:
    """Render a task with its links signed as of ``now``, by default the current time.

    ``for_operators`` with links to results before it has succeeded.
    """
    public = public_task(deps.urls, task, now=now or deps.now(), for_operators=for_operators)
    progress = [render(ProgressBody, entry) for entry in task.state.progress]
    return TaskBody(**msgspec.structs.asdict(public), provider_progress=progress)


def usage_body(entry: UsageEntry) -> UsageBody:
    """Render an entry of the usage log."""
    history = [
        render(UsageStatus, change, cost_credits=format_amount(change.cost_micro))
        for change in entry.status_history
    ]
    return render(UsageBody, entry, cost_credits=format_amount(entry.cost_micro), status_history=history)
