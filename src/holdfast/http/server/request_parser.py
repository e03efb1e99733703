"""Parsing of bytes into requests, and the checks of their heads.

llhttp is strict by default: no bare LF, no folded headers, no Content-Length beside Transfer-Encoding, no second
Content-Length. This module also refuses what RFC 9112 requires a server to refuse, or this server does not
support: a missing or second Host, transfer codings other than chunked, targets that are not paths, versions other
than 1.0 and 1.1. An offer to upgrade is ignored, as RFC 9110 (7.8) allows.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import httptools

from holdfast.http.server.limits import CHUNK_OVERHEAD_BYTES_MAX, PIPELINED_MAX, ServerLimits
from holdfast.http.server.refusals import (
    CHUNKS,
    CODING,
    HEADERS_TOO_LARGE,
    MALFORMED,
    NO_HOST,
    NO_PATH,
    VERSION,
    Headers,
    ServerRefusal,
)

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
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self.is_done:
                    return
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
    if not target.startswith(b"/") or b"#" in target or not target.isascii() or request.method == "CONNECT":
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
