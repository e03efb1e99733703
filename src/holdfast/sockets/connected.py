"""A connected socket as a stream, for both ends of HTTP.

Unlike trio's own it waits before it reads instead of after a failed attempt, and a send is a checkpoint only when
the kernel takes no more data. That saves a system call and a step of the event loop for each request.
"""

from __future__ import annotations

import select
import socket
import struct
import termios
from contextlib import suppress
from fcntl import ioctl
from typing import Final

import trio

RECEIVE_BYTES: Final = 64 * 1024
"""The most that is read at once."""

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_UNSENT_BYTES: Final = 16 * 1024
"""How much the kernel buffers beyond what it has sent, as in trio's stream."""


class ConnectedSocket(trio.abc.HalfCloseableStream):
    """A connection. One task at a time may send, and one may receive."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        with suppress(OSError):  # a Unix socket
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for data and return it; b"" at its end. Raises BrokenResourceError or ClosedResourceError."""
        while True:
            self._check_open()
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return self._socket.recv(max_bytes or RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as fault:
                # It may have been closed here in the turn in which it became readable.
                self._check_open()
                raise trio.BrokenResourceError from fault

    def is_readable(self) -> bool:
        """Whether there is something to receive: data, the end, or an error; also if it is closed here."""
        return self._socket.fileno() == -1 or bool(self._poll.poll(0))

    def has_unacknowledged(self) -> bool:
        """Whether the other machine has not acknowledged all that was sent; False if it is closed here."""
        return self._socket.fileno() != -1 and any(ioctl(self._socket, termios.TIOCOUTQ, bytes(4)))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send; not a checkpoint if the kernel takes all. Raises BrokenResourceError or ClosedResourceError."""
        rest = memoryview(data)
        while rest:
            self._check_open()
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                await self.wait_send_all_might_not_block()
            except OSError as fault:
                raise trio.BrokenResourceError from fault

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the kernel takes data."""
        self._check_open()
        await trio.lowlevel.wait_writable(self._socket)

    async def send_eof(self) -> None:
        """Close the sending side. Raises OSError if the client has closed."""
        self._check_open()
        self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Close."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close; the file descriptor is free on return, and tasks that wait get ClosedResourceError."""
        if self._socket.fileno() != -1:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def close_after(self, data: bytes) -> None:
        """Send what the kernel takes at once, and close; what has arrived is read, or there would be a reset."""
        with suppress(OSError):
            self._socket.send(data)
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.recv(RECEIVE_BYTES)
        self.close()

    def reset(self) -> None:
        """Close with a reset, discarding unsent data."""
        with suppress(OSError):  # closed already
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.close()

    def _check_open(self) -> None:
        if self._socket.fileno() == -1:
            raise trio.ClosedResourceError
