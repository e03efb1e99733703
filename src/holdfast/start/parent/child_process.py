"""A child process, and what it exchanges with the parent: JSON arguments, and lines on a socket pair.

A parent and its children may be of different releases. So unknown fields and lines are ignored, and new fields have
defaults.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import trio

READY: Final = "ready"
"""From a child, once it serves."""
ALIVE: Final = "alive"
"""From a worker that serves, every :data:`ALIVE_S`: its event loop runs."""
ALIVE_S: Final = 1.0
RETIRE: Final = "retire"
"""To a worker whose successor is ready: finish what is open, then end."""
COVER: Final = "cover"
"""To a worker, followed by slots: accept on the sockets of these workers too, and of no others."""
REPORT: Final = "report"
"""To a worker, followed by a report of the parent as JSON: store it."""
DATABASE: Final = "database"
"""To all workers, followed by why the embedded database does not start."""
LINE_BYTES_MAX: Final = 4096
"""How much is read at a time; a line may be longer."""


class WorkerArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a worker.

    ``slot`` counts from 0; a worker and its successor have the same. ``metrics_dir`` is the folder of all workers'
    metrics. ``control_fd`` is the worker's end of the socket pair: end of file there means that the parent is gone.
    The others are listening sockets; ``sibling_fds`` has those of the other workers by slot, the public one first.
    """

    slot: int
    metrics_dir: str
    control_fd: int
    public_fd: int
    operators_fd: int | None = None
    sibling_fds: Mapping[int, tuple[int, ...]] = {}


class EmulatorsArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the emulators: where the workers listen, and the bound sockets of the studio and the card
    emulator.
    """

    control_fd: int
    local_url: str
    studio_fd: int
    card_fd: int | None


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
