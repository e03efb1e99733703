"""The accept loop: its crash, its behaviour without file descriptors, and its stop."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
import structlog
import trio

from holdfast.http.server.connections import Connections
from holdfast.http.server.limits import ServerLimits
from holdfast.http.server.listener import Listener
from holdfast.supervision.spec import Backoff, ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter

from .memory_server import echo

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
SOON = Backoff(0.01, 0.1, jitter=0.0)


class ListeningSocket(socket.socket):
    """A socket on which accepting raises the given errors."""

    fault: OSError | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        fault = self.fault
        if fault is not None:
            if fault.errno == errno.EBADF:
                self.fault = None
            raise fault
        return super().accept()


@pytest.fixture
def listening() -> Any:
    """A socket that listens on loopback."""
    with ListeningSocket(socket.AF_INET, socket.SOCK_STREAM) as groups:
        groups.bind(("127.0.0.1", 0))
        groups.listen(100)
        yield groups


def tree(listening: socket.socket, *, restarts: int = 3) -> tuple[Supervisor, list[Connections]]:
    """Connections and their listener as the service has them; and the groups of the connections."""
    groups: list[Connections] = []

    def connections() -> Connections:
        groups.append(Connections(ServerLimits()))
        return groups[-1]

    specs = [
        ChildSpec("connections", connections, backoff=SOON, shutdown_s=10.0),
        ChildSpec("listener", lambda: Listener(listening, echo, lambda: groups[-1], is_final=final), backoff=SOON),
    ]
    reporter = Reporter()
    supervisor = Supervisor(
        "http",
        specs,
        strategy="rest_for_one",
        intensity=Intensity(restarts, 30.0),
        reporter=reporter,
        conditions=Conditions(reporter),
    )

    def final() -> bool:
        return supervisor.is_stopping

    return supervisor, groups


async def exchange(stream: trio.SocketStream) -> bytes:
    await stream.send_all(GET)
    received = b""
    while not received.endswith(b"/a|"):
        part = await stream.receive_some()
        assert part, received
        received += part
    return received


async def test_a_crash_of_the_accept_loop_loses_no_connection(listening: ListeningSocket) -> None:
    supervisor, groups = tree(listening)
    address = listening.getsockname()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: supervisor.run(task_status=task_status))
        old = await trio.open_tcp_stream(*address)
        await exchange(old)
        listening.fault = OSError(errno.EBADF, "broken")
        new = await trio.open_tcp_stream(*address)
        assert b"200 OK" in await exchange(new)
        assert b"200 OK" in await exchange(old)
        assert len(groups) == 1
        assert [child.incarnation for child in supervisor.children()] == [1, 2]
        await old.aclose()
        await new.aclose()
        await supervisor.stop()


async def test_without_file_descriptors_new_connections_wait(
    listening: ListeningSocket,
) -> None:
    supervisor, _ = tree(listening)
    address = listening.getsockname()
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda *, task_status: supervisor.run(task_status=task_status))
            longest, busy = await trio.open_tcp_stream(*address), await trio.open_tcp_stream(*address)
            await exchange(longest)
            await exchange(busy)
            listening.fault = OSError(errno.EMFILE, "Too many open files")
            waiting = await trio.open_tcp_stream(*address)
            # The longest idle connection is closed.
            assert await longest.receive_some() == b""
            listening.fault = None
            assert b"200 OK" in await exchange(waiting)
            for stream in (longest, busy, waiting):
                await stream.aclose()
            await supervisor.stop()
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        "no file descriptor is left for a new connection"
    ]


async def test_a_stop_accepts_queued_connections_and_then_refuses(listening: ListeningSocket) -> None:
    connections = Connections(ServerLimits())
    listener = Listener(listening, echo, lambda: connections)
    address = listening.getsockname()
    async with trio.open_nursery() as nursery:
        await nursery.start(connections.run)
        waiting = [await trio.open_tcp_stream(*address) for _ in range(50)]
        async with trio.open_nursery() as accepting:
            await accepting.start(listener.run)
            await listener.stop()
        await connections.stop()
        for stream in waiting:
            received = await exchange(stream)
            assert b"connection: close" in received
            await stream.aclose()
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream(*address)


async def test_a_restart_leaves_the_socket_open() -> None:
    connections = Connections(ServerLimits())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listener = Listener(listening, echo, lambda: connections, is_final=lambda: False)
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run)
            await listener.stop()
        async with await trio.open_tcp_stream(*listening.getsockname()):
            pass
