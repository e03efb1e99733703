"""Blocking calls of the database on trio's thread: what waits, what does not, and how they end."""

from __future__ import annotations

import contextlib
import contextvars
import os
import signal
import socket
import threading
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
import trio
from greenlet import getcurrent
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait
from sqlalchemy import Connection, text
from trio.testing import wait_all_tasks_blocked

from holdfast.persistence.server.connections import (
    BoundedConnection,
    LoopCall,
    await_in_call,
    connect,
    run_on_loop,
    run_to_the_end,
)
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import ServerSilent

from .test_database import one

TIMEOUT_MS = 60_000


def exchange(*wanted: Wait) -> Generator[Wait, Ready | int, list[Ready | int]]:
    """An exchange as psycopg's, that returns how the socket was each time."""
    found = []
    for each in wanted:
        found.append((yield each))
    return found


async def test_a_call_is_this_thread_and_has_the_tasks_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("of the task")
    main = threading.get_ident()

    async def answer() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    def call(number: int, *, name: str) -> tuple[object, ...]:
        is_call = isinstance(getcurrent(), LoopCall)
        return await_in_call(answer) + number, name, variable.get(), threading.get_ident() == main, is_call

    assert await run_on_loop(call, 1, name="x") == (8, "x", "of the task", True, True)
    assert not isinstance(getcurrent(), LoopCall)


async def test_faults_pass_between_a_call_and_what_it_awaits() -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("awaited")

    def call() -> None:
        with pytest.raises(KeyError, match="awaited"):
            await_in_call(fail)
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await run_on_loop(call)


async def test_others_run_while_a_query_waits(database: Database) -> None:
    """Both hold a connection; the second could not take the lock that the first waits with."""
    order = []

    def slow(rows: Connection) -> None:
        order.append("slow begun")
        rows.execute(text("select pg_advisory_lock(1)"))
        order.append("slow done")

    with psycopg.connect(database.url, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(1)")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(database.read, slow)
            while "slow begun" not in order:
                await trio.lowlevel.checkpoint()
            assert await database.read(one) == 1
            order.append("quick done")
            holder.execute("select pg_advisory_unlock(1)")
    assert order == ["slow begun", "quick done", "slow done"]


async def test_a_cancelled_caller_ends_with_its_query_and_keeps_the_connection(database: Database) -> None:
    """Cut short, the query would lose its connection; and who was cancelled must not act on its result."""

    def locked(rows: Connection) -> object:
        rows.execute(text("select pg_advisory_lock(1)"))
        rows.execute(text("select pg_advisory_unlock(1)"))
        return rows.execute(text("select pg_backend_pid()")).scalar_one()

    before = await database.read(locked)
    acted_on: list[object] = []

    async def call() -> None:
        acted_on.append(await database.read(locked))

    with psycopg.connect(database.url, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(1)")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
            holder.execute("select pg_advisory_unlock(1)")
    assert acted_on == []
    assert await database.read(locked) == before


async def test_a_cancelled_caller_waits_for_no_connection(database_url: str) -> None:
    database = Database(database_url, pool_size=1)
    await database.open()
    free, has_connection = trio.Event(), trio.Event()
    ran: list[Connection] = []

    def occupy(_: Connection) -> None:
        has_connection.set()
        await_in_call(free.wait)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.read, occupy)
        await has_connection.wait()
        async with trio.open_nursery() as callers:
            callers.start_soon(database.read, ran.append)
            await wait_all_tasks_blocked()
            callers.cancel_scope.cancel()
        assert not free.is_set()
        free.set()
    assert ran == []
    assert await database.read(one) == 1
    database.close()


@pytest.mark.parametrize("characters", [1, 20_000_000], ids=["while it receives", "while it sends, too"])
async def test_a_cancelled_exchange_loses_its_connection(database_url: str, characters: int) -> None:
    connection = await trio.to_thread.run_sync(lambda: connect(database_url, statement_timeout_ms=TIMEOUT_MS))
    connection.autocommit = True
    server_pid = connection.info.backend_pid

    def call() -> str:
        try:
            connection.execute("select %s::text", ("x" * characters,))
        except ServerSilent:
            return "silent"
        return "answered"

    answers: list[str] = []

    async def run() -> None:
        answers.append(await run_on_loop(call))

    os.kill(server_pid, signal.SIGSTOP)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
    finally:
        os.kill(server_pid, signal.SIGCONT)
    assert answers == ["silent"]
    assert connection.closed


async def test_a_call_to_the_end_is_not_cancelled() -> None:
    async def answer() -> str:
        await trio.lowlevel.checkpoint()
        return "answered"

    with trio.CancelScope() as scope:
        scope.cancel()
        assert await run_to_the_end(lambda: await_in_call(answer)) == "answered"


async def test_a_statement_larger_than_the_sockets_buffers_is_sent(database: Database) -> None:
    """And its response, as large, is received while it is sent."""
    large = "x" * 20_000_000

    def echo(rows: Connection) -> object:
        return rows.execute(text("select cast(:large as text)"), {"large": large}).scalar_one()

    assert await database.read(echo) == large


@pytest.mark.parametrize("wanted", [Wait.R, Wait.W, Wait.RW])
async def test_a_silent_peer_is_not_waited_for_without_limit(
    wanted: Wait, autojump_clock: trio.testing.MockClock
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        fill(ours)
        with pytest.raises(ServerSilent):
            await run_on_loop(connection_on(ours).wait, exchange(wanted), timeout=5.0)
        assert trio.current_time() >= 5


async def test_a_full_socket_that_can_be_read_is_read() -> None:
    """The server may be waiting until its own responses are read."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        assert await found(ours, Wait.RW) == [Ready.W]
        fill(ours)

        async def answer() -> None:
            await wait_all_tasks_blocked()
            theirs.send(b"x")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            assert await found(ours, Wait.RW, Wait.R, Wait.RW) == [Ready.R] * 3
        theirs.recv(1 << 24)
        assert await found(ours, Wait.W, Wait.RW) == [Ready.W, Ready.RW]


async def found(ours: socket.socket, *wanted: Wait) -> Any:
    return await run_on_loop(connection_on(ours).wait, exchange(*wanted))


def connection_on(ours: socket.socket) -> BoundedConnection:
    """Return a connection that has only its socket."""
    pgconn = SimpleNamespace(socket=ours.fileno(), finish=lambda: None)
    return BoundedConnection(cast(PGconn, pgconn))


def fill(ours: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(b"x" * 65536)
