"""All connections: their limits, which one is closed at the limit, and the stop of the server."""

from __future__ import annotations

import msgspec
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from holdfast.http.server.connection import Receive, Send
from holdfast.http.server.limits import connections_within

from .memory_server import HOME, Scope, answers, rest_of, serving

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def clock() -> MockClock:
    """Time that passes by itself where all wait for it."""
    return MockClock(autojump_threshold=0)


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    await trio.sleep_forever()


def refused(received: bytes) -> bool:
    """Whether an answer is the 503 of a server with too many connections, in the error shape."""
    head, _, body = received.partition(b"\r\n\r\n")
    return (
        head.startswith(b"HTTP/1.1 503 ")
        and b"retry-after: 1" in head
        and msgspec.json.decode(body)["error"]["code"] == "overloaded"
    )


async def test_at_the_limit_the_longest_idle_connection_is_closed() -> None:
    async with serving(connections_max=3) as server:
        first, second, third = (server.connect() for _ in range(3))
        for stream in (first, second, third, first):
            await stream.send_all(GET)
            await answers(stream, 1)
        fourth = server.connect()
        assert await second.receive_some() == b""
        for stream in (first, third, fourth):
            await stream.send_all(GET)
            assert b"200 OK" in await answers(stream, 1)


async def test_a_connection_is_not_idle_once_its_request_has_arrived() -> None:
    class Reading(trio.abc.ReceiveStream):
        """The server's end; with the request read but not yet handled, it makes room for another connection."""

        async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
            if accepted_bytes:
                closed.append(server.connections.close_longest_idle())
            data = await accepted.receive_some(max_bytes)
            accepted_bytes.extend(data)
            return data

        async def aclose(self) -> None:
            await accepted.aclose()

    accepted_bytes, closed = bytearray(), list[bool]()
    async with serving() as server:
        client, accepted = memory_stream_pair()
        server.connections.admit(server.app, trio.StapledStream(accepted, Reading()), HOME, HOME)
        await client.send_all(GET)
        assert b"200 OK" in await answers(client, 1)
        assert closed == [False]


async def test_without_an_idle_connection_a_new_one_gets_a_503() -> None:
    async with serving(connections_max=2) as server:
        server.handler = never
        busy = [server.connect() for _ in range(2)]
        for stream in busy:
            await stream.send_all(GET)
        await wait_all_tasks_blocked()
        assert refused(await rest_of(server.connect()))
        await busy[0].aclose()
        await wait_all_tasks_blocked()
        accepted = server.connect()
        await accepted.send_all(GET)
        await wait_all_tasks_blocked()
        assert len(server.calls) == 3
        for stream in (*busy, accepted):
            await stream.aclose()


async def test_connections_per_address_are_limited_unless_exempt() -> None:
    async with serving(connections_per_peer_max=2, is_exempt=lambda peer: peer == "10.0.0.1") as server:
        for _ in range(2):
            server.connect("203.0.113.7")
        await wait_all_tasks_blocked()
        assert refused(await rest_of(server.connect("203.0.113.7")))
        assert refused(await rest_of(server.connect("::ffff:203.0.113.7")))
        other = server.connect("203.0.113.8")
        proxied = [server.connect("10.0.0.1") for _ in range(5)]
        for stream in (other, *proxied):
            await stream.send_all(GET)
            assert b"200 OK" in await answers(stream, 1)


def test_connections_leave_reserved_files_free() -> None:
    assert connections_within(1024, 2048) == 512
    assert connections_within(100_000, 2048) == 2048
    assert connections_within(256, 2048) == 128
    assert connections_within(1, 2048) == 1


async def test_a_stop_serves_one_more_request_of_an_idle_connection(clock: MockClock) -> None:
    async with serving(linger_s=2.0) as server:
        asking, silent = server.connect(), server.connect()
        await wait_all_tasks_blocked()
        started_s = trio.current_time()
        await server.connections.stop()
        await trio.sleep(1)
        await asking.send_all(GET)
        received = await rest_of(asking)
        assert received.endswith(b"/a|")
        assert b"connection: close" in received
        assert await rest_of(silent) == b""
        await server.connections.wait_empty()
        assert trio.current_time() - started_s <= 4.0


async def test_a_stop_finishes_current_requests_and_aborts_the_rest(clock: MockClock) -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(3 if scope["path"] == "/a" else 3600)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})

    async with serving(finish_requests_s=5.0) as server:
        server.handler = slow
        finishing, endless, half = server.connect(), server.connect(), server.connect()
        unread = server.connect_unbuffered()
        await finishing.send_all(GET)
        await endless.send_all(GET.replace(b"/a", b"/b"))
        await half.send_all(GET[:-2])
        await unread.send_all(GET)
        await wait_all_tasks_blocked()
        started_s = trio.current_time()
        await server.connections.stop()
        received = await rest_of(finishing)
        assert received.endswith(b"ok")
        assert b"connection: close" in received
        await server.connections.wait_empty()
        assert trio.current_time() - started_s == 5.0
        assert sorted(server.cancelled) == ["/a", "/b"]  # the one in the middle of its unread answer
