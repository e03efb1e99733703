from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
import trio.testing
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.waiting import Wait
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, InternalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from holdfast.ledger.values import utc_now
from holdfast.persistence.claims.coupons import NewCouponClaim, add_coupon, claim_coupon, end_coupon, sha256_of_code
from holdfast.persistence.claims.processes import Membership, beat, this_process
from holdfast.persistence.operators.records import write_action
from holdfast.persistence.records.credit_tables import CouponClaim, CouponRow
from holdfast.persistence.records.operator_tables import OperatorAction
from holdfast.persistence.server import connections
from holdfast.persistence.server.connections import (
    DEFAULT_PORT,
    BoundedConnection,
    await_in_call,
    connect,
    in_one_transaction,
)
from holdfast.persistence.server.database import WORK_SIZE, Database
from holdfast.persistence.server.database_faults import (
    DatabaseAway,
    QueryTimedOut,
    ServerSilent,
    is_away,
    trouble_of,
)
from holdfast.persistence.server.database_gate import DatabaseGate
from holdfast.persistence.server.service_clock import ServiceClock
from holdfast.telemetry import metrics

UNREACHABLE = "postgresql://absent@127.0.0.1:1/nothing"


def one(connection: Connection) -> int:
    return int(connection.execute(text("select 1")).scalar_one())


def backends_ended(database_url: str) -> int:
    """Cut every connection of a service to this database, as a restarting server does."""
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and application_name = 'holdfast'"
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


async def test_a_read_on_a_lost_connection_is_retried_once(database: Database, database_url: str) -> None:
    await database.read(one)
    # Those of three engines, and that of the probes.
    assert await trio.to_thread.run_sync(backends_ended, database_url) == 4
    assert await database.read(one) == 1
    assert database.gate.is_open


@pytest.mark.parametrize("by", ["work", "record", "renew"])
async def test_a_write_uses_no_connection_that_was_cut_while_idle(
    database: Database, database_url: str, by: str
) -> None:
    await getattr(database, by)(one)
    await trio.to_thread.run_sync(backends_ended, database_url)
    assert await getattr(database, by)(one) == 1
    assert (database.gate.is_open, database.gate.closings) == (True, 0)


async def test_new_connections_that_end_at_once_mean_that_the_database_is_away(
    database: Database, database_url: str
) -> None:
    def end(connection: psycopg.Connection[Any], *_: object) -> None:
        with psycopg.connect(database_url) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))

    await database.work(one)
    event.listen(database._work_engine, "connect", end)
    await trio.to_thread.run_sync(backends_ended, database_url)
    with pytest.raises(DatabaseAway):
        await database.work(one)


def test_a_kept_connection_that_was_cut_while_idle_is_replaced(database_url: str) -> None:
    kept = Database(database_url).keep_writer()
    first = kept.get()
    assert kept.get() is first
    backends_ended(database_url)
    with contextlib.closing(kept.get()) as second:
        assert second.execute("select 1").fetchone() == (1,)
    assert first.closed


