"""Run the studio as a separate process, supervised like any other child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import trio

START_WITHIN_S = 20.0
STOP_WITHIN_S = 5.0


class StudioEnded(Exception):
    """The studio's process exited."""


async def run_studio_process(
    *,
    secret: str,
    token: str,
    files_dir: Path,
    host: str,
    port: int,
    log_format: str,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the studio until cancelled; started once it listens. Raises :class:`StudioEnded`.

    Its options, with the secret, are sent through a pipe, since command lines are public. The studio exits when the
    pipe closes, even if the service is killed.
    """
    options = {
        "secret": secret,
        "token": token,
        "files_dir": str(files_dir),
        "host": host,
        "port": port,
        "log_format": log_format,
    }
    # A separate session: Ctrl-C at the terminal reaches the service alone, which then stops the studio.
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "holdfast.standins.studio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdin.send_all(msgspec.json.encode(options) + b"\n")
        with trio.fail_after(START_WITHIN_S):
            output = await process.stdout.receive_some(64)
        if not output.startswith(b"ready"):
            raise StudioEnded("the studio did not start")
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
            await process.stdout.aclose()
