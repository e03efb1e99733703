"""Videos for OpenAI's clients: a task of a video model is created, polled, fetched, listed and canceled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec

from holdfast.actors.task.messages import CancelTask
from holdfast.http.endpoints.tasks.media_tasks import own_task, task_not_found
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import TASKS_READ, TASKS_WRITE
from holdfast.http.kit.listing import LIMIT, LIMIT_DEFAULT, LIMIT_MAX, Position
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, BodyResponse, Media, Outcome, Parameter, RouteTable
from holdfast.http.kit.stored_content import CONTENT_TYPES
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.openai.creating import LAYER_ERRORS, RETRY_COUNT, accept, created_task, own_fields, task_headers
from holdfast.http.openai.results import file_of
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.tasks import tasks_of_models
from holdfast.persistence.records.unreadable import UnreadableEntry

route = RouteTable("OpenAI's clients")

POLL_AFTER_MS: Final = 1_000
POLL_AFTER: Final = "openai-poll-after-ms"


class VideoRequest(msgspec.Struct, frozen=True):
    """The video to make. Other fields are the model's own, by their names in its `input_schema`."""

    model: Annotated[str, msgspec.Meta(examples=["studio/clip-1"])]
    """The id of a model of videos."""
    prompt: Annotated[str, msgspec.Meta(examples=["waves at night"])]
    """What the video is about."""
    seconds: Annotated[str | None, msgspec.Meta(examples=["2"])] = None
    """How long it is, in seconds; null is the model's default."""
    size: str | None = None
    """Width and height in pixels, if the model takes them; `auto` and null are its default."""


class VideoError(msgspec.Struct, frozen=True):
    """Why there is no video."""

    code: str
    """The error's code, such as `provider_error`, or `canceled`."""
    message: str
    """The error in words."""


class VideoBody(msgspec.Struct, frozen=True):
    """A video: a task of a video model."""

    id: str
    """The id of the task."""
    object: Literal["video"]
    """Always `video`."""
    model: str
    """The id of the model."""
    status: Literal["queued", "in_progress", "completed", "failed"]
    """How far it is; `failed` is a canceled task too, and one in review is `in_progress`."""
    progress: int
    """The progress in percent."""
    created_at: int
    """When the task was created, in unix seconds."""
    completed_at: int | None
    """When the task ended, in unix seconds; null before."""
    expires_at: int | None
    """When the file is deleted, in unix seconds; null before there is one."""
    seconds: str
    """How long the video is, in seconds; before it is ready, what is expected."""
    size: str
    """Width and height in pixels, such as `640x360`; `auto` before they are known."""
    prompt: str | None
    """What was sent, in the response to the create; null in others."""
    error: VideoError | None
    """Why there is no video; null if it has not failed."""


class VideoDeleted(msgspec.Struct, frozen=True):
    """The video's task was canceled."""

    id: str
    """The id of the task."""
    object: Literal["video.deleted"]
    """Always `video.deleted`."""
    deleted: bool
    """Always true."""


class VideoList(msgspec.Struct, frozen=True):
    """A page of videos."""

    object: Literal["list"]
    """Always `list`."""
    data: list[VideoBody]
    """The videos."""
    first_id: str | None
    """The id of the first one; null on an empty page."""
    last_id: str | None
    """The id to send as `after` for the next page; null on an empty page."""
    has_more: bool
    """Whether there is a next page."""


@route(
    "POST",
    "/v1/videos",
    summary="Create a video; its credit is held and the work starts",
    auth=Auth.API_KEY,
    scope=TASKS_WRITE,
    body=VideoRequest,
    takes_input=True,
    takes_form=True,
    reply=VideoBody,
    parameters=(RETRY_COUNT, IDEMPOTENCY_KEY),
    errors=(*LAYER_ERRORS, "invalid_form", "task_not_found"),
)
async def create_video(call: Call) -> Outcome:
    """A form, as the clients send it, or JSON."""
    wanted = call.body(VideoRequest)
    request_id = await accept(call, wanted.model, "video", own_fields(call, "model"))
    if isinstance(request_id, Refusal):
        return request_id
    task = await created_task(call, request_id)
    if isinstance(task, Refusal):
        return task
    return _response(msgspec.structs.replace(_body(task), prompt=wanted.prompt))


