"""Images for OpenAI's clients: made and changed, each by a request that is held open until they are ready."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Outcome, RouteTable
from holdfast.http.kit.uploads import receive_form
from holdfast.http.kit.values import invalid_parameter, missing_parameter
from holdfast.ledger.api_keys import TASKS_WRITE
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task
from holdfast_compat.openai.creating import HELD_ERRORS, RETRY_COUNT, delivered, finish, own_fields
from holdfast_compat.openai.inputs import FILES_MAX, stored_names
from holdfast_compat.openai.results import image_bytes, image_links
from holdfast_compat.openai.schemas import ImageEditRequest, ImageRequest, ImagesBody

route = RouteTable("OpenAI", auth=Auth.API_KEY)

_makes_images: Final = partial(
    route,
    "POST",
    is_kept=False,
    scope=TASKS_WRITE,
    returns_results=True,
    reply=ImagesBody,
    parameters=(RETRY_COUNT, IDEMPOTENCY_KEY),
    errors=HELD_ERRORS,
)


@_makes_images(
    "/v1/images/generations",
    summary="Make images, and respond when they are ready",
    body=ImageRequest,
    other_fields_are_input=True,
    takes_input=True,
)
async def generate_images(call: Call) -> Outcome:
    """A client that hangs up ends its request, and not the task."""
    return await _images(call, call.body(ImageRequest))


@_makes_images(
    "/v1/images/edits",
    summary="Change an image, and respond when the result is ready",
    files_max=FILES_MAX,
    form_files={
        "image": "The image to change. Several, for a model that takes them, are sent as `image[]`.",
        "mask": "A mask, if the model takes one.",
    },
    form=ImageEditRequest,
)
async def edit_image(call: Call) -> Outcome:
    """The form's files are stored until the task has ended, and the model gets links to them."""

    def stored(fields: Mapping[str, object], names: Sequence[str]) -> Collection[str] | Refusal:
        if "image" not in names:
            return missing_parameter("image")
        return stored_names(call.deps.registry.catalog, fields, names)

    refusal = await receive_form(call, stored)
    return refusal or await _images(call, call.body(ImageEditRequest))


async def _images(call: Call, wanted: ImageEditRequest) -> Outcome:
    in_base64, model_id = wanted.response_format == "b64_json", wanted.model
    del wanted
    model = call.deps.registry.catalog.models.get(model_id)
    if in_base64 and model is not None and model.hosting.mode == "passthrough":
        return await call.refuse_authenticated(
            invalid_parameter("response_format", "must be url: this model's results are not stored here")
        )
    task = await finish(call, model_id, "image", own_fields(call, "model", "response_format"))
    if not isinstance(task, Task):
        return task
    return delivered(call, await image_bytes(call, task)) if in_base64 else image_links(call, task)
