"""Sound for OpenAI's clients: the request is held open, and its response is the file."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import TASKS_WRITE
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Media, Outcome, RouteTable
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.openai.creating import HELD_ERRORS, LAYER_ERRORS, RETRY_COUNT, delivered, finish, own_fields
from holdfast.http.openai.results import file_of
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.tasks.task import Task
from holdfast.providers.storage.sniffing import EXTENSIONS

route = RouteTable("OpenAI's clients")


class SpeechRequest(msgspec.Struct, frozen=True):
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


@route(
    "POST",
    "/v1/audio/speech",
    summary="Make a sound, and respond with the file when it is ready",
    auth=Auth.API_KEY,
    scope=TASKS_WRITE,
    body=SpeechRequest,
    takes_input=True,
    media=(
        Media(
            status=200,
            content_types=tuple(sorted(each for each in EXTENSIONS if each.startswith("audio/"))),
            description="The file.",
        ),
        Media(status=302, content_types=(), description="The file is at its provider."),
    ),
    parameters=(RETRY_COUNT, IDEMPOTENCY_KEY),
    errors=(*LAYER_ERRORS, *HELD_ERRORS, "asset_expired"),
)
async def make_speech(call: Call) -> Outcome:
    """A client that hangs up ends its request, and not the task."""
    wanted = call.body(SpeechRequest)
    model = call.deps.catalog().models.get(wanted.model)
    layers = ["model", "stream_format"]
    if wanted.response_format is not None and model is not None and model.schema.field("response_format") is None:
        if not _makes_only(model, wanted.response_format):
            made = ", ".join(model.hosting.content_types) or "what its provider chooses"
            return await call.refuse_authenticated(
                invalid_parameter("response_format", f"is not taken by the model {model.id}, which makes {made}")
            )
        layers.append("response_format")
    model_id = wanted.model
    del wanted
    task = await finish(call, model_id, "audio", own_fields(call, *layers))
    return delivered(call, await file_of(call, task)) if isinstance(task, Task) else task


def _makes_only(model: Model, extension: str) -> bool:
    return {EXTENSIONS.get(each) for each in model.hosting.content_types} == {extension}
