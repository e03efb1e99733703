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
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
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

    There is one for all clients, because reading the bundle takes longer than a request, and 3 MB. Blocks.
    """
    context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


_tls_loads: Final = trio.CapacityLimiter(1)


async def start_tls(stream: ConnectedSocket, context: ssl.SSLContext, host: str) -> trio.abc.Stream:
    """Start TLS and verify the certificate against ``host``. Raises ``trio.BrokenResourceError``."""
    secure = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    await secure.do_handshake()
    return secure


class ClientConnection:
    """One connection, which carries one exchange at a time.

    ``closes_at`` is when its pool closes it (trio's clock), whether it is idle or its server is too slow;
    ``look_by`` has the pool look at its connections by then.
    """

    __slots__ = (
        "_ends_at",
        "_idle_timeout_s",
        "_look_by",
        "_socket",
        "_stream",
        "closes_at",
        "endpoint",
        "parser",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        stream: trio.abc.Stream,
        connected: ConnectedSocket,
        idle_timeout_s: float,
        look_by: Callable[[float], None],
    ) -> None:
        self.endpoint = endpoint
        self.parser = ResponseParser()
        self.closes_at = self._ends_at = math.inf
        self._stream = stream
        self._socket = connected
        self._idle_timeout_s = idle_timeout_s
        self._look_by = look_by

    @property
    def is_stale(self) -> bool:
        """Whether an idle connection has bytes to read, or its end; no request may be sent on it then."""
        if isinstance(self._stream, trio.SSLStream) and self._stream._incoming.pending:
            # Read from the socket together with the end of the response, and not decrypted yet.
            return True
        return self._socket.is_readable()

    async def start(self, request: bytes, ends_at: float) -> None:
        """Send a request and receive the head of its response. The exchange must end at ``ends_at``.

        Raises :class:`TransportFault` and ``trio.TooSlowError``.
        """
        self.parser.begin()
        self._ends_at = ends_at
        lost: Exception | None = None
        self._limit_wait()
        try:
            await self._stream.send_all(request)
        except trio.BrokenResourceError as fault:
            # The server may have answered before it closed the connection.
            lost = fault
        except trio.ClosedResourceError as fault:
            raise self._overdue(WriteTimeout("the request was not sent in time")) from fault
        try:
            while not self.parser.has_head:
                await self._receive()
        except (ReadError, RemoteProtocolError):
            if lost is not None and not self.parser.has_begun:
                raise WriteError("the connection was lost while the request was sent") from lost
            raise

    async def receive(self) -> bytes:
        """Return the next block of the response's body, or ``b""`` at its end.

        Raises :class:`TransportFault` and ``trio.TooSlowError``.
        """
        parser = self.parser
        while not parser.waiting:
            if parser.is_complete:
                return b""
            await self._receive()
        block, parser.waiting = bytes(parser.waiting), bytearray()
        return block

    async def _receive(self) -> None:
        self._limit_wait()
        try:
            data = await self._stream.receive_some(RECEIVE_BYTES)
        except trio.BrokenResourceError as fault:
            raise ReadError("the connection was lost") from fault
        except trio.ClosedResourceError as fault:
            raise self._overdue(ReadTimeout("the server sent nothing in time")) from fault
        # Until the next wait the server has no limit of its own.
        self.closes_at = self._ends_at
        if data:
            self.parser.feed(data)
        else:
            self.parser.feed_end()

    def _limit_wait(self) -> None:
        self.closes_at = self._ends_at
        if self._idle_timeout_s != math.inf:
            self.closes_at = min(self._ends_at, trio.current_time() + self._idle_timeout_s)
        self._look_by(self.closes_at)

    def _overdue(self, fault: TransportFault) -> Exception:
        """Return why the pool has closed the connection: the end of the exchange's time, or else ``fault``."""
        return trio.TooSlowError() if trio.current_time() >= self._ends_at else fault

    def close(self) -> None:
        """Close the connection at once, without TLS's close_notify."""
        self._socket.close()


class Response:
    """A response whose body has not been read yet, as a context: the end of the block ends the exchange.

    The connection is kept if the response is complete then, and closed otherwise.
    """

    __slots__ = ("_connection", "_end", "headers", "status")

    def __init__(self, connection: ClientConnection, end: Callable[[ClientConnection], None]) -> None:
        self._connection = connection
        self._end = end
        self.status = connection.parser.status
        self.headers = connection.parser.headers

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(self._connection)

    def header(self, name: str) -> str | None:
        """Return the value of the first header ``name``, which is in lower case."""
        wanted = name.encode("ascii")
        for key, value in self.headers:
            if key == wanted:
                return value.decode("latin-1")
        return None

    async def receive(self) -> bytes:
        """Return the next block of the body, or ``b""`` at its end.

        Raises :class:`TransportFault` and ``trio.TooSlowError``.
        """
        return await self._connection.receive()

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body. Raises :class:`BodyTooLarge` and what :meth:`receive` raises."""
        blocks, size_bytes = [], 0
        while block := await self._connection.receive():
            size_bytes += len(block)
            if size_bytes > limit_bytes:
                raise BodyTooLarge(limit_bytes)
            blocks.append(block)
        return b"".join(blocks)


class ConnectionPool:
    """Connections to any number of endpoints.

    At most ``connections_max_count`` exchanges run at once, and at most ``idle_max_count`` connections are kept
    besides. Times in seconds: ``connect_timeout_s`` to wait until an exchange may start, and to start TLS;
    ``idle_timeout_s`` to send a request, and between two receptions: none if its owner limits a whole exchange.
    Without an ``ssl_context`` that of all clients is loaded before the first TLS connection. ``start_tls`` is
    replaced in tests.

    One task closes the connections whose time is over: a scope for each wait would cost more than the wait.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        ssl_context: ssl.SSLContext | None = None,
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
        self._open: set[ClientConnection] = set()
        self._idle: list[ClientConnection] = []
        """Idle connections; the one that was used last is the last."""
        self._looks_at = math.inf
        """When the connections are looked at next."""
        self._pause: trio.CancelScope | None = None
        """The wait for that."""

    async def exchange(
        self,
        endpoint: Endpoint,
        request: bytes,
        *,
        is_repeatable: bool,
        requester: str = "",
        ends_at: float = math.inf,
    ) -> Response:
        """Send a request and return the response, which is a context that must be entered.

        If a connection that was used before ends without a byte of the response, a request that ``is_repeatable``
        is sent again on a new one. Raises :class:`TransportFault`, what ``dial`` raises, and ``trio.TooSlowError``
        at ``ends_at`` (trio's clock), also while the body is read.
        """
        await self._acquire(ends_at)
        try:
            connection = self._take_idle(endpoint)
            if connection is None:
                connection = await self._connect(endpoint, requester, ends_at)
                await self._start(connection, request, ends_at)
                return Response(connection, self._end)
            try:
                await self._start(connection, request, ends_at)
            except (ReadError, WriteError, RemoteProtocolError) as lost:
                if not is_repeatable or connection.parser.has_begun:
                    raise
                try:
                    connection = await self._connect(endpoint, requester, ends_at)
                except NeverSent:
                    # Of the second connection alone: the server may have received the request on the first.
                    raise lost from None
                await self._start(connection, request, ends_at)
        except BaseException:
            self._free.release()
            raise
        return Response(connection, self._end)

    def close(self) -> None:
        """Close idle connections, and keep none from now on."""
        self._idle_max_count = 0
        while self._idle:
            self._close(self._idle.pop())

    async def _acquire(self, ends_at: float) -> None:
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            with trio.fail_at(ends_at), trio.move_on_after(self._connect_timeout_s) as scope:
                await self._free.acquire()
            if scope.cancelled_caught:
                raise PoolTimeout("all connections are in use") from None

    async def _start(self, connection: ClientConnection, request: bytes, ends_at: float) -> None:
        try:
            await connection.start(request, ends_at)
        except BaseException:
            self._close(connection)
            raise

    async def _connect(self, endpoint: Endpoint, requester: str, ends_at: float) -> ClientConnection:
        with trio.fail_at(ends_at):
            try:
                dialed = await self._dial(endpoint, requester)
            except OSError as fault:
                raise ConnectError("the server cannot be connected to") from fault
            connected = ConnectedSocket(socket.socket(fileno=dialed.socket.detach()))
            stream: trio.abc.Stream = connected
            if endpoint.tls:
                try:
                    with trio.fail_after(self._connect_timeout_s):
                        if self._ssl_context is None:
                            self._ssl_context = await trio.to_thread.run_sync(tls_context, limiter=_tls_loads)
                        stream = await self._start_tls(connected, self._ssl_context, endpoint.host)
                except BaseException as fault:
                    connected.close()
                    if isinstance(fault, trio.TooSlowError):
                        raise ConnectTimeout("TLS was not established in time") from fault
                    # An OSError is of the file of authorities, which cannot be read now.
                    if isinstance(fault, trio.BrokenResourceError | OSError):
                        raise ConnectError("TLS cannot be established") from fault
                    raise
        connection = ClientConnection(endpoint, stream, connected, self._idle_timeout_s, self._look_by)
        self._open.add(connection)
        return connection

    def _take_idle(self, endpoint: Endpoint) -> ClientConnection | None:
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index].endpoint == endpoint:
                connection = self._idle.pop(index)
                if not connection.is_stale:
                    return connection
                self._close(connection)
        return None

    def _end(self, connection: ClientConnection) -> None:
        self._free.release()
        if not connection.parser.is_reusable or not self._idle_max_count or connection not in self._open:
            self._close(connection)
            return
        connection.closes_at = trio.current_time() + KEEP_ALIVE_S
        self._look_by(connection.closes_at)
        self._idle.append(connection)
        if len(self._idle) > self._idle_max_count:
            self._close(self._idle.pop(0))

    def _close(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        connection.close()

    def _look_by(self, at: float) -> None:
        """Look at the connections at a time, or earlier."""
        if at >= self._looks_at:
            return
        self._looks_at = at
        if self._pause is None:
            self._pause = trio.CancelScope(deadline=at)
            trio.lowlevel.spawn_system_task(self._close_overdue, name="time limits of connections")
        else:
            self._pause.deadline = at

    async def _close_overdue(self) -> None:
        """Close connections when their time is over, until none has a limit. Exchanges that wait on them fail."""
        try:
            while self._pause is not None:
                with self._pause:
                    await trio.sleep_forever()
                # After a process has stood still, first those go on whose server has sent something meanwhile. The
                # signal that continues it ends the loop's wait without saying which sockets are ready: that is
                # seen in the next turn, and the tasks that wait for them have run by the turn after it.
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                now = trio.current_time()
                for connection in [each for each in self._open if each.closes_at <= now]:
                    self._close(connection)
                self._idle = [each for each in self._idle if each in self._open]
                self._looks_at = min((each.closes_at for each in self._open), default=math.inf)
                self._pause = None if self._looks_at == math.inf else trio.CancelScope(deadline=self._looks_at)
        finally:
            self._looks_at, self._pause = math.inf, None


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
