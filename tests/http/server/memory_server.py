"""Connections over streams in memory, and an application that the request controls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from holdfast.http.server.connection import Receive, Send
from holdfast.http.server.connections import Connections
from holdfast.http.server.http1 import Headers, ServerRefusal, refuse_in_words
from holdfast.http.server.limits import ServerLimits

Scope: TypeAlias = MutableMapping[str, Any]
Handler: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Stream: TypeAlias = trio.StapledStream[Any, Any]

HOME = ("127.0.0.1", 8000)


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request."""
    body, more = b"", True
    while more:
        event = await receive()
        assert event["type"] == "http.request"
        body, more = body + event.get("body", b""), event.get("more_body", False)
    return body


async def answer(send: Send, body: bytes = b"", *, status: int = 200, more: bool = False) -> None:
    """An answer of known length."""
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    """Leave a request without an answer."""
    await trio.sleep_forever()


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the path and the body."""
    await answer(send, scope["path"].encode() + b"|" + await read_body(receive))


@dataclass
class Server:
    """A running group of connections, and ways to connect to it."""

    connections: Connections
    handler: Handler = echo
    calls: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    """The status and origin of each response of the server itself."""

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls.append(scope["path"])
        try:
            await self.handler(scope, receive, send)
        except trio.Cancelled:
            self.cancelled.append(scope["path"])
            raise

    def connect(self, peer: str = "203.0.113.1", *, is_for_operators: bool = False) -> Stream:
        """A connection of a client that buffers what it is sent."""
        client, server = memory_stream_pair()
        self.connections.admit(self.app, server, (peer, 1), HOME, is_for_operators=is_for_operators)
        return client

    def connect_unbuffered(self, peer: str = "203.0.113.1") -> Stream:
        """A connection on which a send ends when the other side has received."""
        client, server = lockstep_stream_pair()
        self.connections.admit(self.app, server, (peer, 1), HOME)
        return client


@asynccontextmanager
async def serving(*, is_proxy: Callable[[str], bool] = lambda _peer: False, **limits: Any) -> AsyncIterator[Server]:
    """A server in memory, stopped in order at the end; proxies name their clients in the header ``Client``.

    It lingers shortly: at the end each connection that its test has left open is waited for.
    """

    def origin_of(_peer: str, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        return next((value.decode() for name, value in headers if name == b"client"), None)

    refused: list[tuple[int, str]] = []

    def refuse(refusal: ServerRefusal, origin: str) -> tuple[Headers, bytes]:
        refused.append((refusal.status, origin))
        return refuse_in_words(refusal, origin)

    connections = Connections(
        ServerLimits(**{"linger_s": 0.05, **limits}),
        peer_of=lambda address: address.removeprefix("::ffff:"),
        is_proxy=is_proxy,
        origin_of=origin_of,
        refuse=refuse,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(connections.run)
        yield Server(connections, refused=refused)
        await connections.stop()


async def rest_of(stream: Stream) -> bytes:
    """All that still comes, until the server closes."""
    return b"".join([part async for part in stream])


async def answers(stream: Stream, count: int) -> bytes:
    """What comes until it holds ``count`` heads with the bodies they tell of; the bodies must not hold heads."""
    received = b""
    while True:
        rest, found = received, 0
        while b"\r\n\r\n" in rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
            if len(rest) < length:
                break
            rest, found = rest[length:], found + 1
        if found >= count:
            return received
        part = await stream.receive_some()
        assert part, received
        received += bytes(part)
