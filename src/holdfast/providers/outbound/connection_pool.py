"""HTTP/1.1 requests on persistent connections, and the parsing of a server's bytes into responses.

A pool does not know which servers may be called: its owner's ``dial`` connects, and decides that. A connection is
used again only for the endpoint it was dialed for, so no request uses one that was dialed under other conditions.

llhttp refuses what makes a response's end ambiguous: a Content-Length beside Transfer-Encoding, or a second one.
Lines that end with a bare LF, and folded headers, are accepted: they are obsolete, but not ambiguous in a response.
"""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, partial
from typing import Final, NamedTuple

import certifi
import httptools
import trio

from holdfast.sockets.connected import RECEIVE_BYTES, ConnectedSocket

_DIGITS_READ = 9
HEADER_BYTES_MAX: Final = 64 * 1024
HEADER_COUNT_MAX: Final = 256
INFORMATIONAL_MAX_COUNT: Final = 8
"""How many responses of status 1xx may precede the final one."""
OVERHEAD_BYTES_MAX: Final = 256 * 1024
"""How many bytes a response may take in addition to eight times its body: a chunk with one byte takes six."""
KEEP_ALIVE_S: Final = 5.0
"""How long an idle connection is kept."""
StartTls = Callable[[ConnectedSocket, ssl.SSLContext, str], Awaitable[trio.abc.Stream]]


class TransportFault(Exception):
    """No response, or a broken one. A subclass's name is shown to operators and customers."""


class NeverSent(TransportFault):
    """No byte of the request was sent, so the server cannot have it."""


class ConnectError(NeverSent):
    """The server cannot be connected to: no address, refused, or TLS failed."""


class ConnectTimeout(NeverSent):
    """The connection was not established in time."""


class PoolTimeout(NeverSent):
    """All connections that may be open at once were in use."""


class WriteError(TransportFault):
    """The connection was lost while the request was sent."""


class WriteTimeout(TransportFault):
    """The server did not take the request in time."""


class ReadError(TransportFault):
    """The connection was lost before the response was complete."""


class ReadTimeout(TransportFault):
    """The server sent no further byte in time."""


class RemoteProtocolError(TransportFault):
    """The server's bytes are not a response that HTTP/1.1 allows, or it closed the connection too early."""


class BodyTooLarge(Exception):
    """The body is larger than the limit, which is the argument, in bytes."""


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Return the pause in seconds from ``now``, without an upper bound; None if there is none."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:_DIGITS_READ])
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())


class _Refused(Exception):
    """Raised in a callback to stop the parser; the text says why."""


