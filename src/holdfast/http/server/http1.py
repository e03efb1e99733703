"""HTTP/1.1 as bytes: requests parsed and their heads checked, responses framed, and the server's own refusals.

llhttp is strict by default: no bare LF, no folded headers, no Content-Length beside Transfer-Encoding, no second
Content-Length. This module also refuses what RFC 9112 requires a server to refuse, or this server does not
support: a missing or second Host, transfer codings other than chunked, targets that are not paths, versions other
than 1.0 and 1.1. An offer to upgrade is ignored, as RFC 9110 (7.8) allows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias

import httptools

from holdfast.http.server.limits import CHUNK_OVERHEAD_BYTES_MAX, PIPELINED_MAX, ServerLimits

Headers: TypeAlias = list[tuple[bytes, bytes]]


class ServerRefusal(NamedTuple):
    """Why a request is not served: the status of the response, and a sentence for people."""

    status: int
    message: str


MALFORMED: Final = ServerRefusal(400, "The request could not be understood.")
NO_HOST: Final = ServerRefusal(400, "The request must have exactly one Host header.")
NO_PATH: Final = ServerRefusal(400, "The request's target must be a path.")
CHUNKS: Final = ServerRefusal(400, "The chunked body has too much overhead.")
HEAD_TIMEOUT: Final = ServerRefusal(408, "The request was not received in time.")
BODY_TIMEOUT: Final = ServerRefusal(408, "The body was not received in time.")
TOO_MANY_OF_PEER: Final = ServerRefusal(429, "Too many connections or requests are open from this address.")
HEADERS_TOO_LARGE: Final = ServerRefusal(431, "The headers are too large.")
INTERNAL_ERROR: Final = ServerRefusal(500, "An internal error occurred.")
CODING: Final = ServerRefusal(501, "The only supported transfer coding is chunked.")
TOO_MANY: Final = ServerRefusal(503, "Too many connections are open; try again later.")
VERSION: Final = ServerRefusal(505, "The supported HTTP versions are 1.1 and 1.0.")

Refuse: TypeAlias = Callable[[ServerRefusal, str], tuple[Headers, bytes]]
"""Returns the headers, without the length, and the body of a response.

