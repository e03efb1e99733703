"""The studio as a separate process, so that rendering does not block the interpreter that serves requests.

Its options are one JSON line on standard input; when that input ends, its parent has ended, and it exits. Or it has
no parent: ``python -m holdfast_emulators.studio URL SECRET_FILE FOLDER`` serves at the URL's host and port, with
the secret in the file, until SIGTERM or SIGINT. It runs at low priority.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import trio

from holdfast.providers.outbound.name_lookups import limit_name_lookups
from holdfast.telemetry.logs import configure_logging
from holdfast.telemetry.scrubbing import register_secrets
from holdfast_emulators.studio.app import serve_studio
from holdfast_emulators.studio.process import Options

NICENESS = 10


async def serve(options: Options, url: str | None = None) -> None:
    """Serve until cancelled. ``url`` is where its users reach it; by default the address that it listens on."""
    limit_name_lookups()
    configure_logging("json" if options.log_format == "json" else "console")
    register_secrets((options.secret, options.token))
    await serve_studio(
        secret=options.secret,
        token=options.token or None,
        files_dir=Path(options.files_dir),
        bound=socket.socket(fileno=options.listening_fd),
        url=url,
    )


async def serve_alone(url: str, options: Options) -> None:
    """Serve at the URL until a signal."""
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            nursery.start_soon(serve, options, url)
            await anext(signals)
            nursery.cancel_scope.cancel()


async def serve_parent() -> None:
    """Serve until standard input ends."""
    stdin = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
    line = b""
    while not line.endswith(b"\n"):
        chunk = await stdin.receive_some()
        if not chunk:
            return
        line += chunk
    options = msgspec.json.decode(line, type=Options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, options)
        while await stdin.receive_some():
            pass
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    os.nice(NICENESS)
    if sys.argv[1:]:
        url, secret_file, folder = sys.argv[1:]
        parts = urlsplit(url)
        listening = socket.create_server((parts.hostname or "", parts.port or 80))
        secret = Path(secret_file).read_text("ascii").strip()
        trio.run(serve_alone, url, Options(secret, "", folder, listening.detach(), "json"))
    else:
        trio.run(serve_parent)
