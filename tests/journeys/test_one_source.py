"""One address without a credential attacks through HAProxy with the shipped configuration; another one is served.

All limits and connections are a tenth of the real ones. ``ONE_SOURCE_S=60`` attacks with the real ones for a minute
each, with 2,400 connections, and prints what the other client got.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import trio
from tests.clients import until
from tests.haproxy_process import Proxy, haproxy
from tests.tools import needs

from holdfast.http.endpoints.api_docs import SCRIPT

from .conftest import NewService
from .service_process import Service

pytestmark = needs("haproxy")

ATTACK_S = float(os.environ.get("ONE_SOURCE_S", "0"))
SCALE = 1 if ATTACK_S else 10
CONNECTIONS = 2400 // SCALE
REOPENED_S = 25.0
REQUESTS = 30
OTHER_CLIENT, ATTACKER = "127.0.0.2", "127.0.0.3"
LIMITS = {"sc0_conn_cur gt 500": 500, "sc1_conn_cur gt 250": 250, "maxconn 3400": 3400}
"""The limits of the shipped configuration that are made smaller."""

UNREAD = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"
STALLED = b"POST /v2/quote HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{"
ATTACKS = {
    "unread": UNREAD % b"/openapi.json",
    "unread-large": UNREAD % f"/docs/{SCRIPT}".encode(),
    "stalled": STALLED % 1000,
    # Beyond what HAProxy buffers, so that it reaches the service.
    "stalled-large": STALLED % 64_000 + b" " * 60_000,
}


@pytest.fixture
def service(new_service: NewService, shared_url: str) -> Service:
    service = new_service(
        TRUSTED_PROXIES="127.0.0.1", CONNECTIONS_MAX=str(4096 // SCALE), OPS_PORT="0", DATABASE_URL=shared_url
    )
    service.start()
    return service


@pytest.fixture
def proxy(service: Service, tmp_path: Path) -> Iterator[Proxy]:
    """HAProxy before one member; the other two are down."""
    limits = {shipped: shipped.replace(str(value), str(value // SCALE)) for shipped, value in LIMITS.items()}
    with socket.socket() as down, socket.socket() as down_too:
        down.bind(("127.0.0.1", 0))
        down_too.bind(("127.0.0.1", 0))
        names = [urlsplit(service.url).netloc, *(f"127.0.0.1:{each.getsockname()[1]}" for each in (down, down_too))]
        listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        with haproxy(tmp_path / "haproxy", names, listening, limits) as running:
            yield running


async def attack(proxy: Proxy, sent: bytes, opened: Counter[str]) -> None:
    """Hold one connection that reads nothing, opened again after some time."""
    port = urlsplit(proxy.url).port
    assert port is not None
    while True:
        with trio.socket.socket() as line:
            with suppress(OSError):
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                await line.bind((ATTACKER, 0))
                opened["connections"] += 1
                await line.connect(("127.0.0.1", port))
                rest = memoryview(sent)
                while rest:
                    rest = rest[await line.send(rest) :]
                opened["requests"] += 1
            await trio.sleep(REOPENED_S)


async def ask(proxy: Proxy) -> tuple[list[int], list[float]]:
    """Make another client's requests, each over a connection of its own."""
    statuses, took_s = list[int](), list[float]()
    ends_at = time.monotonic() + ATTACK_S
    while len(statuses) < REQUESTS or time.monotonic() < ends_at:
        transport = httpx2.AsyncHTTPTransport(local_address=OTHER_CLIENT)
        async with httpx2.AsyncClient(base_url=proxy.url, transport=transport, timeout=60) as client:
            begun = time.monotonic()
            if len(statuses) % 2:
                body = {"model": "studio/image-1", "input": {"prompt": "a lighthouse", "width": 256, "height": 256}}
                statuses.append((await client.post("/v2/quote", json=body)).status_code)
            else:
                statuses.append((await client.get("/v2/models")).status_code)
            took_s.append(time.monotonic() - begun)
        if ATTACK_S:
            await trio.sleep(0.2)
    return statuses, took_s


@pytest.mark.slow
async def test_an_attack_from_one_address_denies_no_other(service: Service, proxy: Proxy) -> None:
    for kind, sent in ATTACKS.items():
        opened = Counter[str]()
        with trio.fail_after(300 + ATTACK_S):
            async with trio.open_nursery() as nursery:
                for _ in range(CONNECTIONS):
                    nursery.start_soon(attack, proxy, sent, opened)

                async def is_open(opened: Counter[str] = opened) -> bool:
                    return opened["connections"] >= CONNECTIONS

                await until(is_open, within_s=120)
                statuses, took_s = await ask(proxy)
                nursery.cancel_scope.cancel()
        print(  # noqa: T201 - figures for who asked for them
            f"\n{kind}: {dict(opened)}; other client: {dict(Counter(statuses))},"
            f" median {statistics.median(took_s):.3f} s, slowest {max(took_s):.3f} s"
        )
        assert set(statuses) == {200}, kind
    assert service.is_alive()
    assert service.faults() == []
