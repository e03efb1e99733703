"""The account's tasks: the list, and one task with its progress, its results, and what may be done with it."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.catalog import list_compatible_models, list_models
from holdfast.http.endpoints.tasks.owners_tasks import (
    cancel_own_task,
    delete_own_results,
    list_own_tasks,
    read_own_task,
    retry_own_task,
)
from holdfast.http.endpoints.tasks.usage_log import list_usage
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.models import CompatibleModelList, ModelDetails, ModelList
from holdfast.http.schemas.tasks import TaskBody
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import TERMINAL
from holdfast_console.account.inputs import link_field
from holdfast_console.forms import Message
from holdfast_console.rendering import Html, Redirect
from holdfast_console.views import ViewResult, ViewTable, Visit

TASKS: Final = "/account/tasks"
ONE: Final = f"{TASKS}/{{request_id}}"

view = ViewTable(Auth.SESSION)


async def model_ids(visit: Visit) -> list[str]:
    """Return the ids of the models that run as tasks."""
    found = await visit.read(list_compatible_models, CompatibleModelList)
    return [] if isinstance(found, Refusal) else [each.id for each in found.data if each.type == "async"]


@view(TASKS)
async def tasks(visit: Visit) -> ViewResult:
    """A page of the tasks, by the filters of the address."""
    values = {"tasks": await visit.read_list(list_own_tasks), "models": await model_ids(visit)}
    return Html("tasks.html", values, is_live=True)


@view(f"{TASKS}.csv")
async def tasks_file(visit: Visit) -> ViewResult:
    """The usage log as a file, for the same filters."""
    names = ("status", "model", "api_key_id", "from", "to")
    return await visit.stream(
        list_usage, query={"format": "csv", **{each: visit.parameter(each) for each in names}}
    )


@view(ONE)
async def task(visit: Visit) -> ViewResult:
    """One task."""
    found = await visit.read(read_own_task, TaskBody, path=visit.path)
    if isinstance(found, Refusal):
        return found
    known: list[ModelDetails] = []
    if found.status == "succeeded":
        models = await visit.read(list_models, ModelList)
        known = [] if isinstance(models, Refusal) else models.data
    values = {
        "task": found,
        "is_ended": found.status in TERMINAL,
        "percent": next((each.percent for each in reversed(found.provider_progress) if each.percent), None),
        "base": visit.call.deps.urls.base,
        "has_results": any(each.url for each in found.output),
        "editors": [each.id for each in known if each.status == "active" and link_field(each.input_schema)],
    }
    return Html("task.html", values, is_live=found.status not in TERMINAL)


@view(f"{ONE}/cancel", method="POST")
async def cancel(visit: Visit) -> ViewResult:
    """Cancel a task."""
    return await visit.act(cancel_own_task, _address(visit), "The task is canceled and costs nothing.")


@view(f"{ONE}/retry", method="POST")
async def retry(visit: Visit) -> ViewResult:
    """Run a task again, as a new one."""
    done = await visit.submit(retry_own_task, TaskBody)
    if isinstance(done, Refusal):
        return done
    return Redirect(f"{TASKS}/{done.request_id}", Message("The same task runs again."))


@view(f"{ONE}/results/delete", method="POST")
async def delete_results(visit: Visit) -> ViewResult:
    """Delete the results of a task."""
    return await visit.act(delete_own_results, _address(visit), "The results are deleted.")


def _address(visit: Visit) -> str:
    return f"{TASKS}/{visit.path['request_id']}"
