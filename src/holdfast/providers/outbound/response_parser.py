"""Parsing of a server's bytes into responses.

llhttp refuses what makes a response's end ambiguous: a Content-Length beside Transfer-Encoding, or a second one.
Lines that end with a bare LF, and folded headers, are accepted: they are obsolete, but not ambiguous in a response.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import httptools

from holdfast.providers.outbound.faults import RemoteProtocolError

HEADER_BYTES_MAX: Final = 64 * 1024
HEADER_COUNT_MAX: Final = 256
INFORMATIONAL_MAX_COUNT: Final = 8
"""How many responses of status 1xx may precede the final one."""
OVERHEAD_BYTES_MAX: Final = 256 * 1024
"""How many bytes a response may take in addition to eight times its body: a chunk with one byte takes six."""


class _Refused(Exception):
    """Raised in a callback to stop the parser; the text says why."""


class ResponseParser:
    """Parses one connection's responses, one at a time; :meth:`begin` starts the next.

    ``status`` and ``headers`` (names in lower case) are valid once ``has_head``. ``blocks`` are the parts of the
    body that were received and not taken yet. ``is_reusable``: the response is complete, and another may follow.
    """

    __slots__ = (
        "_body_bytes",
        "_header_count",
        "_informational",
        "_parser",
        "_raw_bytes",
        "blocks",
        "has_head",
        "headers",
        "is_complete",
        "is_reusable",
        "status",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_headers=True, lenient_optional_cr_before_lf=True)
        self.begin()

    def begin(self) -> None:
        """Expect a response."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.blocks: deque[bytes] = deque()
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
        self.blocks.append(data)

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
