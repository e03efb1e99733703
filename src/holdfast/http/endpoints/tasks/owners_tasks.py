"""The calls of tasks by their owner's session, which needs no API key.

A task that is created so has no ``api_key_id``; the limits of the account count for it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast.http.endpoints.tasks import media_tasks
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.routes import RouteTable

route = RouteTable("Tasks", auth=Auth.SESSION)

TASKS: Final = "/v2/control/tasks"
ONE: Final = f"{TASKS}/{{request_id}}"
_mirror: Final = partial(route.mirror, media_tasks.route)

create_own_task = _mirror(
    media_tasks.create_task,
    "create_own_task",
    TASKS,
    "Create a task with a session; as with an API key",
    description="It has no `api_key_id`: of limits only those of the account count.",
)
list_own_tasks = _mirror(
    media_tasks.list_tasks, "list_own_tasks", TASKS, "List the account's tasks with a session; newest first"
)
read_own_task = _mirror(
    media_tasks.read_task,
    "read_own_task",
    ONE,
    "Retrieve a task with a session; the links to its results are signed for this response",
)
retry_own_task = _mirror(
    media_tasks.retry_task,
    "retry_own_task",
    f"{ONE}/retry",
    "Retry an ended task with a session: as a new task, at the current price",
)
cancel_own_task = _mirror(
    media_tasks.cancel_task,
    "cancel_own_task",
    f"{ONE}/cancel",
    "Cancel a task with a session; its whole hold is released",
)
delete_own_results = _mirror(
    media_tasks.delete_results,
    "delete_own_results",
    f"{ONE}/results",
    "Delete the results of an ended task with a session; what it cost stays",
)
