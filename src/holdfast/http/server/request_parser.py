"""From bytes to requests, and the refusals of what is no request.

llhttp is strict by default: no bare LF, no folded headers, no Content-Length beside Transfer-Encoding, no second
Content-Length. What it still lets pass and RFC 9112 has a server refuse, or this server does not do, is refused
here: a missing or second Host, other transfer codings than chunked, targets that are no paths, other versions
than 1.0 and 1.1. An offer to upgrade is ignored, as RFC 9110 (7.8) allows; the request is served as if it were
not there.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import httptools

from holdfast.http.server.limits import CHUNK_OVERHEAD_BYTES_MAX, PIPELINED_MAX, ServerLimits
from holdfast.ledger.refusals import Refusal

Headers = list[tuple[bytes, bytes]]

MALFORMED: Final = Refusal(code="malformed_request", message="The request could not be understood.")
HEADERS_TOO_LARGE: Final = Refusal(code="headers_too_large", message="The request's headers are too large.")
HEAD_TIMEOUT: Final = Refusal(code="request_timeout", message="The request took too long to arrive.")
BODY_TIMEOUT: Final = Refusal(code="request_timeout", message="The request's body took too long to arrive.")
_NO_HOST: Final = Refusal(code="malformed_request", message="Send exactly one Host header.")
_NO_PATH: Final = Refusal(code="malformed_request", message="The request's target must be a path.")
_CODING: Final = Refusal(code="not_implemented", message="The only transfer coding served is chunked.")
_VERSION: Final = Refusal(code="http_version_not_supported", message="This server speaks HTTP/1.1.")
_CHUNKS: Final = Refusal(code="malformed_request", message="The chunks have too much around their data.")

_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})


class Request:
    """One request as far as it has arrived; or, with a ``refusal``, the answer to what cannot become one.

    ``chunks`` is the part of the body that nobody has taken yet, ``waiting_bytes`` its size. With
    ``is_discarded`` the rest of the body is thrown away as it comes.
    """

    __slots__ = (
        "chunks",
        "expects_continue",
        "headers",
        "is_complete",
        "is_discarded",
        "keep_alive",
        "method",
        "refusal",
        "target",
        "version",
        "waiting_bytes",
    )

    def __init__(self, method: str, target: bytes, version: str, headers: Headers) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers
        self.keep_alive = False
        self.expects_continue = False
        self.chunks: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.is_complete = False
        self.is_discarded = False
        self.refusal: Refusal | None = None

    def discard(self) -> None:
        """Throw away what has come of the body and what will come."""
        self.is_discarded = True
        self.chunks.clear()
        self.waiting_bytes = 0


class _Refused(Exception):
    """Raised through the parser to stop it."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


