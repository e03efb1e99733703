"""The ASGI side of the application: one request in, one response out.

Any ASGI server on trio can serve the application, such as hypercorn's trio worker. What it uses of its own server
(:mod:`holdfast.http.server`) beyond ASGI, and what it does without:

- The extension :data:`CANCELS`: the server cancels the request of a client that disconnects, and discards the rest
  of a body that no handler reads. So a request needs one task, and no part of a body is read before a handler reads
  it. Without it :func:`cancel_on_disconnect` does both, with a second task for each request, which reads the first
  part of a body ahead.
- ``raw_path``, which ASGI makes optional. Without it only the decoded path is checked for its normal form.
- Limits that no request sees: of open connections, all and of one client, and of the time in which a client must
  send its request and read its response. With another server they are that server's, and so are the responses to
  requests that do not reach the application (400, 408, 429, 431, 503).
- The end of requests that wait, and of streams, when the server stops. Another server cuts them off after a time of
  its own, as a lost connection does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, cast
from urllib.parse import quote

import trio
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPRequestEvent,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
)
from quart import Response
from quart.asgi import ASGIHTTPConnection
from quart.wrappers.response import DataBody
from quart_trio.wrappers.request import TrioRequest
from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.sansio.request import Request as SansIORequest

from holdfast.ledger.values import new_id
from holdfast.telemetry.logs import keep_change
from holdfast.telemetry.traces import (
    HEADER,
    Span,
    new_traceparent,
    read_traceparent,
    request_id,
    start_span,
    trace_id,
    traceparent,
)

_NO_HEADERS: Final = Headers()


class HoldfastRequest(TrioRequest):
    """A request whose body stays in the server until it is read."""

    # Not set by the constructor: most requests keep most of these.
    _headers: Headers | None = None
    _read_bytes = 0
    _has_read_all = False
    keeps_body = False
    """Whether it may have to be sent on to another cell once its body was read."""
    kept_body: bytes | None = None
    """The whole body, if it was read and is kept."""
    body_fault: Exception | None = None
    """Why the body cannot be read any more."""
    hop = 0
    """Why another cell has sent it on (:class:`~holdfast.http.kit.other_cells.Hop`); 0 for a client's own."""
    is_settled = False
    """Whether it is answered here: no other cell has what it names, or the response has begun."""
    has_looked_again = False
    """Whether it is served again, because what it names may have come from another cell meanwhile."""
    lists_differ = False
    """Whether a cell that it was sent on to has another list of cells."""
    had_effect = False
    """Whether an actor has accepted a command of it."""
    started_s = 0.0
    id = ""
    caller: str | None = None
    """Whose credential it has: an account's id or an operator's name; None while that is not known."""
    key_prefix: str | None = None
    """How the API key begins that it has; None without one."""
    traceresponse: str | None = None
    """The caller's trace, which this request continues."""
    span: Span | None = None
    endpoint: str | None = None
    """The name of its route; None without one."""

    def __init__(self, scope: HTTPScope, receive: ASGIReceiveCallable) -> None:
        client = scope.get("client")
        # Not Quart's own: it makes a lock and a buffer with two events for a body that would be sent to it.
        SansIORequest.__init__(
            self,
            scope["method"],
            scope["scheme"],
            scope.get("server"),
            "",
            scope["path"],
            scope["query_string"],
            _NO_HEADERS,
            client[0] if client else None,
        )
        self.http_version = scope["http_version"]
        self.scope = scope
        self.sent: dict[bytes, list[str]] = {}
        """The values of the headers, by their names in lower case."""
        for name, value in scope["headers"]:
            self.sent.setdefault(name, []).append(value.decode("latin1"))
        self.receive = receive

    @property
    def undelivered(self) -> list[Callable[[], None]]:
        """What is called if the response is known not to have reached the client, where the server can tell."""
        extensions = self.scope.get("extensions") or {}
        return cast(list[Callable[[], None]], extensions.get("holdfast.undelivered", []))

    @property
    def headers(self) -> Headers:
        """All headers, as werkzeug reads them. ``sent`` has one at a tenth of the cost."""
        if self._headers is None:
            headers = self._headers = Headers()
            headers[:] = [
                (name.decode("latin1").title(), value.decode("latin1")) for name, value in self.scope["headers"]
            ]
        return self._headers

    @headers.setter
    def headers(self, _: Headers) -> None:
        """Ignore what the constructor sets: the headers are made when they are first read."""

    @property
    def content_length(self) -> int | None:
        """The length of the body; None for no body or one in chunks. The server has checked it."""
        sent = self.sent.get(b"content-length")
        return int(sent[0]) if sent else None

    async def close(self) -> None:
        """Do nothing: no files of a form are open."""

    async def read_body(self, bytes_max: int, count: Callable[[int], None] | None = None) -> bytes:
        """Read the whole body; ``count`` is called with the bytes of each part.

        Raises ``RequestEntityTooLarge`` after more than ``bytes_max`` bytes. If the client disconnects it does not
        return: the server cancels the request.
        """
        if self.kept_body is not None:
            return self.kept_body
        parts: list[bytes] = []
        while (part := await self.read_part(bytes_max)) is not None:
            parts.append(part)
            if count is not None:
                count(len(part))
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if self.keeps_body:
            self.kept_body = body
        return body

    @property
    def is_body_gone(self) -> bool:
        """Whether a part of the body was read that cannot be read again."""
        return self.kept_body is None and self._read_bytes > 0

    async def read_part(self, bytes_max: int | None) -> bytes | None:
        """Read the next part of the body, as :meth:`read_body` does; None after the last. None is no limit.

        The server reads no further than a little ahead.
        """
        if self.body_fault is not None:
            raise self.body_fault
        if self._has_read_all:
            return None
        event = await self.receive()
        if event["type"] != "http.request":
            await trio.sleep_forever()
        part = event.get("body", b"")
        self._read_bytes += len(part)
        if bytes_max is not None and self._read_bytes > bytes_max:
            raise RequestEntityTooLarge
        self._has_read_all = not event.get("more_body", False)
        return part


