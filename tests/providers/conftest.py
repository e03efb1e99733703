"""What the providers' tests share: receivers of callbacks, a running studio, a running card emulator; real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import request
from quart_trio import QuartTrio
from tests.running_bank import RunningBank, running_bank

from holdfast.providers.media.callbacks import parse_callback
from holdfast.providers.signatures import verify_signature
from holdfast_emulators.studio.app import serve_studio
from holdfast_emulators.studio.model import OutputFile, RenderContext
from holdfast_emulators.studio.renderer import Renderer

SECRET = "studio-callback-secret"
CARD_WEBHOOK_SECRET = "card-webhook-secret"


@dataclass
class ReceivedCallback:
    """One callback as received."""

    body: dict[str, Any]
    raw: bytes
    header: str | None

    @property
    def verdict(self) -> str:
        return verify_signature(self.header, self.raw, [SECRET], now=datetime.now(UTC))


@dataclass
class CallbackReceiver:
    """Receives callbacks. ``answers`` are the statuses to give, in turn; 200 afterwards."""

    url: str = ""
    received: list[ReceivedCallback] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    _changed: trio.Event = field(default_factory=trio.Event)

    def take(self, raw: str | bytes, header: str | None) -> int:
        raw = raw.encode() if isinstance(raw, str) else raw
        self.received.append(ReceivedCallback(json.loads(raw), raw, header))
        self._changed.set()
        self._changed = trio.Event()
        return self.answers.pop(0) if self.answers else 200

    async def until(self, condition: Callable[[list[ReceivedCallback]], bool]) -> list[ReceivedCallback]:
        """Wait until the callbacks received satisfy ``condition``; check that each can be parsed."""
        while not condition(self.received):
            await self._changed.wait()
        for callback in self.received:
            parsed = parse_callback("studio", callback.raw)
            assert not hasattr(parsed, "code"), parsed
        return list(self.received)

    async def terminal_callback(self) -> ReceivedCallback:
        """Wait for the first terminal callback."""
        received = await self.until(lambda all_: any(is_last(one) for one in all_))
        return next(one for one in received if is_last(one))


def is_last(callback: ReceivedCallback) -> bool:
    """True for a callback that ends a job."""
    return callback.body["status"] in ("succeeded", "failed", "canceled")


@dataclass
class RunningStudio:
    """A studio with its address and a client that speaks to it."""

    url: str
    shop: Renderer
    http: httpx2.AsyncClient

    async def put(self, job_id: str, **order: Any) -> httpx2.Response:
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


class Stalled:
    """An input whose rendering does not end."""

    def render(self, context: RenderContext) -> list[OutputFile]:
        trio.from_thread.run(trio.sleep_forever)


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
async def receiver() -> AsyncIterator[CallbackReceiver]:
    """A listener for callbacks."""
    app = QuartTrio("receiver", static_folder=None)
    receiver = CallbackReceiver()

    @app.post("/callback")
    async def take() -> tuple[str, int]:
        return "", receiver.take(await request.get_data(), request.headers.get("X-Callback-Signature"))

    async with _serve(app) as url:
        receiver.url = f"{url}/callback"
        yield receiver


@pytest.fixture
def start_studio(tmp_path: Path) -> StartStudio:
    """Start a studio; keywords go to its renderer, ``token`` to its application."""

    @asynccontextmanager
    async def start(*, token: str | None = None, **options: Any) -> AsyncIterator[RunningStudio]:
        shop = Renderer(SECRET, tmp_path / "studio-files", **{"progress_every_s": 0.01, **options})
        async with trio.open_nursery() as nursery:

            async def run(*, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
                await serve_studio(
                    secret=SECRET,
                    files_dir=tmp_path,
                    token=token,
                    renderer=shop,
                    task_status=task_status,
                )

            port = await nursery.start(run)
            url = f"http://127.0.0.1:{port}"
            async with httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=60) as http:
                yield RunningStudio(url, shop, http)
            nursery.cancel_scope.cancel()

    return start


@pytest.fixture
async def studio(start_studio: StartStudio) -> AsyncIterator[RunningStudio]:
    """A studio as it is by default."""
    async with start_studio() as running:
        yield running


@dataclass
class Posted:
    """One webhook of the card emulator as received."""

    event: dict[str, Any]
    raw: bytes
    header: str | None

    @property
    def type(self) -> str:
        return str(self.event["type"])

    @property
    def object(self) -> dict[str, Any]:
        return dict(self.event["data"]["object"])

    @property
    def verdict(self) -> str:
        return verify_signature(self.header, self.raw, [CARD_WEBHOOK_SECRET], now=datetime.now(UTC))


@dataclass
class Letterbox:
    """Receives card webhooks. ``answers`` are the statuses to give, in turn; 200 afterwards."""

    url: str = ""
    posted: list[Posted] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    _changed: trio.Event = field(default_factory=trio.Event)

    def take(self, raw: bytes, header: str | None) -> int:
        self.posted.append(Posted(json.loads(raw), raw, header))
        self._changed.set()
        self._changed = trio.Event()
        return self.answers.pop(0) if self.answers else 200

    async def until(self, condition: Callable[[list[Posted]], bool]) -> list[Posted]:
        """Wait until what was posted satisfies ``condition``."""
        while not condition(self.posted):
            await self._changed.wait()
        return list(self.posted)

    async def of_type(self, kind: str, count: int = 1) -> list[Posted]:
        """Wait for that many webhooks of a type."""
        await self.until(lambda all_: sum(each.type == kind for each in all_) >= count)
        return [each for each in self.posted if each.type == kind]

    def types(self) -> list[str]:
        """The types posted so far, in order."""
        return [each.type for each in self.posted]


StartBank = Callable[..., AbstractAsyncContextManager[RunningBank]]


@pytest.fixture
async def letterbox() -> AsyncIterator[Letterbox]:
    """A listener for card webhooks."""
    app = QuartTrio("letterbox", static_folder=None)
    box = Letterbox()

    @app.post("/webhook")
    async def take() -> tuple[str, int]:
        raw = await request.get_data()
        return "", box.take(
            raw.encode() if isinstance(raw, str) else raw, request.headers.get("Cardprovider-Signature")
        )

    async with _serve(app) as url:
        box.url = f"{url}/webhook"
        yield box


@pytest.fixture
def start_bank(tmp_path: Path, letterbox: Letterbox) -> StartBank:
    """Start a card emulator; ``adapter`` are the adapter's options, other keywords the emulator's."""

    @asynccontextmanager
    async def start(*, adapter: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[RunningBank]:
        defaults: dict[str, Any] = {"webhook_secret": CARD_WEBHOOK_SECRET, "webhook_url": lambda: letterbox.url}
        async with running_bank(tmp_path / "card", adapter=adapter, **defaults | options) as bank:
            yield bank

    return start


@pytest.fixture
async def bank(start_bank: StartBank) -> AsyncIterator[RunningBank]:
    """A card emulator as it is by default."""
    async with start_bank() as running:
        yield running
