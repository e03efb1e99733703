"""Serve an emulator's web application: started once its socket is bound, stopped in order when cancelled."""

from __future__ import annotations

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart_trio import QuartTrio

ANY_PORT = "127.0.0.1:0"
STOP_WITHIN_S = 5.0
GRACEFUL_TIMEOUT_S = 0.1
"""Short, because idle connections last as long: clients close theirs before an emulator is stopped."""
KEEP_ALIVE_TIMEOUT_S = 30


async def serve_app(
    app: QuartTrio,
    *,
    bind: str = ANY_PORT,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports its URL.

    ``bind`` is an address (port 0 takes a free one), or ``fd://`` and the descriptor of a listening socket.

    Raises, in a group, ``OSError`` if the port is taken, and ``RuntimeError`` if the server stops by itself.
    """
    stop, stopped = trio.Event(), trio.Event()
    server = trio.CancelScope(shield=True)

    async def serve_web(*, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
        # Shielded: a cancelled server does not close its sockets in order. It is stopped instead.
        try:
            with server:
                await serve(app, _config(bind), shutdown_trigger=stop.wait, task_status=task_status)
        finally:
            stopped.set()

    async with trio.open_nursery() as nursery:
        binds = await nursery.start(serve_web)
        task_status.started(binds[0])
        try:
            await stopped.wait()
        finally:
            stop.set()
            with trio.move_on_after(STOP_WITHIN_S, shield=True):
                await stopped.wait()
            server.cancel()
        raise RuntimeError("the server stopped by itself")


def _config(bind: str) -> Config:
    config = Config()
    config.bind = [bind]
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = GRACEFUL_TIMEOUT_S
    config.keep_alive_timeout = KEEP_ALIVE_TIMEOUT_S
    config.h11_max_incomplete_size = 64 * 1024
    config.include_server_header = False
    return config
