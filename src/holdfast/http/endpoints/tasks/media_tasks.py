"""Media tasks: create, list, read, retry, cancel."""

from __future__ import annotations

import functools
from datetime import datetime

import msgspec
import trio

from holdfast.actors.runtime.messages import IdempotencyKey
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import API_KEY_ID, END_USER, METADATA, MODEL, PAGE, STATUS, Position, list_of_account
from holdfast.http.kit.responses import IF_NONE_MATCH, NOT_MODIFIED, JsonResponse, cacheable
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Outcome, RouteTable
from holdfast.http.kit.waiting import PREFER, WAIT, encoded_event, read_wait
from holdfast.http.schemas.tasks import CreateTaskRequest, TaskBody, TaskBounds, TaskList, task_body
from holdfast.http.services.tasks import (
    CREATE_ERRORS,
    canceled_task,
    created_task,
    end_of_created,
    ended_task,
    own_task,
    retried_task,
    without_results,
)
from holdfast.ledger.api_keys import TASKS_READ, TASKS_WRITE
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.tasks import newest_tasks, tasks_of_account

route = RouteTable("Tasks", auth=Auth.API_KEY)


@route(
    "POST",
    "/v2/task/create",
    is_kept=False,
    summary="Create a task; its credit is held and the work starts",
    scope=TASKS_WRITE,
    body=CreateTaskRequest,
    takes_input=True,
    reply=TaskBody,
    parameters=(WAIT, PREFER, IDEMPOTENCY_KEY),
    errors=(*CREATE_ERRORS, "quote_expired", "quote_mismatch"),
)
async def create_task(call: Call) -> Outcome:
    """The response comes once the task and its hold are stored, before it runs; with `wait` once it has ended.

    A wait needs the scope `tasks:read`: without it, or with too many waits, the response comes at once. However the
    wait ends, the task runs on. It can be read later, followed by its stream, or have its events sent to
    `webhook_url`.
    """
    sent = _sent(call)
    if isinstance(sent, Refusal):
        return await call.refuse_authenticated(sent)
    return await _created(
        call, await created_task(call, call.body(CreateTaskRequest), sent.idempotency), sent.until
    )


class _Sent(msgspec.Struct, frozen=True):
    """What a create was sent with: its key, and until when (trio's time) it waits for the end; None: not at all."""

    idempotency: IdempotencyKey | None
    until: float | None


def _sent(call: Call) -> _Sent | Refusal:
    wait_s = read_wait(call.query().get("wait", []), call.request.sent.get(b"prefer", []))
    idempotency = call.idempotency()
    if isinstance(idempotency, Refusal):
        return idempotency
    if isinstance(wait_s, Refusal):
        return wait_s
    return _Sent(idempotency, trio.current_time() + wait_s if wait_s else None)


async def _created(call: Call, task: Task | Refusal, until: float | None) -> Outcome:
    """Respond with a task that was created: as it was then, or after a wait as it is."""
    if isinstance(task, Refusal):
        return task
    created, request_id = task_body(call.deps, task, now=task.created_at), task.request_id
    if until is None:
        return _response_and_event(call, task, created)
    del task  # its input may have megabytes
    call.drop_body()
    found = await end_of_created(call, request_id, until)
    return created if found is None else task_body(call.deps, found)


def _response_and_event(call: Call, task: Task, created: TaskBody) -> Outcome:
    """Respond with a new task. The streams of its account send the same bytes, unless it has changed since."""
    kept = call.deps.following.changes.kept(task.account_id, task.request_id)
    if kept is None or not isinstance(kept.value, Task) or kept.value.version != task.version:
        return created
    response = JsonResponse(created)
    kept.event = encoded_event("task", response.encoded)
    return response


@route(
    "GET",
    "/v2/task/list",
    summary="List the account's tasks; newest first",
    scope=TASKS_READ,
    reply=TaskList,
    parameters=(STATUS, MODEL, API_KEY_ID, END_USER, METADATA, *PAGE),
)
async def list_tasks(call: Call) -> Outcome:
    """Tasks of the account, whichever of its keys created them."""
    return await list_of_account(
        call,
        tasks_of_account,
        functools.partial(task_body, call.deps, now=call.deps.now()),
        lambda task: Position(task.created_at, task.request_id),
        newest=newest_tasks,
    )


@route(
    "GET",
    "/v2/task/{request_id}",
    summary="Retrieve a task; the links to its results are signed for this response",
    scope=TASKS_READ,
    reply=TaskBody,
    media=(NOT_MODIFIED,),
    parameters=(WAIT, PREFER, IF_NONE_MATCH),
    errors=("task_not_found", "rate_limit_exceeded", "overloaded"),
)
async def read_task(call: Call) -> Outcome:
    """It has ended if its status is `succeeded`, `failed` or `canceled`."""
    wait_s = read_wait(call.query().get("wait", []), call.request.sent.get(b"prefer", []))
    if isinstance(wait_s, Refusal):
        return wait_s
    task = await (ended_task(call, call.path["request_id"], wait_s) if wait_s else own_task(call))
    if isinstance(task, Refusal):
        return task
    now = call.deps.now()
    return cacheable(call, _entity_tag(call.deps, task, now), lambda: task_body(call.deps, task, now=now))


def _entity_tag(deps: Dependencies, task: Task, now: datetime) -> str:
    """Return what changes with each version, and so often that the links of a cached response still work."""
    links = [0, 0]
    if task.status == "succeeded" and task.state.output:
        links[0] = int(now.timestamp() // (deps.urls.link_ttl_s / 2))
        links[1] = sum(each.expires_at is not None and each.expires_at > now for each in task.state.output)
    return f"{task.version}.{links[0]}.{links[1]}"


@route(
    "POST",
    "/v2/task/{request_id}/retry",
    is_kept=False,
    summary="Retry an ended task: as a new task, at the current price",
    scope=TASKS_WRITE,
    body=TaskBounds,
    reply=TaskBody,
    parameters=(WAIT, PREFER, IDEMPOTENCY_KEY),
    errors=("task_not_found", "task_not_terminal", "task_input_expired", *CREATE_ERRORS),
)
async def retry_task(call: Call) -> Outcome:
    """The original does not change; the new task names it in `retry_of`. A `wait` is as that of a create."""
    sent = _sent(call)
    if isinstance(sent, Refusal):
        return await call.refuse_authenticated(sent)
    return await _created(call, await retried_task(call, call.body(TaskBounds), sent.idempotency), sent.until)


@route(
    "POST",
    "/v2/task/{request_id}/cancel",
    summary="Cancel a task; its whole hold is released",
    scope=TASKS_WRITE,
    reply=TaskBody,
    errors=("task_not_found", "task_already_terminal"),
)
async def cancel_task(call: Call) -> Outcome:
    """The first to commit wins, the cancel or the result; the response shows which."""
    task = await canceled_task(call)
    return task if isinstance(task, Refusal) else task_body(call.deps, task)


@route(
    "DELETE",
    "/v2/task/{request_id}/results",
    summary="Delete the results of an ended task; what it cost stays",
    scope=TASKS_WRITE,
    reply=TaskBody,
    errors=("task_not_found", "task_not_terminal"),
)
async def delete_results(call: Call) -> Outcome:
    """Their links stop working at once. Content is removed later, unless another result or file has the same."""
    task = await without_results(call)
    return task if isinstance(task, Refusal) else task_body(call.deps, task)