@pytest.mark.parametrize(("by", "tries"), [("read", 2), ("work", 1)])
async def test_only_a_read_is_repeated_once_when_connections_are_lost(
    database: Database, database_url: str, by: str, tries: int
) -> None:
    attempts = 0

    def cut(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        backends_ended(database_url)
        one(connection)

    with pytest.raises(DatabaseAway):
        await getattr(database, by)(cut)
    assert attempts == tries
    assert not database.gate.is_open


async def test_a_slow_read_times_out_and_leaves_the_gate_open(database_url: str) -> None:
    database = Database(database_url, read_timeout_ms=50)
    await database.open()
    with pytest.raises(QueryTimedOut, match="statement timeout"):
        await database.read(lambda connection: connection.execute(text("select pg_sleep(60)")))
    assert database.gate.is_open
    assert await database.read(one) == 1
    database.close()


async def test_a_closed_gate_refuses_reads_with_its_reason(database: Database) -> None:
    database.gate.close("under maintenance")
    with pytest.raises(DatabaseAway, match="under maintenance") as caught:
        await database.read(one)
    assert caught.value.retry_after_s == 1.0
    # A lock may have closed it: who looks for that is let in, and the gate stays closed.
    assert await database.examine(one) == 1
    assert not database.gate.is_open


def test_why_the_server_does_not_run_is_the_reason_until_it_does() -> None:
    gate = DatabaseGate()
    gate.explain("No space left on device")
    gate.close("connection refused")
    seen = [gate.reason]
    gate.open()
    gate.explain("No space left on device")
    gate.close("connection refused")
    assert [*seen, gate.reason] == ["No space left on device", "connection refused"]


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
    pair = trio.Event()

    def query(connection: Connection) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        if running == 2:
            pair.set()
        await_in_call(pair.wait)
        one(connection)
        running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(database.read, query)
    assert most == 2
    database.close()


async def test_connects_that_hang_have_as_many_threads_as_connections(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that resolves slowly holds a thread longer than its caller waits."""
    database = Database(database_url, pool_size=2, read_deadline_s=0.05)
    await database.open()
    database.close()
    hanging: list[str] = []
    resolved = threading.Event()

    def connect(url: str, **_: object) -> None:
        hanging.append(url)
        resolved.wait(60)
        raise psycopg.OperationalError("resolved too late")

    monkeypatch.setattr(connections, "connect", connect)
    try:
        for _ in range(6):
            database.gate.open()
            with pytest.raises(QueryTimedOut):
                await database.read(one)
        assert len(hanging) <= 3, "one more than for reads: the workers have their own"
    finally:
        resolved.set()
    database.close()


async def test_the_writers_connection_has_timeouts_and_no_autocommit(database: Database) -> None:
    def look() -> tuple[bool, list[str]]:
        with database.connect_writer() as connection:
            names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "timezone")
            values = [connection.execute(f"show {name}").fetchone() for name in names]
            return connection.autocommit, [str(value[0]) for value in values if value is not None]

    assert await trio.to_thread.run_sync(look) == (False, ["15s", "1s", "15s", "UTC"])


async def test_a_kept_connection_is_replaced_once_the_database_was_away(database: Database) -> None:
    kept = database.keep_writer()
    first = kept.get()
    assert kept.get() is first
    database.gate.close("the machine of the primary does not answer")
    database.gate.open()
    assert kept.get() is not first
    assert first.closed
    kept.discard()


def test_the_host_that_was_connected_to_last_is_tried_first(database_url: str) -> None:
    real = conninfo_to_dict(database_url)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        host, port = silent.getsockname()
        default = "" if real["port"] == DEFAULT_PORT else real["port"]
        url = make_conninfo(database_url, host=f"{host},{real['host']}", port=f"{port},{default}")
        connect(url, statement_timeout_ms=0).close()
        silent.listen()
        silent.setblocking(False)
        connect(url, statement_timeout_ms=0).close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_hosts_without_ports_keep_that_of_the_environment(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = conninfo_to_dict(database_url)
    (tmp_path / ".s.PGSQL.6543").symlink_to(Path(str(server["host"])) / f".s.PGSQL.{server.pop('port')}")
    monkeypatch.setenv("PGPORT", "6543")
    url = f"postgresql://{server['user']}@/{server['dbname']}?host=/nowhere,{tmp_path}"
    for _ in range(2):
        connect(url, statement_timeout_ms=0).close()


async def test_an_outage_is_counted_only_after_a_first_connection() -> None:
    gate = DatabaseGate()

    def gone_count() -> float:
        return float(metrics.DATABASE_OUTAGES._value.get())

    def is_up() -> float:
        return float(metrics.DATABASE_UP._value.get())

    before = gone_count()
    gate.close("still away")
    assert (gate.is_open, gone_count() - before) == (False, 0)
    gate.open()
    gate.open()
    assert (gate.is_open, gone_count() - before, is_up()) == (True, 0, 1)
    gate.close("away again")
    gate.close("and still")
    assert (gate.is_open, gone_count() - before, gate.reason, is_up()) == (False, 1, "and still", 0)
    gate.open()
    assert (gate.is_open, gone_count() - before, gate.reason) == (True, 1, "")


async def test_the_wait_for_a_connection_is_measured(database: Database) -> None:
    waits = metrics.DATABASE_WAIT_S.labels("read")
    free = trio.Event()
    running = [trio.Event() for _ in range(int(database._reads.total_tokens))]

    def occupy(_: Connection, has_begun: trio.Event) -> None:
        has_begun.set()
        await_in_call(free.wait)

    async with trio.open_nursery() as nursery:
        for has_begun in running:
            nursery.start_soon(database.read, occupy, has_begun)
        for has_begun in running:
            await has_begun.wait()
        before = waits.distribution
        nursery.start_soon(database.read, lambda _: None)
        await trio.testing.wait_all_tasks_blocked()
        waiting_since = time.perf_counter()
        waited_s = time.perf_counter() - waiting_since
        free.set()
    since = waits.distribution.since(before)
    assert since.count == len(running) + 1
    assert since.total > waited_s


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


@pytest.mark.parametrize(
    ("exc", "reading", "writing"),
    [
        (psycopg.OperationalError("connection refused"), "away", "away"),
        (psycopg.errors.AdminShutdown(), "away", "away"),
        (psycopg.errors.CrashShutdown(), "away", "away"),
        (psycopg.errors.CannotConnectNow(), "away", "away"),
        (psycopg.errors.TooManyConnections(), "away", "away"),
        (psycopg.errors.ConnectionFailure(), "away", "away"),
        (psycopg.InterfaceError("the connection is closed"), "away", "away"),
        (psycopg.InterfaceError("the cursor is closed"), None, None),
        (psycopg.errors.PipelineAborted("the pipeline is aborted"), None, None),
        (psycopg.errors.QueryCanceled(), "slow", "slow"),
        (psycopg.errors.LockNotAvailable(), "slow", "slow"),
        (ServerSilent("nothing within 6 s"), "slow", "slow"),
        (PoolTimeout("no connection came free"), "slow", "slow"),
        (psycopg.errors.DiskFull(), "slow", "away"),
        # A read that tries to write is a bug; a server that refuses to is a standby.
        (psycopg.errors.ReadOnlySqlTransaction(), None, "away"),
        (psycopg.errors.UniqueViolation(), None, None),
        (psycopg.errors.DeadlockDetected(), None, None),
        (DatabaseAway("away"), "away", "away"),
        (QueryTimedOut("slow"), "slow", "slow"),
        (ValueError("connection"), None, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_faults_are_classified_as_away_slow_or_neither(
    exc: Exception, reading: str | None, writing: str | None
) -> None:
    assert trouble_of(exc) == reading
    assert trouble_of(exc, writing=True) == writing
    assert is_away(exc) is (reading == "away")
    if isinstance(exc, psycopg.Error):
        wrapped = DBAPIError("select", {}, exc)
        assert trouble_of(wrapped) == reading
        assert trouble_of(wrapped, writing=True) == writing


# --------------------------------------------------------------------------------------- slow, silent and read-only


class RoundTrips:
    """Counts the exchanges with the server, of all connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        wait = BoundedConnection.wait
        monkeypatch.setattr(
            BoundedConnection,
            "wait",
            lambda connection, exchange, *given: wait(connection, self._counted(exchange), *given),
        )

    def take(self) -> int:
        """Return the number since the last call."""
        count, self._count = self._count, 0
        return count

    def _counted(self, exchange: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Pass on what an exchange waits for; one that only sends is none."""
        awaits_answer = False
        try:
            wanted = next(exchange)
            while True:
                self._count += wanted == Wait.R and not awaits_answer
                awaits_answer |= wanted == Wait.R
                wanted = exchange.send((yield wanted))
        except StopIteration as end:
            return end.value


async def test_what_requests_record_takes_few_round_trips(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = OperatorAction(
        action_id="act_1",
        at=utc_now(),
        operator="ada@example.com",
        credential="token",
        origin="",
        action="grant_credit",
        target="acct_1",
        account_id="acct_1",
        task_id=None,
        reason="a reason",
        trace_id="",
    )
    coupon = CouponRow("cpn_1", sha256_of_code("WELCOME"), "WE", 1_000_000, 5, None, None, utc_now())
    await database.record(one)
    trips = RoundTrips(monkeypatch)
    await database.record(partial(write_action, action=action))
    assert trips.take() == 1
    await database.record(partial(write_action, action=action._replace(ended_at=utc_now(), result="done")))
    assert trips.take() == 1
    assert await database.record(partial(add_coupon, coupon=coupon))
    assert trips.take() == 1
    claim = partial(claim_coupon, new=NewCouponClaim("acct_1", sha256_of_code("welcome "), "cpu_1", utc_now()))
    assert isinstance(await database.record(in_one_transaction(claim)), CouponClaim)
    # BEGIN, the account's tries, the coupon, its use, COMMIT.
    assert trips.take() == 5
    ended = await database.record(partial(end_coupon, coupon_id="cpn_1", now=utc_now()))
    assert trips.take() == 1
    assert ended is not None
    assert (ended.uses, ended.disabled_at is not None) == (1, True)
    with contextlib.closing(psycopg.connect(database.url)) as rows:
        assert rows.execute("select result from operator_actions").fetchall() == [("done",)]


async def test_what_an_idle_process_repeats_takes_few_round_trips(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = this_process()
    renew = partial(
        beat,
        process=process,
        clock=ServiceClock(process.member_id),
        providers=["studio"],
        membership=Membership(),
        wanted={"dispatcher"},
    )
    await database.renew(renew)
    trips = RoundTrips(monkeypatch)
    assert (await database.renew(renew)).claimed == {"dispatcher"}
    # BEGIN and the clock, service time, the lease with members and names, COMMIT. An answer may come at once.
    assert trips.take() <= 4
    await database.open()
    # Whether it takes writes, and from whom; the locks and the schema.
    assert trips.take() == 2


async def test_a_change_in_one_transaction_is_undone_as_a_whole(database: Database) -> None:
    def write_twice(rows: Connection) -> None:
        for _ in range(2):
            rows.execute(text("insert into journal_batches values ('b', 1, true, now())"))

    with pytest.raises(IntegrityError):
        await database.record(in_one_transaction(write_twice))
    counted = await database.record(lambda rows: rows.scalar(text("select count(*) from journal_batches")))
    assert counted == 0
    with pytest.raises(IntegrityError):
        await database.record(write_twice)
    counted = await database.record(lambda rows: rows.scalar(text("select count(*) from journal_batches")))
    assert counted == 1


async def test_a_request_does_not_wait_for_sweeps(database: Database, database_url: str) -> None:
    with psycopg.connect(database_url) as holder:
        holder.execute("insert into journal_batches values ('held', 1, true, now())")

        def wait_for_it(rows: Connection) -> None:
            rows.execute(text("insert into journal_batches values ('held', 1, true, now()) on conflict do nothing"))

        async with trio.open_nursery() as nursery:
            for _ in range(WORK_SIZE):
                nursery.start_soon(database.work, wait_for_it)
            await trio.testing.wait_all_tasks_blocked()
            assert await database.record(one) == 1
            holder.rollback()
