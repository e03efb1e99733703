"""The studio as one child function: renderer and web server, started and stopped in order."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import trio

from holdfast.standins.serving import ANY_PORT, serve_app
from holdfast.standins.studio.app import create_studio
from holdfast.standins.studio.renderer import Renderer


async def serve_studio(
    *,
    secret: str,
    files_dir: Path,
    bind: str = ANY_PORT,
    token: str | None = None,
    renderer: Renderer | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the bound port. ``bind`` is as for :func:`serve_app`.

    A given ``renderer`` is used instead of a new one. Raises ``OSError`` if the port is taken, and ``RuntimeError``
    if the server stops by itself.
    """
    renderer = renderer or Renderer(secret, files_dir)
    app = create_studio(renderer, token=token)

    async with trio.open_nursery() as nursery:
        await nursery.start(renderer.run)
        renderer.base_url = await nursery.start(partial(serve_app, app, bind=bind))
        task_status.started(urlsplit(renderer.base_url).port or 0)