_HEADER = HEADER.encode()
_UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
"""What asks for these asks every few seconds; it is traced only within its caller's trace."""


def current_request_id() -> str:
    """Return the id of the current request, or a new id outside of a request."""
    return request_id.get() or new_id("req")


def start_trace(request: HoldfastRequest) -> None:
    """Give the request its id, and continue the caller's trace; an id sent by the caller is ignored.

    Without a valid ``traceparent`` a trace begins whose id is the digits of the request's id. Both end with the
    context of the request's task, or with the next request of the same connection.
    """
    request.id = new_id("req")
    request_id.set(request.id)
    sent = request.sent.get(_HEADER)
    continued = request.traceresponse = read_traceparent(sent) if sent else None
    request.span = None
    if continued is not None or request.path not in _UNTRACED:
        request.span = start_span(request.method, continued, "server", trace_id=request.id[4:])
    traceparent.set(request.span.traceparent if request.span else continued or new_traceparent(request.id[4:]))


def keep_request(request: HoldfastRequest, status: int) -> None:
    """Keep what leads from the id of an account's request that changed something to the account."""
    if request.caller and request.caller.startswith("acct_"):
        about = {"route": request.endpoint, "path": request.path, "status": status, "caller": request.caller}
        keep_change("request changed something", {**about, "trace_id": trace_id(), "request_id": request.id})


def end_trace(request: HoldfastRequest, status: int | None) -> None:
    """End the span of a request; ``status`` is None if its client has disconnected."""
    if request.span is None:
        return
    route = request.endpoint or "none"
    attributes: dict[str, str | int] = {"http.request.method": request.method, "http.route": route}
    if status is not None:
        attributes["http.response.status_code"] = status
    request.span.end(name=route, attributes=attributes, failed=status is None or status >= 500)


