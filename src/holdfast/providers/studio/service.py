"""The studio as one child function: workshop and web server, up together and down in order."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from holdfast.providers.studio.app import create_studio
from holdfast.providers.studio.workshop import Workshop

STOP_WITHIN_S = 5.0
GRACEFUL_TIMEOUT_S = 1.0
KEEP_ALIVE_TIMEOUT_S = 30


async def serve_studio(
    *,
    secret: str,
    files_dir: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    workshop: Workshop | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the bound port (``port`` 0 takes a free one).

    A given ``workshop`` is run instead of one made here. Raises ``OSError`` where the port is taken, and
    ``RuntimeError`` should the server end by itself.
    """
    shop = workshop or Workshop(secret, files_dir)
    app = create_studio(shop, token=token)
    stop, gone = trio.Event(), trio.Event()
    server = trio.CancelScope(shield=True)

    async def serve_web(*, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
        # Shielded: a server cut down from outside leaves its sockets to chance. It is asked to stop instead.
        try:
            with server:
                await serve(app, _config(host, port), shutdown_trigger=stop.wait, task_status=task_status)
        finally:
            gone.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(shop.run)
        binds = await nursery.start(serve_web)
        shop.base_url = binds[0]
        task_status.started(urlsplit(binds[0]).port or 0)
        try:
            await gone.wait()
        finally:
            stop.set()
            with trio.move_on_after(STOP_WITHIN_S, shield=True):
                await gone.wait()
            server.cancel()
        raise RuntimeError("the studio's server ended by itself")


def _config(host: str, port: int) -> Config:
    config = Config()
    config.bind = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = GRACEFUL_TIMEOUT_S
    config.keep_alive_timeout = KEEP_ALIVE_TIMEOUT_S
    config.h11_max_incomplete_size = 64 * 1024
    config.include_server_header = False
    return config
