"""A small SMTP server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import trio


class Post:
    """An SMTP server that knows as much as a mailer needs. ``refuse`` is a command it turns down."""

    def __init__(self, refuse: bytes = b"", extensions: tuple[bytes, ...] = ()) -> None:
        self.refuse = refuse
        self.refusal = b"550"
        self.extensions = extensions
        self.commands: list[bytes] = []
        self.messages: list[bytes] = []
        self.port = 0
        self.closed = trio.Event()

    async def before_answer(self, line: bytes) -> None:
        """Wait, where a test wants that."""

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"220 post\r\n")
            waiting = b""
            while block := await stream.receive_some():
                waiting += block
                while b"\r\n" in waiting:
                    line, waiting = waiting.split(b"\r\n", 1)
                    self.commands.append(line)
                    if line.upper() == b"DATA" and self.refuse != b"DATA":
                        await stream.send_all(b"354 go\r\n")
                        while b"\r\n.\r\n" not in waiting:
                            waiting += await stream.receive_some()
                        message, waiting = waiting.split(b"\r\n.\r\n", 1)
                        self.messages.append(message)
                    await self.before_answer(line)
                    await stream.send_all(self.answer(line))
        self.closed.set()

    def answer(self, line: bytes) -> bytes:
        verb = line.split(b" ")[0].upper()
        if self.refuse and line.upper().startswith(self.refuse):
            return self.refusal + b" no\r\n"
        if verb == b"EHLO":
            lines = [b"post", *self.extensions]
            return b"".join(b"250-" + one + b"\r\n" for one in lines[:-1]) + b"250 " + lines[-1] + b"\r\n"
        return b"235 in\r\n" if verb == b"AUTH" else b"250 ok\r\n"


AnyPost = TypeVar("AnyPost", bound=Post)


@asynccontextmanager
async def running(post: AnyPost) -> AsyncIterator[AnyPost]:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        post.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, post.serve, [listener])
        yield post
        nursery.cancel_scope.cancel()
