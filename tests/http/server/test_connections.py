"""All connections: their limits, which one is closed at the limit, and the stop of the server."""

from __future__ import annotations

import socket

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from holdfast.http.server import connections as server_connections
from holdfast.http.server import sources
from holdfast.http.server.connection import Receive, Send
from holdfast.http.server.http1 import TOO_MANY, TOO_MANY_OF_PEER
from holdfast.http.server.limits import connections_within
from holdfast.sockets.connected import ConnectedSocket

from .memory_server import HOME, Scope, answer, answers, echo, never, read_body, rest_of, serving

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def refused(received: bytes) -> bool:
    """Whether an answer is the 503 of a server with too many connections."""
    return received.startswith(b"HTTP/1.1 503 ") and received.endswith(b"\r\n\r\n%b\n" % TOO_MANY.message.encode())


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


def limited(received: bytes) -> bool:
    """Whether an answer is the 429 of a client with too much open."""
    return received.startswith(b"HTTP/1.1 429 ") and TOO_MANY_OF_PEER.message.encode() in received


async def test_connections_per_address_are_limited_unless_of_a_proxy() -> None:
    async with serving(connections_per_peer_max=2, is_proxy=lambda peer: peer == "10.0.0.1") as server:
        server.handler = never
        busy = [server.connect("203.0.113.7") for _ in range(2)]
        for stream in busy:
            await stream.send_all(GET)
        await wait_all_tasks_blocked()
        for peer in ("203.0.113.7", "::ffff:203.0.113.7") * 3:
            assert limited(await rest_of(server.connect(peer)))
        await busy[0].aclose()
        await wait_all_tasks_blocked()
        server.handler = echo
        # Those that were refused, and still linger, take no place.
        again = server.connect("203.0.113.7")
        other = server.connect("203.0.113.8")
        proxied = [server.connect("10.0.0.1") for _ in range(5)]
        for stream in (again, other, *proxied):
            await stream.send_all(GET)
            assert b"200 OK" in await answers(stream, 1)
        await busy[1].aclose()


async def test_at_the_limit_of_an_address_its_longest_idle_connection_is_closed() -> None:
    async with serving(connections_per_peer_max=2) as server:
        other = server.connect("203.0.113.8")
        await wait_all_tasks_blocked()  # it is idle before the others
        kept = [server.connect("203.0.113.7") for _ in range(2)]
        for stream in kept:
            await stream.send_all(GET)
            await answers(stream, 1)
        new = server.connect("203.0.113.7")
        assert await kept[0].receive_some() == b""
        for stream in (kept[1], new, other):
            await stream.send_all(GET)
            assert b"200 OK" in await answers(stream, 1)


async def test_each_listener_has_places_of_its_own() -> None:
    async with serving(connections_max=4, operators_connections_max=1) as server:
        server.handler = never
        public = [server.connect() for _ in range(3)]
        for stream in public:
            await stream.send_all(GET)
        await wait_all_tasks_blocked()
        assert refused(await rest_of(server.connect()))
        server.handler = echo
        operator = server.connect(is_for_operators=True)
        await operator.send_all(GET)
        assert b"200 OK" in await answers(operator, 1)
        # The operators' next one closes their idle one, and no public one.
        operator = server.connect(is_for_operators=True)
        await operator.send_all(GET)
        assert b"200 OK" in await answers(operator, 1)
        server.handler = never
        await operator.send_all(GET)
        await wait_all_tasks_blocked()
        assert refused(await rest_of(server.connect(is_for_operators=True)))
        assert server.cancelled == []
        for stream in (*public, operator):
            await stream.aclose()


