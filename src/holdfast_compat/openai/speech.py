"""Sound for OpenAI's clients: the request is held open, and its response is the file."""

from __future__ import annotations

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Media, Outcome, RouteTable
from holdfast.http.kit.values import invalid_parameter
from holdfast.ledger.api_keys import TASKS_WRITE
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.tasks.task import Task
from holdfast.providers.storage.sniffing import EXTENSIONS
from holdfast_compat.openai.creating import HELD_ERRORS, RETRY_COUNT, delivered, finish, own_fields
from holdfast_compat.openai.results import AT_PROVIDER, file_of
from holdfast_compat.openai.schemas import SpeechRequest

route = RouteTable("OpenAI", auth=Auth.API_KEY)


@route(
    "POST",
    "/v1/audio/speech",
    is_kept=False,
    summary="Make a sound, and respond with the file when it is ready",
    scope=TASKS_WRITE,
    body=SpeechRequest,
    other_fields_are_input=True,
    takes_input=True,
    returns_results=True,
    media=(
        Media(
            status=200,
            content_types=tuple(sorted(each for each in EXTENSIONS if each.startswith("audio/"))),
            description="The file.",
        ),
        AT_PROVIDER,
    ),
    parameters=(RETRY_COUNT, IDEMPOTENCY_KEY),
    errors=HELD_ERRORS,
)
async def make_speech(call: Call) -> Outcome:
    """A client that hangs up ends its request, and not the task."""
    wanted = call.body(SpeechRequest)
    model = call.deps.registry.catalog.models.get(wanted.model)
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
