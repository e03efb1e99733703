"""Requests on kept connections: the meaning of a server's bytes, and when a connection is used again."""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Callable

import pytest
import trio
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.outbound.connection_pool import (
    HEADER_BYTES_MAX,
    HEADER_COUNT_MAX,
    INFORMATIONAL_MAX_COUNT,
    KEEP_ALIVE_S,
    OVERHEAD_BYTES_MAX,
    BodyTooLarge,
    ConnectError,
    Endpoint,
    PoolTimeout,
    ReadTimeout,
    RemoteProtocolError,
    ResponseParser,
    WriteError,
    WriteTimeout,
    render_request,
)

from .pool_servers import GET, HERE, OK, Servers, answers, ask, head_of, pool_of

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

RESPONSES = [
    (OK, 200, b"ok", True),
    (b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", True),
    (CHUNKED + b"1\r\no\r\n1;a=b\r\nk\r\n0\r\nTrailer: x\r\n\r\n", 200, b"ok", True),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, 200, b"ok", True),
    (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, b"ok", True),
    (b"HTTP/1.1 200 OK\r\nFolded: a\r\n b\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
    (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
    (b"HTTP/1.1 200 OK\r\n\r\nok", 200, b"ok", False),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", 200, b"ok", False),
    (OK + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"ok", False),
]


def parsed(*parts: bytes) -> ResponseParser:
    """Parse parts, and the connection's end if the response needs it."""
    parser = ResponseParser()
    for part in parts:
        parser.feed(part)
    if not parser.is_complete:
        parser.feed_end()
    return parser


@pytest.mark.parametrize(("raw", "status", "body", "is_reusable"), RESPONSES)
def test_a_response_is_the_same_however_it_is_split(
    raw: bytes, status: int, body: bytes, is_reusable: bool
) -> None:
    splits = [(raw,), tuple(raw[place : place + 1] for place in range(len(raw)))]
    splits += [(raw[:place], raw[place:]) for place in range(1, len(raw))]
    for parts in splits:
        parser = parsed(*parts)
        assert (parser.status, bytes(parser.waiting), parser.is_reusable) == (status, body, is_reusable), parts
        assert all(name == name.lower() for name, _ in parser.headers)
        assert b"trailer" not in dict(parser.headers)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
        CHUNKED + b"2\r\nok\r\n",
        CHUNKED + b"2\r\nokay\r\n0\r\n\r\n",
        CHUNKED + b"zz\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 99 Odd\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * (INFORMATIONAL_MAX_COUNT + 1) + OK,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * HEADER_COUNT_MAX + b"Content-Length: 0\r\n\r\n",
    ],
)
def test_what_is_no_whole_response_is_a_protocol_error(raw: bytes) -> None:
    for parts in ((raw,), tuple(raw[place : place + 1] for place in range(len(raw)))):
        with pytest.raises(RemoteProtocolError):
            parsed(*parts)


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        (b"HTTP/1.1 200 OK\r\nA: ", b"b" * 1000),
        (b"HTTP/1.1 200 ", b"b" * 1000),
        (b"HTTP/1.1 100 Continue\r\nA: ", b"b" * 1000),
        (CHUNKED + b"1;", b"b" * 1000),
        (CHUNKED, b"1;" + b"b" * 20 + b"\r\nx\r\n"),
        (CHUNKED + b"1\r\nx\r\n0\r\nTrailer: ", b"b" * 1000),
    ],
)
def test_endless_heads_and_framing_end_at_a_limit(begin: bytes, repeated: bytes) -> None:
    parts_count = 4 * (HEADER_BYTES_MAX + OVERHEAD_BYTES_MAX) // len(repeated)
    with pytest.raises(RemoteProtocolError, match=r"large|overhead"):
        parsed(begin, *[repeated] * parts_count)


@given(st.lists(st.binary(max_size=40) | st.sampled_from([raw for raw, *_ in RESPONSES]), max_size=4))
def test_any_bytes_are_a_response_or_a_protocol_error(parts: list[bytes]) -> None:
    try:
        parser = parsed(*parts)
    except RemoteProtocolError:
        return
    assert parser.is_complete
    assert 200 <= parser.status <= 999


