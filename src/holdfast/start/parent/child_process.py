"""A child process, and the socket pair that connects it with the parent."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec
import trio

from holdfast.start.parent.protocol import LINE_BYTES_MAX


class ChildProcess:
    """A running child process."""

    def __init__(self, process: trio.Process, control: socket.socket) -> None:
        self.pid = process.pid
        self._process = process
        control.setblocking(False)
        self._control = control
        self._reader = trio.socket.from_stdlib_socket(control.dup())
        self._lines: deque[str] = deque()
        self._rest = b""

    async def next_line(self) -> str | None:
        """Wait for its next line. None: it has closed its side."""
        while not self._lines:
            try:
                data = await self._reader.recv(LINE_BYTES_MAX)
            except OSError:
                data = b""
            if not data:
                return None
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += [line.decode() for line in lines]
        return self._lines.popleft()

    async def wait(self) -> int:
        """Wait for its end and return its exit code, or the negative number of the signal that killed it."""
        return await self._process.wait()

    def tell(self, line: str) -> bool:
        """Send it a line. False: it no longer reads, or too slowly."""
        try:
            # A local socket takes so little as a whole or not at all.
            self._control.send(f"{line}\n".encode())
        except OSError:
            return False
        return True

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Close the socket pair's end here."""
        self._reader.close()
        self._control.close()


async def start_process(
    module: str, arguments: Callable[[int], msgspec.Struct], *, fds: Sequence[int], variables: Mapping[str, str]
) -> ChildProcess:
    """Start ``python -m module``; ``arguments`` returns them, given the child's end of the socket pair.

    A new interpreter, so that it runs the code that is installed now. Raises OSError.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            encoded = msgspec.json.encode(arguments(theirs.fileno())).decode()
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", module, encoded],
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                pass_fds=(*fds, theirs.fileno()),
                # A Ctrl-C at the terminal is for the parent alone, which stops its children in order.
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return ChildProcess(process, ours)
