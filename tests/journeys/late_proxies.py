"""Proxies that make requests late: the clients have sent them again by the time that a service reads them."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import trio

from .cutting_proxy import read_message

End = Literal["with it", "a moment later"]
MOMENT_S: Final = 0.1
ACCEPTED_WITHIN_S: Final = 1.0
"""A service has it that another process accepts for a frozen one after three seconds."""
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_INTENT: Final = re.compile(rb"wave [0-9]+")


def address_of(url: str) -> tuple[str, int]:
    """The host and port of a service."""
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    return address.hostname, address.port


async def deliver(target: tuple[str, int], request: bytes, end: End) -> None:
    """Send a request whose client has gone, and wait until the service has closed the connection.

    Its end is in the same segment as its last byte, or follows a moment later.
    """
    stream = await trio.open_tcp_stream(*target)
    async with stream:
        if end == "with it":
            # The system holds it back for 200 ms at most, so no other task may run before the end follows.
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            with socket.socket(fileno=os.dup(stream.socket.fileno())) as sync:
                assert sync.send(request) == len(request)
                sync.shutdown(socket.SHUT_WR)
        else:
            await stream.send_all(request)
            await trio.sleep(MOMENT_S)
            await stream.send_eof()
        answered = b"".join([part async for part in stream])
        assert answered == b"", answered


class LateProxy:
    """Holds the first attempt of each request back, and cuts its client, until the next one was answered."""

    def __init__(self, url: str, *ends: End) -> None:
        self._target = address_of(url)
        self._ends = cycle(ends)
        self._held: dict[bytes, bytes] = {}
        self._nursery: trio.Nursery | None = None
        self.url = ""
        self.late_count = 0

    async def serve(self, client: trio.SocketStream) -> None:
        """Pass the requests of a connection on, one after the other."""
        assert self._nursery is not None
        rest = b""
        async with client, await trio.open_tcp_stream(*self._target) as upstream:
            while True:
                request, rest = await read_message(client, rest)
                intent = _INTENT.search(request)
                if intent is None:
                    return
                if intent[0] not in self._held:
                    self._held[intent[0]] = request
                    return
                await upstream.send_all(request)
                answer, _ = await read_message(upstream, b"")
                self.late_count += 1
                self._nursery.start_soon(deliver, self._target, self._held[intent[0]], next(self._ends))
                await client.send_all(answer)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LateProxy]:
        """Run it; at the end all that was held back is delivered."""
        async with trio.open_nursery() as late:
            self._nursery = late
            async with listening(self.serve) as self.url:
                yield self


class Balancer:
    """Gives each connection to the next of some services, and cuts it if no process has accepted it in time.

    So a request that waits for a frozen process has lost its client, by a close or, every second time, by a reset.
    A connection with a response is not cut.
    """

    def __init__(self, urls: list[str]) -> None:
        self._targets = cycle([address_of(url) for url in urls])
        self.url = ""
        self.cut_count = 0

    async def serve(self, client: trio.SocketStream) -> None:
        """Pass on what comes from either side, until one has closed."""
        async with (
            client,
            await trio.open_tcp_stream(*next(self._targets)) as upstream,
            trio.open_nursery() as nursery,
        ):

            async def forward(source: trio.SocketStream, to: trio.SocketStream) -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    async for data in source:
                        await to.send_all(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(forward, client, upstream)
            nursery.start_soon(forward, upstream, client)
            await trio.sleep(ACCEPTED_WITHIN_S)
            if is_unaccepted(upstream) and not has_answer(upstream):
                self.cut_count += 1
                if self.cut_count % 2:
                    upstream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                # At once: by the time that a cancellation has closed it, a process may have accepted and answered.
                upstream.socket.close()
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Balancer]:
        """Run it."""
        async with listening(self.serve) as self.url:
            yield self


def is_unaccepted(stream: trio.SocketStream) -> bool:
    """Whether the other end of a connection waits in the queue of a listening socket: no process has its file."""
    (_, here), (_, there) = stream.socket.getsockname(), stream.socket.getpeername()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, *_, inode = line.split()[:10]
        if (local[-4:], remote[-4:]) == (f"{there:04X}", f"{here:04X}"):
            return inode == "0"
    return False


def has_answer(stream: trio.SocketStream) -> bool:
    """Whether a response is here, unread: a process may have accepted, and answered, since it was looked for.

    What this machine has acknowledged would be lost by a cut, and nothing tells the service so.
    """
    with socket.socket(fileno=os.dup(stream.socket.fileno())) as sync, suppress(BlockingIOError):
        return len(sync.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)) > 0
    return False


@asynccontextmanager
async def listening(serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve connections to a port of loopback, whose address this yields."""
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()
