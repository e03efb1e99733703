"""One connection: a task that reads and a task that responds, from the first byte to the close.

- A client that disconnects (also by a half-close) cancels the handler of its request, and nothing else. The last
  part of a response is still written. If the end of the connection has arrived with a request, or with the last
  part of its body, the application does not get that: the client may have sent the request again, elsewhere.
- The reader pauses while requests or a body wait for the responder, so that at most the read-ahead is buffered.
- Waits have deadlines, which :class:`~holdfast.http.server.connections.Connections` checks for all connections;
  there are no timers here. A client that does not read its response is disconnected with a reset.
- A response may start before the body has been received. The server waits briefly for the rest and discards it;
  without it the response has ``Connection: close``.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Final, Literal, Protocol
from urllib.parse import unquote

import trio

from holdfast.http.server.http1 import (
    BODY_TIMEOUT,
    CONTINUE,
    HEAD_TIMEOUT,
    INTERNAL_ERROR,
    Headers,
    ParsedRequest,
    Refuse,
    RequestParser,
    ResponseFraming,
    ServerRefusal,
    refusal_bytes,
)
from holdfast.http.server.limits import (
    BODY_STEP_BYTES,
    PIPELINED_MAX,
    READ_AHEAD_BYTES,
    READS_MAX,
    SEND_BYTES,
    ServerLimits,
)
from holdfast.http.server.sources import Source, Sources
from holdfast.sockets.connected import RECEIVE_BYTES, ConnectedSocket
from holdfast.telemetry import metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
Address = tuple[str, int]

_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}


def scope_of(request: ParsedRequest, client: Address, server: Address) -> MutableMapping[str, Any]:
    """Return the scope of a request."""
    path, _, query = request.target.partition(b"?")
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": request.version,
        "method": request.method,
        "scheme": "http",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": request.headers,
        "client": client,
        "server": server,
        "state": {},
        "extensions": {"holdfast.cancels": {}, "holdfast.undelivered": []},
    }


def answering(status: int, headers: Headers, body: bytes) -> AsgiApp:
    """Return an application that gives one response."""

    async def app(_scope: MutableMapping[str, Any], _receive: Receive, send: Send) -> None:
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return app


Cut = Literal["send_timeout", "head_timeout", "body_timeout", "room", "stop"]
Awaited = Literal["request", "head", "body", "close"]
"""What the client is awaited to do: to begin a request, to send the rest of a head or of a body, or to close."""

_OVERDUE: Final[dict[Awaited | None, tuple[ServerRefusal, Cut]]] = {
    "head": (HEAD_TIMEOUT, "head_timeout"),
    "body": (BODY_TIMEOUT, "body_timeout"),
}
"""The response to a client that sends too slowly. With nothing left to answer, the connection is closed."""

LogFault = Callable[[str, Exception], None]
"""Logs an exception, whose text may contain a client's data, as the cause of an event."""
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


def _unknown() -> bool:
    """Of a stream that cannot tell."""
    return False


class Owner(Protocol):
    """The owner of all connections."""

    is_stopping: bool
    refuse: Refuse
    log_fault: LogFault
    idle: dict[ServerConnection, None]
    """The connections that have no request, the longest idle first."""


