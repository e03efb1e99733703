"""TLS on kept connections."""

from __future__ import annotations

import ssl
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from tests.certificates import Authority

from holdfast.providers.outbound import connection_pool
from holdfast.providers.outbound.connection_pool import (
    ConnectError,
    ConnectTimeout,
    ReadTimeout,
)

from .pool_servers import GET, HERE, OK, Servers, answers, ask


@pytest.fixture(scope="module")
def server_tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A context for a server named ``server.test``, and the file of its authority's certificate."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("server.test"))
    return context, authority.path


async def serve_tls(context: ssl.SSLContext, _number: int, stream: trio.SocketStream) -> None:
    secure = trio.SSLStream(stream, context, server_side=True)
    try:
        while b"\r\n\r\n" in await secure.receive_some():
            await secure.send_all(OK)
    except trio.BrokenResourceError:
        pass


async def test_tls_is_verified_by_name_and_its_connections_are_kept(
    nursery: trio.Nursery, server_tls: tuple[ssl.SSLContext, Path]
) -> None:
    context, path = server_tls
    servers = Servers(nursery, partial(serve_tls, context))
    here = HERE._replace(port=443, tls=True)
    trusting = servers.pool(ssl_context=ssl.create_default_context(cafile=str(path)))
    for _ in range(3):
        assert await ask(trusting, here) == b"ok"
    assert len(servers.dialed) == 1
    with pytest.raises(ConnectError):
        await ask(trusting, here._replace(host="other.test"))
    with pytest.raises(ConnectError):
        await ask(servers.pool(ssl_context=ssl.create_default_context()), here)
    trusting.close()


async def test_the_first_tls_connection_loads_the_authorities_in_a_thread(
    nursery: trio.Nursery, server_tls: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, path = server_tls
    loaded_by: list[threading.Thread] = []

    def load() -> ssl.SSLContext:
        loaded_by.append(threading.current_thread())
        return ssl.create_default_context(cafile=str(path))

    monkeypatch.setattr(connection_pool, "tls_context", load)
    pool = Servers(nursery, answers).pool(ssl_context=None)
    assert await ask(pool, HERE) == b"ok"
    assert loaded_by == []
    pool.close()
    pool = Servers(nursery, partial(serve_tls, context)).pool(ssl_context=None)
    for _ in range(2):
        assert await ask(pool, HERE._replace(port=443, tls=True)) == b"ok"
    assert len(loaded_by) == 1
    assert loaded_by[0] is not threading.current_thread()
    pool.close()


async def test_authorities_that_cannot_be_read_are_no_connection(
    nursery: trio.Nursery, server_tls: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, path = server_tls
    files = [path.parent / "none.pem", path.parent / "empty.pem", path]
    files[1].touch()
    monkeypatch.setattr(
        connection_pool, "tls_context", lambda: ssl.create_default_context(cafile=str(files.pop(0)))
    )
    pool = Servers(nursery, partial(serve_tls, context)).pool(ssl_context=None)
    here = HERE._replace(port=443, tls=True)
    for cause in (FileNotFoundError, ssl.SSLError):
        with pytest.raises(ConnectError) as raised:
            await ask(pool, here)
        assert isinstance(raised.value.__cause__, cause)
    assert await ask(pool, here) == b"ok"
    pool.close()


class Corked(trio.abc.HalfCloseableStream):
    """A stream that sends what it was given while ``is_corked`` at once afterwards."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.is_corked = False
        self._stream = stream
        self._held = b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._held += data
        if not self.is_corked:
            held, self._held = self._held, b""
            await self._stream.send_all(held)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._stream.receive_some(max_bytes)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_a_response_sent_ahead_over_tls_answers_no_request(
    nursery: trio.Nursery, server_tls: tuple[ssl.SSLContext, Path]
) -> None:
    context, path = server_tls

    async def serve(_number: int, stream: trio.SocketStream) -> None:
        corked = Corked(stream)
        secure = trio.SSLStream(corked, context, server_side=True)
        assert await secure.receive_some()
        corked.is_corked = True
        await secure.send_all(OK)
        corked.is_corked = False
        await secure.send_all(OK.replace(b"ok", b"no"))
        with suppress(trio.BrokenResourceError):
            await secure.receive_some()

    servers = Servers(nursery, serve)
    pool = servers.pool(ssl_context=ssl.create_default_context(cafile=str(path)))
    here = HERE._replace(port=443, tls=True)
    assert [await ask(pool, here) for _ in range(3)] == [b"ok"] * 3
    assert len(servers.dialed) == 3
    pool.close()


async def test_a_server_that_does_not_start_tls_is_a_connect_timeout(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    async def serve(_number: int, stream: trio.SocketStream) -> None:
        while await stream.receive_some():
            pass

    begun = trio.current_time()
    with pytest.raises(ConnectTimeout):
        await ask(Servers(nursery, serve).pool(), HERE._replace(tls=True))
    assert trio.current_time() - begun == 3


async def test_a_silent_server_is_left_in_time_over_tls_too(
    nursery: trio.Nursery, server_tls: tuple[ssl.SSLContext, Path], autojump_clock: trio.testing.MockClock
) -> None:
    context, path = server_tls

    async def serve(_number: int, stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, context, server_side=True)
        with suppress(trio.BrokenResourceError):
            while await secure.receive_some():
                pass

    pool = Servers(nursery, serve).pool(ssl_context=ssl.create_default_context(cafile=str(path)))
    here = HERE._replace(port=443, tls=True)
    with pytest.raises(ReadTimeout):
        await ask(pool, here)
    assert trio.current_time() == 7
    with pytest.raises(trio.TooSlowError):
        await pool.exchange(here, GET, is_repeatable=True, ends_at=9)
    assert trio.current_time() == 9
