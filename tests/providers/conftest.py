"""What the providers' tests share: a receiver of callbacks and a running studio, over real HTTP on loopback."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import request
from quart_trio import QuartTrio

from holdfast.providers.media.callbacks import parse_callback
from holdfast.providers.signatures import verify
from holdfast.providers.studio.service import serve_studio
from holdfast.providers.studio.workshop import Workshop

SECRET = "studio-callback-secret"


@dataclass
class Heard:
    """One callback as it came in."""

    body: dict[str, Any]
    raw: bytes
    header: str | None

    @property
    def verdict(self) -> str:
        return verify(self.header, self.raw, [SECRET], now=datetime.now(UTC))


@dataclass
class Ear:
    """Receives callbacks. ``answers`` are the statuses to give, in turn; 200 afterwards."""

    url: str = ""
    heard: list[Heard] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    _news: trio.Event = field(default_factory=trio.Event)

    def take(self, raw: str | bytes, header: str | None) -> int:
        raw = raw.encode() if isinstance(raw, str) else raw
        self.heard.append(Heard(json.loads(raw), raw, header))
        self._news.set()
        self._news = trio.Event()
        return self.answers.pop(0) if self.answers else 200

    async def until(self, condition: Callable[[list[Heard]], bool]) -> list[Heard]:
        """Wait until what was heard satisfies ``condition``; every callback must be one we can read."""
        while not condition(self.heard):
            await self._news.wait()
        for heard in self.heard:
            parsed = parse_callback("studio", heard.raw)
            assert not hasattr(parsed, "code"), parsed
        return list(self.heard)

    async def last_word(self) -> Heard:
        """Wait for the first terminal callback."""
        heard = await self.until(lambda all_: any(is_last(one) for one in all_))
        return next(one for one in heard if is_last(one))


def is_last(heard: Heard) -> bool:
    """True for a callback that ends a job."""
    return heard.body["status"] in ("succeeded", "failed", "canceled")


@dataclass
class RunningStudio:
    """A studio with its address and a client that speaks to it."""

    url: str
    shop: Workshop
    http: httpx.AsyncClient

    async def put(self, job_id: str, **order: Any) -> httpx.Response:
        return await self.http.put(f"/predictions/{job_id}", json=order)

    async def get(self, job_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/predictions/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def finished(self, job_id: str) -> dict[str, Any]:
        """Wait for a job's end and show it."""
        job = self.shop.get(job_id)
        assert job is not None
        await job.ended.wait()
        return await self.get(job_id)


StartStudio = Callable[..., AbstractAsyncContextManager[RunningStudio]]
ServeApp = Callable[[QuartTrio], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def _serve(app: QuartTrio) -> AsyncIterator[str]:
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    config.graceful_timeout = 0.2
    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
            await serve(app, config, shutdown_trigger=stop.wait, task_status=task_status)

        binds = await nursery.start(run)
        try:
            yield binds[0]
        finally:
            stop.set()


@pytest.fixture
def serve_app() -> ServeApp:
    """Serve any application on a free loopback port."""
    return _serve


@pytest.fixture
async def ear() -> AsyncIterator[Ear]:
    """A listener for callbacks."""
    app = QuartTrio("ear", static_folder=None)
    hearing = Ear()

    @app.post("/callback")
    async def take() -> tuple[str, int]:
        return "", hearing.take(await request.get_data(), request.headers.get("X-Callback-Signature"))

    async with _serve(app) as url:
        hearing.url = f"{url}/callback"
        yield hearing


@pytest.fixture
def start_studio(tmp_path: Path) -> StartStudio:
    """Start a studio; keywords go to its workshop, ``token`` to its application."""

    @asynccontextmanager
    async def start(*, token: str | None = None, **options: Any) -> AsyncIterator[RunningStudio]:
        shop = Workshop(SECRET, tmp_path / "studio-files", **{"progress_every_s": 0.01, **options})
        async with trio.open_nursery() as nursery:

            async def run(*, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
                await serve_studio(
                    secret=SECRET, files_dir=tmp_path, token=token, workshop=shop, task_status=task_status
                )

            port = await nursery.start(run)
            url = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10) as http:
                yield RunningStudio(url, shop, http)
            nursery.cancel_scope.cancel()

    return start
