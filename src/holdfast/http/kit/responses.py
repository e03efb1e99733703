"""Running a handler, and turning its outcome or its fault into a response."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar, cast

import msgspec
import structlog
import trio
from quart import Response
from quart.wrappers.response import DataBody, ResponseBody
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException

from holdfast.actors.runtime.faults import AccountAway, ShareExceeded
from holdfast.actors.runtime.messages import Replayed
from holdfast.http.kit.actions import record_refused_action
from holdfast.http.kit.calls import Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import (
    INTERNAL_ERROR,
    UNREADABLE,
    RefusalResponse,
    error_response,
    leaves_of,
    refusal_of_fault,
    refusal_of_http,
)
from holdfast.http.kit.operators import MAY_ONLY_READ
from holdfast.http.kit.requests import UNLESS_SET, HoldfastRequest, current_request_id
from holdfast.http.kit.routes import BodyResponse, Media, Outcome, Parameter, Route
from holdfast.http.kit.values import unknown_parameter
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.telemetry.refused_requests import RefusedRequests
from holdfast.telemetry.scrubbing import scrub

log = structlog.get_logger(__name__)


T = TypeVar("T")

NAMES_SHOWN_MAX: Final = 8
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,80}", re.ASCII)


def reply_outcome(call: Call, reply: T | Replayed[T] | Refusal, body: Callable[[T], msgspec.Struct]) -> Outcome:
    """Render an actor's reply to an idempotent command; ``body`` renders a success, new or replayed."""
    taken = call.take_reply(reply)
    return taken if isinstance(taken, Refusal) else body(taken)


def streamed(
    body: AbstractAsyncContextManager[AsyncIterator[bytes]],
    headers: Mapping[str, str],
    *,
    status: int = 200,
    timeout_s: float | None = None,
) -> Response:
    """Return a response that sends what a context yields, which is entered when it starts and left when it ends."""
    response = Response(None, status=status, headers=dict(headers))
    # It has all that is used of a body: it is entered, iterated and left.
    response.response = cast(ResponseBody, body)
    if timeout_s is not None:
        response.timeout = timeout_s
    return response


IF_NONE_MATCH: Final = Parameter(
    name="If-None-Match",
    location="header",
    description="The `ETag` of an earlier response.",
)
NOT_MODIFIED: Final = Media(status=304, content_types=(), description="The earlier response is current.")


def cacheable(call: Call, tag: str, body: Callable[[], msgspec.Struct]) -> Outcome:
    """Respond with a body that the caller may keep, and ask for again by its weak ``tag``; 304 if it has it."""
    headers = (("ETag", f'W/"{tag}"'), ("Cache-Control", "private, no-cache"))
    if call.request.sent.get(b"if-none-match") and call.request.if_none_match.contains_weak(tag):
        return Response(b"", status=304, headers=dict(headers), content_type="application/json")
    return BodyResponse(body(), headers=headers)


async def serve_call(deps: Dependencies, route: Route, request: HoldfastRequest, path: dict[str, str]) -> Response:
    """Serve one call: prepare, handle, render. Faults pass through to :func:`exception_response`."""
    call = Call(deps, route, request, path)
    try:
        refusal = await call.prepare()
        if refusal is None and request.query_string and route.refuses_parameters:
            refusal = _refuse_unknown_parameter(call, route)
        if refusal is MAY_ONLY_READ:
            await record_refused_action(call)
        outcome = refusal or await handle(call, route)
    except BaseExceptionGroup as group:
        # Quart would look for a handler member by member; a group is one fault here.
        cancelled, faults = group.split(trio.Cancelled)
        if cancelled is None:
            return fault_response(group)
        if faults is not None:
            log.error("fault after the client disconnected", exc_info=faults)
        raise cancelled from None
    finally:
        call.release_body()
    response = outcome_response(outcome)
    if call.is_replay:
        response.headers["Idempotent-Replayed"] = "true"
    if call.ignored:
        response.headers["Warning"] = _ignored_warning(call.ignored)
    return response


async def handle(call: Call, route: Route) -> Outcome:
    """Run the handler of a route. To an operator a refusal names the row that cannot be read."""
    try:
        return await route.handler(call)
    except AccountAway:
        if call.bearer is not None:
            call.deps.access.key_cache.forget(call.bearer.sha256)
        raise
    except UnreadableRow as fault:
        if call.operator is None:
            raise
        return Refusal(code=UNREADABLE.code, message=f"The row cannot be read: {scrub(str(fault))}")


