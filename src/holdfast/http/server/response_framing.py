"""The bytes of a response: its head, and the framing of its body."""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

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
        if not head.count(b"\r") == head.count(b"\n") == len(parts) - 1 or b"\0" in head:
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