class ServerConnection:
    """An accepted connection. With ``refusal`` that is its only response.

    ``peer`` is the client as limits count it. A proxy's connection has the ``sources`` by which its clients count.
    """

    def __init__(
        self,
        app: AsgiApp,
        stream: trio.abc.HalfCloseableStream,
        limits: ServerLimits,
        owner: Owner,
        *,
        client: Address,
        server: Address,
        peer: str,
        is_for_operators: bool = False,
        sources: Sources | None = None,
        refusal: ServerRefusal | None = None,
    ) -> None:
        self.client = client
        self.peer = peer
        self.is_for_operators = is_for_operators
        self._sources = sources
        self._source = Source(None)
        self._app = app
        self._stream = stream
        self._limits = limits
        self._owner = owner
        self._server = server
        self._parser = RequestParser(limits)
        if refusal is not None:
            self._parser.refuse(refusal)
        self._scope = trio.CancelScope()
        self._calls = trio.CancelScope()
        self._call_state: Literal["none", "called", "responded"] = "none"
        """``responded``: the last part of the response is being written."""
        self._request: ParsedRequest | None = None
        self._framing = ResponseFraming(close=False)
        self._is_hung_up = False
        self._is_readable = stream.is_readable if isinstance(stream, ConnectedSocket) else _unknown
        self._has_unacknowledged = stream.has_unacknowledged if isinstance(stream, ConnectedSocket) else _unknown
        self._undelivered: list[Callable[[], None]] = []
        """What the application wants called if its last response is known not to have reached the client."""
        self._is_looked_up = False
        """Whether the end of the connection was looked for, once the request was complete."""
        self._responder = trio.lowlevel.ParkingLot()
        self._reader = trio.lowlevel.ParkingLot()
        self._awaited: Awaited | None = None
        self._awaited_since = 0.0
        self._awaited_by = self._send_by = math.inf
        self._body_mark_bytes = 0
        """How much of the body had come when its deadline began."""

    async def run(self) -> None:
        """Serve until one side closes. Raises, in a group, only bugs of this server."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._answer_requests)
                    self._mark_idle()
                    await self._read()
        finally:
            await trio.aclose_forcefully(self._stream)

    # ------------------------------------------------------------------------- called by the owner

    def expire(self, now: float) -> None:
        """Act on deadlines that have passed."""
        if now >= self._send_by:
            self.abort("send_timeout")
        elif now >= self._awaited_by:
            overdue = _OVERDUE.get(self._awaited)
            if overdue is None:
                self._scope.cancel()
            else:
                self._await(None)
                self._refuse(*overdue)

    def waits_since(self) -> float:
        """Return since when the client is awaited to send or to read the rest; ``inf`` if it is not."""
        sends_since = self._awaited_since if self._awaited in _OVERDUE else math.inf
        return min(sends_since, self._send_by - self._limits.send_timeout_s)

    def begin_stop(self) -> None:
        """Start the stop: an idle connection may send one more request within ``linger_s``."""
        if self._awaited == "request":
            self._awaited_by = trio.current_time() + self._limits.linger_s

    def close(self) -> None:
        """Close an idle connection; its file descriptor is free on return."""
        if isinstance(self._stream, ConnectedSocket):
            self._stream.close()
        self._scope.cancel()

    def abort(self, reason: Cut) -> None:
        """Close the connection immediately with a reset, discarding unsent data."""
        metrics.HTTP_CONNECTIONS_CLOSED.labels(reason).inc()
        if isinstance(self._stream, ConnectedSocket):
            self._stream.reset()
        self._scope.cancel()

    # ------------------------------------------------------------------------------------------- reading

    async def _read(self) -> None:
        parser = self._parser
        has_ended = False
        while True:
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except _GONE:
                break
            if not data:
                has_ended = True
                break
            if parser.is_done:
                continue
            parser.feed(bytes(data))
            self._after_feed()
            if self._is_full():
                await self._pause()
        self._is_hung_up = True
        if self._call_state == "called":
            self._calls.cancel()
        # The end of a connection acknowledges what has arrived before; a reset need not, so it says nothing.
        if self._undelivered and (self._call_state == "called" or (has_ended and self._has_unacknowledged())):
            self._note_undelivered()
        self._responder.unpark_all()

    def _note_undelivered(self) -> None:
        while self._undelivered:
            self._undelivered.pop()()

    async def _pause(self) -> None:
        """Read on when the responder has taken what was read. Meanwhile the client is not awaited."""
        awaited, left_s = self._awaited, self._awaited_by - trio.current_time()
        self._awaited_since = self._awaited_by = math.inf
        while self._is_full():
            await self._reader.park()
        if self._awaited == awaited:
            self._awaited_since = trio.current_time()
            self._awaited_by = self._awaited_since + left_s

    def _resume_reader(self) -> None:
        # It is seldom paused, and this costs less than unparking an empty lot.
        if self._reader:
            self._reader.unpark_all()

    def _is_full(self) -> bool:
        parser = self._parser
        if parser.is_done:
            return False
        ahead_bytes = 0
        for each in parser.ready:
            ahead_bytes += each.head_bytes + len(each.waiting)
        receiving = parser.receiving
        return (
            len(parser.ready) >= PIPELINED_MAX
            or (receiving is not None and len(receiving.waiting) > READ_AHEAD_BYTES)
            or ahead_bytes > READ_AHEAD_BYTES
        )

    def _after_feed(self) -> None:
        """Set the deadlines for the parser's state, and wake the responder."""
        parser = self._parser
        # Not when the responder runs: until then its deadline or a new connection could close an idle connection.
        if parser.is_done:
            self._await(None)
            self._cancel_refused_call()
        elif parser.receiving is not None:
            if not 0 <= parser.body_bytes - self._body_mark_bytes < BODY_STEP_BYTES:
                self._body_mark_bytes = parser.body_bytes
                self._await(None)
            self._await("body")
        else:
            self._await("head" if parser.is_within_head else None)
        self._responder.unpark_all()

    def _refuse(self, refusal: ServerRefusal, reason: Cut) -> None:
        metrics.HTTP_CONNECTIONS_CLOSED.labels(reason).inc()
        self._parser.refuse(refusal)
        self._cancel_refused_call()
        self._resume_reader()
        self._responder.unpark_all()

    def _cancel_refused_call(self) -> None:
        request = self._request
        if request is None or request.refusal is None or self._call_state == "none":
            return
        # A response that has started cannot be replaced; it is finished, and then the connection is closed.
        if not self._framing.is_started and not request.is_discarded:
            self._calls.cancel()

    # ----------------------------------------------------------------------------------------- answering

    async def _answer_requests(self) -> None:
        # One scope for all calls, since a call that is cancelled is the last of its connection.
        with self._calls:
            while await self._answer_next():
                self._mark_idle()
                self._resume_reader()
        if self._request is not None:
            await self._complete(self._request)
            await self._linger()

    async def _answer_next(self) -> bool:
        """Pass the next request to the application; return whether another one may follow."""
        self._request = None
        request = self._request = await self._next_request()
        if request is None:
            return False
        framing = self._framing = ResponseFraming(close=not request.keep_alive)
        self._is_looked_up = request.is_complete
        if request.refusal is None and request.is_complete and self._is_readable() and await self._has_hung_up():
            return False
        if request.refusal is None:
            self._call_state = "called"
            if self._sources is None:
                await self._call(self._app, request)
            else:
                found = self._sources.begin(self.client[0], request)
                if isinstance(found, ServerRefusal):
                    origin = self._sources.origin(self.client[0], request) or self.peer
                    await self._call(answering(found.status, *self._owner.refuse(found, origin)), request)
                else:
                    self._source, body_bytes = found
                    try:
                        await self._call(self._app, request)
                    finally:
                        self._sources.end(self._source, body_bytes)
            self._call_state = "none"
        return framing.is_complete and request.keep_alive and not (framing.close or self._is_hung_up)

    async def _next_request(self) -> ParsedRequest | None:
        """Wait for the next request; None if there will be none. A refusal is sent even after a half-close."""
        ready = self._parser.ready
        while not ready:
            if self._is_hung_up:
                return None
            await self._responder.park()
        request = ready.popleft()
        self._resume_reader()
        return None if self._is_hung_up and request.refusal is None else request

    async def _has_hung_up(self) -> bool:
        """Whether the client has disconnected, although that may not have been read yet."""
        for _ in range(READS_MAX):
            if self._is_hung_up or self._is_full() or not self._is_readable():
                break
            await trio.lowlevel.checkpoint()  # the other task reads
        return self._is_hung_up

    async def _complete(self, request: ParsedRequest) -> None:
        """Complete the last response of the connection, if the application has not."""
        framing = self._framing
        if framing.is_complete:
            return
        refusal = request.refusal or (None if self._is_hung_up else INTERNAL_ERROR)
        if framing.is_started:
            # Closed without its end, so that the client sees an incomplete response.
            metrics.HTTP_CONNECTIONS_CLOSED.labels("fault").inc()
            self._scope.cancel()
        elif refusal is not None:
            framing.is_complete = True
            await self._write(refusal_bytes(refusal.status, *self._owner.refuse(refusal, self.peer)))

    async def _call(self, app: AsgiApp, request: ParsedRequest) -> None:
        scope = scope_of(request, self.client, self._server)
        self._undelivered = scope["extensions"]["holdfast.undelivered"]
        try:
            await app(scope, partial(self._receive, request), partial(self._send, request))
        except Exception as fault:
            self._owner.log_fault("the application failed", fault)

    async def _receive(self, request: ParsedRequest) -> Message:
        """ASGI receive: the next part of the body, or the client's disconnect."""
        if request.expects_continue:
            request.expects_continue = False
            if not request.waiting and not request.is_complete:
                await self._write(CONTINUE)
        while not request.waiting and not request.is_complete and not self._is_hung_up:
            await self._responder.park()
        if request.is_complete and not self._is_looked_up:
            self._is_looked_up = True
            if self._is_readable() and await self._has_hung_up():
                return {"type": "http.disconnect"}
        if request.waiting or (request.is_complete and not request.is_discarded):
            body, request.waiting = bytes(request.waiting), bytearray()
            request.is_discarded = request.is_complete  # the end of the body is reported once
            self._resume_reader()
            return {"type": "http.request", "body": body, "more_body": not request.is_complete}
        while not self._is_hung_up:
            await self._responder.park()
        return {"type": "http.disconnect"}

    async def _send(self, request: ParsedRequest, message: Message) -> None:
        """ASGI send: a part of the response."""
        if message["type"] == "http.response.start":
            self._framing.start(message["status"], message["headers"])
            return
        framing = self._framing
        if not framing.is_started:
            if not request.is_complete:
                await self._discard_rest_of_body(request)
            framing.close = framing.close or not request.keep_alive or self._owner.is_stopping
        more = message.get("more_body", False)
        head, body = framing.frame(
            message.get("body", b""), more=more, method=request.method, version=request.version
        )
        if not more:
            self._call_state = "responded"
        if len(body) <= SEND_BYTES:
            body, head = head + body, b""
        for part in (head, body):
            if part:
                await self._write(part)
        if more:
            await trio.lowlevel.checkpoint()  # other tasks run between the parts of a long response

    async def _discard_rest_of_body(self, request: ParsedRequest) -> None:
        """Wait briefly for the rest of a body and discard it; without it the connection must close."""
        request.discard()
        self._resume_reader()
        # A client that still waits for 100 (Continue) may send the body or the next request: they look alike.
        if not request.expects_continue:
            with trio.move_on_after(self._limits.rest_of_body_s):
                while not request.is_complete and request.refusal is None:
                    await self._responder.park()
        if not request.is_complete:
            request.keep_alive = False
            self._parser.is_done = True
            self._await(None)

    async def _write(self, data: bytes) -> None:
        """Send, each part within the send timeout. If the client has disconnected, cancel the connection."""
        view = memoryview(data)
        self._source.bytes_count += len(data)
        try:
            for start in range(0, len(data), SEND_BYTES):
                self._send_by = trio.current_time() + self._limits.send_timeout_s
                await self._stream.send_all(view[start : start + SEND_BYTES])
        except _GONE:
            self._is_hung_up = True
            self._note_undelivered()
            self._scope.cancel()
            await trio.lowlevel.checkpoint()
        finally:
            self._send_by = math.inf
            self._source.bytes_count -= len(data)

    async def _linger(self) -> None:
        """Close the sending side and read for ``linger_s``, so that no reset overtakes the response."""
        self._parser.is_done = True
        self._await("close")
        self._resume_reader()
        try:
            await self._stream.send_eof()
        except (*_GONE, OSError):
            self._scope.cancel()

    def _mark_idle(self) -> None:
        """Mark the connection idle, unless a request has started to arrive."""
        parser = self._parser
        if not (parser.ready or parser.is_within_head or parser.is_done):
            self._await("request")

    def _await(self, awaited: Awaited | None) -> None:
        """Set what the client is awaited to do, by a deadline; what it was awaited to do before keeps its own."""
        if awaited == self._awaited:
            return
        was_idle, self._awaited = self._awaited == "request", awaited
        self._awaited_since = trio.current_time()
        self._awaited_by = self._awaited_since + self._limit_s(awaited)
        if awaited == "request":
            self._owner.idle[self] = None
        elif was_idle:
            self._owner.idle.pop(self, None)

    def _limit_s(self, awaited: Awaited | None) -> float:
        limits = self._limits
        match awaited:
            case "request":
                return limits.linger_s if self._owner.is_stopping else limits.idle_timeout_s
            case "head":
                return limits.head_timeout_s
            case "body":
                return limits.body_timeout_s
            case "close":
                return limits.linger_s
            case None:
                return math.inf
