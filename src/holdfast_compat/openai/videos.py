"""Videos for OpenAI's clients: a task of a video model is created, polled, fetched, listed and canceled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

from holdfast.actors.task.messages import CancelTask
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import LIMIT, Position, read_window
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, BodyResponse, Outcome, Parameter, RouteTable
from holdfast.http.kit.stored_content import RANGE, content_media
from holdfast.http.kit.uploads import receive_form
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.services.tasks import own_task, task_not_found
from holdfast.ledger.api_keys import TASKS_READ, TASKS_WRITE
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.tasks import tasks_of_models, texts_of_inputs
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast_compat.model_words import text_field_of
from holdfast_compat.openai.creating import (
    LAYER_ERRORS,
    RETRY_COUNT,
    accept,
    created_task,
    own_fields,
    task_headers,
)
from holdfast_compat.openai.inputs import FILES_MAX, stored_names
from holdfast_compat.openai.results import AT_PROVIDER, file_of
from holdfast_compat.openai.schemas import VideoBody, VideoDeleted, VideoList, VideoRequest, video_body

route = RouteTable("OpenAI", auth=Auth.API_KEY)

POLL_AFTER_MS: Final = 1_000
POLL_AFTER: Final = "openai-poll-after-ms"


@route(
    "POST",
    "/v1/videos",
    is_kept=False,
    summary="Create a video; its credit is held and the work starts",
    scope=TASKS_WRITE,
    body=VideoRequest,
    other_fields_are_input=True,
    takes_input=True,
    files_max=FILES_MAX,
    form_files={"input_reference": "An image, if the model takes one."},
    form=VideoRequest,
    reply=VideoBody,
    parameters=(RETRY_COUNT, IDEMPOTENCY_KEY),
    errors=(*LAYER_ERRORS, "task_not_found"),
)
async def create_video(call: Call) -> Outcome:
    """A form, as the clients send it, or JSON. The form's files are stored until the task has ended."""
    if not call.raw:
        refusal = await receive_form(call, partial(stored_names, call.deps.registry.catalog))
        if refusal is not None:
            return refusal
    wanted = call.body(VideoRequest)
    request_id = await accept(call, wanted.model, "video", own_fields(call, "model"))
    if isinstance(request_id, Refusal):
        return request_id
    task = await created_task(call, request_id)
    if isinstance(task, Refusal):
        return task
    return _response(video_body(task, wanted.prompt))


@route(
    "GET",
    "/v1/videos/{video_id}",
    summary="Retrieve a video",
    scope=TASKS_READ,
    reply=VideoBody,
    errors=("task_not_found",),
)
async def read_video(call: Call) -> Outcome:
    """The header ``openai-poll-after-ms`` says when to ask again."""
    task = await _own_video(call)
    if isinstance(task, Refusal):
        return task
    prompts = await _prompts(call, [task])
    return _response(video_body(task, prompts.get(task.request_id)))


@route(
    "GET",
    "/v1/videos/{video_id}/content",
    summary="Retrieve the file of a video",
    scope=TASKS_READ,
    media=(*content_media(), AT_PROVIDER),
    parameters=(
        Parameter("variant", "query", "Only `video`.", schema={"type": "string", "enum": ["video"]}),
        RANGE,
    ),
    errors=("task_not_found", "task_not_ended", "task_failed", "asset_expired", "range_not_satisfiable"),
)
async def fetch_video(call: Call) -> Outcome:
    """The file has the type that the model makes."""
    variant = call.query().get("variant", ["video"])
    if variant != ["video"]:
        return await call.refuse_authenticated(invalid_parameter("variant", "must be video", variant[0]))
    task = await _own_video(call)
    if isinstance(task, Refusal):
        return task
    if not task.is_terminal:
        return Refusal(code="task_not_ended", message=f"The video {task.request_id} is not ready.", final=True)
    if task.status != "succeeded":
        return Refusal(code="task_failed", message=f"There is no video {task.request_id}: it {task.status}.")
    return await file_of(call, task)


@route(
    "GET",
    "/v1/videos",
    summary="List the account's videos",
    scope=TASKS_READ,
    reply=VideoList,
    parameters=(
        Parameter("after", "query", "`last_id` of the previous page."),
        LIMIT,
        Parameter(
            "order",
            "query",
            "By the time of creation.",
            schema={"type": "string", "enum": ["asc", "desc"], "default": "desc"},
        ),
    ),
    errors=("task_not_found",),
)
async def list_videos(call: Call) -> Outcome:
    """The tasks of the catalog's video models."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    after: Position | None = None
    if "after" in window.filters:
        found = await own_task(call, window.filters["after"])
        if isinstance(found, Refusal):
            return found
        after = Position(found.created_at, found.request_id)
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    models = [each.id for each in call.deps.registry.catalog.models.values() if each.modality == "video"]
    page: Sequence[Task | UnreadableEntry] = await call.read(
        lambda rows: tasks_of_models(
            rows,
            account_id,
            models,
            oldest_first=window.filters.get("order") == "asc",
            limit=window.limit + 1,
            after=after,
        )
    )
    videos = [each for each in page[: window.limit] if isinstance(each, Task)]
    prompts = await _prompts(call, videos)
    data = [video_body(each, prompts.get(each.request_id)) for each in videos]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return VideoList("list", data, first, last, has_more=len(page) > window.limit)


@route(
    "DELETE",
    "/v1/videos/{video_id}",
    summary="Cancel a video that is not ready, and release its hold",
    scope=TASKS_WRITE,
    reply=VideoDeleted,
    errors=("task_not_found", "task_already_terminal"),
)
async def delete_video(call: Call) -> Outcome:
    """Files of videos that are ready are deleted after their retention, and not before."""
    task = await _own_video(call)
    if isinstance(task, Refusal):
        return task
    done = await call.ask(call.deps.tasks.ref(task.request_id), CancelTask())
    return done if isinstance(done, Refusal) else VideoDeleted(task.request_id, "video.deleted", deleted=True)


async def _own_video(call: Call) -> Task | Refusal:
    task = await own_task(call, call.path["video_id"])
    if isinstance(task, Refusal):
        return task
    return task if task.request.terms.modality == "video" else task_not_found(task.request_id)


async def _prompts(call: Call, videos: Sequence[Task]) -> dict[str, str | None]:
    """Return the prompts of videos as their inputs have them, by their ids."""
    models = call.deps.registry.catalog.models
    by_field: dict[str, list[str]] = defaultdict(list)
    for each in videos:
        model = models.get(each.model)
        by_field[(model and text_field_of(model)) or "prompt"].append(each.request_id)
    found: dict[str, str | None] = {}
    for field, request_ids in by_field.items():
        found |= await call.read(partial(texts_of_inputs, field=field, request_ids=request_ids))
    return found


def _response(body: VideoBody) -> BodyResponse:
    headers = task_headers(body.id)
    if body.status in {"queued", "in_progress"}:
        headers = (*headers, (POLL_AFTER, str(POLL_AFTER_MS)))
    return BodyResponse(body, headers=headers)