It is called once for each response, with the origin of the request as limits count it.
"""


def refuse_in_words(refusal: ServerRefusal, _origin: str) -> tuple[Headers, bytes]:
    """Return a response of plain text."""
    return [(b"content-type", b"text/plain; charset=utf-8")], refusal.message.encode() + b"\n"


def refusal_bytes(status: int, headers: Headers, body: bytes) -> bytes:
    """Return a complete response that closes the connection."""
    framing = ResponseFraming(close=True)
    framing.start(status, [*headers, (b"content-length", b"%d" % len(body))])
    return b"".join(framing.frame(body, more=False, method="GET", version="1.1"))


_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})


class ParsedRequest:
    """One request, as far as it has been received; with ``refusal``, an invalid request and its response.

    ``head_bytes`` is the size of its target and headers. ``waiting`` is the part of the body that has not been read
    yet, in one piece: the pieces of two bytes that a client may send take thirty times as much. With
    ``is_discarded`` the rest of the body is discarded.
    """

    __slots__ = (
        "expects_continue",
        "head_bytes",
        "headers",
        "is_complete",
        "is_discarded",
        "keep_alive",
        "method",
        "refusal",
        "target",
        "version",
        "waiting",
    )

    def __init__(self, method: str, target: bytes, version: str, headers: Headers) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers
        self.keep_alive = False
        self.expects_continue = False
        self.head_bytes = 0
        self.waiting = bytearray()
        self.is_complete = False
        self.is_discarded = False
        self.refusal: ServerRefusal | None = None

    def discard(self) -> None:
        """Discard the body, received or not."""
        self.is_discarded = True
        self.waiting = bytearray()


class _Refused(Exception):
    """Raised in a callback to stop the parser."""

    def __init__(self, refusal: ServerRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class RequestParser:
    """Parses one connection's bytes. ``ready`` has the requests whose heads are complete, in order.

    ``receiving`` is the last of these while its body is incomplete. After ``is_done`` further bytes are ignored:
    the client requested the close of the connection, or a request was refused (the refusal is the last in
    ``ready``).
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.ready: deque[ParsedRequest] = deque()
        self.receiving: ParsedRequest | None = None
        self.is_done = False
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._offering: ParsedRequest | None = None
        self._is_repeated = False
        self._begun = False
        self._head_raw_bytes = 0
        self._heads = 0
        self._messages = 0
        self._body_bytes = 0
        self._body_raw_bytes = 0
        self._clear_head()

    @property
    def body_bytes(self) -> int:
        """How much of the last body has come, without the lines between its chunks."""
        return self._body_bytes

    @property
    def is_within_head(self) -> bool:
        """Whether a head is incomplete."""
        return not self.is_done and self.receiving is None and (self._begun or self._head_raw_bytes > 0)

    def feed(self, data: bytes) -> None:
        """Parse bytes from the client. Never raises, even for invalid bytes."""
        heads, messages, was_receiving = self._heads, self._messages, self.receiving is not None
        try:
            self._execute(data)
        except httptools.HttpParserCallbackError as error:
            refused_within = error.__context__
            if not isinstance(refused_within, _Refused):
                raise
            self.refuse(refused_within.refusal)
        except httptools.HttpParserError as error:
            self._refuse_malformed(error)
        if self.is_done:
            return
        has_ended_head, has_ended_request = self._heads != heads, self._messages != messages
        if has_ended_head or has_ended_request:
            self._head_raw_bytes = 0
        elif not was_receiving:
            self._count_head(len(data))
        if was_receiving and self.receiving is not None:
            self._count_body(len(data))

    def _count_head(self, count: int) -> None:
        """Count bytes of an incomplete head, with those that llhttp has not reported yet."""
        self._head_raw_bytes += count
        if self._head_raw_bytes > 2 * self._limits.header_bytes_max:
            self.refuse(HEADERS_TOO_LARGE)

    def _count_body(self, count: int) -> None:
        """Count bytes of a body, with those of its chunks' sizes, extensions and trailers."""
        self._body_raw_bytes += count
        # A chunk with one byte of data takes six bytes, so eight times the data is enough for any chunk sizes.
        if self._body_raw_bytes > 8 * self._body_bytes + CHUNK_OVERHEAD_BYTES_MAX:
            self.refuse(CHUNKS)

    def refuse(self, refusal: ServerRefusal) -> None:
        """Stop parsing, and respond with ``refusal`` after the requests before.

        A request whose body is incomplete was passed on already: it gets this response unless the application's
        response has started.
        """
        if self.is_done:
            return
        self.is_done = True
        if self.receiving is not None:
            self.receiving.refusal = refusal
            self.receiving.keep_alive = False
            return
        refused = ParsedRequest("GET", b"", "1.1", [])
        refused.is_complete = True
        refused.refusal = refusal
        self.ready.append(refused)

    def _execute(self, data: bytes) -> None:
        while data and not self.is_done:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._decline_upgrade()
            else:
                return

    def _decline_upgrade(self) -> None:
        """Continue after a head that offers an upgrade, with its body or the next request.

        llhttp stops after such a head and takes the following bytes for another protocol. So a new parser is given
        the same head without the offer first.
        """
        self._parser = httptools.HttpRequestParser(self)
        request, self._offering = self._offering, None
        if request is None:
            return
        framing = [(name, value) for name, value in request.headers if name in _FRAMING]
        head = b"".join(b"%b: %b\r\n" % header for header in framing)
        self._is_repeated = True
        try:
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + head + b"\r\n")
        finally:
            self._is_repeated = False

    def _refuse_malformed(self, error: httptools.HttpParserError) -> None:
        if self.is_done:
            return  # bytes after the last request of the connection
        reason = str(error)
        is_version = "HTTP version" in reason or "PRI/Upgrade" in reason
        self.refuse(VERSION if is_version else MALFORMED)

    def _clear_head(self) -> None:
        self._url = b""
        self._headers: Headers = []
        self._header_bytes = 0

    # ------------------------------------------------------------------------------ called by httptools

    def on_message_begin(self) -> None:
        """A request's first byte."""
        if not self._is_repeated:
            self._begun = True
            self._clear_head()

    def on_url(self, part: bytes) -> None:
        """A part of the target."""
        if self._is_repeated:
            return
        self._url += part
        if len(self._url) > self._limits.header_bytes_max:
            raise _Refused(HEADERS_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or after a body a trailer, which is only counted."""
        if self._is_repeated:
            return
        value = value.rstrip(b" \t")
        self._header_bytes += len(name) + len(value)
        self._headers.append((name.lower(), value))
        limits = self._limits
        if self._header_bytes > limits.header_bytes_max or len(self._headers) > limits.header_count_max:
            raise _Refused(HEADERS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """A head is complete: validate it and pass the request on."""
        if self._is_repeated:
            return
        self._heads += 1
        if self.is_done:
            raise _Refused(MALFORMED)  # stops the parser; the previous response closes the connection
        version = self._parser.get_http_version()
        request = ParsedRequest(self._parser.get_method().decode("ascii"), self._url, version, self._headers)
        refusal = refusal_of_head(request)
        if refusal is not None:
            raise _Refused(refusal)
        request.head_bytes = len(self._url) + self._header_bytes
        # HTTP/1.0 has no reliable keep-alive; each connection gets one response.
        request.keep_alive = version == "1.1" and self._parser.should_keep_alive()
        if len(self.ready) >= PIPELINED_MAX:
            request.keep_alive = False
        self.receiving = request
        # Trailers are counted separately and are not part of the head.
        self._headers, self._header_bytes = [], 0
        self._body_bytes = self._body_raw_bytes = 0
        self.ready.append(request)
        if self._parser.should_upgrade() and any(name in _FRAMING for name, _ in request.headers):
            self._offering = request

    def on_body(self, data: bytes) -> None:
        """A part of a body."""
        request = self.receiving
        self._body_bytes += len(data)
        if request is not None and not request.is_discarded:
            request.waiting += data

    def on_message_complete(self) -> None:
        """A request is complete."""
        if self._offering is not None:
            return  # only its head is complete
        request, self.receiving = self.receiving, None
        self._begun = False
        self._messages += 1
        if request is not None:
            request.is_complete = True
            self.is_done = self.is_done or not request.keep_alive


def refusal_of_head(request: ParsedRequest) -> ServerRefusal | None:
    """Return the refusal of an invalid head, or None.

    Checks: 1. version; 2. target; 3. Host; 4. transfer coding. Records on ``request`` whether the client expects
    100 (Continue).
    """
    if request.version not in {"1.1", "1.0"}:
        return VERSION
    target = request.target
    # The target of CONNECT is a host and port, never a path, and what follows it is no HTTP.
    if not target.startswith(b"/") or target.count(b"#") or not target.isascii() or request.method == "CONNECT":
        return NO_PATH
    hosts = 0
    for name, value in request.headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                return CODING
            if request.version == "1.0":
                return MALFORMED
        elif name == b"expect" and value.lower() == b"100-continue" and request.version == "1.1":
            request.expects_continue = True
    if hosts > 1 or (hosts == 0 and request.version == "1.1"):
        return NO_HOST
    return None


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %s" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
_BODILESS: Final = frozenset({204, 304})
"""Statuses whose responses have no body, and here no length either."""


class BadResponse(Exception):
    """The application's response is not valid: a bug of the application."""


class ResponseFraming:
    """Encodes one response of the application.

    With ``close`` the connection ends after the response; it may be set until the head is encoded.
    """

    __slots__ = ("_chunked", "_head", "_left_bytes", "_silent", "close", "is_complete", "is_started")

    def __init__(self, *, close: bool) -> None:
        self.close = close
        self.is_started = False
        self.is_complete = False
        self._head: tuple[int, Iterable[tuple[bytes, bytes]]] | None = None
        self._chunked = False
        self._silent = False
        self._left_bytes: int | None = None

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Store the head until the first part of the body, so that both are sent together."""
        if self._head is not None:
            raise BadResponse("the response was started twice")
        self._head = status, headers

    def frame(self, body: bytes, *, more: bool, method: str, version: str) -> tuple[bytes, bytes]:
        """Return the next bytes to send, in two parts so that a large body is not copied.

        Raises :class:`BadResponse` if the response would not be valid.
        """
        if self._head is None or self.is_complete:
            raise BadResponse("a part of a body outside of a response")
        out = b"" if self.is_started else self._make_head(method, version)
        if self._left_bytes is not None:
            self._left_bytes -= len(body)
            if self._left_bytes < 0 or (not more and self._left_bytes > 0):
                raise BadResponse("the body's length differs from Content-Length")
        self.is_complete = not more
        if self._silent:
            return out, b""
        if not self._chunked:
            return out, body
        framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return out, framed if more else framed + b"0\r\n\r\n"

    def _make_head(self, method: str, version: str) -> bytes:
        assert self._head is not None
        status, headers = self._head
        parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]
        length: int | None = None
        for name, value in headers:
            if name == b"content-length":
                if status in _BODILESS:
                    continue
                length = int(value)
            elif name == b"connection":
                self.close = self.close or value.lower() == b"close"
                continue
            parts.append(name + b": " + value)
        self._silent = method == "HEAD" or status in _BODILESS
        if not self._silent:
            self._left_bytes = length
            if length is None:
                # Without a length the body is chunked, or for HTTP/1.0 ends with the connection.
                self._chunked = version == "1.1"
                self.close = self.close or not self._chunked
                if self._chunked:
                    parts.append(b"transfer-encoding: chunked")
        parts.append(date_header())
        if self.close:
            parts.append(b"connection: close")
        head = b"\r\n".join(parts)
        if not head.count(b"\r") == head.count(b"\n") == len(parts) - 1 or 0 in head:
            raise BadResponse("a line break in a header")
        self.is_started = True
        return head + b"\r\n\r\n"


_date = (0, b"")


def date_header() -> bytes:
    """Return the Date header, cached for a second."""
    global _date  # noqa: PLW0603 - a cache of one line
    now = int(time.time())
    if _date[0] != now:
        _date = now, b"date: %b" % formatdate(now, usegmt=True).encode()
    return _date[1]
