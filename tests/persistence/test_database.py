from __future__ import annotations

import threading

import psycopg
import pytest
import trio
import trio.testing
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError, InternalError

from holdfast import metrics
from holdfast.persistence import database as database_module
from holdfast.persistence.database import (
    Database,
    DatabaseAway,
    DatabaseGate,
    DatabaseTooOld,
    QueryTimedOut,
    is_away,
)

UNREACHABLE = "postgresql://nobody@127.0.0.1:1/nothing"


def one(connection: Connection) -> int:
    return int(connection.execute(text("select 1")).scalar_one())


def backends_ended(database_url: str) -> int:
    """Cut every connection to this database but our own, as a restarting server does."""
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
        ).fetchall()
    return len(rows)


async def test_a_read_runs_its_query_and_returns_the_value(database: Database) -> None:
    assert await database.read(one) == 1


async def test_a_read_cannot_write(database: Database) -> None:
    def write(connection: Connection) -> None:
        connection.execute(text("delete from sessions"))

    with pytest.raises(InternalError, match="read-only"):
        await database.read(write)
    assert database.gate.is_open


async def test_work_writes_and_commits(database: Database) -> None:
    def write(connection: Connection) -> None:
        connection.execute(text("insert into journal_batches values ('b', 1, true, now())"))

    await database.work(write)
    assert (
        await database.read(
            lambda connection: connection.execute(text("select batch_id from journal_batches")).scalar_one()
        )
        == "b"
    )
    with pytest.raises(IntegrityError):
        await database.work(write)
    assert database.gate.is_open


async def test_times_are_read_in_utc(database: Database) -> None:
    zone = await database.read(lambda connection: connection.execute(text("show timezone")).scalar_one())
    assert zone == "UTC"


async def test_a_lost_connection_is_retried_once_unseen(database: Database, database_url: str) -> None:
    await database.read(one)
    assert await trio.to_thread.run_sync(backends_ended, database_url) == 1
    assert await database.read(one) == 1
    assert database.gate.is_open


async def test_a_read_whose_connection_is_lost_twice_is_away_and_closes_the_gate(
    database: Database, database_url: str
) -> None:
    attempts = 0

    def cut(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        backends_ended(database_url)
        one(connection)

    with pytest.raises(DatabaseAway):
        await database.read(cut)
    assert attempts == 2
    assert not database.gate.is_open


async def test_work_whose_connection_is_lost_is_not_repeated(database: Database, database_url: str) -> None:
    attempts = 0

    def cut(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        backends_ended(database_url)
        one(connection)

    with pytest.raises(DatabaseAway):
        await database.work(cut)
    assert attempts == 1


async def test_a_slow_read_times_out_and_leaves_the_gate_open(database_url: str) -> None:
    database = Database(database_url, read_timeout_ms=50)
    await database.open()
    with pytest.raises(QueryTimedOut, match="statement timeout"):
        await database.read(lambda connection: connection.execute(text("select pg_sleep(60)")))
    assert database.gate.is_open
    assert await database.read(one) == 1
    database.close()


async def test_a_closed_gate_turns_reads_away_with_its_reason(database: Database) -> None:
    database.gate.close("gone fishing")
    with pytest.raises(DatabaseAway, match="gone fishing") as caught:
        await database.read(one)
    assert caught.value.retry_after_s == 1.0


async def test_an_unreachable_database_does_not_open() -> None:
    database = Database(UNREACHABLE)
    with pytest.raises(DatabaseAway):
        await database.open()
    with pytest.raises(DatabaseAway):
        await trio.to_thread.run_sync(database.connect_writer)
    assert not database.gate.is_open


async def test_reads_beyond_the_pool_wait_for_their_turn(database_url: str) -> None:
    database = Database(database_url, pool_size=2)
    await database.open()
    most = 0
    running = 0
    lock = threading.Lock()
    pair = threading.Barrier(2)

    def query(connection: Connection) -> None:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        pair.wait(timeout=10)
        one(connection)
        with lock:
            running -= 1

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(database.read, query)
    assert most == 2
    database.close()


async def test_the_writers_connection_has_bounded_waits_and_no_autocommit(database: Database) -> None:
    def look() -> tuple[bool, list[str]]:
        with database.connect_writer() as connection:
            names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "timezone")
            values = [connection.execute(f"show {name}").fetchone() for name in names]
            return connection.autocommit, [str(value[0]) for value in values if value is not None]

    assert await trio.to_thread.run_sync(look) == (False, ["15s", "5s", "15s", "UTC"])


async def test_only_a_database_that_was_there_is_counted_as_gone() -> None:
    gate = DatabaseGate()

    def gone_count() -> float:
        return float(metrics.DATABASE_AWAY._value.get())

    before = gone_count()
    gate.close("still away")
    assert (gate.is_open, gone_count() - before) == (False, 0)
    gate.open()
    gate.open()
    assert (gate.is_open, gone_count() - before) == (True, 0)
    gate.close("away again")
    gate.close("and still")
    assert (gate.is_open, gone_count() - before, gate.reason) == (False, 1, "and still")
    gate.open()
    assert (gate.is_open, gone_count() - before, gate.reason) == (True, 1, "")


async def test_waiters_pass_when_the_gate_opens(autojump_clock: trio.testing.MockClock) -> None:
    gate = DatabaseGate()
    passed: list[int] = []

    async def wait(number: int) -> None:
        await gate.wait_open()
        passed.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(wait, number)
        await trio.testing.wait_all_tasks_blocked()
        assert passed == []
        gate.open()
    assert sorted(passed) == [0, 1, 2]


async def test_the_watcher_opens_the_gate_and_opens_it_again_after_a_reported_loss(database_url: str) -> None:
    database = Database(database_url)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(database.run)
            await database.gate.wait_open()
            assert database.report_away(psycopg.OperationalError("server closed the connection unexpectedly"))
            await database.gate.wait_closed()
            await database.gate.wait_open()
            assert await database.read(one) == 1
            nursery.cancel_scope.cancel()
    assert not database.gate.is_open


async def test_the_watcher_reports_started_while_the_database_is_away() -> None:
    database = Database(UNREACHABLE)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(database.run)
            assert not database.gate.is_open
            assert "refused" in database.gate.reason
            nursery.cancel_scope.cancel()


async def test_a_server_too_old_ends_the_watcher(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "SERVER_VERSION_MIN", 990000)
    with pytest.raises(DatabaseTooOld, match="needs 99 or newer"):
        await Database(database_url).run()


@pytest.mark.parametrize(
    ("exc", "away"),
    [
        (psycopg.OperationalError("connection refused"), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CrashShutdown(), True),
        (psycopg.errors.CannotConnectNow(), True),
        (psycopg.errors.TooManyConnections(), True),
        (psycopg.errors.ConnectionFailure(), True),
        (psycopg.InterfaceError("the connection is closed"), True),
        (psycopg.InterfaceError("the cursor is closed"), False),
        (psycopg.errors.QueryCanceled(), False),
        (psycopg.errors.LockNotAvailable(), False),
        (psycopg.errors.DiskFull(), False),
        (psycopg.errors.UniqueViolation(), False),
        (DatabaseAway("away"), True),
        (QueryTimedOut("slow"), False),
        (ValueError("connection"), False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_only_a_lost_database_closes_the_gate(exc: Exception, away: bool) -> None:
    assert is_away(exc) is away
    database = Database(UNREACHABLE)
    database.gate.open()
    assert database.report_away(exc) is away
    assert database.gate.is_open is not away
