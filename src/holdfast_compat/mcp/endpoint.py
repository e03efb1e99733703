"""The endpoint of the protocol: a POST for each message, answered as JSON, or as a stream while a task is awaited.

An HTTP error is of the request: its credential, its origin, its form. What a tool refuses has the status 200.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog
import trio
from quart import Response

from holdfast import __version__
from holdfast.actors.runtime.faults import AccountAway
from holdfast.http.kit import bodies
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.errors import refusal_of_fault
from holdfast.http.kit.other_cells import Elsewhere
from holdfast.http.kit.requests import keep_request
from holdfast.http.kit.routes import EVENT_STREAM, Media, Outcome, Parameter, RouteTable
from holdfast.http.kit.waiting import CHECK_S, stream_response
from holdfast.http.services.following import PAUSE_S, sent
from holdfast.http.services.tasks import own_task
from holdfast.ledger.refusals import ACCOUNT_MOVING, Refusal
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.journal.changes import Extent, Watch
from holdfast_compat.mcp.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    VERSION_WITH_BATCHES,
    VERSIONS,
    Id,
    MalformedMessage,
    Message,
    Request,
    RpcError,
    error_message,
    negotiated_version,
    progress_message,
    progress_token,
    read_messages,
    result_message,
)
from holdfast_compat.mcp.results import refused_result
from holdfast_compat.mcp.tools import TOOLS, WAIT_MAX_S, TaskAwaited, ToolCall, shown_result, tools_for

log = structlog.get_logger(__name__)

route = RouteTable("Agents", auth=Auth.API_KEY)

BODY_BYTES_MOST: Final = 16 * 1024 * 1024
PATH: Final = "/mcp"
INSTRUCTIONS: Final = (
    "Makes images, sounds, clips and other results with the models that list_models names, for prepaid credit of "
    "the API key's account. Quote before you create, create with max_credits, then call wait_for_task until the "
    "task has ended. If an error says that a limit is spent or that credit is lacking, stop creating tasks and "
    "tell your user."
)
_WAITING: Final = "wait_for_task"
_OTHER_ORIGIN: Final = Refusal(
    code="cross_origin_request", message="A page of another origin may not call this endpoint."
)

VERSION: Final = Parameter(
    name="MCP-Protocol-Version",
    location="header",
    description=f"The protocol's revision, one of {', '.join(VERSIONS)}; without it {VERSION_WITH_BATCHES}.",
)
ORIGIN: Final = Parameter(
    name="Origin",
    location="header",
    description="Sent by browsers only; any other than that of this service is refused.",
)


@route(
    "POST",
    PATH,
    is_kept=False,
    summary="Send a message of the Model Context Protocol; for agents",
    raw_body_bytes_max=BODY_BYTES_MOST,
    raw_body_limit=lambda call: call.deps.settings.body_bytes_max,
    raw_body_example={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    parameters=(VERSION, ORIGIN),
    media=(
        Media(
            status=200,
            content_types=("application/json",),
            description="The result, or the error, of the request; of a tool a refusal is a result with `isError`.",
            schema_type="object",
        ),
        Media(
            status=200,
            content_types=(EVENT_STREAM,),
            description="While a task is awaited: notifications of its progress, then the result.",
            example='event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{"content":[]}}\n\n',
        ),
        Media(status=202, content_types=(), description="A notification or a response was taken."),
        Media(
            status=400,
            content_types=("application/json",),
            description="No valid message: an error of JSON-RPC.",
            schema_type="object",
        ),
    ),
    errors=("cross_origin_request",),
)
async def receive_message(call: Call) -> Outcome:
    """Revisions 2025-11-25, 2025-06-18 and 2025-03-26, streamable HTTP without sessions: GET and DELETE are refused
    with 405. The tools and their arguments are listed by `tools/list`.
    """
    if not _is_own_origin(call):
        return await call.refuse_authenticated(_OTHER_ORIGIN)
    key = await call.verify_key()
    if isinstance(key, Refusal):
        return key
    refusal = bodies.check_media_type(next(iter(call.request.sent.get(b"content-type", [])), None))
    if refusal is not None:
        return refusal
    found = await call.compute(read_messages, call.raw)
    call.raw = b""
    version = next(iter(call.request.sent.get(b"mcp-protocol-version", [])), VERSION_WITH_BATCHES)
    at = ToolCall(call, key, trio.current_time() + WAIT_MAX_S)
    if isinstance(found, Request | MalformedMessage | None):
        return await _answer_one(at, found, version)
    if version != VERSION_WITH_BATCHES:
        message = f"The revision {version[:40]} has no batches."
        return _malformed(MalformedMessage(None, RpcError(INVALID_REQUEST, message)))
    answers = [answer for each in found if (answer := await _answer_in_batch(at, each)) is not None]
    return _json(answers) if answers else Response(b"", status=202)


def _is_own_origin(call: Call) -> bool:
    """Whether no browser sends the request for a page of another origin, as one does that was led here by DNS."""
    base = urlsplit(call.deps.urls.base)
    return all(each == f"{base.scheme}://{base.netloc}" for each in call.request.sent.get(b"origin", []))


async def _answer_one(at: ToolCall, message: Message, version: str) -> Outcome:
    if message is None:
        return Response(b"", status=202)
    if isinstance(message, MalformedMessage):
        return _malformed(message)
    if version not in VERSIONS and message.method != "initialize":
        data = {"supported": list(VERSIONS), "requested": version[:40]}
        return _malformed(
            MalformedMessage(
                message.id, RpcError(UNSUPPORTED_VERSION, "The protocol's revision is not known.", data)
            )
        )
    accepted = ",".join(at.call.request.sent.get(b"accept", []))
    if message.method == "tools/call" and message.params.get("name") == _WAITING and EVENT_STREAM in accepted:
        return await _streamed(at, message)
    return _json(await _answer(at, message))


async def _answer_in_batch(at: ToolCall, message: Message) -> dict[str, object] | None:
    if message is None:
        return None
    if isinstance(message, MalformedMessage):
        return error_message(message.id, message.error)
    if message.method == "initialize":
        return error_message(message.id, RpcError(INVALID_REQUEST, "initialize must not be part of a batch."))
    return await _answer(at, message)


async def _answer(at: ToolCall, request: Request) -> dict[str, object]:
    """Return the message that answers a request."""
    match request.method:
        case "initialize":
            return result_message(request.id, _initialized(request.params))
        case "ping":
            return result_message(request.id, {})
        case "tools/list" if "cursor" in request.params:
            return error_message(request.id, RpcError(INVALID_PARAMS, "The list of tools has one page."))
        case "tools/list":
            catalog = at.call.deps.registry.catalog
            listed = [each.listed(catalog, at.key) for each in tools_for(at.key)]
            return result_message(request.id, {"tools": listed})
        case "tools/call":
            try:
                found = await _call_tool(at, request.params)
            except (Elsewhere, AccountAway):
                raise
            except Exception as fault:
                return _faulted(at.call, request.id, fault)
            if isinstance(found, RpcError):
                return error_message(request.id, found)
            return result_message(request.id, found)
    message = f"There is no method {request.method[:80]!r}."
    return error_message(request.id, RpcError(METHOD_NOT_FOUND, message))


def _initialized(params: dict[str, Any]) -> dict[str, object]:
    return {
        "protocolVersion": negotiated_version(params),
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "holdfast", "title": "Holdfast", "version": __version__},
        "instructions": INSTRUCTIONS,
    }


async def _call_tool(at: ToolCall, params: dict[str, Any]) -> dict[str, object] | RpcError:
    """Return the result of a tool; what it refuses, and an expected fault, are results too."""
    name, arguments = params.get("name"), params.get("arguments", {})
    tool = TOOLS.get(name) if isinstance(name, str) else None
    if tool is None:
        return RpcError(INVALID_PARAMS, f"There is no tool {str(name)[:80]!r}.")
    if not isinstance(arguments, dict):
        return RpcError(INVALID_PARAMS, "The arguments must be an object.")
    given = tool.read(at.key, arguments)
    if isinstance(given, Refusal):
        return refused_result(at.call, given)
    found = await tool.run(at, given)
    if not tool.reads_only and not isinstance(found, Refusal):
        keep_request(at.call.request, 200)
    return refused_result(at.call, found) if isinstance(found, Refusal) else found


def _faulted(call: Call, request_id: Id, fault: Exception) -> dict[str, object]:
    """Return the message that answers a request which a fault has ended: an expected one is a tool's result."""
    refusal = refusal_of_fault(fault)
    if refusal is not None:
        return _result(call, request_id, refusal)
    log.error("unexpected fault", exc_info=fault)
    error = RpcError(INTERNAL_ERROR, "An internal error occurred.", {"request_id": call.request.id})
    return error_message(request_id, error)


