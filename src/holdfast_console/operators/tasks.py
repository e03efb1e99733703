"""Tasks of any account: lists, one of them, reviews, and events whose delivery fails."""

from __future__ import annotations

from holdfast.http.endpoints.operators.actors import read_actor
from holdfast.http.endpoints.operators.reviews import ReviewRecord, list_reviews, read_review
from holdfast.http.endpoints.operators.tasks import (
    TaskRecord,
    list_all_tasks,
    list_failed_tasks,
    list_unfinished_tasks,
    read_task_details,
    read_task_row,
)
from holdfast.http.endpoints.operators.time_lines import read_task_time_line
from holdfast.http.endpoints.operators.webhooks import list_failed_events, summarise_webhooks
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.errors import UNREADABLE
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.events import WebhookSummary
from holdfast.persistence.queries.tasks import TaskRow
from holdfast.supervision.control.messages import KeyDescription
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)


@view("/ops/tasks")
async def tasks(visit: Visit) -> ViewResult:
    """The tasks that have not ended, oldest first."""
    return Html("tasks.html", {"tasks": await visit.read_list(list_unfinished_tasks)}, is_live=True)


@view("/ops/all-tasks")
async def all_tasks(visit: Visit) -> ViewResult:
    """The tasks of every status, newest first; they are counted, so the page is not renewed by itself."""
    return Html("all_tasks.html", {"tasks": await visit.read_list(list_all_tasks)})


@view("/ops/failed-tasks")
async def failed(visit: Visit) -> ViewResult:
    """The tasks that failed, newest first."""
    return Html("failed_tasks.html", {"tasks": await visit.read_list(list_failed_tasks)}, is_live=True)


@view("/ops/tasks/{request_id}")
async def task(visit: Visit) -> ViewResult:
    """One task."""
    task_id = visit.path["request_id"]
    found = await visit.read(read_task_details, TaskRecord, path=visit.path)
    if isinstance(found, Refusal) and found.code == "task_not_found":
        return found
    row = None
    if isinstance(found, Refusal) and found.code == UNREADABLE.code:
        row = await visit.read(read_task_row, TaskRow, path=visit.path)
    values = {
        "details": found,
        "row": row,
        "task_id": task_id,
        "actor": await visit.read(read_actor, KeyDescription, path={"group": "tasks", "key": task_id}),
        "time_line": await visit.read_list(read_task_time_line),
    }
    return Html("task.html", values, is_live=True)


@view("/ops/reviews")
async def reviews(visit: Visit) -> ViewResult:
    """The open reviews, oldest first."""
    return Html("reviews.html", {"reviews": await visit.read_list(list_reviews)}, is_live=True)


@view("/ops/reviews/{review_case_id}")
async def review(visit: Visit) -> ViewResult:
    """One review."""
    found = await visit.read(read_review, ReviewRecord, path=visit.path)
    return found if isinstance(found, Refusal) else Html("review.html", {"review": found}, is_live=True)


@view("/ops/webhooks")
async def failed_webhooks(visit: Visit) -> ViewResult:
    """The events that the filters select, newest first."""
    values = {
        "events": await visit.read_list(list_failed_events),
        "summary": await visit.read(summarise_webhooks, WebhookSummary),
    }
    return Html("webhooks.html", values, is_live=True)
