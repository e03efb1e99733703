"""The responses of the server itself: to requests that reach no application, and for applications that fail.

Their form is that of the application: the server is created with a function for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from holdfast.http.server.response_framing import ResponseFraming

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
