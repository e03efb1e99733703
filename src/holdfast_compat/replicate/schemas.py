"""The request and response bodies of Replicate's API: predictions, files, models, the account."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import ListBody, StoredListBody
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.common import Input, render
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.public_types import FreeForm, Time
from holdfast.ledger.tasks.public import public_output
from holdfast.ledger.tasks.task import EventKind, Progress, Task, TaskStatus, between_ms
from holdfast.ledger.values import format_time, time_or_none
from holdfast.persistence.records.rows import FileRow

BASE: Final = "/replicate/v1"

PredictionStatus: TypeAlias = Literal["starting", "processing", "succeeded", "failed", "canceled"]
WebhookEvent: TypeAlias = Literal["start", "output", "logs", "completed"]

STATUSES: Final[dict[TaskStatus, PredictionStatus]] = {
    "queued": "starting",
    "processing": "processing",
    "review": "processing",
    "succeeded": "succeeded",
    "failed": "failed",
    "canceled": "canceled",
}
EVENT_KINDS: Final[dict[WebhookEvent, tuple[EventKind, ...]]] = {
    "start": ("task.processing",),
    "output": ("task.succeeded",),
    "logs": (),
    "completed": ("task.succeeded", "task.failed", "task.canceled"),
}
"""The changes of a task that each kind of webhook is sent for. Outputs are complete when the task has succeeded."""


class PredictionRequest(msgspec.Struct, frozen=True):
    """The prediction to run."""

    input: Input
    """The model's input; `GET …/models/{owner}/{name}` has its schema."""

    webhook: str | None = None
    """An https address that is sent the prediction when it changes."""

    webhook_events_filter: list[WebhookEvent] | None = None
    """When the webhook is sent: `start`, `output` (which is complete with the end) and `completed`; of `logs` none
    are sent. Without it: `output` and `completed`.
    """

    metadata: dict[str, str] | None = None
    """Up to 16 texts of your own, stored with the task: names of 1 to 64 characters, texts of up to 512. Usage is
    also summed by the text `end_user`.
    """

    webhook_completed: str | None = None
    """An https address that is sent the prediction when it has ended, unless there is a `webhook`."""


class VersionPredictionRequest(PredictionRequest, frozen=True, kw_only=True):
    """The prediction to run, with its model."""

    version: Annotated[str, msgspec.Meta(examples=["studio/image-1"])]
    """The id of a model's `latest_version`, or the model as `owner/name`."""


class PredictionUrls(msgspec.Struct, frozen=True):
    """Where the prediction can be read, canceled and followed."""

    get: str
    """Reads the prediction."""

    cancel: str
    """Cancels it, by POST."""

    stream: str | msgspec.UnsetType = msgspec.UNSET
    """Server-sent events. The link needs no API key for an hour, and works as long as the key that it was made for
    does. It is not in webhooks and lists.
    """


class PredictionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a prediction."""

    id: str
    """The task's `request_id`."""

    model: str
    """The model's id."""

    version: str = "hidden"
    """Always `hidden`: a model has one version at a time."""

    input: FreeForm | None
    """The input as it was sent. Null in all responses but the first."""

    output: list[str] | str | None = None
    """Links to the results: of an image model a list, of others one link. Null until the prediction has succeeded,
    and after its results have expired.
    """

    logs: str = ""
    """The progress so far, in lines as tqdm writes them: ` 40%|####      | 40/100`."""

    error: str | None = None
    """Why the prediction has failed, beginning with a code. Null: it has not."""

    status: PredictionStatus = "starting"
    """`starting` until the provider has begun, then `processing`."""

    metrics: dict[str, float] = {}
    """`predict_time` and `total_time` in seconds, once they are known."""

    created_at: Time
    """When the task was created."""

    started_at: Time | None = None
    """When the provider began. Null: not yet."""

    completed_at: Time | None = None
    """When the prediction ended, in any way. Null: not yet."""

    data_removed: bool = False
    """Whether the results have expired."""

    urls: PredictionUrls
    """What can be done with it, and where."""


class PredictionList(StoredListBody[PredictionBody], frozen=True):
    """A page of predictions, newest first."""

    data: list[PredictionBody] = msgspec.field(name="results")
    """The predictions of this page, without their inputs."""

    next_cursor: str | None = msgspec.field(name="next")
    """The address of the next page, null on the last."""


def with_next_address(call: Call, page: Outcome) -> Outcome:
    """Return a page with the address of the next one, which these clients request as it is."""
    if not isinstance(page, ListBody) or page.next_cursor is None:
        return page
    limit = "".join(f"&limit={each}" for each in call.query().get("limit", ()))
    address = f"{call.deps.urls.base}{call.route.path}?cursor={page.next_cursor}{limit}"
    return msgspec.structs.replace(page, next_cursor=address)


