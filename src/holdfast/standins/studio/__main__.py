"""The studio as a process of its own: rendering never takes the interpreter from those who serve requests.

Its order comes as one JSON line on standard input; when that input ends, whoever ordered it is gone, and so
is the studio. It runs at low priority and says ``ready`` on standard output once it listens.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import msgspec
import trio

from holdfast.logs import configure_logging
from holdfast.providers.outbound.name_lookups import limit_name_lookups
from holdfast.scrubbing import register_secrets
from holdfast.standins.studio.service import serve_studio

NICENESS = 10


class Order(msgspec.Struct, frozen=True):
    """How the studio is to be run."""

    secret: str
    token: str
    files_dir: str
    host: str
    port: int
    log_format: str
    gallery: bool = False


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
    order = msgspec.json.decode(line, type=Order)
    configure_logging("json" if order.log_format == "json" else "console")
    register_secrets((order.secret, order.token))
    async with trio.open_nursery() as nursery:
        await nursery.start(
            partial(
                serve_studio,
                secret=order.secret,
                token=order.token,
                files_dir=Path(order.files_dir),
                host=order.host,
                port=order.port,
                gallery=order.gallery,
            )
        )
        print("ready", flush=True)  # noqa: T201 - the word its starter waits for
        while await stdin.receive_some():
            pass
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    os.nice(NICENESS)
    trio.run(main)
