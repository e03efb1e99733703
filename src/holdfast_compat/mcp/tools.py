"""The tools: what each takes, which scope it needs, and what it does with what the other APIs call too.

Their descriptions are of the catalog as it is when they are listed, and of what the API key may use.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
import trio

from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.actors.runtime.messages import IdempotencyKey
from holdfast.http.kit import bodies
from holdfast.http.kit.calls import Call
from holdfast.http.kit.field_docs import field_docs
from holdfast.http.kit.uploads import store_content
from holdfast.http.kit.values import invalid_parameter, read_idempotency_key, unknown_parameter
from holdfast.http.schemas.common import AmountGiven, QuoteRequest
from holdfast.http.schemas.models import model_details
from holdfast.http.schemas.tasks import CreateTaskRequest, DeadlineGiven
from holdfast.http.services.files import own_file
from holdfast.http.services.quotes import made_quote
from holdfast.http.services.tasks import canceled_task, created_task, ended_task, own_task
from holdfast.ledger.api_keys import ACCOUNT_READ, FILES_WRITE, TASKS_READ, TASKS_WRITE, has_scope, lacking_scope
from holdfast.ledger.catalog.models import Catalog, Modality
from holdfast.ledger.catalog.pricing import model_not_found
from holdfast.ledger.public_types import FreeForm
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.accounts import find_totals
from holdfast.persistence.queries.files import files_of_account
from holdfast.persistence.queries.spending import keys_with_spending, spending_of_account
from holdfast.persistence.queries.tasks import tasks_of_account
from holdfast.persistence.records.key_rows import ApiKeyRecord
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast_compat.mcp.results import file_result, result_of, task_result
from holdfast_compat.mcp.views import (
    ShownFiles,
    ShownModels,
    ShownTasks,
    price_of,
    shown_account,
    shown_file,
    shown_model,
    shown_task,
    usable_models,
)

WAIT_DEFAULT_S: Final = 45
WAIT_MAX_S: Final = 55
"""Less than the minute after which clients give up a request, by default."""
LIST_MAX: Final = 50
MODELS_DESCRIBED_MAX: Final = 30
"""How many models a description names with their prices: agents read all of it with each conversation."""

A = TypeVar("A", bound=msgspec.Struct)

ModelGiven = Annotated[str, msgspec.Meta(description="The model's id, as list_models names it.")]
TaskGiven = Annotated[str, msgspec.Meta(description="The task's id, `task_…`.")]
Images = Annotated[bool, msgspec.Meta(description="Whether small images are part of the result, beside the links.")]
Limit = Annotated[int, msgspec.Meta(ge=1, le=LIST_MAX, description="How many of the newest.")]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool: the HTTP call it is part of, its API key, and until when it may wait (trio's time)."""

    call: Call
    key: ApiKeyRecord
    wait_until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[A]):
    """A tool. ``describe`` returns its description for a key."""

    name: str
    title: str
    describe: Callable[[Catalog, ApiKeyRecord], str]
    arguments: type[A]
    scope: str
    reads_only: bool
    ends_something: bool
    run: Callable[[ToolCall, A], Awaitable[dict[str, object] | Refusal]]

    def read(self, key: ApiKeyRecord, sent: dict[str, Any]) -> A | Refusal:
        """Read the arguments. Refuses: 1. ``insufficient_scope``; 2. ``invalid_parameter`` and others of bodies."""
        if not has_scope(key.terms.scopes, self.scope):
            return lacking_scope(self.scope)
        known = self.arguments.__struct_encode_fields__
        unknown = next((name for name in sent if name not in known), None)
        return bodies.convert_body(sent, self.arguments) if unknown is None else unknown_parameter(unknown, known)

    def listed(self, catalog: Catalog, key: ApiKeyRecord) -> dict[str, object]:
        """Return the tool as a list of tools has it."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.describe(catalog, key),
            "inputSchema": schema_of(self.arguments),
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.reads_only,
                "destructiveHint": self.ends_something,
                "openWorldHint": False,
            },
        }


TOOLS: Final[dict[str, Tool[Any]]] = {}
"""All tools by their names, in the order in which they are listed."""


def tools_for(key: ApiKeyRecord) -> list[Tool[Any]]:
    """Return the tools that a key has the scopes for."""
    return [each for each in TOOLS.values() if has_scope(key.terms.scopes, each.scope)]


@cache
def schema_of(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments, with the descriptions of its fields."""
    _, components = msgspec.json.schema_components((arguments,))
    schema: dict[str, Any] = components[arguments.__name__]
    docs = field_docs(arguments)
    for name, field in schema["properties"].items():
        if name in docs:
            field["description"] = " ".join(docs[name].split())
    return {
        "type": "object",
        "properties": schema["properties"],
        "required": schema["required"],
        "additionalProperties": False,
    }


