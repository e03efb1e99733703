"""Tasks of any account: those that have not ended, those that failed, and one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.actors.task.messages import CancelTask
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import (
    FORMAT,
    MODEL,
    PAGE,
    CsvFile,
    Position,
    StoredListBody,
    TotalledListBody,
    columns_of,
    csv_media,
    filter_by,
    list_for_operators,
)
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.common import render
from holdfast.http.schemas.operators import ActionRequest
from holdfast.http.schemas.tasks import TaskBody, task_body
from holdfast.http.services.tasks import task_not_found
from holdfast.ledger.public_types import AccountId, Amount, FreeForm, Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task, TaskStatus
from holdfast.ledger.values import format_amount, is_id
from holdfast.persistence.queries.newest import list_tasks
from holdfast.persistence.queries.tasks import TaskRow, failed_tasks, stored_task, task_by_id, unfinished_tasks
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.telemetry.traces import trace_id_in

route = OperatorRoutes("Tasks")

D = TypeVar("D", bound="TaskDetails")

AT_PROVIDER: Final = filter_by("provider", "Only tasks at this provider.")
STATUS: Final = filter_by("status", "Only tasks with this status.", ("queued", "processing", "review"))


class TaskDetails(msgspec.Struct, frozen=True):
    """A task as operators see it."""

    account_id: AccountId
    api_key_id: str | None
    """The API key that created the task, `key_…`; null if none is recorded."""
    provider: str
    """The provider that runs it."""
    attempts: int
    """How often it was submitted to its provider."""
    hold_credits: Amount
    """The credit held for it."""
    wake_at: Time | None
    """When the task is looked at next; null once it has ended."""
    task: TaskBody
    """The task as its owner sees it."""


class TaskRecord(TaskDetails, frozen=True):
    """A task with what was asked of whom."""

    input: FreeForm | None
    """The input; null once it was deleted."""
    provider_job_id: str | None
    """The provider's name of the job; null until it has accepted it."""
    webhook_url: str | None
    """Where the task's events are sent; null if nowhere."""
    trace_id: str | None
    """The trace of the request that created it."""
    http_request_id: str | None
    """The `X-Request-Id` of that request; null if it is `req_` and the trace's id."""


class TaskDetailsList(StoredListBody[TaskDetails], frozen=True):
    """A page of tasks."""


@route.read(
    "/ops/api/tasks",
    "List the tasks of all accounts that have not ended; oldest first",
    TaskDetailsList,
    parameters=(AT_PROVIDER, STATUS, *PAGE),
)
async def list_unfinished_tasks(call: Call) -> Outcome:
    """What has waited longest comes first."""
    return await list_for_operators(
        call, unfinished_tasks, partial(_details, call.deps, shape=TaskDetails), position_of_task
    )


@route.read(
    "/ops/api/failed-tasks",
    "List the failed tasks of all accounts; newest first",
    TaskDetailsList,
    parameters=(AT_PROVIDER, *PAGE),
)
async def list_failed_tasks(call: Call) -> Outcome:
    """What was created last comes first."""
    return await list_for_operators(
        call, failed_tasks, partial(_details, call.deps, shape=TaskDetails), position_of_task
    )


class AllTasks(TotalledListBody[TaskDetails], frozen=True):
    """A page of all tasks, with how many there are by status."""


_COLUMNS: Final[Mapping[str, Callable[[Task], str | int | None]]] = {
    **columns_of("request_id", "account_id", "request.api_key_id", "created_at", "status", "model", "provider"),
    "attempts": lambda task: task.state.attempt,
    "held_credits": lambda task: format_amount(task.request.hold_micro),
    "error": lambda task: task.state.error,
}
_ANY_STATUS: Final = filter_by("status", "Only tasks with this status.", get_args(TaskStatus))


@route.read(
    "/ops/api/all-tasks",
    "List all tasks of all accounts with their totals; newest first, or as a CSV file",
    AllTasks,
    parameters=(_ANY_STATUS, MODEL, AT_PROVIDER, *PAGE, FORMAT),
    media=(csv_media(_COLUMNS),),
)
async def list_all_tasks(call: Call) -> Outcome:
    """With a filter a page reads 20,000 tasks at most, so it may have fewer entries than others follow."""
    return await list_for_operators(
        call,
        list_tasks,
        partial(_details, call.deps, shape=TaskDetails),
        position_of_task,
        file=CsvFile("tasks.csv", _COLUMNS),
        totals="tasks",
    )


def position_of_task(task: Task) -> Position:
    """Return a task's position in a list of tasks."""
    return Position(task.created_at, task.request_id)


_of_task: Final = route.below("/ops/api/tasks/{request_id}", errors=("task_not_found",))


@_of_task.read("", "Retrieve a task of any account", TaskRecord, errors=("record_unreadable",))
async def read_task_details(call: Call) -> Outcome:
    """The task may have ended or not; its results can be fetched before it has succeeded."""
    task_id = call.path["request_id"]
    found = await call.deps.find_by_id(task_by_id, task_id)
    if found is None:
        return task_not_found(task_id)
    return _details(
        call.deps,
        found,
        TaskRecord,
        input=input_of(found),
        provider_job_id=found.state.provider_ref,
        trace_id=trace_id_in(found.request.traceparent),
    )


@_of_task.read("/row", "Retrieve what is stored of a task, also if it cannot be read as a task", TaskRow)
async def read_task_row(call: Call) -> Outcome:
    """Shows an operator the row that must be repaired."""
    task_id = call.path["request_id"]

    def read(rows: Connection) -> TaskRow | None:
        fault = None
        try:
            task_by_id(rows, task_id)
        except UnreadableRow as unreadable:
            fault = str(unreadable)
        return stored_task(rows, task_id, fault)

    return await call.deps.database.read(read) or task_not_found(task_id)


@_of_task.action("/cancel", "Cancel a task of any account", name="cancel_task", errors=("task_already_terminal",))
async def cancel_any_task(run: ActionRun, _: ActionRequest, request_id: str) -> TaskDetails | Refusal:
    """As its owner may: what it has cost by then is charged."""
    if not is_id(request_id):
        return task_not_found(request_id)
    done = await run.ask(run.deps.tasks.ref(request_id), CancelTask())
    return done if isinstance(done, Refusal) else _details(run.deps, done.task, TaskDetails)


def input_of(task: Task) -> FreeForm | None:
    """Return a task's input; None once it was deleted."""
    return None if task.request.input_dropped else task.request.input


def _details(deps: Dependencies, task: Task, shape: type[D], **fields: object) -> D:
    return render(
        shape,
        task,
        task.request,
        attempts=task.state.attempt,
        hold_credits=format_amount(task.request.hold_micro),
        task=task_body(deps, task, for_operators=True),
        **fields,
    )
