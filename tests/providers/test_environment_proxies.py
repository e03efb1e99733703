"""A proxy that the environment names receives nothing: its owner would read the secrets of plain HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.threaded_server import serving

from holdfast.commands.provider_check import check_provider
from holdfast.commands.service_calls import ServiceFault
from holdfast.providers.storage.base import StoreFault
from holdfast.providers.storage.s3 import S3Store
from holdfast.settings.settings import ServiceLocation, Settings

TOKEN = "op-Zq3vN8xKfT2mWc7RbY5hJd9LsA4eGuPi"


class Recorder(ThreadingHTTPServer):
    """Refuses every request, and keeps its path and credential."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Refuse)
        self.seen: list[tuple[str, str | None]] = []


class Refuse(BaseHTTPRequestHandler):
    server: Recorder

    def refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        self.send_response(400)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.refuse()

    def do_PUT(self) -> None:
        self.refuse()

    def do_POST(self) -> None:
        self.refuse()

    def log_message(self, *words: object) -> None:
        """Print nothing."""


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """The proxy of the environment, for every scheme and host."""
    recorder = Recorder()
    with serving(recorder) as url:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, url)
        yield recorder


@pytest.fixture
def target(proxy: Recorder) -> Iterator[tuple[Recorder, str]]:
    """The server that is meant, and its address."""
    recorder = Recorder()
    with serving(recorder) as url:
        yield recorder, url


def test_the_commands_send_the_token_to_the_service_alone(
    proxy: Recorder, target: tuple[Recorder, str], tmp_path: Path
) -> None:
    recorder, url = target
    location = ServiceLocation(operator_token=TOKEN, data_dir=tmp_path)
    with pytest.raises(ServiceFault):
        check_provider(location, "studio", {}, url=url, timeout_s=60)
    assert proxy.seen == []
    assert recorder.seen == [("/ops/api/providers/studio/check", f"Bearer {TOKEN}")]


async def test_results_go_to_the_bucket_alone(proxy: Recorder, target: tuple[Recorder, str]) -> None:
    recorder, url = target
    store = S3Store(
        Settings(s3_bucket="b", s3_region="x", s3_endpoint=url, s3_access_key_id="a", s3_secret_access_key="s"),
        retries_max=0,
    )
    with pytest.raises(StoreFault):
        await store.prepare()
    assert proxy.seen == []
    assert recorder.seen


def test_spans_go_to_the_collector_alone(proxy: Recorder, target: tuple[Recorder, str]) -> None:
    recorder, url = target
    export = (
        "import os; from holdfast.telemetry.traces import otel, start_span\n"
        "otel.start_exporting(os.environ)\n"
        "start_span('x', None, trace_id='a' * 32).end()\n"
    )
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x"}
    proxies = {"HTTP_PROXY": f"http://127.0.0.1:{proxy.server_port}"}
    subprocess.run([sys.executable, "-c", export], env={**environment, **proxies}, check=True, timeout=60)
    assert proxy.seen == []
    assert ("/v1/traces", "Bearer x") in recorder.seen