def _tool(
    title: str,
    arguments: type[A],
    scope: str,
    *,
    reads_only: bool = True,
    ends_something: bool = False,
    describe: Callable[[Catalog, ApiKeyRecord], str] | None = None,
) -> Callable[
    [Callable[[ToolCall, A], Awaitable[dict[str, object] | Refusal]]],
    Callable[[ToolCall, A], Awaitable[dict[str, object] | Refusal]],
]:
    """Declare the decorated function as a tool of its name; its docstring describes it unless ``describe`` does."""

    def declare(
        run: Callable[[ToolCall, A], Awaitable[dict[str, object] | Refusal]],
    ) -> Callable[[ToolCall, A], Awaitable[dict[str, object] | Refusal]]:
        text = " ".join((run.__doc__ or "").split())
        TOOLS[run.__name__] = Tool(
            name=run.__name__,
            title=title,
            describe=describe or (lambda _catalog, _key: text),
            arguments=arguments,
            scope=scope,
            reads_only=reads_only,
            ends_something=ends_something,
            run=run,
        )
        return run

    return declare


# ------------------------------------------------------------------------------------------------------ models


class ModelsWanted(msgspec.Struct, frozen=True):
    """Which models to list."""

    modality: Modality | None = None
    """Only models that make this; null or omitted: all."""


class ModelWanted(msgspec.Struct, frozen=True):
    """Which model to show."""

    model: ModelGiven


class InputGiven(msgspec.Struct, frozen=True):
    """An input to price."""

    model: ModelGiven
    input: FreeForm
    """What to make: an object that fits the model's input_schema, which get_model returns."""


@_tool("List models", ModelsWanted, TASKS_READ)
async def list_models(at: ToolCall, wanted: ModelsWanted) -> dict[str, object] | Refusal:
    """List the models that this API key may use, with their prices in credits (1 credit is 1 USD)."""
    catalog, overrides = at.call.deps.registry.catalog, at.call.deps.operating.overrides
    found = [
        each
        for each in usable_models(catalog, at.key.terms)
        if wanted.modality is None or each.modality == wanted.modality
    ]
    return result_of(ShownModels([shown_model(catalog, overrides, each) for each in found]))


@_tool("Show a model", ModelWanted, TASKS_READ)
async def get_model(at: ToolCall, wanted: ModelWanted) -> dict[str, object] | Refusal:
    """Show a model with the JSON Schema of its input, an example input, and what that costs."""
    catalog = at.call.deps.registry.catalog
    model = catalog.models.get(wanted.model)
    if model is None:
        return model_not_found(wanted.model, catalog.models)
    return result_of(model_details(catalog, at.call.deps.operating.overrides, model))


@_tool("Quote", InputGiven, TASKS_READ)
async def quote(at: ToolCall, wanted: InputGiven) -> dict[str, object] | Refusal:
    """Say what an input would cost, before anything is created. Costs nothing. estimate.max_credits is what would
    be held, and the most that can be charged. A quote_id given to create_task fixes the price until expires_at.
    """
    found = await made_quote(at.call, QuoteRequest(wanted.model, wanted.input))
    return found if isinstance(found, Refusal) else result_of(found)


# ------------------------------------------------------------------------------------------------------- tasks


class NewTask(msgspec.Struct, frozen=True):
    """The task to create."""

    model: ModelGiven
    input: FreeForm
    """What to make: an object that fits the model's input_schema, which get_model returns."""
    max_credits: AmountGiven
    """The most credit that the task may cost, a decimal string such as "0.05". If it could cost more, nothing is
    created and the error says what it could cost.
    """
    deadline_s: DeadlineGiven | None = None
    """How many seconds after its creation the task is canceled, without a charge, if it has not ended."""
    quote_id: str | None = None
    """The quote to be charged by, from the tool quote; null or omitted: the current price."""
    idempotency_key: str | None = None
    """A text of your own for this task, 1 to 255 printable ASCII characters. If a call got no answer, repeat it
    with the same key: the task is then created and charged once.
    """
    metadata: dict[str, str] | None = None
    """Up to 16 texts of your own, returned by the other APIs with the task."""