@route(
    "GET",
    "/v1/videos/{video_id}",
    summary="Retrieve a video",
    auth=Auth.API_KEY,
    scope=TASKS_READ,
    reply=VideoBody,
    errors=("task_not_found",),
)
async def read_video(call: Call) -> Outcome:
    """The header ``openai-poll-after-ms`` says when to ask again."""
    task = await _own_video(call)
    return task if isinstance(task, Refusal) else _response(_body(task))


@route(
    "GET",
    "/v1/videos/{video_id}/content",
    summary="Retrieve the file of a video",
    auth=Auth.API_KEY,
    scope=TASKS_READ,
    media=(
        Media(status=200, content_types=CONTENT_TYPES, description="The whole file."),
        Media(status=206, content_types=CONTENT_TYPES, description="The requested range."),
        Media(status=302, content_types=(), description="The file is at its provider."),
        Media(status=304, content_types=(), description="The cached file is current."),
    ),
    parameters=(
        Parameter("variant", "query", "Only `video`.", schema={"type": "string", "enum": ["video"]}),
        Parameter(name="Range", place="header", description="One range of bytes, such as bytes=0-1023."),
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
    auth=Auth.API_KEY,
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
    query = {name: values[-1] for name, values in call.query().items()}
    limit, order = query.get("limit", str(LIMIT_DEFAULT)), query.get("order", "desc")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= LIMIT_MAX:
        return invalid_parameter("limit", f"must be a whole number from 1 to {LIMIT_MAX}", limit)
    if order not in {"asc", "desc"}:
        return invalid_parameter("order", "must be asc or desc", order)
    after: Position | None = None
    if "after" in query:
        found = await own_task(call, query["after"])
        if isinstance(found, Refusal):
            return found
        after = Position(found[0].created_at, found[0].request_id)
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    models = [each.id for each in call.deps.catalog().models.values() if each.modality == "video"]
    page: Sequence[Task | UnreadableEntry] = await call.read(
        lambda rows: tasks_of_models(
            rows, account_id, models, oldest_first=order == "asc", limit=int(limit) + 1, after=after
        )
    )
    data = [_body(each) for each in page[: int(limit)] if isinstance(each, Task)]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return VideoList("list", data, first, last, has_more=len(page) > int(limit))


@route(
    "DELETE",
    "/v1/videos/{video_id}",
    summary="Cancel a video that is not ready, and release its hold",
    auth=Auth.API_KEY,
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
    found = await own_task(call, call.path["video_id"])
    if isinstance(found, Refusal):
        return found
    task, _ = found
    return task if task.request.terms.modality == "video" else task_not_found(task.request_id)


_STATUS: Final[dict[str, Literal["queued", "in_progress", "completed", "failed"]]] = {
    "queued": "queued",
    "processing": "in_progress",
    "review": "in_progress",
    "succeeded": "completed",
    "failed": "failed",
    "canceled": "failed",
}


def _body(task: Task) -> VideoBody:
    state, terms = task.state, task.request.terms
    result = state.output[0] if state.output else None
    has_size = result is not None and result.width and result.height
    seconds = result.duration_s if result is not None else None
    if seconds is None and terms.rate.mode == "per_second":
        seconds = terms.estimated.units
    status, error = _STATUS[task.status], None
    if status == "failed":
        code, _, _ = (state.error or task.status).partition(":")
        error = VideoError(code, state.error or f"The task was {task.status}.")
    return VideoBody(
        id=task.request_id,
        object="video",
        model=task.model,
        status=status,
        progress=100 if status == "completed" else state.percent or 0,
        created_at=int(task.created_at.timestamp()),
        completed_at=_unix(task.ended_at),
        expires_at=_unix(result.expires_at if result is not None else None),
        seconds="" if seconds is None else f"{seconds:g}",
        size=f"{result.width}x{result.height}" if result is not None and has_size else "auto",
        prompt=None,
        error=error,
    )


def _unix(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def _response(body: VideoBody) -> BodyResponse:
    headers = task_headers(body.id)
    if body.status in {"queued", "in_progress"}:
        headers = (*headers, (POLL_AFTER, str(POLL_AFTER_MS)))
    return BodyResponse(body, headers=headers)