def prediction(
    urls: PublicUrls, task: Task, *, now: datetime, stream: str | msgspec.UnsetType = msgspec.UNSET
) -> PredictionBody:
    """Show a task, with links as of ``now``, and the link to its stream if there is one."""
    state = task.state
    output = [each.url for each in public_output(urls, task, now=now) if each.url is not None]
    is_list = task.request.terms.modality == "image" or len(output) > 1
    times = {
        "predict_time": between_ms(state.run_started_at, state.provider_done_at),
        "total_time": task.latency_ms,
    }
    return PredictionBody(
        id=task.request_id,
        model=task.model,
        input=task.request.input or None,
        output=(output if is_list else output[0]) if output and task.status == "succeeded" else None,
        logs="".join(f"{line}\n" for line in log_lines(task)),
        error=state.error if task.status == "failed" else None,
        status=STATUSES[task.status],
        metrics={name: ms / 1000 for name, ms in times.items() if ms is not None},
        created_at=format_time(task.created_at),
        started_at=time_or_none(state.run_started_at),
        completed_at=time_or_none(task.ended_at),
        data_removed=task.status == "succeeded" and not output,
        urls=prediction_urls(urls, task.request_id, stream),
    )


def prediction_urls(
    urls: PublicUrls, request_id: str, stream: str | msgspec.UnsetType = msgspec.UNSET
) -> PredictionUrls:
    """Return the addresses of a prediction."""
    get = f"{urls.base}{BASE}/predictions/{request_id}"
    return PredictionUrls(get=get, cancel=f"{get}/cancel", stream=stream)


def webhook_body(urls: PublicUrls, task: Task, now: datetime) -> bytes:
    """Encode the body of a webhook: the task as it was at the event, its links signed as of ``now``."""
    return msgspec.json.encode(prediction(urls, task, now=now))


def log_lines(task: Task) -> list[str]:
    """Return the lines of the log, one for each progress entry with a message or a percentage."""
    lines = [_log_line(entry) for entry in task.state.progress]
    return [line for line in lines if line]


def _log_line(entry: Progress) -> str:
    # The clients find the last line that begins like this, a bar of tqdm's.
    bar = (
        "" if entry.percent is None else f"{entry.percent:3}%|{'#' * (entry.percent // 10):10}| {entry.percent}/100"
    )
    return " ".join(part for part in (bar, entry.message) if part)


class ReplicateFile(msgspec.Struct, frozen=True):
    """An uploaded file."""

    id: str
    """The file's id, `file_` and 32 characters."""

    name: str
    """The name that was sent."""

    content_type: str
    """The type that the first bytes show, whatever was sent."""

    size: int
    """The file's length in bytes."""

    etag: str
    """The hash of the file's bytes."""

    checksums: dict[str, str]
    """The hash of the file's bytes as `sha256`."""

    metadata: FreeForm
    """Always empty: metadata that is sent is not stored."""

    created_at: Time
    """When the file was stored."""

    expires_at: Time
    """When the file is deleted."""

    urls: dict[str, str]
    """`get`: the address of this, which stands for the file in an input."""


class ReplicateFileList(StoredListBody[ReplicateFile], frozen=True):
    """A page of files, newest first."""

    data: list[ReplicateFile] = msgspec.field(name="results")
    """The files of this page."""

    next_cursor: str | None = msgspec.field(name="next")
    """The address of the next page, null on the last."""


def replicate_file(urls: PublicUrls, file: FileRow) -> ReplicateFile:
    """Show a stored file."""
    return render(
        ReplicateFile,
        file,
        id=file.file_id,
        name=file.filename,
        size=file.bytes,
        etag=file.sha256,
        checksums={"sha256": file.sha256},
        metadata={},
        urls={"get": f"{urls.base}{BASE}/files/{file.file_id}"},
    )


class ModelVersion(msgspec.Struct, frozen=True):
    """The version of a model. Its id changes with the model's schema."""

    id: str
    """64 hexadecimal digits."""

    created_at: Time
    """When the model was created."""

    cog_version: str
    """How to read the schema: as one of this version of Cog."""

    openapi_schema: FreeForm
    """An OpenAPI document whose schemas `Input` and `Output` are those of the model."""


class ModelVersionList(msgspec.Struct, frozen=True):
    """A model's versions: one."""

    results: list[ModelVersion]
    """The one version."""


class ReplicateModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model. What Holdfast does not know of it is null."""

    url: str
    """The address of this."""

    owner: str
    """The part of the model's id before the slash."""

    name: str
    """The part of the model's id after the slash."""

    description: str | None
    """What the model makes. Null: not described."""

    visibility: Literal["public"] = "public"

    run_count: int = 0
    """Always 0."""

    latest_version: ModelVersion
    """The version, with the model's schema."""


class ReplicateModelList(msgspec.Struct, frozen=True):
    """All models that run, on one page."""

    results: list[ReplicateModel]
    """The models, in the order of the catalog."""


class ReplicateAccount(msgspec.Struct, frozen=True):
    """The account of the API key."""

    username: str
    """The account's id."""

    name: str
    """The account's id, too."""

    type: Literal["user"] = "user"


class WebhookSigningSecret(msgspec.Struct, frozen=True):
    """The secret that signs the account's webhooks, by Standard Webhooks."""

    key: str
    """The secret, `whsec_…`."""