async def _streamed(at: ToolCall, request: Request) -> Outcome:
    """Return the stream that ends with the result of waiting for a task, or that as JSON if it does not wait."""
    arguments, call = request.params.get("arguments", {}), at.call
    wanted = TOOLS[_WAITING].read(at.key, arguments) if isinstance(arguments, dict) else None
    if not isinstance(wanted, TaskAwaited):
        return _json(await _answer(at, request))
    with ExitStack() as opened:
        # Watched before the first read, so that no later change is missed.
        watch = opened.enter_context(call.deps.following.changes.watch(wanted.request_id))
        try:
            task = await own_task(call, wanted.request_id)
            if isinstance(task, Refusal) or task.is_terminal:
                found = await shown_result(call, task, with_images=wanted.images)
                return _json(_result(call, request.id, found))
        except (Elsewhere, AccountAway):
            raise
        except Exception as fault:
            return _json(_faulted(call, request.id, fault))
        wait = opened.enter_context(call.deps.following.waiting.counted(at.key.account_id, call.origin()))
        if isinstance(wait, Refusal):
            return _json(_result(call, request.id, wait))
        wait.end_with(watch)
        return stream_response(sent(_events(call, request, wanted, task, watch), opened.pop_all()))


async def _events(
    call: Call, request: Request, wanted: TaskAwaited, task: Task, watch: Watch
) -> AsyncGenerator[bytes]:
    """Yield the progress of a task, if its token was sent, and the result. Each round checks the credential."""
    token, percent, until = progress_token(request.params), -1, trio.current_time() + wanted.wait_s
    found: Task | Refusal = task
    del task
    try:
        while not isinstance(found, Refusal) and not found.is_terminal:
            now_percent = found.state.percent or 0
            if token is not None and now_percent > percent:
                percent = now_percent
                yield _event(progress_message(token, percent, found.status))
            if trio.current_time() >= until or watch.is_ending:
                break
            await watch.wait(min(until, trio.current_time() + PAUSE_S), Extent.STATUS)
            check_at = trio.current_time() + CHECK_S
            await watch.wait(min(until, check_at))
            if trio.current_time() >= check_at:
                yield b": idle\n\n"
            watch.take()
            found = await own_task(call, wanted.request_id)
        answer = _result(call, request.id, await shown_result(call, found, with_images=wanted.images))
    except (Elsewhere, AccountAway):
        # The response has begun: the next call is sent on.
        answer = _result(call, request.id, ACCOUNT_MOVING)
    except Exception as fault:
        answer = _faulted(call, request.id, fault)
    yield _event(answer)


def _result(call: Call, request_id: Id, found: dict[str, object] | Refusal) -> dict[str, object]:
    return result_message(request_id, refused_result(call, found) if isinstance(found, Refusal) else found)


def _event(message: dict[str, object]) -> bytes:
    return b"event: message\ndata: %b\n\n" % msgspec.json.encode(message)


def _json(message: object) -> Response:
    return Response(msgspec.json.encode(message), status=200, content_type="application/json")


def _malformed(message: MalformedMessage) -> Response:
    body = msgspec.json.encode(error_message(message.id, message.error))
    return Response(body, status=400, content_type="application/json")
