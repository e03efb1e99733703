"""Clients behind trusted proxies: what each of them has in progress.

A proxy's connections carry the requests of many clients, so that its clients are counted instead of it: each by the
address that the proxy reports, from the head of a request to the end of its response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from holdfast.http.server.http1 import TOO_MANY_OF_PEER, ParsedRequest, ServerRefusal
from holdfast.http.server.limits import BYTES_PER_PEER_MAX, READ_AHEAD_BYTES, ServerLimits

OriginOf: TypeAlias = Callable[[str, Sequence[tuple[bytes, bytes]]], str | None]
"""The origin of a request by its peer and headers; None if the peer is no proxy or reports no client."""


class Source:
    """One client: its requests, and the bytes of their bodies and responses that are in flight."""

    __slots__ = ("bytes_count", "origin", "requests")

    def __init__(self, origin: str | None) -> None:
        self.origin = origin
        self.requests = 0
        self.bytes_count = 0


class Sources:
    """All clients that have requests in progress."""

    def __init__(self, limits: ServerLimits, origin_of: OriginOf) -> None:
        self._requests_max = limits.connections_per_peer_max
        self._body_bytes_max = limits.body_bytes_max
        self._origin_of = origin_of
        self._sources: dict[str, Source] = {}

    def begin(self, peer: str, request: ParsedRequest) -> tuple[Source, int] | ServerRefusal:
        """Count a request of a proxy until :meth:`end`, which takes what this returns, or refuse it.

        One without a client is not limited.
        """
        origin = self.origin(peer, request)
        if origin is None:
            return Source(None), 0
        source = self._sources.get(origin)
        if source is None:
            source = self._sources[origin] = Source(origin)
        elif source.requests >= self._requests_max or source.bytes_count >= BYTES_PER_PEER_MAX:
            return TOO_MANY_OF_PEER
        body_bytes = min(_body_bytes(request), self._body_bytes_max)
        source.requests += 1
        source.bytes_count += body_bytes
        return source, body_bytes

    def origin(self, peer: str, request: ParsedRequest) -> str | None:
        """Return the origin that a proxy reports of a request; None if it reports none."""
        return self._origin_of(peer, request.headers)

    def end(self, source: Source, body_bytes: int) -> None:
        """Count a request no more."""
        source.requests -= 1
        source.bytes_count -= body_bytes
        if not source.requests and source.origin is not None:
            del self._sources[source.origin]

    def __len__(self) -> int:
        return len(self._sources)


def _body_bytes(request: ParsedRequest) -> int:
    """Return the length of a body, or what is read ahead of one that does not tell it."""
    if request.is_complete and not request.waiting:
        return 0
    for name, value in request.headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return READ_AHEAD_BYTES
    return 0