class TaskWanted(msgspec.Struct, frozen=True):
    """Which task to show."""

    request_id: TaskGiven
    images: Images = True


class TaskNamed(msgspec.Struct, frozen=True):
    """Which task to cancel."""

    request_id: TaskGiven


class TaskAwaited(msgspec.Struct, frozen=True):
    """Which task to wait for."""

    request_id: TaskGiven
    wait_s: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MAX_S)] = WAIT_DEFAULT_S
    """The most seconds to wait; call again if the task has not ended."""
    images: Images = True


class TasksWanted(msgspec.Struct, frozen=True):
    """How many tasks to list."""

    limit: Limit = 10


def _describe_create(catalog: Catalog, key: ApiKeyRecord) -> str:
    models = usable_models(catalog, key.terms)
    named = [f"{each.id} ({each.modality}): {price_of(each)}" for each in models[:MODELS_DESCRIBED_MAX]]
    more = len(models) - len(named)
    if more:
        named.append(f"and {more} more, which list_models names")
    return (
        "Create a task that makes an image, a sound, a clip or another result. THIS SPENDS CREDIT (1 credit is 1 "
        "USD): at most max_credits are held at once, and what it cost is charged when it succeeds; nothing is "
        "charged if it fails or is canceled. It returns at once: then call wait_for_task. If the error says that a "
        f"limit is spent, stop creating tasks. Models and prices: {'; '.join(named) or 'none for this API key'}."
    )


@_tool("Create a task", NewTask, TASKS_WRITE, reads_only=False, describe=_describe_create)
async def create_task(at: ToolCall, wanted: NewTask) -> dict[str, object] | Refusal:
    """Create a task, once for each idempotency key."""
    call = at.call
    key = None if wanted.idempotency_key is None else read_idempotency_key([wanted.idempotency_key])
    if isinstance(key, Refusal):
        return msgspec.structs.replace(key, param="idempotency_key")
    request = CreateTaskRequest(
        wanted.model,
        wanted.input,
        quote_id=wanted.quote_id,
        metadata=wanted.metadata,
        max_credits=wanted.max_credits,
        deadline_s=wanted.deadline_s,
    )
    route = f"{call.route.name} create_task"
    idempotency = None
    if key is not None:
        print_of = await call.compute(bodies.fingerprint, route, msgspec.to_builtins(wanted))
        idempotency = IdempotencyKey(route=route, key=key, fingerprint=print_of)
    call.is_replay = False
    try:
        task = await created_task(call, request, idempotency)
    except OutcomeUnknown:
        if idempotency is not None:
            raise
        return Refusal(
            code="outcome_unknown",
            message="There was no result in time, and the task may have been created. Call list_tasks before you "
            "create it again, and give an idempotency_key.",
        )
    if isinstance(task, Refusal):
        return task
    shown = shown_task(call.deps.urls, task, call.deps.now())
    shown = msgspec.structs.replace(shown, next_step="Call wait_for_task with this request_id.")
    return result_of(shown, is_replay=call.is_replay)


@_tool("Wait for a task", TaskAwaited, TASKS_READ)
async def wait_for_task(at: ToolCall, wanted: TaskAwaited) -> dict[str, object] | Refusal:
    """Wait until a task has ended, and return its results as links, and small images themselves. Costs nothing. If
    it has not ended in time the result says so: call again.
    """
    wait_s = min(float(wanted.wait_s), at.wait_until - trio.current_time())
    waited = ended_task(at.call, wanted.request_id, wait_s) if wait_s > 0 else own_task(at.call, wanted.request_id)
    return await shown_result(at.call, await waited, with_images=wanted.images)


@_tool("Show a task", TaskWanted, TASKS_READ)
async def get_task(at: ToolCall, wanted: TaskWanted) -> dict[str, object] | Refusal:
    """Show a task as it is now, with its results if it has succeeded. Costs nothing."""
    return await shown_result(at.call, await own_task(at.call, wanted.request_id), with_images=wanted.images)


@_tool("Cancel a task", TaskNamed, TASKS_WRITE, reads_only=False, ends_something=True)
async def cancel_task(at: ToolCall, wanted: TaskNamed) -> dict[str, object] | Refusal:
    """Cancel a task that has not ended: nothing is charged, and what was held is released."""
    return await shown_result(at.call, await canceled_task(at.call, wanted.request_id), with_images=False)


