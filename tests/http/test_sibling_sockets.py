"""The listening sockets of other workers, which each worker has too."""

from __future__ import annotations

import errno
import socket

import trio
from trio.testing import wait_all_tasks_blocked

from holdfast.sockets.listening import SlotSockets, Sockets
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.http_server import HttpServer

from .stage import Stage


def listening() -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.bind(("127.0.0.1", 0))
    opened.listen(8)
    return opened


async def test_a_service_that_stops_closes_them_before_its_last_request_ends(stage: Stage) -> None:
    own, sibling = listening(), listening()
    address, stopping = sibling.getsockname(), [False]
    sockets = Sockets({0: SlotSockets(own), 1: SlotSockets(sibling)}, is_shared=True)
    server = HttpServer(sockets, 0, stage.deps, Reporter(), lambda: stopping[0])
    tree = server.start()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: tree.run(task_status=task_status))
        server.accept_for([1])
        client = await trio.open_tcp_stream(*address)
        await client.send_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200 ")
        await client.send_all(b"POST /v2/pricing HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        await wait_all_tasks_blocked()
        stopping[0] = True
        await tree.stop()
        while sibling.fileno() != -1:
            await trio.lowlevel.checkpoint()
        assert tree.state_of("connections") != "stopped"
        with socket.socket() as probe:
            assert probe.connect_ex(address) == errno.ECONNREFUSED
        await client.aclose()
