"""The watcher of a database: its probes, and the gate that is open while the database answers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
import trio.testing
from sqlalchemy import Connection, text

from holdfast.persistence.server import database as server_database
from holdfast.persistence.server import probes
from holdfast.persistence.server.database import RELEASE, STEADY_S, Database
from holdfast.persistence.server.database_faults import (
    DatabaseAway,
    DatabaseTooOld,
    OlderRelease,
    QueryTimedOut,
)
from holdfast.persistence.server.database_gate import GRACE_S, TIMEOUTS_SPAN_S, DatabaseGate

from .test_database import UNREACHABLE, one


async def test_the_watcher_opens_the_gate_and_reopens_it_after_a_loss(database_url: str) -> None:
    database = Database(database_url)
    async with trio.open_nursery() as nursery:
        await nursery.start(database.run)
        await database.gate.wait_open()
        database.gate.close("server closed the connection unexpectedly")
        await database.gate.wait_closed()
        await database.gate.wait_open()
        assert await database.read(one) == 1
        nursery.cancel_scope.cancel()
    assert not database.gate.is_open


async def test_a_gate_that_closes_again_and_again_opens_once_a_second(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk each probe succeeds and each write fails."""
    database = Database("postgresql://absent@127.0.0.1:1/none")
    gate = database.gate

    async def open_gate() -> None:
        gate.open()

    monkeypatch.setattr(database, "open", open_gate)
    async with trio.open_nursery() as nursery:
        await nursery.start(database.run)
        opened_at = []
        for _ in range(8):
            await gate.wait_open()
            opened_at.append(trio.current_time())
            gate.close("No space left on device")
        pauses = [round(later - earlier, 3) for earlier, later in pairwise(opened_at)]
        assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
        await gate.wait_open()
        await trio.sleep(STEADY_S)
        gate.close("the connection was lost")
        closed_at = trio.current_time()
        await gate.wait_open()
        assert trio.current_time() == closed_at
        nursery.cancel_scope.cancel()


async def test_the_watcher_reports_started_while_the_database_is_away() -> None:
    database = Database(UNREACHABLE)
    async with trio.open_nursery() as nursery:
        await nursery.start(database.run)
        assert not database.gate.is_open
        assert "refused" in database.gate.reason
        nursery.cancel_scope.cancel()


