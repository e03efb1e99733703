"""A provider stops and starts: the log has one line for each, and readiness and metrics agree."""

from __future__ import annotations

from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from tests.clients import loopback_client, until
from tests.threaded_server import serving

from .conftest import NewService
from .quiet_provider import CATALOG, MODEL, SECRET
from .service_process import Service


class Healthy(BaseHTTPRequestHandler):
    """Answers every probe."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def lines_about_it(service: Service) -> list[dict[str, Any]]:
    return [line for line in service.log_lines() if line.get("provider") == "quiet"]


async def seen_as(service: Service, http: httpx2.AsyncClient, state: str) -> None:
    """Wait until readiness, then metrics, give the provider this state."""

    async def ready_with_it() -> bool:
        found = (await http.get("/readyz")).json()
        assert found["providers"]["quiet"] == (found["provider_states"]["quiet"] != "down")
        return bool(found["provider_states"]["quiet"] == state)

    async def measured() -> bool:
        text = (await http.get("/metrics")).text
        return f'holdfast_provider_state{{provider="quiet",state="{state}"}} 1.0' in text

    await until(ready_with_it, within_s=120)
    await until(measured)


@pytest.mark.slow
async def test_a_provider_that_stops_and_starts_is_one_line_each(new_service: NewService, tmp_path: Path) -> None:
    with ExitStack() as providers, trio.fail_after(600):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
        address = server.server_address
        url = providers.enter_context(serving(server))
        catalog = tmp_path / "catalog.toml"
        catalog.write_text(CATALOG.format(url=url, secret=SECRET, concurrency=1, model=MODEL))
        service = new_service(CATALOG=str(catalog))
        await trio.to_thread.run_sync(service.start)
        async with loopback_client(base_url=service.url, timeout=60) as http:
            await seen_as(service, http, "up")
            assert lines_about_it(service) == []
            providers.close()
            await seen_as(service, http, "down")
            (line,) = lines_about_it(service)
            assert (line["event"], line["level"]) == ("outage", "warning")
            assert line["text"] == "the provider is down: 3 calls failed, probe: ConnectError"
            providers.enter_context(serving(ThreadingHTTPServer((str(address[0]), int(address[1])), Healthy)))
            await seen_as(service, http, "up")
            _, back = lines_about_it(service)
            assert back["event"] == "recovery"
            assert str(back["text"]).startswith("the provider is up; lasted ")
        assert await trio.to_thread.run_sync(service.stop) == 0
