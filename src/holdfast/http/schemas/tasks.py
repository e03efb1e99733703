"""The request and response bodies of tasks and of the usage log. Every field is present, null if unset."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import StoredListBody
from holdfast.http.schemas.common import AmountGiven, Input, ModelId, render
from holdfast.ledger.catalog.models import Modality
from holdfast.ledger.public_types import Amount, TaskId, Time
from holdfast.ledger.tasks.public import PublicTask, public_task
from holdfast.ledger.tasks.task import EventKind, ProgressStatus, Stage, Task, TaskStatus
from holdfast.ledger.values import format_amount, format_time
from holdfast.persistence.records.rows import UsageEntry

DEADLINE_MAX_S: Final = 7 * 24 * 3600

DeadlineGiven: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=DEADLINE_MAX_S, examples=[120])]


class TaskBounds(msgspec.Struct, frozen=True):
    """What the task may cost, and how long it may take."""

    max_credits: AmountGiven | None = None
    """The most credit that may be held for the task, which is the most that it can cost; null or omitted: any."""
    deadline_s: DeadlineGiven | None = None
    """How many seconds after its creation the task is canceled if it has not ended; null or omitted: never."""


class CreateTaskRequest(msgspec.Struct, frozen=True):
    """The task to run."""

    model: ModelId
    """The model to run."""
    input: Input
    """What to make, an object that fits the model's `input_schema`."""
    quote_id: str | None = None
    """The quote to be charged by, `quo_…`; null or omitted: by the current price."""
    metadata: dict[str, str] | None = None
    """Up to 16 texts of your own, returned with the task: names of 1 to 64 characters, texts of up to 512; null or
    omitted: none. Usage is also summed by the text `end_user`."""
    webhook_url: str | None = None
    """Where to send the task's events: https with a public host, in development also another; null or omitted:
    nowhere."""
    webhook_events: list[EventKind] | None = None
    """The events to send; null or omitted: all but `task.processing`."""
    max_credits: AmountGiven | None = None
    """The most credit that may be held for the task, which is the most that it can cost; null or omitted: any."""
    deadline_s: DeadlineGiven | None = None
    """How many seconds after its creation the task is canceled if it has not ended; null or omitted: never."""


class WantedTask(NamedTuple):
    """A request as the native endpoint takes it, and what the caller called the fields of its input."""

    request: CreateTaskRequest
    sent_as: Mapping[str, str]


class ProgressBody(msgspec.Struct, frozen=True):
    """One report of the task's progress."""

    ts: Time
    """When it was recorded."""
    status: ProgressStatus
    """The task's status by this report; `late` and `stale` reports changed nothing."""
    source_ref: str
    """Where it is from: `callback:<event>`, `poll:<number>` or `system:<what>`."""
    percent: int | None
    """The highest percentage reported so far, 0 to 100; null if none was."""
    stage: Stage | None
    """The part of the work; null if it is not known."""
    message: str | None
    """The report in words; null without any."""
    raw_status: str | None
    """The provider's own status; null if the report is not from a provider."""


class TaskBody(PublicTask, frozen=True):
    """A media task."""

    provider_progress: list[ProgressBody]
    """The reports of the task's progress, oldest first."""


class TaskList(StoredListBody[TaskBody], frozen=True):
    """A page of tasks, newest first."""


class UsageStatus(msgspec.Struct, frozen=True):
    """One change of a task's status, with the charge so far."""

    status: TaskStatus
    """The task's status after the change."""
    ts: Time
    """When the status changed."""
    cost_credits: Amount
    """The charge so far."""
    error: str | None
    """Why the task failed, `code: text`; null if it did not."""


class UsageBody(msgspec.Struct, frozen=True):
    """The usage of one task."""

    request_id: TaskId
    model: str
    """The id of the model."""
    api_key_id: str | None
    """The API key that created the task, `key_…`; null if none is recorded."""
    status: TaskStatus
    """The task's status."""
    modality: Modality
    """What the model makes."""
    ts: Time
    """When the task was created."""
    billable_units: int
    """Units charged, such as images or seconds; 0 before the task has ended."""
    tokens_in: int
    """Input tokens charged; 0 for a model that is not priced by tokens."""
    tokens_out: int
    """Output tokens charged; 0 for a model that is not priced by tokens."""
    latency_ms: int | None
    """From the task's creation to its end, in milliseconds; null before that."""
    cost_credits: Amount
    """The charge so far."""
    error: str | None
    """Why the task failed, `code: text`; null if it did not."""
    operation_id: str | None
    """The ledger operation that ended the hold, `op_…`; null before that."""
    end_user: str | None
    """The text `end_user` of the task's `metadata`; null without it."""
    status_history: list[UsageStatus]
    """Every change of the status, oldest first."""


class UsageList(StoredListBody[UsageBody], frozen=True):
    """A page of the usage log, newest first."""


def task_body(
    deps: Dependencies, task: Task, *, now: datetime | None = None, for_operators: bool = False
) -> TaskBody:
    """Render a task with its links signed as of ``now``, by default the current time.

    Results of a task that has not succeeded have links only ``for_operators``.
    """
    progress = [
        ProgressBody(format_time(ts), *rest) for ts, *rest in map(msgspec.structs.astuple, task.state.progress)
    ]
    return public_task(
        TaskBody,
        deps.urls,
        task,
        progress,
        now=now or deps.now(),
        for_operators=for_operators,
    )


def usage_body(entry: UsageEntry) -> UsageBody:
    """Render an entry of the usage log."""
    history = [
        render(UsageStatus, change, cost_credits=format_amount(change.cost_micro))
        for change in entry.status_history
    ]
    return render(UsageBody, entry, cost_credits=format_amount(entry.cost_micro), status_history=history)
