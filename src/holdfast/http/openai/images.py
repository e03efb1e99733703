"""Images for OpenAI's clients: made and changed, each by a request that is held open until they are ready."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import TASKS_WRITE, KnownKey
from holdfast.http.kit.forms import LIST_SUFFIX, Form, FormFile
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Outcome, RouteTable
from holdfast.http.kit.uploads import receive_form
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.openai.creating import HELD_ERRORS, LAYER_ERRORS, RETRY_COUNT, delivered, finish, own_fields
from holdfast.http.openai.results import ImagesBody, image_bytes, image_links
from holdfast.http.schemas.common import ModelId
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task

route = RouteTable("OpenAI's clients")

FILES_MAX: Final = 8
PARTS: Final = frozenset({"image", "image[]", "mask"})
FORM: Final = "multipart/form-data"


class ImageEditRequest(msgspec.Struct, frozen=True, kw_only=True):
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


@route(
    "POST",
    "/v1/images/generations",
    summary="Make images, and respond when they are ready",
    auth=Auth.API_KEY,
    scope=TASKS_WRITE,
    body=ImageRequest,
    takes_input=True,
    reply=ImagesBody,
    parameters=(RETRY_COUNT, IDEMPOTENCY_KEY),
    errors=(*LAYER_ERRORS, *HELD_ERRORS, "asset_expired"),
)
async def generate_images(call: Call) -> Outcome:
    """A client that hangs up ends its request, and not the task."""
    return await _images(call, call.body(ImageRequest))


@route(
    "POST",
    "/v1/images/edits",
    summary="Change an image, and respond when the result is ready",
    auth=Auth.API_KEY,
    scope=TASKS_WRITE,
    files_max=FILES_MAX,
    request_content={
        FORM: {
            "type": "object",
            "required": ["image", "model"],
            "properties": {
                "image": {"type": "string", "format": "binary", "description": "The image to change."},
                "mask": {"type": "string", "format": "binary", "description": "A mask, if the model takes one."},
            },
            "additionalProperties": {"type": "string", "description": "A field of the model's own."},
        }
    },
    form=ImageEditRequest,
    reply=ImagesBody,
    parameters=(RETRY_COUNT, IDEMPOTENCY_KEY),
    errors=(
        *LAYER_ERRORS,
        *HELD_ERRORS,
        "asset_expired",
        "missing_parameter",
        "file_limit_reached",
        "storage_full",
    ),
)
async def edit_image(call: Call) -> Outcome:
    """The form's files are stored as those of `POST /v2/files` are, and the model gets links to them."""
    key = await call.verify_key()
    if isinstance(key, Refusal):
        return key
    call.known_key = KnownKey(key.account_id, key.key_id)
    received = await receive_form(call, key.account_id, PARTS)
    if isinstance(received, Refusal):
        return received
    fields = {name: values[0] for name, values in received.fields.items()}
    repeated = next((name for name, values in received.fields.items() if len(values) > 1), None)
    if repeated is not None:
        return invalid_parameter(repeated, "was sent more than once")
    files = [FormFile(part.removesuffix(LIST_SUFFIX), row.sha256, row.file_id) for part, row in received.files]
    refusal = call.take_form(Form(fields, tuple(files)), ImageEditRequest)
    return refusal or await _images(call, call.body(ImageEditRequest))


async def _images(call: Call, wanted: ImageEditRequest) -> Outcome:
    in_base64, model_id = wanted.response_format == "b64_json", wanted.model
    del wanted
    model = call.deps.catalog().models.get(model_id)
    if in_base64 and model is not None and model.hosting.mode == "passthrough":
        return await call.refuse_authenticated(
            invalid_parameter("response_format", "must be url: this model's results are not stored here")
        )
    task = await finish(call, model_id, "image", own_fields(call, "model", "response_format"))
    if not isinstance(task, Task):
        return task
    return delivered(call, await image_bytes(call, task)) if in_base64 else image_links(call, task)
