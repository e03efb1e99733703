"""Run the studio as a separate process, supervised like any other child."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import trio

STOP_WITHIN_S = 5.0


class Options(msgspec.Struct, frozen=True):
    """The options that the process is sent. ``listening_fd`` is its listening socket."""

    secret: str
    token: str
    files_dir: str
    listening_fd: int
    log_format: str


class StudioEnded(Exception):
    """The studio's process exited."""


async def run_studio_process(
    *,
    secret: str,
    token: str,
    files_dir: Path,
    bound: socket.socket,
    log_format: str,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the studio until cancelled. Raises :class:`StudioEnded`.

    The bound socket listens from now on: requests wait in its queue while the process loads, and the service need
    not. The options, with the secret, are sent through a pipe, since command lines are public. The studio exits
    when the pipe closes, even if the service is killed.
    """
    bound.listen()
    options = Options(
        secret=secret,
        token=token,
        files_dir=str(files_dir),
        listening_fd=bound.fileno(),
        log_format=log_format,
    )
    # A separate session: Ctrl-C at the terminal reaches the service alone, which then stops the studio.
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "holdfast_emulators.studio"],
        stdin=subprocess.PIPE,
        pass_fds=(bound.fileno(),),
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        await process.stdin.send_all(msgspec.json.encode(options) + b"\n")
        task_status.started()
        await process.wait()
        raise StudioEnded(f"the studio exited with code {process.returncode}")
    finally:
        with trio.CancelScope(shield=True):
            await process.stdin.aclose()
            with trio.move_on_after(STOP_WITHIN_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
