"""A plain Quart-Trio application on this server, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import cast

import trio
from quart import Response, request
from quart_trio import QuartTrio
from tests.clients import loopback_client

from holdfast.http.server.connection import AsgiApp
from holdfast.http.server.connections import Connections
from holdfast.http.server.limits import ServerLimits
from holdfast.http.server.listener import Listener


def make_app(entered: trio.Event, left: trio.Event) -> QuartTrio:
    """Return an application; the events tell when ``/wait`` begins, and when its client has gone."""
    app = QuartTrio(__name__)

    @app.post("/echo")
    async def echo() -> str | bytes:
        return await request.get_data()

    @app.get("/parts")
    async def parts() -> Response:
        async def each() -> AsyncIterator[bytes]:
            for number in range(3):
                yield b"%d\n" % number

        return Response(each(), content_type="text/plain")

    @app.get("/wait")
    async def wait() -> str:
        entered.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    return app


async def test_a_plain_quart_application_is_served() -> None:
    entered, left = trio.Event(), trio.Event()
    app = cast(AsgiApp, make_app(entered, left))
    connections = Connections(ServerLimits(header_bytes_max=1000))
    listening = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listening.getsockname()[1]}"
    listener = Listener(listening, app, lambda: connections)
    async with trio.open_nursery() as nursery:
        await nursery.start(connections.run)
        await nursery.start(listener.run)
        async with loopback_client(base_url=base) as http:
            body = b"x" * 300_000
            assert (await http.post("/echo", content=body)).content == body
            assert (await http.get("/parts")).text == "0\n1\n2\n"
            assert (await http.get("/nowhere")).status_code == 404
            refused = await http.get("/parts", headers={"X-Large": "x" * 2000})
            assert (refused.status_code, refused.text) == (431, "The headers are too large.\n")
        stream = await trio.open_tcp_stream(*listening.getsockname())
        await stream.send_all(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await entered.wait()
        await stream.aclose()
        await left.wait()
        await listener.stop()
        await connections.stop()
