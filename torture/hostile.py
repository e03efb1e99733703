"""Hostile or broken clients: slow, not reading, half-closed, and sending invalid requests."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from .deployment import Deployment

CONNECTIONS = 12
LASTS_S = 1.5

GARBAGE: tuple[bytes, ...] = (
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: A\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: \xff\xfe\r\n"
    b"Content-Length: 5\r\n\r\nhello",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + bytes(9)
    + b"\x00\x00\x05\x02\x00\x00\x00\x00\x01\x00\x00\x00\x00\x10" * 200,
    b"POST /v2/quote HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET ? HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nX",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"POST /v2/task/create HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 40000\r\n\r\n"
    + b"[{}," * 10_000,
    b"X" * 70_000,
)


async def attack(deployment: Deployment, rng: random.Random) -> None:
    """Several hostile clients at once, for a while, on every process."""
    kinds: tuple[Callable[[trio.SocketStream, random.Random], Awaitable[None]], ...] = (
        _slow_head,
        _slow_body,
        _deaf,
        _half_closed,
        _garbage,
        _reset,
    )
    with trio.move_on_after(rng.uniform(0.5, LASTS_S)):
        async with trio.open_nursery() as nursery:
            for service in deployment.services:
                for _ in range(CONNECTIONS):
                    kind, seed = rng.choice(kinds), rng.getrandbits(64)
                    nursery.start_soon(_again_and_again, kind, service.port, random.Random(seed))


async def _again_and_again(
    kind: Callable[[trio.SocketStream, random.Random], Awaitable[None]], port: int, rng: random.Random
) -> None:
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            try:
                await kind(stream, rng)
            finally:
                await trio.aclose_forcefully(stream)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.sleep(0.1)


async def _slow_head(stream: trio.SocketStream, rng: random.Random) -> None:
    for byte in b"GET /v2/models HTTP/1.1\r\nHost: a\r\nX-Slow: " + b"y" * 1000:
        await stream.send_all(bytes([byte]))
        await trio.sleep(rng.uniform(0.01, 0.1))


async def _slow_body(stream: trio.SocketStream, rng: random.Random) -> None:
    head = b"POST /v2/quote HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    await stream.send_all(head)
    while True:
        await stream.send_all(b'{"a": ')
        await trio.sleep(rng.uniform(0.05, 0.3))


async def _deaf(stream: trio.SocketStream, _: random.Random) -> None:
    """Request much and read nothing."""
    for _number in range(200):
        await stream.send_all(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n")


async def _half_closed(stream: trio.SocketStream, _: random.Random) -> None:
    await stream.send_all(b"GET /v2/models HTTP/1.1\r\nHost: a\r\n\r\n")
    await stream.send_eof()
    await trio.sleep(0.3)


async def _garbage(stream: trio.SocketStream, rng: random.Random) -> None:
    sent = rng.choice((*GARBAGE, rng.randbytes(rng.randint(1, 2000))))
    await stream.send_all(sent)
    with trio.move_on_after(0.2):
        await stream.receive_some(1000)


async def _reset(stream: trio.SocketStream, rng: random.Random) -> None:
    await stream.send_all(b"GET /v2/models HTTP/1.1\r\nHost: a\r\nContent-Le"[: rng.randint(1, 60)])