@_tool("List tasks", TasksWanted, TASKS_READ)
async def list_tasks(at: ToolCall, wanted: TasksWanted) -> dict[str, object] | Refusal:
    """List the account's newest tasks, of all its keys. Costs nothing."""
    call, account_id = at.call, at.key.account_id
    found = await call.read(lambda rows: tasks_of_account(rows, account_id, limit=wanted.limit))
    urls, now = call.deps.urls, call.deps.now()
    return result_of(ShownTasks([shown_task(urls, each, now) for each in found if isinstance(each, Task)]))


async def shown_result(call: Call, task: Task | Refusal, *, with_images: bool) -> dict[str, object] | Refusal:
    """Return the result that shows a task."""
    if isinstance(task, Refusal):
        return task
    shown = shown_task(call.deps.urls, task, call.deps.now())
    return await task_result(call, task, shown, with_images=with_images)


# ------------------------------------------------------------------------------------------- files and account


class FileGiven(msgspec.Struct, frozen=True):
    """The file to store."""

    data: str
    """The file in base64."""
    filename: str | None = None
    """Its name."""


class FilesWanted(msgspec.Struct, frozen=True):
    """How many files to list."""

    limit: Limit = 10


class FileWanted(msgspec.Struct, frozen=True):
    """Which file to show."""

    file_id: Annotated[str, msgspec.Meta(description="The file's id, `file_…`.")]
    images: Images = True


class NothingWanted(msgspec.Struct, frozen=True):
    """No arguments."""


@_tool("Upload a file", FileGiven, FILES_WRITE, reads_only=False)
async def upload_file(at: ToolCall, given: FileGiven) -> dict[str, object] | Refusal:
    """Store a file for inputs of models, where they take a link: give its file_id there. Costs nothing. A file that
    has a public https address needs no upload: give the address in the input.
    """
    call = at.call
    try:
        content = await call.compute(partial(base64.b64decode, given.data, validate=True))
    except (binascii.Error, ValueError):
        return invalid_parameter("data", "must be base64")
    file = await store_content(call, at.key.account_id, content, filename=given.filename, param="data")
    if isinstance(file, Refusal):
        return file
    return await file_result(call, file, shown_file(call.deps.urls, file, call.deps.now()), with_images=False)


@_tool("List files", FilesWanted, TASKS_READ)
async def list_files(at: ToolCall, wanted: FilesWanted) -> dict[str, object] | Refusal:
    """List the account's newest files."""
    call, account_id, now = at.call, at.key.account_id, at.call.deps.now()
    found = await call.read(
        lambda rows: files_of_account(rows, account_id, now=now, filters={}, limit=wanted.limit)
    )
    readable = [each for each in found if not isinstance(each, UnreadableEntry)]
    return result_of(ShownFiles([shown_file(call.deps.urls, each, now) for each in readable]))


@_tool("Show a file", FileWanted, TASKS_READ)
async def get_file(at: ToolCall, wanted: FileWanted) -> dict[str, object] | Refusal:
    """Show a file's description with a link to it, and a small image itself."""
    file = await own_file(at.call, wanted.file_id)
    if isinstance(file, Refusal):
        return file
    shown = shown_file(at.call.deps.urls, file, at.call.deps.now())
    return await file_result(at.call, file, shown, with_images=wanted.images)


@_tool("Show the account", NothingWanted, ACCOUNT_READ)
async def get_account(at: ToolCall, _wanted: NothingWanted) -> dict[str, object] | Refusal:
    """Show the credit that is available, and the limits of this API key and of the account: what is left of each,
    and when it resets.
    """
    call, account_id, now = at.call, at.key.account_id, at.call.deps.now()
    totals = await call.look_up_as_caller(find_totals)
    if isinstance(totals, Refusal):
        return totals
    assert totals is not None, "a key names an account that exists"
    keys, of_keys = await call.read(lambda rows: keys_with_spending(rows, account_id))
    of_account = await call.read(lambda rows: spending_of_account(rows, account_id))
    group_id = next((each.group_id for each in keys if each.key.key_id == at.key.key_id), None)
    of_keys.advance(now)
    of_account.advance(now)
    limits = [*of_keys.of(at.key.key_id), *(of_keys.of(group_id) if group_id else ()), *of_account]
    return result_of(shown_account(totals, at.key, limits))
