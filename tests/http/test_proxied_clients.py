"""Clients behind a trusted proxy: each counts by the address that the proxy reports."""

from __future__ import annotations

import socket
from ipaddress import ip_network
from typing import TYPE_CHECKING

import trio
from trio.testing import wait_all_tasks_blocked

from holdfast.sockets.listening import SlotSockets, Sockets
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.http_server import HttpServer

if TYPE_CHECKING:
    from tests.http.stage import Stage

STALLED = "POST /v2/quote HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
ASKED = "GET /healthz HTTP/1.1\r\nHost: x\r\n"


def forwarded(head: str, *clients: str) -> bytes:
    return (head + "".join(f"X-Forwarded-For: {client}\r\n" for client in clients) + "\r\n").encode()


async def test_each_client_that_a_trusted_proxy_names_has_its_own_limit(stage: Stage) -> None:
    stage.configure(connections_per_peer_max=1, trusted_proxies=(ip_network("127.0.0.0/8"),))
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    server = HttpServer(
        Sockets({0: SlotSockets(listening)}, is_shared=False), 0, stage.deps, Reporter(), lambda: True
    )
    tree = server.start()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: tree.run(task_status=task_status))
        stalled = await trio.open_tcp_stream(*address)
        await stalled.send_all(forwarded(STALLED, "203.0.113.7"))
        while not server._connections._sources:
            await wait_all_tasks_blocked()
        line = await trio.open_tcp_stream(*address)

        async def status(*clients: str) -> bytes:
            await line.send_all(forwarded(ASKED, *clients))
            return bytes(await line.receive_some()).split(b" ")[1]

        # What the client wrote itself, further left, counts as little as what is no address.
        assert await status("198.51.100.1, 203.0.113.7") == b"429"
        assert await status("198.51.100.1", "203.0.113.7, 127.0.0.9") == b"429"
        assert await status(", ".join(["198.51.100.1"] * 40), "203.0.113.7") == b"429"
        assert await status("203.0.113.7, 198.51.100.1") == b"200"
        assert await status("203.0.113.8") == b"200"
        assert await status() == b"200"
        assert await status("unknown") == b"200"
        await stalled.aclose()
        await line.aclose()
        await tree.stop()


def test_clients_with_an_unreadable_header_count_together(stage: Stage) -> None:
    stage.configure(trusted_proxies=(ip_network("127.0.0.0/8"),), proxy_header="Forwarded")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sockets = Sockets({0: SlotSockets(listening)}, is_shared=False)
        server = HttpServer(sockets, 0, stage.deps, Reporter(), lambda: True)

    def origin(header: bytes) -> str | None:
        return server._origin_of("127.0.0.1", [(b"forwarded", header)])

    assert origin(b"for=203.0.113.7") == "203.0.113.7"
    assert origin(b";;, for=203.0.113.7") == origin(b"for=192.0.2.1, " * 40 + b"for=203.0.113.7") == "127.0.0.1"
    # What a proxy itself leaves out is not limited.
    assert origin(b"for=unknown") is origin(b"for=127.0.0.2") is server._origin_of("127.0.0.1", []) is None
