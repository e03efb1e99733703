"""The studio as a separate process, so that rendering does not block the interpreter that serves requests.

Its options are one JSON line on standard input; when that input ends, its parent has ended, and it exits. It runs
at low priority.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import partial
from pathlib import Path

import msgspec
import trio

from holdfast.providers.outbound.name_lookups import limit_name_lookups
from holdfast.telemetry.logs import configure_logging
from holdfast.telemetry.scrubbing import register_secrets
from holdfast_emulators.studio.app import serve_studio
from holdfast_emulators.studio.process import Options

NICENESS = 10


async def main() -> None:
    """Serve until standard input ends."""
    limit_name_lookups()
    stdin = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
    line = b""
    while not line.endswith(b"\n"):
        chunk = await stdin.receive_some()
        if not chunk:
            return
        line += chunk
    options = msgspec.json.decode(line, type=Options)
    configure_logging("json" if options.log_format == "json" else "console")
    register_secrets((options.secret, options.token))
    async with trio.open_nursery() as nursery:
        await nursery.start(
            partial(
                serve_studio,
                secret=options.secret,
                token=options.token,
                files_dir=Path(options.files_dir),
                bound=socket.socket(fileno=options.listening_fd),
            )
        )
        while await stdin.receive_some():
            pass
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    os.nice(NICENESS)
    trio.run(main)
