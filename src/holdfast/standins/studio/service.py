"""The studio as one child function: workshop and web server, up together and down in order."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import trio

from holdfast.standins.serving import serve_app
from holdfast.standins.studio.app import create_studio
from holdfast.standins.studio.renderer import Renderer


async def serve_studio(
    *,
    secret: str,
    files_dir: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    gallery: bool = False,
    renderer: Renderer | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the bound port (``port`` 0 takes a free one).

    A given ``workshop`` is run instead of one made here. Raises ``OSError`` where the port is taken, and
    ``RuntimeError`` should the server end by itself.
    """
    shop = renderer or Renderer(secret, files_dir)
    app = create_studio(shop, token=token, gallery=gallery)

    async def serve_web(*, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        await serve_app(app, host=host, port=port, task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(shop.run)
        shop.base_url = await nursery.start(serve_web)
        task_status.started(urlsplit(shop.base_url).port or 0)
