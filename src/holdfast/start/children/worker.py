"""The program of a worker: ``python -m holdfast.start.children.worker`` with arguments as JSON.

Loading the application takes seconds, in which the worker has its listening sockets already. If the parent ends
meanwhile, it exits at once: the next parent waits for the port.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress

import msgspec

from holdfast.start.exit_codes import GAVE_UP
from holdfast.start.loading import load_structlog, loading
from holdfast.start.parent.child_process import WorkerArguments


def main(arguments: WorkerArguments) -> int:
    """Load the application and serve; returns the exit code."""
    has_started = threading.Event()
    threading.Thread(target=_exit_with_parent, args=(arguments.control_fd, has_started), daemon=True).start()
    with loading():
        load_structlog()
        from holdfast.start.children.serving import serve
    return serve(arguments, has_started.set)


def _exit_with_parent(control_fd: int, has_started: threading.Event) -> None:
    """Wait for the parent's end or its first line, neither of which is taken from the socket.

    A worker that has started makes the socket non-blocking. A wait that began before goes on; it fails if the
    process is suspended and continued.
    """
    with socket.socket(fileno=os.dup(control_fd)) as control, suppress(BlockingIOError):
        if not control.recv(1, socket.MSG_PEEK) and not has_started.is_set():
            os._exit(GAVE_UP)


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1], type=WorkerArguments)))
