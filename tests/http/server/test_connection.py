"""One connection: responses and their order, limits, and its end."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.http.server.connection import Message, Receive, Send
from holdfast.http.server.http1 import BODY_TIMEOUT, HEAD_TIMEOUT, INTERNAL_ERROR, MALFORMED, ServerRefusal
from holdfast.http.server.limits import BODY_STEP_BYTES, READ_AHEAD_BYTES
from holdfast.sockets.connected import RECEIVE_BYTES, ConnectedSocket

from .memory_server import HOME, Scope, Server, answer, answers, echo, never, read_body, rest_of, serving

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: x\r\n"


def connect_by_socket(server: Server) -> socket.socket:
    """A client whose connection the kernel holds."""
    accepted, client = socket.socketpair()
    client.setblocking(False)
    server.connections.admit(server.app, ConnectedSocket(accepted), ("203.0.113.1", 1), HOME)
    return client


def is_answered_by_server(received: bytes, refusal: ServerRefusal) -> bool:
    """Whether an answer is the server's own, and the last of its connection."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return head.startswith(b"HTTP/1.1 %d " % refusal.status) and body == refusal.message.encode() + b"\n"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as server:
        stream = server.connect()
        bodies = [b"%d" % number for number in range(20)]
        sent = [POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in bodies]
        await stream.send_all(b"".join(sent))
        received = await answers(stream, 20)
        assert [part.rpartition(b"|")[2] for part in received.split(b"HTTP/1.1 200 OK")[1:]] == bodies
        assert server.calls == ["/p"] * 20


@pytest.mark.parametrize("large", ["body", "head"])
async def test_requests_that_wait_for_their_turn_take_little_memory(large: str) -> None:
    body, extra = (b"x" * 60_000, b"") if large == "body" else (b"", b"X-Large: " + b"x" * 30_000 + b"\r\n")
    request = POST + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body
    released = trio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await released.wait()
        await answer(send, b"%d" % len(await read_body(receive)))

    async with serving() as server:
        server.handler = slow
        stream = server.connect()
        for _ in range(20):
            await stream.send_all(request)
        await wait_all_tasks_blocked()
        (connection,) = server.connections._open
        waiting = connection._parser.ready
        assert sum(each.head_bytes + len(each.waiting) for each in waiting) <= READ_AHEAD_BYTES + RECEIVE_BYTES
        released.set()
        received = await answers(stream, 20)
        assert received.count(b"\r\n\r\n%d" % len(body)) == 20


async def test_a_response_with_a_known_body_is_one_send() -> None:
    async with serving() as server:
        stream = server.connect_unbuffered()
        await stream.send_all(GET)
        received = bytes(await stream.receive_some())
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert received.endswith(b"/a|")
        await stream.aclose()