def _ignored_warning(names: list[str]) -> str:
    """Return the header ``Warning`` (RFC 7234, 5.5) for fields of the body that were ignored."""
    shown_names = [name for name in names if _PLAIN_NAME.fullmatch(name)][:NAMES_SHOWN_MAX]
    hidden = len(names) - len(shown_names)
    named = [*shown_names, *([f"{hidden} not shown"] if hidden else [])]
    return f'299 - "Unknown fields of the body were ignored: {", ".join(named)}"'


def _refuse_unknown_parameter(call: Call, route: Route) -> Refusal | None:
    """Refuse a query parameter that the route does not declare: a misspelt filter would select everything.

    Only where a caller chooses the parameters: a provider may add its own to the address of a callback, and the
    links to what is read without any may be counted by one.
    """
    known = [each for each in route.parameters if each.location == "query"]
    unknown = next((name for name in call.query() if not any(each.is_sent_as(name) for each in known)), None)
    return None if unknown is None else unknown_parameter(unknown, [each.shown_name for each in known])


def outcome_response(outcome: Outcome) -> Response:
    """Turn an outcome into a response."""
    match outcome:
        case Response():
            return outcome
        case Refusal():
            return refusal_response(outcome)
        case BodyResponse(Refusal() as refusal, _, headers):
            return refusal_response(refusal, dict(headers))
        case BodyResponse(body, status, headers):
            response = JsonResponse(body, status)
            for name, value in headers:
                response.headers.add(name, value)
            return response
        case _:
            return JsonResponse(outcome)


class JsonResponse(Response):
    """A response with a JSON body. Its constructor takes a third of what Quart's and werkzeug's take.

    From werkzeug, private members used here: ``_status`` and ``_status_code`` of a response, ``_list`` of headers.
    """

    _status, _status_code, timeout = "200 OK", 200, ...

    def __init__(self, body: msgspec.Struct, status: int | None = None) -> None:
        self.headers = Headers()
        self.headers._list.append(("Content-Type", "application/json"))
        self.encoded = msgspec.json.encode(body)
        self.response = DataBody(self.encoded)
        if status is not None:
            self.status = status


def refusal_response(refusal: Refusal, headers: dict[str, str] | None = None) -> RefusalResponse:
    """Turn a refusal into a response by the error table."""
    status, body, table_headers = error_response(refusal, current_request_id())
    sent = {**table_headers, **(headers or {})}
    response = RefusalResponse(body, status=status, headers=sent, content_type="application/json")
    response.code = refusal.code
    return response


def exception_response(error: Exception, request: HoldfastRequest) -> Response:
    """Turn an exception into a response: the application's error handler."""
    if isinstance(error, HTTPException):
        return refusal_response(*refusal_of_http(error, request.method, request.path))
    return fault_response(error)


def fault_response(fault: BaseException) -> Response:
    """Turn a fault into a response. An unexpected one is logged with its traceback; the response has no detail."""
    refusal = refusal_of_fault(fault)
    if refusal is None:
        log.error("unexpected fault", exc_info=fault)
        return refusal_response(INTERNAL_ERROR)
    # At debug level only: requests answered 503 are a condition, reported when it begins and when it ends.
    log.debug("fault", code=refusal.code, reason=str(fault))
    response = refusal_response(refusal)
    response.is_of_share = all(isinstance(each, ShareExceeded) for each in leaves_of(fault))
    return response


SERVER_CODES: Final = {
    400: "malformed_request",
    408: "request_timeout",
    429: "rate_limit_exceeded",
    431: "headers_too_large",
    500: "internal_error",
    501: "not_implemented",
    503: "overloaded",
    505: "http_version_not_supported",
}
"""The codes of the responses that the server itself gives, by their statuses."""


def server_response(
    refused: RefusedRequests, refusal: tuple[int, str], origin: str
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers and body of a response of the server itself, and count it.

    ``refusal`` is the status and a message. Nothing is known of the request but its origin.
    """
    status, message = refusal
    request_id, code = new_id("req"), SERVER_CODES[status]
    refused.count(status=status, code=code, request_id=request_id, origin=origin)
    _, body, headers = error_response(Refusal(code=code, message=message), request_id)
    named = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return [
        (b"content-type", b"application/json"),
        (b"x-request-id", request_id.encode()),
        *UNLESS_SET,
        *named,
    ], body