async def test_a_server_too_old_ends_the_watcher(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SERVER_VERSION_MIN", 990000)
    with pytest.raises(DatabaseTooOld, match="needs 99 or newer"):
        await Database(database_url).run()


@pytest.mark.parametrize(
    ("revision", "serves_from", "can_serve"),
    [
        ("9999", None, False),
        ("9999", "9999", False),
        ("9999", RELEASE, True),
        ("9999", "0900", True),
        (RELEASE, None, True),
        # As while a release is rolled back.
        ("0900", "0900", True),
    ],
)
async def test_a_process_too_old_for_the_schema_ends_the_watcher(
    database: Database, *, database_url: str, revision: str, serves_from: str | None, can_serve: bool
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = %s", (revision,))
        comment = "null" if serves_from is None else f"'{serves_from}'"
        connection.execute(f"comment on table alembic_version is {comment}")
    if can_serve:
        await database.open()
        assert database.gate.is_open
        return
    with pytest.raises(OlderRelease, match="of an older release than the database's schema"):
        await database.run()
    assert not database.gate.is_open


async def test_probes_keep_their_connection_until_one_fails(database: Database, database_url: str) -> None:
    def connection() -> psycopg.Connection[Any] | None:
        return database._probe_connection.current

    first = connection()
    assert first is not None
    # After a few executions psycopg prepares what can be prepared.
    for _ in range(8):
        await database.open()
    assert connection() is first
    database.gate.close("the machine of the primary does not answer")
    await database.open()
    second = connection()
    assert first.closed
    assert second is not None
    with psycopg.connect(database_url) as holder:
        holder.execute("lock table accounts in access exclusive mode")
        second.execute("set statement_timeout = 1")
        with pytest.raises(QueryTimedOut):
            await database.open()
        assert connection() is None
    await database.open()
    last = connection()
    database.close()
    assert last is not None
    assert last.closed


class Frozen:
    """A server that accepts connections and statements and sends nothing: its processes are stopped."""

    def __init__(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            row = connection.execute("show data_directory").fetchone()
            assert row is not None
            self._postmaster = int((Path(row[0]) / "postmaster.pid").read_text().split("\n", 1)[0])

    def processes(self) -> list[int]:
        children = Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children").read_text().split()
        return [self._postmaster, *map(int, children)]

    def signal(self, number: signal.Signals) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@pytest.fixture
def frozen(postgres_url: str) -> Iterator[Callable[[], Frozen]]:
    """Freezes the session's server; it is resumed at the latest when the test ends."""
    server = Frozen(postgres_url)

    def freeze() -> Frozen:
        server.signal(signal.SIGSTOP)
        return server

    yield freeze
    server.signal(signal.SIGCONT)


@pytest.mark.slow
async def test_a_frozen_server_blocks_no_caller_and_frees_its_threads(
    database_url: str, frozen: Callable[[], Frozen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "PROBE_S", 1)
    database = Database(database_url, pool_size=2, read_timeout_ms=1_000, read_deadline_s=30.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(database.run)
        await database.gate.wait_open()
        await database.read(one)
        server = frozen()
        refused: list[DatabaseAway] = []

        async def ask() -> None:
            with pytest.raises(DatabaseAway) as caught:
                await database.read(one)
            refused.append(caught.value)

        async with trio.open_nursery() as callers:
            for _ in range(20):
                callers.start_soon(ask)
        assert len(refused) == 20
        await database.gate.wait_closed()
        while database._reads.borrowed_tokens:  # noqa: ASYNC110 - a thread's end has no event
            await trio.sleep(0.05)
        server.signal(signal.SIGCONT)
        await database.gate.wait_open()
        assert await database.read(one) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_locked_table_makes_the_database_slow_until_released(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "PROBE_S", 1)
    database = Database(database_url)

    def look(connection: Connection) -> None:
        connection.execute(text("select id from accounts limit 1")).all()

    reached: list[Connection] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(database.run)
        await database.gate.wait_open()
        with psycopg.connect(database_url) as holder:
            holder.execute("lock table accounts in access exclusive mode")
            with pytest.raises(DatabaseAway):
                await database.read(look)
            await database.gate.wait_closed()
            assert database.gate.state == "slow"
            assert "lock" in database.gate.reason or "timeout" in database.gate.reason
            # No later caller waits for it, or reaches the server.
            with pytest.raises(DatabaseAway, match="timeout"):
                await database.read(reached.append)
            assert reached == []
        await database.gate.wait_open()
        await database.read(look)
        nursery.cancel_scope.cancel()


async def test_a_server_switched_to_read_only_is_away(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # It is so for new connections.
    monkeypatch.setattr(server_database, "PROBE_CONNECTION_S", 0.0)
    database = Database(database_url)
    await database.open()
    with psycopg.connect(database_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set default_transaction_read_only = on')
    with pytest.raises(DatabaseAway, match="read-only"):
        await database.open()
    # :meth:`Database.work` has connections of its own.
    database.close()
    database.gate.open()
    with pytest.raises(DatabaseAway):
        await database.work(lambda rows: rows.execute(text("delete from sessions")))
    assert database.gate.state == "away"
    database.close()


async def test_many_timeouts_close_the_gate_unless_a_read_succeeds(
    mock_clock: trio.testing.MockClock,
) -> None:
    gate = DatabaseGate()
    gate.open()
    gate.note_success()
    for _ in range(10):
        gate.note_timeout("one slow query, many times")
    assert gate.is_open
    mock_clock.jump(TIMEOUTS_SPAN_S)
    gate.note_success()
    gate.note_timeout("slow")
    mock_clock.jump(TIMEOUTS_SPAN_S)
    gate.note_timeout("slow")
    assert gate.is_open
    gate.note_timeout("slow")
    assert (gate.is_open, gate.state, gate.reason) == (False, "slow", "slow")


async def test_a_stalled_journal_keeps_the_gate_closed_despite_probes() -> None:
    gate = DatabaseGate()
    gate.open()
    with gate.stalled("a commit was not answered"):
        gate.open()
        assert (gate.is_open, gate.state) == (False, "slow")
    assert (gate.is_open, gate.state) == (True, "available")


async def test_a_short_outage_fails_no_read_under_way(autojump_clock: trio.testing.MockClock) -> None:
    gate = DatabaseGate()
    gate.open()
    with trio.move_on_after(60) as short, gate.cutting_short(short):
        gate.close("for a moment")
        await trio.sleep(GRACE_S / 2)
        gate.open()
        await trio.sleep(GRACE_S * 2)
    assert not short.cancelled_caught
    begun = trio.current_time()
    with trio.move_on_after(60) as scope, gate.cutting_short(scope):
        gate.close("for good")
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() - begun == GRACE_S
