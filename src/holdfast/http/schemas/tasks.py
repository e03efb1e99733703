"""What task calls take and answer, and the usage log: the interface's fields, all present, null where unset."""

from __future__ import annotations

import msgspec

from holdfast.actors.account.messages import TaskAccepted
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.schemas.common import Input, ModelId
from holdfast.ledger.clock import format_time
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.tasks.public import EstimatedCost, PublicTask, public_task, task_urls
from holdfast.ledger.tasks.task import EventKind, Progress, Task, UsageEntry


class CreateTaskRequest(msgspec.Struct, frozen=True):
    """The task to run. With ``quote_id`` it is charged by that quote's terms.

    ``webhook_events`` chooses what is told to ``webhook_url``; without it that is all but ``task.processing``.
    """

    model: ModelId
    input: Input
    quote_id: str | None = None
    metadata: dict[str, str] | None = None
    webhook_url: str | None = None
    webhook_events: list[EventKind] | None = None


class TaskCreated(msgspec.Struct, frozen=True):
    """A task was accepted and its credit is held."""

    request_id: str
    quote_id: str
    status: str
    retry_of: str | None
    estimated_cost: EstimatedCost
    urls: dict[str, str]


class ProgressBody(msgspec.Struct, frozen=True):
    """One line of what happened while the task ran."""

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


class TaskList(msgspec.Struct, frozen=True):
    """A page of tasks, newest first."""

    data: list[TaskBody]
    next_cursor: str | None


class UsageStatus(msgspec.Struct, frozen=True):
    """One change of a task's status, with what had been charged by then."""

    status: str
    ts: Time
    cost_credits: Amount
    error: str | None


class UsageBody(msgspec.Struct, frozen=True):
    """The usage of one request. ``cost_credits`` is what has been charged so far."""

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


class UsageList(msgspec.Struct, frozen=True):
    """A page of the usage log, newest first."""

    data: list[UsageBody]
    next_cursor: str | None


def task_created(deps: Dependencies, accepted: TaskAccepted) -> TaskCreated:
    """Write that a task was accepted."""
    return TaskCreated(
        request_id=accepted.request_id,
        quote_id=accepted.quote_id,
        status=accepted.status,
        retry_of=accepted.retry_of,
        estimated_cost=EstimatedCost(credits=format_amount(accepted.estimated_micro), basis=accepted.basis),
        urls=task_urls(deps.urls, accepted.request_id),
    )


def task_body(deps: Dependencies, task: Task, *, for_operators: bool = False) -> TaskBody:
    """Write a task, its links signed as of now; operators get them for what is stored before it has succeeded."""
    picture = msgspec.structs.asdict(public_task(deps.urls, task, now=deps.now(), for_operators=for_operators))
    return TaskBody(**picture, provider_progress=[_progress(line) for line in task.state.progress])


def usage_body(entry: UsageEntry) -> UsageBody:
    """Write a line of the usage log."""
    return UsageBody(
        request_id=entry.request_id,
        model=entry.model,
        api_key_id=entry.api_key_id,
        status=entry.status,
        modality=entry.modality,
        ts=format_time(entry.ts),
        billable_units=entry.billable_units,
        tokens_in=entry.tokens_in,
        tokens_out=entry.tokens_out,
        latency_ms=entry.latency_ms,
        cost_credits=format_amount(entry.cost_micro),
        error=entry.error,
        operation_id=entry.operation_id,
        status_history=[
            UsageStatus(
                status=change.status,
                ts=format_time(change.ts),
                cost_credits=format_amount(change.cost_micro),
                error=change.error,
            )
            for change in entry.status_history
        ],
    )


def _progress(line: Progress) -> ProgressBody:
    return ProgressBody(
        ts=format_time(line.ts),
        status=line.status,
        source_ref=line.source_ref,
        percent=line.percent,
        stage=line.stage,
        message=line.message,
        raw_status=line.raw_status,
    )
