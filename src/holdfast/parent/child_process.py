"""A child process, and the socket pair that connects it with the parent."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
import trio

from holdfast.parent.protocol import LINE_BYTES_MAX, READY


class ChildProcess(Protocol):
    """A running child process."""

    pid: int

    async def wait_ready(self) -> bool:
        """Wait for its first line. False: it closed its side without one."""
        ...

    async def wait(self) -> int:
        """Wait for its end and return its exit code, or the negative number of the signal that killed it."""
        ...

    def tell(self, line: str) -> None:
        """Send it a line, if it still reads."""
        ...

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        ...

    def close(self) -> None:
        """Close the socket pair's end here."""
        ...


class SystemProcess:
    """A child process of the operating system."""

    def __init__(self, process: trio.Process, control: socket.socket) -> None:
        self.pid = process.pid
        self._process = process
        control.setblocking(False)
        self._control = control

    async def wait_ready(self) -> bool:
        """Wait for its first line. False: it closed its side without one."""
        reader = trio.socket.from_stdlib_socket(self._control.dup())
        with reader:
            try:
                return (await reader.recv(LINE_BYTES_MAX)).startswith(READY.encode())
            except OSError:
                return False

    async def wait(self) -> int:
        """Wait for its end and return its exit code, or the negative number of the signal that killed it."""
        return await self._process.wait()

    def tell(self, line: str) -> None:
        """Send it a line, if it still reads."""
        with suppress(OSError):
            self._control.send(f"{line}\n".encode())

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Close the socket pair's end here."""
        self._control.close()


async def start_process(
    module: str, arguments: Callable[[int], msgspec.Struct], *, fds: Sequence[int], variables: Mapping[str, str]
) -> SystemProcess:
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
    return SystemProcess(process, ours)
