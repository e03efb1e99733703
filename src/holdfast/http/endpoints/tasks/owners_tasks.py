"""The calls of tasks by their owner's session, which needs no API key.

A task that is created so has no ``api_key_id``; the limits of the account count for it.
"""

from __future__ import annotations

from holdfast.http.endpoints.tasks.media_tasks import (
    cancel_task,
    create_task,
    delete_results,
    list_tasks,
    read_task,
    retry_task,
)
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import API_KEY_ID, END_USER, METADATA, MODEL, PAGE, STATUS
from holdfast.http.kit.responses import IF_NONE_MATCH, NOT_MODIFIED
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Outcome, RouteTable
from holdfast.http.kit.waiting import PREFER, WAIT
from holdfast.http.schemas.tasks import CreateTaskRequest, TaskBody, TaskBounds, TaskList
from holdfast.http.services.tasks import CREATE_ERRORS

route = RouteTable("Tasks", auth=Auth.SESSION)


@route(
    "POST",
    "/v2/control/tasks",
    is_kept=False,
    summary="Create a task with a session; as with an API key",
    body=CreateTaskRequest,
    takes_input=True,
    reply=TaskBody,
    parameters=(WAIT, PREFER, IDEMPOTENCY_KEY),
    errors=(*CREATE_ERRORS, "quote_expired", "quote_mismatch"),
)
async def create_own_task(call: Call) -> Outcome:
    """It has no `api_key_id`: of limits only those of the account count."""
    return await create_task(call)


@route(
    "GET",
    "/v2/control/tasks",
    summary="List the account's tasks with a session; newest first",
    reply=TaskList,
    parameters=(STATUS, MODEL, API_KEY_ID, END_USER, METADATA, *PAGE),
)
async def list_own_tasks(call: Call) -> Outcome:
    """Tasks of the account, whichever of its keys created them."""
    return await list_tasks(call)


@route(
    "GET",
    "/v2/control/tasks/{request_id}",
    summary="Retrieve a task with a session; the links to its results are signed for this response",
    reply=TaskBody,
    media=(NOT_MODIFIED,),
    parameters=(WAIT, PREFER, IF_NONE_MATCH),
    errors=("task_not_found", "rate_limit_exceeded", "overloaded"),
)
async def read_own_task(call: Call) -> Outcome:
    """It has ended if its status is `succeeded`, `failed` or `canceled`."""
    return await read_task(call)


@route(
    "POST",
    "/v2/control/tasks/{request_id}/retry",
    is_kept=False,
    summary="Retry an ended task with a session: as a new task, at the current price",
    body=TaskBounds,
    reply=TaskBody,
    parameters=(WAIT, PREFER, IDEMPOTENCY_KEY),
    errors=("task_not_found", "task_not_terminal", "task_input_expired", *CREATE_ERRORS),
)
async def retry_own_task(call: Call) -> Outcome:
    """The original does not change; the new task names it in `retry_of`."""
    return await retry_task(call)


@route(
    "POST",
    "/v2/control/tasks/{request_id}/cancel",
    summary="Cancel a task with a session; its whole hold is released",
    reply=TaskBody,
    errors=("task_not_found", "task_already_terminal"),
)
async def cancel_own_task(call: Call) -> Outcome:
    """The first to commit wins, the cancel or the result; the response shows which."""
    return await cancel_task(call)


@route(
    "DELETE",
    "/v2/control/tasks/{request_id}/results",
    summary="Delete the results of an ended task with a session; what it cost stays",
    reply=TaskBody,
    errors=("task_not_found", "task_not_terminal"),
)
async def delete_own_results(call: Call) -> Outcome:
    """Their links stop working at once. Content is removed later, unless another result or file has the same."""
    return await delete_results(call)