async def test_chunked_bodies_are_read_and_chunked_responses_written() -> None:
    async def stream_back(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (body[:3], b"", body[3:]):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with serving() as server:
        server.handler = stream_back
        stream = server.connect()
        await stream.send_all(POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        await stream.send_all(b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n")
        received = await rest_of(stream)
        assert b"transfer-encoding: chunked\r\n" in received
        assert received.endswith(b"\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")


async def test_100_continue_is_sent_when_the_body_is_read_not_before() -> None:
    wanted = trio.Event()

    async def hesitate(scope: Scope, receive: Receive, send: Send) -> None:
        await wanted.wait()
        await answer(send, await read_body(receive))

    async with serving() as server:
        server.handler = hesitate
        stream = server.connect()
        await stream.send_all(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        await wait_all_tasks_blocked()
        wanted.set()
        assert await stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send_all(b"{}" + GET)
        assert (await answers(stream, 1)).endswith(b"\r\n\r\n{}")


async def test_an_early_response_to_a_client_that_waits_for_100_closes(autojump_clock: MockClock) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"no", status=401)

    async with serving() as server:
        server.handler = refuse
        stream = server.connect()
        started_s = trio.current_time()
        await stream.send_all(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        received = await rest_of(stream)
        assert b"connection: close" in received
        assert b"100 Continue" not in received
        assert trio.current_time() == started_s


async def test_http_1_0_and_head_get_suitable_responses() -> None:
    async with serving() as server:
        old = server.connect()
        await old.send_all(b"GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        received = await rest_of(old)
        assert b"connection: close" in received
        assert received.endswith(b"/old|")
        head = server.connect()
        await head.send_all(GET.replace(b"GET", b"HEAD") + GET.replace(b"/a", b"/b"))
        received = b""
        while not received.endswith(b"/b|"):
            received += await head.receive_some()
        first, _, second = received.partition(b"\r\n\r\n")
        assert b"content-length: 3" in first
        assert second.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("leave", ["close", "half-close"])
async def test_a_disconnect_cancels_its_own_request_only(leave: str) -> None:
    async with serving() as server:
        server.handler = never
        leaving, staying = server.connect(), server.connect()
        await leaving.send_all(GET.replace(b"/a", b"/leaving"))
        await staying.send_all(GET.replace(b"/a", b"/staying"))
        await wait_all_tasks_blocked()
        await (leaving.aclose() if leave == "close" else leaving.send_eof())
        await wait_all_tasks_blocked()
        assert server.cancelled == ["/leaving"]
        assert server.connections.count == 1
        await staying.aclose()


def leave(client: socket.socket, how: str) -> None:
    """End a connection from the client's side."""
    match how:
        case "close":
            client.close()
        case "half-close":
            client.shutdown(socket.SHUT_WR)
        case _:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()


BODY = POST + b"Content-Length: 2\r\n\r\n{}"
CLOSE = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize(
    "sent",
    [GET, BODY, CLOSE, CLOSE + b"\r\n", GET + BODY],
    ids=["get", "post", "close", "bytes behind", "pipelined"],
)
async def test_a_request_that_comes_with_the_end_of_its_connection_is_dropped(how: str, sent: bytes) -> None:
    """The task that reads and the one that answers run in either order, so there are some of them."""
    async with serving() as server:
        staying, *leaving = [connect_by_socket(server) for _ in range(20)]
        await wait_all_tasks_blocked()
        # Nothing runs from here on until all of it has arrived.
        staying.send(GET.replace(b"/a", b"/staying"))
        for each in leaving:
            each.send(sent)
            leave(each, how)
        while server.connections.count > 1:
            await trio.lowlevel.checkpoint()
        await trio.lowlevel.wait_readable(staying)
        assert staying.recv(RECEIVE_BYTES).endswith(b"/staying|")
        assert server.calls == ["/staying"]
        for each in (staying, *leaving):
            each.close()


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("is_read", [False, True])
async def test_the_application_learns_that_a_response_did_not_arrive(how: str, *, is_read: bool) -> None:
    """The client leaves between the last look at its connection and the response; or once it has read that."""
    undelivered: list[bool] = []

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"]["holdfast.undelivered"].append(lambda: undelivered.append(True))
        if not is_read:
            leave(client, how)
        await answer(send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    async with serving() as server:
        server.handler = respond
        server.connections.admit(server.app, ConnectedSocket(accepted), ("203.0.113.1", 1), HOME)
        client.send(GET)
        if is_read:
            await trio.lowlevel.wait_readable(client)
            assert client.recv(RECEIVE_BYTES)
            leave(client, how)
        while server.connections.count:
            await trio.lowlevel.checkpoint()
        client.close()
    # A half-closed socket's machine still takes what comes.
    assert undelivered == [True] * (not is_read and how != "half-close")


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_the_last_part_of_a_body_that_comes_with_the_end_is_not_received(how: str, is_chunked: bool) -> None:
    received: list[bytes] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                await trio.sleep_forever()
            received.append(event["body"])
            more = event["more_body"]

    head, rest = (
        (b"Transfer-Encoding: chunked", b"1\r\nb\r\n0\r\n\r\n") if is_chunked else (b"Content-Length: 2", b"b")
    )
    async with serving() as server:
        server.handler = note
        clients = [connect_by_socket(server) for _ in range(20)]
        for client in clients:
            client.send(POST + head + b"\r\n\r\n" + (b"1\r\na\r\n" if is_chunked else b"a"))
        await wait_all_tasks_blocked()
        for client in clients:
            client.send(rest)
            leave(client, how)
        while server.connections.count:
            await trio.lowlevel.checkpoint()
        assert len(server.cancelled) == 20
        assert received == [b"a"] * 20
        for client in clients:
            client.close()


async def test_requests_behind_others_are_read_in_search_of_the_end() -> None:
    async with serving() as server:
        client = connect_by_socket(server)
        await wait_all_tasks_blocked()
        client.send(b"".join(GET.replace(b"/a", b"/%d" % n) for n in range(3)))
        received = b""
        while not received.endswith(b"/2|"):
            await trio.lowlevel.wait_readable(client)
            received += client.recv(RECEIVE_BYTES)
        assert server.calls == ["/0", "/1", "/2"]
        client.close()


async def test_a_client_that_never_stops_sending_is_answered() -> None:
    async with serving() as server:
        client = connect_by_socket(server)
        client.send(CLOSE)
        answered = b""
        while not answered.endswith(b"/a|"):
            with suppress(BlockingIOError):
                client.send(bytes(RECEIVE_BYTES))
            with suppress(BlockingIOError):
                answered += client.recv(RECEIVE_BYTES)
            await trio.lowlevel.checkpoint()
        client.close()


async def test_a_half_close_does_not_stop_the_last_write() -> None:
    async with serving() as server:
        stream = server.connect_unbuffered()
        await stream.send_all(GET)
        await wait_all_tasks_blocked()
        await stream.send_eof()
        await wait_all_tasks_blocked()
        assert (await rest_of(stream)).endswith(b"/a|")


async def test_an_incomplete_head_times_out(autojump_clock: MockClock) -> None:
    async with serving(head_timeout_s=10.0) as server:
        stream = server.connect()
        started_s = trio.current_time()

        async def drip() -> None:
            while True:
                await stream.send_all(b"X: y\r\n")
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            await stream.send_all(GET[:-2])
            nursery.start_soon(drip)
            received = bytes(await stream.receive_some())
            nursery.cancel_scope.cancel()
        assert is_answered_by_server(received, HEAD_TIMEOUT)
        assert 10.0 <= trio.current_time() - started_s <= 11.0
        assert server.calls == []


@pytest.mark.parametrize("body", [b"", b"ab"])
async def test_the_end_of_a_body_is_received_once(body: bytes) -> None:
    received: list[Message] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            received.append(await receive())

    async with serving() as server:
        server.handler = note
        stream = server.connect()
        await stream.send_all(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await wait_all_tasks_blocked()
        assert received == [{"type": "http.request", "body": body, "more_body": False}]
        await stream.aclose()


async def test_an_incomplete_body_times_out(autojump_clock: MockClock) -> None:
    async with serving(body_timeout_s=30.0) as server:
        stream = server.connect()
        await stream.send_all(POST + b"Content-Length: 5\r\n\r\nhel")
        received = await rest_of(stream)
        assert is_answered_by_server(received, BODY_TIMEOUT)
        assert server.cancelled == ["/p"]


async def test_a_large_body_has_time_for_each_mebibyte(autojump_clock: MockClock) -> None:
    async with serving(body_timeout_s=30.0) as server:
        received = 0

        async def count(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal received
            more = True
            while more:
                event = await receive()
                received, more = received + len(event["body"]), event["more_body"]
            await answer(send, b"%d" % received)

        server.handler = count
        stream, stalled = server.connect(), server.connect()
        for each in (stream, stalled):
            await each.send_all(POST + b"Content-Length: %d\r\n\r\n" % (4 * BODY_STEP_BYTES))
        for number in range(4):
            await trio.sleep(25)
            await stream.send_all(bytes(BODY_STEP_BYTES))
            if number == 0:
                await stalled.send_all(bytes(BODY_STEP_BYTES))
        assert (await answers(stream, 1)).startswith(b"HTTP/1.1 200 ")
        assert (await rest_of(stalled)).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_its_handler_does_not_take_yet_is_not_late(autojump_clock: MockClock) -> None:
    async with serving(body_timeout_s=30.0) as server:

        async def wait(scope: Scope, receive: Receive, send: Send) -> None:
            await trio.sleep(100)
            await answer(send, await read_body(receive))

        server.handler = wait
        stream = server.connect()
        whole = bytes(3 * READ_AHEAD_BYTES)
        await stream.send_all(POST + b"Content-Length: %d\r\n\r\n" % len(whole) + whole)
        assert (await answers(stream, 1)).endswith(whole)


async def test_only_an_idle_connection_is_closed(autojump_clock: MockClock) -> None:
    async with serving(idle_timeout_s=20.0) as server:
        unused, used = server.connect(), server.connect()
        for _ in range(10):
            await used.send_all(GET)
            await answers(used, 1)
            await trio.sleep(15)
        assert await unused.receive_some() == b""
        assert server.connections.count == 1
        await trio.sleep(10)
        assert await used.receive_some() == b""


async def test_a_client_that_does_not_read_its_response_is_reset(autojump_clock: MockClock) -> None:
    async with serving(send_timeout_s=20.0) as server:
        stream = server.connect_unbuffered()
        started_s = trio.current_time()
        await stream.send_all(GET)
        await server.connections.wait_empty()
        assert 20.0 <= trio.current_time() - started_s <= 22.0
        await stream.aclose()


async def test_a_slow_reader_gets_its_whole_response(autojump_clock: MockClock) -> None:
    whole = bytes(range(256)) * 4096

    async def much(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, whole)

    async with serving(send_timeout_s=20.0) as server:
        server.handler = much
        stream = server.connect_unbuffered()
        await stream.send_all(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = b""
        while part := bytes(await stream.receive_some(65536)):
            received += part
            await trio.sleep(10)
        assert received.endswith(whole)
        await stream.aclose()


async def test_an_unread_body_is_not_buffered() -> None:
    async with serving(finish_requests_s=0.1) as server:
        server.handler = never
        stream = server.connect_unbuffered()
        sent = 0

        async def send_all() -> None:
            nonlocal sent
            await stream.send_all(POST + b"Content-Length: 33554432\r\n\r\n")
            while True:
                await stream.send_all(b"x" * 16384)
                sent += 16384

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            await wait_all_tasks_blocked(0.01)
            assert 0 < sent <= READ_AHEAD_BYTES + RECEIVE_BYTES
            nursery.cancel_scope.cancel()
        await stream.aclose()


async def test_an_early_response_waits_briefly_for_the_body(autojump_clock: MockClock) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"no", status=404)

    async with serving(rest_of_body_s=2.0) as server:
        server.handler = refuse
        complete, cut = server.connect(), server.connect()
        for stream in (complete, cut):
            await stream.send_all(POST + b"Content-Length: 200000\r\n\r\n" + b"x" * 100_000)
        await trio.sleep(1)
        await complete.send_all(b"x" * 100_000 + GET)
        assert b"connection: close" not in await answers(complete, 2)
        assert b"connection: close" in await rest_of(cut)


async def test_bytes_after_the_last_request_are_ignored() -> None:
    async with serving() as server:
        stream = server.connect()
        await stream.send_all(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"x")
        await stream.send_all(b"y" * 1000)
        assert (await rest_of(stream)).count(b"HTTP/1.1 200 OK") == 1


async def test_a_server_refusal_waits_for_earlier_responses() -> None:
    async with serving() as server:
        stream = server.connect()
        await stream.send_all(GET + b"GET ? HTTP/1.1\r\n\r\n" + GET)
        received = await rest_of(stream)
        assert [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]
        assert server.calls == ["/a"]


async def test_a_malformed_body_is_refused_while_its_handler_waits() -> None:
    async with serving() as server:
        stream = server.connect()
        await stream.send_all(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
        await wait_all_tasks_blocked()
        await stream.send_all(b"zzz\r\n")
        received = await rest_of(stream)
        assert received.startswith(b"HTTP/1.1 400 ")
        assert is_answered_by_server(received, MALFORMED)


@pytest.mark.parametrize("when", ["before", "within", "longer", "shorter", "line break"])
async def test_an_application_fault_closes_its_connection_only(when: str) -> None:
    async def break_off(scope: Scope, receive: Receive, send: Send) -> None:
        if when == "before":
            raise RuntimeError("Authorization: Bearer hunter2")
        value = b"a\r\nb" if when == "line break" else b"a"
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4"), (b"x", value)]}
        )
        await send({"type": "http.response.body", "body": b"ab", "more_body": when != "shorter"})
        if when == "longer":
            await send({"type": "http.response.body", "body": b"cdefg", "more_body": True})
        raise RuntimeError("Authorization: Bearer hunter2")

    async with serving() as server:
        healthy = server.connect()
        server.handler = break_off
        broken = server.connect()
        with structlog.testing.capture_logs() as logs:
            await broken.send_all(GET)
            received = await rest_of(broken)
        assert [line["event"] for line in logs] == ["the application failed"]
        if when in {"before", "line break"}:
            assert is_answered_by_server(received, INTERNAL_ERROR)
        server.handler = echo
        await healthy.send_all(GET)
        assert b"200 OK" in await answers(healthy, 1)


async def test_a_server_fault_closes_its_connection_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from holdfast.http.server.http1 import RequestParser

    whole = RequestParser.feed

    def stumble(parser: RequestParser, data: bytes) -> None:
        if b"/evil" in data:
            raise ZeroDivisionError("Cookie: hunter2")
        whole(parser, data)

    monkeypatch.setattr(RequestParser, "feed", stumble)
    async with serving() as server:
        evil, healthy = server.connect(), server.connect()
        with structlog.testing.capture_logs() as logs:
            await evil.send_all(GET.replace(b"/a", b"/evil"))
            assert await rest_of(evil) == b""
            await wait_all_tasks_blocked()
        assert [line["event"] for line in logs] == ["a connection failed"]
        await healthy.send_all(GET)
        assert b"200 OK" in await answers(healthy, 1)


@pytest.mark.parametrize("status", [204, 304])
async def test_a_response_that_cannot_have_a_body_has_no_length(status: int) -> None:
    async def bodiless(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, status=status)

    async with serving() as server:
        server.handler = bodiless
        stream = server.connect()
        await stream.send_all(GET * 2)
        received = await answers(stream, 2)
        assert received.count(b"HTTP/1.1 %d " % status) == 2
        assert b"content-length" not in received