def test_a_request_has_its_length_and_no_control_characters() -> None:
    assert render_request("PUT", b"/a?b", {"Host": "x", "A": "b"}, b"{}") == (
        b"PUT /a?b HTTP/1.1\r\nHost: x\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert render_request("POST", b"/", {}, b"") == b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    assert render_request("GET", b"/", {}, None) == b"GET / HTTP/1.1\r\n\r\n"
    for name, value in (("A", "b\r\nC: d"), ("A\n", "b"), ("A", "b\r"), ("A", "\0"), ("A", "é")):
        with pytest.raises(ValueError, match=r"control character|ascii"):
            render_request("GET", b"/", {name: value}, None)


def test_a_body_in_tiny_chunks_waits_in_one_piece() -> None:
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2\r\nab\r\n" * 9000)
    assert bytes(parser.waiting) == b"ab" * 9000
    assert sys.getsizeof(parser.waiting) < 2 * len(parser.waiting)


async def test_a_connection_is_used_again_for_its_own_endpoint_alone(nursery: trio.Nursery) -> None:
    servers = Servers(nursery, answers)
    pool = servers.pool()
    others = [
        HERE._replace(host="other.test"), HERE._replace(port=81), HERE._replace(is_trusted=True),
    ]  # fmt: skip
    for endpoint in (HERE, HERE, *others, HERE, *others):
        assert await ask(pool, endpoint) == b"ok"
    # Two are kept: the one that was idle longest is closed for each further one.
    assert servers.dialed == [HERE, *others, HERE, *others]
    pool.close()


async def test_an_unread_or_unfinished_response_ends_its_connection(nursery: trio.Nursery) -> None:
    async def serve(_number: int, stream: trio.SocketStream) -> None:
        await head_of(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n")
        try:
            while True:
                await stream.send_all(bytes(65536))
        except trio.BrokenResourceError:
            closed.append(True)

    closed: list[bool] = []
    servers = Servers(nursery, serve)
    pool = servers.pool()
    with await pool.exchange(HERE, GET, is_repeatable=True) as response:
        assert response.status == 200
    with await pool.exchange(HERE, GET, is_repeatable=True) as response, pytest.raises(BodyTooLarge):
        await response.read(100_000)
    with trio.move_on_after(0) as scope:
        await ask(pool)
    assert scope.cancelled_caught
    while len(closed) < 2:
        await trio.lowlevel.checkpoint()
    assert len(servers.dialed) == 2 + 1


@pytest.mark.parametrize("is_repeatable", [True, False])
async def test_a_request_lost_on_a_kept_connection_is_repeated_only_if_it_may_be(
    nursery: trio.Nursery, is_repeatable: bool
) -> None:
    received: list[int] = []

    async def serve(number: int, stream: trio.SocketStream) -> None:
        """The first connection takes its second request and closes without an answer."""
        while await head_of(stream):
            received.append(number)
            if received == [1, 1]:
                return
            await stream.send_all(OK)

    pool = Servers(nursery, serve).pool()
    assert await ask(pool, is_repeatable=is_repeatable) == b"ok"
    if is_repeatable:
        assert await ask(pool, is_repeatable=True) == b"ok"
        assert received == [1, 1, 2]
    else:
        with pytest.raises(RemoteProtocolError):
            await ask(pool)
        assert received == [1, 1]
    pool.close()


async def test_a_failed_repetition_does_not_show_that_nothing_was_sent(nursery: trio.Nursery) -> None:
    received: list[int] = []

    async def serve(number: int, stream: trio.SocketStream) -> None:
        """The connection takes its second request and closes without an answer."""
        while await head_of(stream):
            received.append(number)
            if received == [1, 1]:
                return
            await stream.send_all(OK)

    servers = Servers(nursery, serve)

    async def dial(endpoint: Endpoint, requester: str) -> trio.SocketStream:
        if servers.dialed:
            raise ConnectionRefusedError
        return await servers.dial(endpoint, requester)

    pool = pool_of(dial)
    assert await ask(pool, is_repeatable=True) == b"ok"
    with pytest.raises(RemoteProtocolError):
        await ask(pool, is_repeatable=True)
    assert received == [1, 1]


async def test_no_request_is_repeated_after_a_byte_of_the_response(
    nursery: trio.Nursery,
) -> None:
    received: list[int] = []

    async def serve(number: int, stream: trio.SocketStream) -> None:
        while await head_of(stream):
            received.append(number)
            if number == 1:
                return
            if received[-2:] == [2, 2]:
                await stream.send_all(b"HTTP/1.1 2")
                return
            await stream.send_all(OK)

    pool = Servers(nursery, serve).pool()
    with pytest.raises(RemoteProtocolError):
        await ask(pool, is_repeatable=True)
    assert await ask(pool, is_repeatable=True) == b"ok"
    with pytest.raises(RemoteProtocolError):
        await ask(pool, is_repeatable=True)
    assert received == [1, 2, 2]


async def test_a_kept_connection_with_bytes_or_an_end_to_read_is_not_used(nursery: trio.Nursery) -> None:
    async def serve(number: int, stream: trio.SocketStream) -> None:
        await head_of(stream)
        await stream.send_all(OK)
        if number == 1:
            await said.wait()
            await stream.send_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            await trio.sleep_forever()

    said = trio.Event()
    servers = Servers(nursery, serve)
    pool = servers.pool()
    assert await ask(pool) == b"ok"
    said.set()
    for _ in range(3):
        await trio.testing.wait_all_tasks_blocked()
        assert await ask(pool) == b"ok"
    assert len(servers.dialed) == 4
    pool.close()
    nursery.cancel_scope.cancel()


async def test_an_idle_connection_is_closed_in_time(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    servers = Servers(nursery, answers)
    pool = servers.pool()
    for pause_s, dialed in ((0, 1), (KEEP_ALIVE_S - 0.1, 1), (KEEP_ALIVE_S + 0.1, 2)):
        await trio.sleep(pause_s)
        assert await ask(pool) == b"ok"
        assert len(servers.dialed) == dialed
    pool.close()
    assert await ask(pool) == b"ok"
    assert await ask(pool) == b"ok"
    assert len(servers.dialed) == 4


async def test_idle_connections_are_closed_without_a_further_exchange(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    async def serve(_number: int, stream: trio.SocketStream) -> None:
        await head_of(stream)
        await stream.send_all(OK)
        assert await stream.receive_some(1) == b""
        ended_at.append(trio.current_time())

    ended_at: list[float] = []
    servers = Servers(nursery, serve)
    pool = servers.pool()
    kept_at = []
    for port in (81, 82):
        assert await ask(pool, HERE._replace(port=port)) == b"ok"
        kept_at.append(trio.current_time())
        await trio.sleep(1)
    await trio.sleep(2 * KEEP_ALIVE_S)
    assert ended_at == [pytest.approx(at + KEEP_ALIVE_S) for at in kept_at]
    # Later ones too.
    assert await ask(pool) == b"ok"
    await trio.sleep(KEEP_ALIVE_S + 1)
    assert len(ended_at) == 3


async def test_each_stage_has_its_timeout(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    async def serve(number: int, stream: trio.SocketStream) -> None:
        if number > 1:
            await head_of(stream)
        if number == 3:
            await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await trio.sleep_forever()

    pool = Servers(nursery, serve).pool(connections_max_count=1)
    begun = trio.current_time()
    with pytest.raises(WriteTimeout), await pool.exchange(HERE, bytes(50_000_000), is_repeatable=True):
        pass
    assert trio.current_time() - begun == 7
    with pytest.raises(ReadTimeout):
        await ask(pool, is_repeatable=True)
    assert trio.current_time() - begun == 14
    with await pool.exchange(HERE, GET, is_repeatable=True) as response:
        with pytest.raises(PoolTimeout):
            await ask(pool)
        assert trio.current_time() - begun == 17
        assert await response.receive() == b"half"
        with pytest.raises(ReadTimeout):
            await response.receive()
    assert trio.current_time() - begun == 24
    nursery.cancel_scope.cancel()


async def test_an_exchange_ends_in_its_time_at_every_stage(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    async def serve(number: int, stream: trio.SocketStream) -> None:
        if number > 1:
            await head_of(stream)
            await stream.send_all(OK)
            await head_of(stream)
        if number > 2:
            await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await trio.sleep_forever()

    async def dial(endpoint: Endpoint, requester: str) -> trio.SocketStream:
        if endpoint.port != HERE.port:
            await trio.sleep_forever()
        return await servers.dial(endpoint, requester)

    async def fail_in_time(endpoint: Endpoint = HERE, request: bytes = GET) -> None:
        ends_at = trio.current_time() + 2
        with (
            pytest.raises(trio.TooSlowError),
            await pool.exchange(endpoint, request, is_repeatable=True, ends_at=ends_at) as response,
        ):
            await response.read(1000)
        assert trio.current_time() == ends_at

    servers = Servers(nursery, serve)
    pool = pool_of(dial, connections_max_count=1)
    await fail_in_time(HERE._replace(port=81))
    await fail_in_time(request=bytes(50_000_000))
    assert await ask(pool) == b"ok"
    # On the kept connection, which would be closed later.
    await fail_in_time()
    assert await ask(pool) == b"ok"
    with await pool.exchange(HERE, GET, is_repeatable=True, ends_at=trio.current_time() + 2) as response:
        await fail_in_time()
        # The place was waited for until the end of this exchange too.
        assert await response.receive() == b"half"
        with pytest.raises(trio.TooSlowError):
            await response.receive()
    assert len(servers.dialed) == 3
    nursery.cancel_scope.cancel()


async def test_a_reader_that_takes_its_time_is_no_slow_server(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    async def serve(_number: int, stream: trio.SocketStream) -> None:
        while await head_of(stream):
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha")
            await trio.sleep(5)
            await stream.send_all(b"lf")

    servers = Servers(nursery, serve)
    pool = servers.pool()
    for ends_at, dialed in ((math.inf, 1), (25.0, 1), (math.inf, 2)):
        with await pool.exchange(HERE, GET, is_repeatable=True, ends_at=ends_at) as response:
            assert await response.receive() == b"ha"
            assert await response.receive() == b"lf"
            await trio.sleep(10)
            assert await response.receive() == b""
        # The second one was closed in the middle, when its time was over.
        assert len(servers.dialed) == dialed
    assert trio.current_time() == 45
    pool.close()


class AfterNextWait(trio.abc.Instrument):
    """Calls a function when the loop has looked for ready sockets, and before it looks for deadlines."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def after_io_wait(self, timeout: float) -> None:
        trio.lowlevel.remove_instrument(self)
        self._call()


@pytest.mark.parametrize("is_seen_at_once", [True, False])
async def test_what_arrived_in_time_is_read_after_a_standstill(
    mock_clock: trio.testing.MockClock, is_seen_at_once: bool
) -> None:
    exchanges_count, servers, answered = 30, list[socket.socket](), list[bytes]()

    async def dial(_endpoint: Endpoint, _requester: str) -> trio.SocketStream:
        ours, theirs = socket.socketpair()
        servers.append(theirs)
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    pool = pool_of(dial, connections_max_count=exchanges_count)

    async def exchange() -> None:
        answered.append(await ask(pool))

    def answer() -> None:
        for server in servers:
            server.send(OK)

    async with trio.open_nursery() as exchanges:
        for _ in range(exchanges_count):
            exchanges.start_soon(exchange)
        await trio.testing.wait_all_tasks_blocked()
        if is_seen_at_once:
            answer()
        else:
            # The signal that continues a process ends the loop's wait without saying which sockets are ready.
            trio.lowlevel.add_instrument(AfterNextWait(answer))
        mock_clock.jump(60)
    assert answered == [b"ok"] * exchanges_count
    pool.close()
    for server in servers:
        server.close()


async def test_a_server_may_answer_before_it_has_read_the_request(nursery: trio.Nursery) -> None:
    async def serve(number: int, stream: trio.SocketStream) -> None:
        if number == 1:
            await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    pool = Servers(nursery, serve).pool()
    with await pool.exchange(HERE, bytes(50_000_000), is_repeatable=False) as response:
        assert response.status == 413
    with pytest.raises(WriteError), await pool.exchange(HERE, bytes(50_000_000), is_repeatable=False):
        pass


async def test_a_refused_connection_is_a_connect_error() -> None:
    async def dial(_endpoint: Endpoint, _requester: str) -> trio.SocketStream:
        raise ConnectionRefusedError

    with pytest.raises(ConnectError):
        await ask(pool_of(dial))