async def test_at_the_limit_the_longest_stalled_connection_makes_room(autojump_clock: MockClock) -> None:
    async with serving(connections_max=3) as server:
        unread, half, working = server.connect_unbuffered(), server.connect(), server.connect()
        await unread.send_all(GET)  # its response is never received
        await trio.sleep(1)
        await half.send_all(b"POST /half HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        await wait_all_tasks_blocked()
        server.handler = never
        await working.send_all(GET.replace(b"/a", b"/working"))
        await trio.sleep(3)
        assert refused(await rest_of(server.connect()))
        server.handler = echo
        await trio.sleep(4)
        for _ in range(2):
            stream = server.connect()
            await stream.send_all(GET)
            assert b"200 OK" in await answers(stream, 1)
            server.handler = never
            await stream.send_all(GET)
            await wait_all_tasks_blocked()
            server.handler = echo
        assert server.cancelled[:2] == ["/a", "/half"]
        assert refused(await rest_of(server.connect()))
        assert "/working" not in server.cancelled
        for each in (working, stream):
            await each.aclose()


PROXY = "10.0.0.1"


def of_client(name: str, path: str = "/a", extra: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nClient: {name}\r\n{extra}\r\n".encode()


async def test_requests_of_one_client_behind_a_proxy_are_limited() -> None:
    async with serving(connections_per_peer_max=2, is_proxy=lambda peer: peer == PROXY) as server:
        server.handler = never
        busy = [server.connect(PROXY) for _ in range(2)]
        for stream in busy:
            await stream.send_all(of_client("eve"))
        await wait_all_tasks_blocked()
        third = server.connect(PROXY)
        await third.send_all(of_client("eve"))
        received = await answers(third, 1)
        assert limited(received)
        # The proxy's connection stays, for the requests of others, and of the proxy itself.
        assert b"connection: close" not in received
        server.handler = echo
        for request in (of_client("ada"), GET, of_client("ada", extra="Content-Length: 0\r\n")):
            await third.send_all(request)
            assert b"200 OK" in await answers(third, 1)
        await busy[0].aclose()
        await wait_all_tasks_blocked()
        await third.send_all(of_client("eve"))
        assert b"200 OK" in await answers(third, 1)
        # Elsewhere the header is the client's own words.
        direct = server.connect("203.0.113.7")
        await direct.send_all(of_client("eve"))
        assert b"200 OK" in await answers(direct, 1)
        await busy[1].aclose()
        await wait_all_tasks_blocked()
        assert len(server.connections._sources) == 0


@pytest.mark.parametrize("kind", ["body", "response"])
async def test_bytes_in_flight_of_one_client_behind_a_proxy_are_limited(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BYTES_PER_PEER_MAX", 1000)

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await answer(send, bytes(1000))

    async with serving(is_proxy=lambda peer: peer == PROXY) as server:
        server.handler = large
        if kind == "body":
            first = server.connect(PROXY)
            await first.send_all(of_client("eve", extra="Content-Length: 1000\r\n"))
        else:
            first = server.connect_unbuffered(PROXY)
            await first.send_all(of_client("eve"))
        await wait_all_tasks_blocked()
        second = server.connect(PROXY)
        await second.send_all(of_client("eve"))
        assert limited(await answers(second, 1))
        await second.send_all(of_client("ada"))
        assert b"200 OK" in await answers(second, 1)
        await first.aclose()
        await wait_all_tasks_blocked()
        await second.send_all(of_client("eve"))
        assert b"200 OK" in await answers(second, 1)


async def test_a_streamed_body_counts_as_the_largest_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "BYTES_PER_PEER_MAX", 1000)
    async with serving(is_proxy=lambda peer: peer == PROXY, body_bytes_max=400, finish_requests_s=0.1) as server:
        uploads = [server.connect(PROXY) for _ in range(3)]
        for stream in uploads:
            await stream.send_all(of_client("eve", extra="Content-Length: 100000\r\n"))
            await wait_all_tasks_blocked()
        assert len(server.calls) == 3
        fourth = server.connect(PROXY)
        await fourth.send_all(of_client("eve"))
        assert limited(await answers(fourth, 1))


async def test_beyond_what_is_refused_in_full_a_client_gets_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connections, "REFUSED_AT_ONCE_MAX", 0)
    async with serving(connections_max=1) as server:
        server.handler = never
        busy = server.connect()
        await busy.send_all(GET)
        await wait_all_tasks_blocked()
        accepted, client = socket.socketpair()
        with client:
            client.sendall(GET)
            server.connections.admit(server.app, ConnectedSocket(accepted), ("203.0.113.9", 1), HOME)
            assert accepted.fileno() == -1
            received = b"".join(iter(lambda: client.recv(65536), b""))
        assert refused(received)
        await busy.aclose()


def test_connections_leave_reserved_files_free() -> None:
    assert connections_within(1024, 2048) == 512
    assert connections_within(100_000, 2048) == 2048
    assert connections_within(256, 2048) == 128
    assert connections_within(1, 2048) == 1


async def test_a_stop_serves_one_more_request_of_an_idle_connection(autojump_clock: MockClock) -> None:
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


async def test_a_stop_finishes_current_requests_and_aborts_the_rest(autojump_clock: MockClock) -> None:
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


async def test_a_refusal_before_the_application_has_an_id_and_an_origin() -> None:
    async with serving(connections_per_peer_max=1, is_proxy=lambda peer: peer == PROXY) as server:
        malformed = server.connect("203.0.113.7")
        await malformed.send_all(b"nonsense\r\n\r\n")
        await rest_of(malformed)
        server.handler = never
        busy, direct = server.connect(PROXY), server.connect("203.0.113.8")
        await busy.send_all(of_client("eve"))
        await direct.send_all(GET)
        await wait_all_tasks_blocked()
        other = server.connect(PROXY)
        await other.send_all(of_client("eve"))
        await answers(other, 1)
        await rest_of(server.connect("203.0.113.8"))
        assert server.refused == [(400, "203.0.113.7"), (429, "eve"), (429, "203.0.113.8")]
        for each in (busy, direct, other):
            await each.aclose()
