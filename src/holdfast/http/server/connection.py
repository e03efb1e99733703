"""One connection: a task that reads and a task that answers, from the first byte to the close.

- A client that hangs up (a half-close counts) cancels the handler of its request, and nothing else. An answer whose
  last part is being written is still written.
- The reader stops where requests or a body wait for the answerer, so a client cannot make the service hold more
  than the read-ahead.
- Waiting is bounded by deadlines that :class:`~holdfast.http.server.connections.Connections` looks at for all
  connections at once; there are no timers here. A client that does not take its answer is cut off with a reset.
- An answer may come before the body has arrived. It waits a moment for the rest, which is thrown away; where that
  does not come, the answer says ``Connection: close``.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Literal, Protocol
from urllib.parse import unquote

import structlog
import trio

from holdfast import metrics
from holdfast.http.server.answer import CONTINUE, AnswerFraming, refusal_bytes
from holdfast.http.server.limits import PIPELINED_MAX, READ_AHEAD_BYTES, RECEIVE_BYTES, SEND_BYTES, ServerLimits
from holdfast.http.server.request_parser import BODY_TIMEOUT, HEAD_TIMEOUT, Request, RequestParser
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.reports import describe

log = structlog.get_logger("holdfast.http")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
Address = tuple[str, int]
Cut = Literal["send_timeout", "head_timeout", "body_timeout", "stop"]

_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_INTERNAL_ERROR: Final = Refusal(code="internal_error", message="Something went wrong on our side.")
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class Owner(Protocol):
    """Who keeps all connections."""

    is_stopping: bool

    def became_idle(self, connection: Connection) -> None:
        """No request is under way on the connection."""
        ...

    def became_busy(self, connection: Connection) -> None:
        """A request is under way again."""
        ...


class Connection:
    """A connection that was accepted. With a ``refusal`` it is answered that, and closed."""

    def __init__(
        self,
        app: AsgiApp,
        stream: trio.abc.HalfCloseableStream,
        limits: ServerLimits,
        owner: Owner,
        *,
        client: Address,
        server: Address,
        refusal: Refusal | None = None,
    ) -> None:
        self.client = client
        self._app = app
        self._stream = stream
        self._limits = limits
        self._owner = owner
        self._server = server
        self._parser = RequestParser(limits)
        if refusal is not None:
            self._parser.refuse(refusal)
        self._scope = trio.CancelScope()
        self._call_scope: trio.CancelScope | None = None
        self._request: Request | None = None
        self._framing = AnswerFraming(close=False)
        self._is_last_write = False
        self._is_hung_up = False
        self._is_closing = False
        self._answerer = trio.lowlevel.ParkingLot()
        self._reader = trio.lowlevel.ParkingLot()
        self._idle_by = self._head_by = self._body_by = self._send_by = self._linger_by = math.inf

    async def run(self) -> None:
        """Serve until one side ends it. Raises, in a group, only what is a bug of this server."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._answer_requests)
                    self._rest()
                    await self._read()
        finally:
            await trio.aclose_forcefully(self._stream)

    # ------------------------------------------------------------------------- what the owner of all asks for

    def expire(self, now: float) -> None:
        """Act on the deadlines that have passed."""
        if now >= self._send_by:
            self.abort("send_timeout")
        elif now >= self._linger_by or now >= self._idle_by:
            self._scope.cancel()
        elif now >= self._body_by:
            self._body_by = math.inf
            self._refuse(BODY_TIMEOUT, "body_timeout")
        elif now >= self._head_by:
            self._head_by = math.inf
            self._refuse(HEAD_TIMEOUT, "head_timeout")

    def begin_stop(self) -> None:
        """The server stops: one request more is answered, if it comes within a moment."""
        if self._idle_by < math.inf:
            self._idle_by = trio.current_time() + self._limits.linger_s

    def close(self) -> None:
        """End a connection on which no request is under way; its file is free when this returns."""
        if isinstance(self._stream, trio.SocketStream):
            self._stream.socket.close()
        self._scope.cancel()

    def abort(self, reason: Cut) -> None:
        """End the connection at once, whatever the client does: with a reset, and without sending what waits."""
        metrics.HTTP_CUT.labels(reason).inc()
        if isinstance(self._stream, trio.SocketStream):
            try:
                self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                self._stream.socket.close()
            except OSError:
                pass  # it is gone already
        self._scope.cancel()

    # ------------------------------------------------------------------------------------------- reading

    async def _read(self) -> None:
        parser = self._parser
        while True:
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except _GONE:
                break
            if not data:
                break
            if parser.is_done:
                continue
            parser.feed(bytes(data))
            self._after_feed()
            while self._is_full():
                await self._reader.park()
        self._is_hung_up = True
        if self._call_scope is not None and not self._is_last_write:
            self._call_scope.cancel()
        self._answerer.unpark_all()

    def _is_full(self) -> bool:
        parser = self._parser
        if parser.is_done or self._is_closing:
            return False
        receiving = parser.receiving
        return len(parser.ready) >= PIPELINED_MAX or (
            receiving is not None and receiving.waiting_bytes > READ_AHEAD_BYTES
        )

    def _after_feed(self) -> None:
        """Set the deadlines that follow from where the parser stands now, and let the answerer look."""
        parser = self._parser
        if parser.is_done:
            self._head_by = self._body_by = math.inf
            self._cancel_refused_call()
        elif parser.receiving is not None:
            self._head_by = math.inf
            if self._body_by == math.inf:
                self._body_by = trio.current_time() + self._limits.body_timeout_s
        else:
            self._body_by = math.inf
            if not parser.is_within_head:
                self._head_by = math.inf
            elif self._head_by == math.inf:
                self._head_by = trio.current_time() + self._limits.head_timeout_s
                self._work()
        self._answerer.unpark_all()

    def _refuse(self, refusal: Refusal, reason: Cut) -> None:
        metrics.HTTP_CUT.labels(reason).inc()
        self._parser.refuse(refusal)
        self._cancel_refused_call()
        self._reader.unpark_all()
        self._answerer.unpark_all()

    def _cancel_refused_call(self) -> None:
        request = self._request
        if request is None or request.refusal is None or self._call_scope is None:
            return
        # An answer that has begun cannot be replaced; it is finished, and the connection closed behind it.
        if not self._framing.is_started and not request.is_discarded:
            self._call_scope.cancel()

    # ----------------------------------------------------------------------------------------- answering

    async def _answer_requests(self) -> None:
        while True:
            request = await self._next_request()
            if request is None:
                return
            self._work()
            await self._answer(request)
            if self._framing.close or not request.keep_alive or self._is_hung_up:
                await self._close_in_order()
                return
            self._rest()
            self._reader.unpark_all()

    async def _next_request(self) -> Request | None:
        """The next request, or None once there will be none. What is refused is answered even to a half-closed
        end."""
        ready = self._parser.ready
        while not ready:
            if self._is_hung_up:
                return None
            await self._answerer.park()
        request = ready.popleft()
        return None if self._is_hung_up and request.refusal is None else request

    async def _answer(self, request: Request) -> None:
        self._request = request
        self._framing = AnswerFraming(close=not request.keep_alive)
        self._is_last_write = False
        if request.refusal is None:
            with trio.CancelScope() as self._call_scope:
                await self._call_app(request)
            self._call_scope = None
        framing = self._framing
        if not framing.is_complete:
            refusal = request.refusal or (None if self._is_hung_up else _INTERNAL_ERROR)
            if framing.is_started:
                # Closed without its end, so that no client takes it for the whole; what was sent still arrives.
                metrics.HTTP_CUT.labels("fault").inc()
                self._scope.cancel()
            elif refusal is not None:
                framing.close = framing.is_complete = True
                await self._write(refusal_bytes(refusal))
        self._request = None

    async def _call_app(self, request: Request) -> None:
        async def receive() -> Message:
            return await self._receive(request)

        async def send(message: Message) -> None:
            await self._send(request, message)

        try:
            await self._app(self._scope_of(request), receive, send)
        except Exception as fault:
            found = describe(fault)
            log.error(
                "the application broke off", type=found.reason_type, reason=found.reason, location=found.location
            )

    def _scope_of(self, request: Request) -> MutableMapping[str, Any]:
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
            "client": self.client,
            "server": self._server,
            "state": {},
            "extensions": {},
        }

    async def _receive(self, request: Request) -> Message:
        """The application wants more of the body, or to know that the client has left."""
        if request.expects_continue:
            request.expects_continue = False
            if not request.chunks and not request.is_complete:
                await self._write(CONTINUE)
        while not request.chunks and not request.is_complete and not self._is_hung_up:
            await self._answerer.park()
        if request.chunks:
            body = b"".join(request.chunks)
            request.chunks.clear()
            request.waiting_bytes = 0
            self._reader.unpark_all()
            return {"type": "http.request", "body": body, "more_body": not request.is_complete}
        if request.is_complete and not request.is_discarded:
            request.is_discarded = True  # told that it has ended; there is nothing more to tell
            return {"type": "http.request", "body": b"", "more_body": False}
        while not self._is_hung_up:
            await self._answerer.park()
        return {"type": "http.disconnect"}

    async def _send(self, request: Request, message: Message) -> None:
        """The application's answer, a part at a time."""
        if message["type"] == "http.response.start":
            self._framing.start(message["status"], message["headers"])
            return
        framing = self._framing
        if not framing.is_started:
            if not request.is_complete:
                await self._take_rest_of_body(request)
            framing.close = framing.close or not request.keep_alive or self._owner.is_stopping
        more = message.get("more_body", False)
        out = framing.frame(message.get("body", b""), more=more, method=request.method, version=request.version)
        self._is_last_write = not more
        if out:
            await self._write(out)

    async def _take_rest_of_body(self, request: Request) -> None:
        """Wait a moment for the rest of a body, and throw it away; without it the connection must close."""
        request.discard()
        self._reader.unpark_all()
        # Who still waits for 100 (Continue) will not send the body now, or cannot be told from somebody who does.
        if not request.expects_continue:
            with trio.move_on_after(self._limits.rest_of_body_s):
                while not request.is_complete and request.refusal is None:
                    await self._answerer.park()
        if not request.is_complete:
            request.keep_alive = False
            self._parser.is_done = True
            self._body_by = math.inf

    async def _write(self, data: bytes) -> None:
        """Send, each part within the send timeout. A client that is gone cancels everything here."""
        view = memoryview(data)
        try:
            for start in range(0, len(data), SEND_BYTES):
                self._send_by = trio.current_time() + self._limits.send_timeout_s
                await self._stream.send_all(view[start : start + SEND_BYTES])
        except _GONE:
            self._is_hung_up = True
            self._scope.cancel()
            await trio.lowlevel.checkpoint()
        finally:
            self._send_by = math.inf

    async def _close_in_order(self) -> None:
        """Say that nothing more comes, and read on for a moment, so that no reset overtakes the answer."""
        self._is_closing = self._parser.is_done = True
        self._head_by = self._body_by = self._idle_by = math.inf
        self._linger_by = trio.current_time() + self._limits.linger_s
        self._reader.unpark_all()
        try:
            await self._stream.send_eof()
        except (*_GONE, OSError):
            self._scope.cancel()

    def _rest(self) -> None:
        """Note that no request is under way, unless one has begun to arrive."""
        parser = self._parser
        if parser.ready or parser.is_within_head or parser.is_done:
            return
        wait_s = self._limits.linger_s if self._owner.is_stopping else self._limits.idle_timeout_s
        self._idle_by = trio.current_time() + wait_s
        self._owner.became_idle(self)

    def _work(self) -> None:
        """Note that a request is under way."""
        if self._idle_by < math.inf:
            self._idle_by = math.inf
            self._owner.became_busy(self)