UNLESS_SET: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""The headers that every response has, with these values unless it has others."""


CANCELS: Final = "holdfast.cancels"
"""The extension of a server that cancels the request of a client that disconnects."""

REST_OF_BODY_S: Final = 2.0
"""How long a response waits for the rest of a body that no handler has read, so that no reset overtakes it."""


def scope_with_cancels(scope: HTTPScope) -> HTTPScope:
    """Return the scope of a request as a server with :data:`CANCELS` gives it."""
    with_cancels = {
        **scope,
        "raw_path": scope.get("raw_path") or quote(scope["path"]).encode(),
        "extensions": {**(scope.get("extensions") or {}), CANCELS: {}},
    }
    return cast(HTTPScope, with_cancels)


async def cancel_on_disconnect(
    answer: Callable[[ASGIReceiveCallable, ASGISendCallable], Awaitable[None]],
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
) -> None:
    """Run ``answer`` for a server without :data:`CANCELS`: cancel it if the client disconnects before its end."""
    to_answer, events = trio.open_memory_channel[HTTPRequestEvent](float("inf"))
    wanted = trio.Semaphore(1)
    """The first part is received at once, since a body may have none; each other when it is asked for."""
    has_read_any = has_read_all = has_begun = has_ended = False

    async def watch() -> None:
        more = True
        while True:
            if more:
                await wanted.acquire()
            event = await receive()
            if event["type"] != "http.request":
                break
            more = event.get("more_body", False)
            to_answer.send_nowait(event)
        if not has_ended:
            nursery.cancel_scope.cancel()

    async def receive_read() -> ASGIReceiveEvent:
        nonlocal has_read_any, has_read_all
        if has_read_any:
            wanted.release()
        event = await events.receive()
        has_read_any, has_read_all = True, not event.get("more_body", False)
        return event

    async def send_after_body(event: ASGISendEvent) -> None:
        nonlocal has_begun, has_ended
        if not has_begun:
            has_begun = True
            with trio.move_on_after(REST_OF_BODY_S):
                while not has_read_all:
                    await receive_read()
        has_ended = event["type"] == "http.response.body" and not event.get("more_body", False)
        await send(event)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await answer(receive_read, send_after_body)
        nursery.cancel_scope.cancel()


class HoldfastConnection(ASGIHTTPConnection):
    """One request. Every response has its id."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer the request."""
        if CANCELS not in self.scope.get("extensions", ()):
            self.scope = scope_with_cancels(self.scope)
            await cancel_on_disconnect(self, receive, send)
            return
        request = HoldfastRequest(self.scope, receive)
        response = await self.app.handle_request(request)
        assert isinstance(response, Response)
        headers = [(name.lower().encode(), value.encode()) for name, value in response.headers]
        named = dict(headers)
        headers.append((b"x-request-id", request.id.encode()))
        if request.traceresponse is not None:
            headers.append((b"traceresponse", request.traceresponse.encode()))
        headers += [header for header in UNLESS_SET if header[0] not in named]
        body = response.response
        if isinstance(body, DataBody) and b"content-length" not in named:
            headers.append((b"content-length", b"%d" % len(body.data)))
        start = cast(
            HTTPResponseStartEvent,
            {"type": "http.response.start", "status": response.status_code, "headers": headers},
        )
        if request.method == "HEAD":
            await send(start)
            await send(_part(b"", more=False))
            return
        if isinstance(body, DataBody):
            await send(start)
            await send(_part(body.data, more=False))
            return
        timeout_s = response.timeout if isinstance(response.timeout, int | float) else None
        # After the timeout the response is incomplete, and the server closes the connection.
        with trio.move_on_after(float("inf") if timeout_s is None else timeout_s):
            # Entered before anything is sent, so that nothing waits between a handler's checks and its body.
            async with body as parts:
                await send(start)
                async for data in parts:
                    await send(_part(data.encode() if isinstance(data, str) else data, more=True))
            await send(_part(b"", more=False))


def _part(body: bytes, *, more: bool) -> HTTPResponseBodyEvent:
    return {"type": "http.response.body", "body": body, "more_body": more}
