"""The child's side of the socket pair with its parent."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import trio

from holdfast.start.parent.child_process import ALIVE, ALIVE_S, LINE_BYTES_MAX, READY


class Control:
    """The connection to the parent, by its descriptor. It is not inherited further."""

    def __init__(self, fd: int) -> None:
        self._socket = trio.socket.from_stdlib_socket(socket.socket(fileno=fd))
        self._socket.set_inheritable(False)

    async def report_ready(self) -> None:
        """Tell the parent that this process serves."""
        await self._send(READY)

    async def show_life(self) -> None:
        """Tell the parent that this process serves, and then that its event loop runs, until cancelled.

        The first sign of life is sent with that: a process that froze in between would be waited for without end.
        """
        await self._send(f"{READY}\n{ALIVE}")
        while True:
            await trio.sleep(ALIVE_S)
            await self._send(ALIVE)

    async def lines(self) -> AsyncIterator[tuple[str, str]]:
        """Yield the first word of each line and the rest of it, until the parent is gone."""
        received = b""
        while True:
            try:
                data = await self._socket.recv(LINE_BYTES_MAX)
            except OSError:
                return
            if not data:
                return
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                command, _, rest = line.decode().partition(" ")
                yield command, rest

    async def _send(self, line: str) -> None:
        with suppress(OSError):  # the parent is gone, which the lines show
            await self._socket.send(f"{line}\n".encode())
