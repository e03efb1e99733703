"""Servers at the other end of socket pairs, for pools of connections."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import trio
import trio.lowlevel

from holdfast.providers.outbound.connection_pool import (
    ConnectionPool,
    Dial,
    Endpoint,
    render_request,
)

HERE = Endpoint("server.test", 80, tls=False, is_trusted=False)
GET = render_request("GET", b"/", {"Host": "server.test"}, None)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

Serve = Callable[[int, trio.SocketStream], Awaitable[None]]


class Servers:
    """Servers at the other end of socket pairs: ``serve`` runs for each connection, with its number."""

    def __init__(self, nursery: trio.Nursery, serve: Serve) -> None:
        self.dialed: list[Endpoint] = []
        self._nursery = nursery
        self._serve = serve

    async def dial(self, endpoint: Endpoint, _requester: str) -> trio.SocketStream:
        self.dialed.append(endpoint)
        ours, theirs = trio.socket.socketpair()
        self._nursery.start_soon(self._run, len(self.dialed), trio.SocketStream(theirs))
        return trio.SocketStream(ours)

    async def _run(self, number: int, stream: trio.SocketStream) -> None:
        async with stream:
            await self._serve(number, stream)

    def pool(
        self, *, connections_max_count: int = 2, ssl_context: ssl.SSLContext | None = NO_TLS
    ) -> ConnectionPool:
        return pool_of(self.dial, connections_max_count=connections_max_count, ssl_context=ssl_context)


def pool_of(
    dial: Dial, *, connections_max_count: int = 2, ssl_context: ssl.SSLContext | None = NO_TLS
) -> ConnectionPool:
    return ConnectionPool(
        dial,
        ssl_context=ssl_context,
        connect_timeout_s=3.0,
        idle_timeout_s=7.0,
        connections_max_count=connections_max_count,
        idle_max_count=2,
    )


async def head_of(stream: trio.SocketStream) -> bytes:
    """Receive one request without a body; b"" at the end of the connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        data = await stream.receive_some(65536)
        if not data:
            return b""
        head += data
    return head


async def answers(_number: int, stream: trio.SocketStream) -> None:
    while await head_of(stream):
        await stream.send_all(OK)


async def ask(pool: ConnectionPool, endpoint: Endpoint = HERE, *, is_repeatable: bool = False) -> bytes:
    with await pool.exchange(endpoint, GET, is_repeatable=is_repeatable) as response:
        return await response.read(1000)