class RequestParser:
    """Reads one connection's bytes. ``ready`` has the requests whose heads are complete, in their order.

    ``receiving`` is the last of these while its body is still arriving. Once ``is_done`` nothing that follows is
    read: the client asked for the end of the connection, or something was refused (then the refusal is the last
    in ``ready``).
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.ready: deque[Request] = deque()
        self.receiving: Request | None = None
        self.is_done = False
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._offering: Request | None = None
        self._is_repeated = False
        self._begun = False
        self._head_raw_bytes = 0
        self._heads = 0
        self._messages = 0
        self._body_bytes = 0
        self._body_raw_bytes = 0
        self._clear_head()

    @property
    def is_within_head(self) -> bool:
        """Whether part of a head has come, but not all of it."""
        return not self.is_done and self.receiving is None and (self._begun or self._head_raw_bytes > 0)

    def feed(self, data: bytes) -> None:
        """Take in what the client sent. Never raises for anything a client can send."""
        heads, messages, was_receiving = self._heads, self._messages, self.receiving is not None
        try:
            self._execute(data)
        except httptools.HttpParserCallbackError as error:
            refused_within = error.__context__
            if not isinstance(refused_within, _Refused):
                raise
            self.refuse(refused_within.refusal)
        except httptools.HttpParserError as error:
            self._stumble(error)
        if self.is_done:
            return
        if self.receiving is None and heads == self._heads and not was_receiving:
            self._head_raw_bytes += len(data)
            if self._head_raw_bytes > 2 * self._limits.header_bytes_max:
                self.refuse(HEADERS_TOO_LARGE)
        elif messages != self._messages or heads != self._heads:
            self._head_raw_bytes = 0
        if self.receiving is not None and was_receiving:
            self._body_raw_bytes += len(data)
            # The smallest chunk with data, of one byte, takes six: so eight for each byte is more than honest
            # ones need.
            if self._body_raw_bytes > 8 * self._body_bytes + CHUNK_OVERHEAD_BYTES_MAX:
                self.refuse(_CHUNKS)

    def refuse(self, refusal: Refusal) -> None:
        """Read nothing more, and have ``refusal`` answered in its turn.

        A request whose body is still arriving was passed on already: it is marked, and gets this as its one answer
        unless the application's has begun.
        """
        if self.is_done:
            return
        self.is_done = True
        if self.receiving is not None:
            self.receiving.refusal = refusal
            self.receiving.keep_alive = False
            return
        refused = Request("GET", b"", "1.1", [])
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
        """Read on behind a head that offers an upgrade: its body, or the next request.

        llhttp leaves such a head at its end and takes what follows for another protocol. So a new parser is told
        that it has just read the same head without the offer.
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

    def _stumble(self, error: httptools.HttpParserError) -> None:
        if self.is_done:
            return  # bytes behind a request with Connection: close, or behind the last one that is read
        said = str(error)
        is_version = "HTTP version" in said or "PRI/Upgrade" in said
        self.refuse(_VERSION if is_version else MALFORMED)

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
        """A header; behind a body, a trailer, which is only counted."""
        if self._is_repeated:
            return
        value = value.rstrip(b" \t")
        self._header_bytes += len(name) + len(value)
        self._headers.append((name.lower(), value))
        limits = self._limits
        if self._header_bytes > limits.header_bytes_max or len(self._headers) > limits.header_count_max:
            raise _Refused(HEADERS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """A head is whole: judge it and pass the request on."""
        if self._is_repeated:
            return
        self._heads += 1
        if self.is_done:
            raise _Refused(MALFORMED)  # stops the parser; the answer before ends the connection
        version = self._parser.get_http_version()
        request = Request(self._parser.get_method().decode("ascii"), self._url, version, self._headers)
        refusal = refusal_of_head(request)
        if refusal is not None:
            raise _Refused(refusal)
        # HTTP/1.0 has no reliable way to keep a connection; each gets one answer.
        request.keep_alive = version == "1.1" and self._parser.should_keep_alive()
        if len(self.ready) >= PIPELINED_MAX:
            request.keep_alive = False
        self.receiving = request
        # Trailers are counted apart from the head, and must not show up in it.
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
            request.chunks.append(data)
            request.waiting_bytes += len(data)

    def on_message_complete(self) -> None:
        """A request is whole."""
        if self._offering is not None:
            return  # its head is; the body follows
        request, self.receiving = self.receiving, None
        self._begun = False
        self._messages += 1
        if request is not None:
            request.is_complete = True
            self.is_done = self.is_done or not request.keep_alive


def refusal_of_head(request: Request) -> Refusal | None:
    """Why a request is not served, whatever the application would say.

    1. the version; 2. the target; 3. Host; 4. the transfer coding. Notes on ``request`` whether the client waits
    for 100 (Continue).
    """
    if request.version not in {"1.1", "1.0"}:
        return _VERSION
    target = request.target
    if not target.startswith(b"/") or b"#" in target or not target.isascii():
        return _NO_PATH
    hosts = 0
    for name, value in request.headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                return _CODING
            if request.version == "1.0":
                return MALFORMED
        elif name == b"expect" and value.lower() == b"100-continue" and request.version == "1.1":
            request.expects_continue = True
    if hosts > 1 or (hosts == 0 and request.version == "1.1"):
        return _NO_HOST
    return None
