"""The request and response bodies of OpenAI's images, speech and videos."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec

from holdfast.http.schemas.common import ModelId
from holdfast.ledger.tasks.task import Task


class MetadataFields(msgspec.Struct, frozen=True, kw_only=True):
    """What any request may say for the caller's own use."""

    user: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    """Your name for whom it is made, stored as `end_user` in the task's metadata; null: none."""
    metadata: dict[str, str] | None = None
    """Up to 16 texts of your own, stored with the task: names of 1 to 64 characters, texts of up to 512; null:
    none."""


class ImageEditRequest(MetadataFields, frozen=True, kw_only=True):
    """The image to change, sent as the file `image` of the form. Other fields are the model's own."""

    model: Annotated[str, msgspec.Meta(examples=["studio/edit-1"])]
    """The id of a model of images."""
    prompt: Annotated[str | None, msgspec.Meta(examples=["a lighthouse at dusk"])] = None
    """What the images are about; null if the model takes none."""
    n: int | None = None
    """How many images; null is the model's default."""
    size: Annotated[str | None, msgspec.Meta(examples=["768x512"])] = None
    """Width and height in pixels, such as `768x512`; `auto` and null are the model's default."""
    response_format: Literal["url", "b64_json"] | None = None
    """Whether links or the files in base64 are returned; null is `url`."""


class ImageRequest(ImageEditRequest, frozen=True, kw_only=True):
    """The images to make. Other fields are the model's own, by their names in its `input_schema`."""

    model: ModelId
    """The id of a model of images."""


class ImageItem(msgspec.Struct, frozen=True):
    """One image, as a link or as its bytes."""

    url: str | None = None
    """A signed link that works for an hour; null if the bytes were asked for."""
    b64_json: str | None = None
    """The file in base64; null unless `response_format` is `b64_json`."""


class ImagesBody(msgspec.Struct, frozen=True):
    """The images of a task."""

    created: int
    """When the task was created, in unix seconds."""
    data: list[ImageItem]
    """The images, in order."""


class SpeechRequest(MetadataFields, frozen=True):
    """The sound to make. Other fields are the model's own, by their names in its `input_schema`."""

    model: Annotated[str, msgspec.Meta(examples=["studio/tone-1"])]
    """The id of a model of sounds."""
    input: Annotated[str, msgspec.Meta(examples=["rain on a tin roof"])]
    """The text to speak, or what the sound is about; the model may call it `text` or `prompt`."""
    voice: Annotated[str | None, msgspec.Meta(examples=["alloy"])] = None
    """The voice, by a name that the model knows."""
    response_format: Annotated[str | None, msgspec.Meta(examples=["wav"])] = None
    """The file type, if the model makes several or only this one; null is the model's default."""
    stream_format: Literal["audio"] | None = None
    """Only `audio`: the file's bytes."""


class VideoRequest(MetadataFields, frozen=True):
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
    """What it is about; null once the input is no longer stored, a week after the end if it was large."""
    error: VideoError | None
    """Why there is no video; null if it has not failed."""


class VideoDeleted(msgspec.Struct, frozen=True):
    """The video's task was canceled."""

    id: str
    """The id of the task."""
    object: Literal["video.deleted"]
    deleted: bool
    """Always true."""


class VideoList(msgspec.Struct, frozen=True):
    """A page of videos."""

    object: Literal["list"]
    data: list[VideoBody]
    """The videos."""
    first_id: str | None
    """The id of the first one; null on an empty page."""
    last_id: str | None
    """The id to send as `after` for the next page; null on an empty page."""
    has_more: bool
    """Whether there is a next page."""


_STATUS: Final[dict[str, Literal["queued", "in_progress", "completed", "failed"]]] = {
    "queued": "queued",
    "processing": "in_progress",
    "review": "in_progress",
    "succeeded": "completed",
    "failed": "failed",
    "canceled": "failed",
}


def video_body(task: Task, prompt: str | None) -> VideoBody:
    """Show a task as a video, with the prompt of its input."""
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
        prompt=prompt,
        error=error,
    )


def _unix(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