class ResponseParser:
    """Parses one connection's responses, one at a time; :meth:`begin` starts the next.

    ``status`` and ``headers`` (names in lower case) are valid once ``has_head``. ``waiting`` is the part of the
    body that was received and not taken yet. ``is_reusable``: the response is complete, and another may follow.
    """

    __slots__ = (
        "_body_bytes",
        "_header_count",
        "_informational",
        "_parser",
        "_raw_bytes",
        "has_head",
        "headers",
        "is_complete",
        "is_reusable",
        "status",
        "waiting",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_headers=True, lenient_optional_cr_before_lf=True)
        self.begin()

    def begin(self) -> None:
        """Expect a response."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.waiting = bytearray()
        self.has_head = self.is_complete = self.is_reusable = False
        self._header_count = self._informational = self._raw_bytes = self._body_bytes = 0

    @property
    def has_begun(self) -> bool:
        """Whether a byte of the response was received."""
        return self._raw_bytes > 0

    def feed(self, data: bytes | bytearray) -> None:
        """Parse bytes from the server. Raises :class:`RemoteProtocolError`."""
        self._raw_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise RemoteProtocolError("the server switches to a protocol that was not offered") from None
        except httptools.HttpParserError as error:
            if not self.is_complete:
                reason = error.__context__ if isinstance(error.__context__, _Refused) else error
                raise RemoteProtocolError(str(reason)) from None
            # Bytes after the response: it stands, but no other may follow on this connection.
            self.is_reusable = False
        if not self.has_head and self._raw_bytes > HEADER_BYTES_MAX:
            raise RemoteProtocolError("the response's headers are too large")
        if self._raw_bytes > 8 * self._body_bytes + OVERHEAD_BYTES_MAX:
            raise RemoteProtocolError("the response has too much overhead")

    def feed_end(self) -> None:
        """Note the connection's end. Raises :class:`RemoteProtocolError` if the response is truncated."""
        self.is_reusable = False
        if not self.has_head or self._has_length():
            raise RemoteProtocolError("the server closed the connection before the end of the response")
        self.is_complete = True

    def _has_length(self) -> bool:
        """Whether the response's end is known otherwise than by the end of the connection."""
        return any(
            name == b"content-length" or (name == b"transfer-encoding" and value.lower().endswith(b"chunked"))
            for name, value in self.headers
        )

    # ------------------------------------------------------------------------------ called by httptools

    def on_message_begin(self) -> None:
        """A response's first byte."""
        if self.is_complete:
            raise _Refused("the server sent a response without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or after a body a trailer, which is only counted."""
        self._header_count += 1
        if self._header_count > HEADER_COUNT_MAX:
            raise _Refused("the response has too many headers")
        if not self.has_head:
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """A head is complete."""
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            self.has_head = True

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(data)
        self.waiting += data

    def on_message_complete(self) -> None:
        """The response is complete, or was an informational one."""
        if self.has_head:
            self.is_complete = True
            self.is_reusable = self._parser.should_keep_alive()
            return
        self.headers.clear()
        self._informational += 1
        if self._informational > INFORMATIONAL_MAX_COUNT:
            raise _Refused("the server sent too many informational responses")


class Endpoint(NamedTuple):
    """Where a connection leads: host in lower case, port, and whether it speaks TLS.

    ``is_trusted``: its owner configured it, so its address was not checked.
    """

    host: str
    port: int
    tls: bool
    is_trusted: bool


Dial = Callable[[Endpoint, str], Awaitable[trio.SocketStream]]
"""Connects, on behalf of a requester. Raises :class:`ConnectTimeout`, and ``OSError`` or its owner's refusal."""


@cache
def tls_context() -> ssl.SSLContext:
    """Return a context that trusts certifi's bundle alone, not the environment or the system's bundle.

    There is one for all clients, because reading the bundle takes longer than a request.
    """
    context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


async def start_tls(stream: ConnectedSocket, context: ssl.SSLContext, host: str) -> trio.abc.Stream:
    """Start TLS and verify the certificate against ``host``. Raises ``trio.BrokenResourceError``."""
    secure = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    await secure.do_handshake()
    return secure


class ClientConnection:
    """One connection, which carries one exchange at a time."""

    __slots__ = ("_idle_timeout_s", "_socket", "_stream", "endpoint", "idle_since", "parser")

    def __init__(
        self, endpoint: Endpoint, stream: trio.abc.Stream, connected: ConnectedSocket, idle_timeout_s: float
    ) -> None:
        self.endpoint = endpoint
        self.parser = ResponseParser()
        self.idle_since = 0.0
        self._stream = stream
        self._socket = connected
        self._idle_timeout_s = idle_timeout_s

    @property
    def is_stale(self) -> bool:
        """Whether an idle connection has bytes to read, or its end; no request may be sent on it then."""
        if isinstance(self._stream, trio.SSLStream) and self._stream._incoming.pending:
            # Read from the socket together with the end of the response, and not decrypted yet.
            return True
        return self._socket.is_readable()

    async def start(self, request: bytes) -> None:
        """Send a request and receive the head of its response. Raises :class:`TransportFault`."""
        self.parser.begin()
        is_sent = False
        begun = trio.current_time()
        limit: AbstractContextManager[trio.CancelScope | None] = (
            nullcontext()
            if self._idle_timeout_s == math.inf
            else trio.CancelScope(deadline=begun + self._idle_timeout_s)
        )
        with limit as scope:
            lost: Exception | None = None
            try:
                await self._stream.send_all(request)
            except trio.BrokenResourceError as fault:
                # The server may have answered before it closed the connection.
                lost = fault
            is_sent = True
            try:
                while not self.parser.has_head:
                    # Setting it costs more than the rest of the wait, and nearly every head comes at once.
                    if scope is not None and (now := trio.current_time()) - begun > self._idle_timeout_s / 16:
                        begun, scope.deadline = now, now + self._idle_timeout_s
                    await self._receive()
            except (ReadError, RemoteProtocolError):
                if lost is not None and not self.parser.has_begun:
                    raise WriteError("the connection was lost while the request was sent") from lost
                raise
        if scope is not None and scope.cancelled_caught:
            raise (
                ReadTimeout("no response in time") if is_sent else WriteTimeout("the request was not sent in time")
            )

    async def receive(self) -> bytes:
        """Return the next block of the response's body, or ``b""`` at its end. Raises :class:`TransportFault`."""
        parser = self.parser
        while not parser.waiting:
            if parser.is_complete:
                return b""
            with trio.move_on_after(self._idle_timeout_s) as scope:
                await self._receive()
            if scope.cancelled_caught:
                raise ReadTimeout("the response did not continue in time")
        block, parser.waiting = bytes(parser.waiting), bytearray()
        return block

    async def _receive(self) -> None:
        try:
            data = await self._stream.receive_some(RECEIVE_BYTES)
        except trio.BrokenResourceError as fault:
            raise ReadError("the connection was lost") from fault
        if data:
            self.parser.feed(data)
        else:
            self.parser.feed_end()

    def close(self) -> None:
        """Close the connection at once, without TLS's close_notify."""
        self._socket.close()


class Response:
    """A response whose body has not been read yet."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.status = connection.parser.status
        self.headers = connection.parser.headers

    def header(self, name: str) -> str | None:
        """Return the value of the first header ``name``, which is in lower case."""
        wanted = name.encode("ascii")
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)

    async def receive(self) -> bytes:
        """Return the next block of the body, or ``b""`` at its end. Raises :class:`TransportFault`."""
        return await self._connection.receive()

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body. Raises :class:`BodyTooLarge` and :class:`TransportFault`."""
        blocks, size_bytes = [], 0
        while block := await self._connection.receive():
            size_bytes += len(block)
            if size_bytes > limit_bytes:
                raise BodyTooLarge(limit_bytes)
            blocks.append(block)
        return b"".join(blocks)


class Exchange:
    """The context of one exchange of a pool; a generator would cost each several calls more."""

    __slots__ = ("_begin", "_connection", "_end")

    def __init__(
        self, begin: Callable[[], Awaitable[ClientConnection]], end: Callable[[ClientConnection], None]
    ) -> None:
        self._begin = begin
        self._end = end

    async def __aenter__(self) -> Response:
        self._connection = await self._begin()
        return Response(self._connection)

    async def __aexit__(self, *_: object) -> None:
        self._end(self._connection)


class ConnectionPool:
    """Connections to any number of endpoints.

    At most ``connections_max_count`` exchanges run at once, and at most ``idle_max_count`` connections are kept
    besides. Times in seconds: ``connect_timeout_s`` to wait until an exchange may start, and to start TLS;
    ``idle_timeout_s`` to send a request, and between two receptions: none if its owner limits a whole exchange.
    ``start_tls`` is replaced in tests.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        ssl_context: ssl.SSLContext,
        connect_timeout_s: float,
        idle_timeout_s: float = math.inf,
        connections_max_count: int,
        idle_max_count: int,
        start_tls: StartTls = start_tls,
    ) -> None:
        self._dial = dial
        self._ssl_context = ssl_context
        self._connect_timeout_s = connect_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._free = trio.Semaphore(connections_max_count)
        self._idle_max_count = idle_max_count
        self._start_tls = start_tls
        self._idle: list[ClientConnection] = []
        """Idle connections; the one that was used last is the last."""
        self._closes_idle = False

    def exchange(self, endpoint: Endpoint, request: bytes, *, is_repeatable: bool, requester: str = "") -> Exchange:
        """Send a request and open the response in a block; its body has not been read yet.

        The connection is kept if the response is complete when the block ends, and closed otherwise. If a
        connection that was used before ends without a byte of the response, a request that ``is_repeatable`` is
        sent again on a new one. Raises :class:`TransportFault` and what ``dial`` raises.
        """
        begin = partial(self._begin, endpoint, request, is_repeatable=is_repeatable, requester=requester)
        return Exchange(begin, self._end)

    async def _begin(
        self, endpoint: Endpoint, request: bytes, *, is_repeatable: bool, requester: str
    ) -> ClientConnection:
        await self._acquire()
        try:
            return await self._start(endpoint, request, is_repeatable=is_repeatable, requester=requester)
        except BaseException:
            self._free.release()
            raise

    def _end(self, connection: ClientConnection) -> None:
        try:
            self._keep_or_close(connection)
        finally:
            self._free.release()

    def close(self) -> None:
        """Close idle connections, and keep none from now on."""
        self._idle_max_count = 0
        while self._idle:
            self._idle.pop().close()

    async def _acquire(self) -> None:
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(self._connect_timeout_s) as scope:
                await self._free.acquire()
            if scope.cancelled_caught:
                raise PoolTimeout("all connections are in use") from None

    async def _start(
        self, endpoint: Endpoint, request: bytes, *, is_repeatable: bool, requester: str
    ) -> ClientConnection:
        connection = self._take_idle(endpoint)
        if connection is None:
            return await _started(await self._connect(endpoint, requester), request)
        try:
            return await _started(connection, request)
        except (ReadError, WriteError, RemoteProtocolError) as lost:
            if not is_repeatable or connection.parser.has_begun:
                raise
            try:
                again = await self._connect(endpoint, requester)
            except NeverSent:
                # Of the second connection alone: the server may have received the request on the first.
                raise lost from None
            return await _started(again, request)

    async def _connect(self, endpoint: Endpoint, requester: str) -> ClientConnection:
        try:
            dialed = await self._dial(endpoint, requester)
        except OSError as fault:
            raise ConnectError("the server cannot be connected to") from fault
        connected = ConnectedSocket(socket.socket(fileno=dialed.socket.detach()))
        stream: trio.abc.Stream = connected
        if endpoint.tls:
            try:
                with trio.fail_after(self._connect_timeout_s):
                    stream = await self._start_tls(connected, self._ssl_context, endpoint.host)
            except BaseException as fault:
                connected.close()
                if isinstance(fault, trio.TooSlowError):
                    raise ConnectTimeout("TLS was not established in time") from fault
                if isinstance(fault, trio.BrokenResourceError):
                    raise ConnectError("TLS cannot be established") from fault
                raise
        return ClientConnection(endpoint, stream, connected, self._idle_timeout_s)

    def _take_idle(self, endpoint: Endpoint) -> ClientConnection | None:
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index].endpoint == endpoint:
                connection = self._idle.pop(index)
                if not connection.is_stale:
                    return connection
                connection.close()
        return None

    def _keep_or_close(self, connection: ClientConnection) -> None:
        if not connection.parser.is_reusable or not self._idle_max_count:
            connection.close()
            return
        connection.idle_since = trio.current_time()
        self._idle.append(connection)
        if len(self._idle) > self._idle_max_count:
            self._idle.pop(0).close()
        if not self._closes_idle:
            self._closes_idle = True
            trio.lowlevel.spawn_system_task(self._close_idle, name="idle connections")

    async def _close_idle(self) -> None:
        """Close connections that were idle for :data:`KEEP_ALIVE_S`, until none is left."""
        try:
            while self._idle:
                close_at = self._idle[0].idle_since + KEEP_ALIVE_S
                if close_at <= trio.current_time():
                    self._idle.pop(0).close()
                else:
                    await trio.sleep_until(close_at)
        finally:
            self._closes_idle = False


async def _started(connection: ClientConnection, request: bytes) -> ClientConnection:
    try:
        await connection.start(request)
    except BaseException:
        connection.close()
        raise
    return connection


def render_request(method: str, target: bytes, headers: Mapping[str, str], content: bytes | None) -> bytes:
    """Return a request's bytes, with the length of its ``content``. Raises ``ValueError`` for invalid headers."""
    lines = [f"{method} {target.decode('ascii')} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if content is not None:
        lines.append(f"Content-Length: {len(content)}")
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1 or "\0" in head:
        raise ValueError("a header contains a control character")
    return head.encode("ascii") + b"\r\n\r\n" + (content or b"")
