"""Write transactions whose process is frozen: a probe of any other process ends them, and no other session."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest

from holdfast.ledger.values import utc_now
from holdfast.persistence.journal.units import UnitResult
from holdfast.persistence.journal.writer import BatchWriter, CommitUnanswered
from holdfast.persistence.server import connections, probes
from holdfast.persistence.server.connections import KeptConnection, connect
from holdfast.persistence.server.database import RELEASE, Database
from holdfast.persistence.server.probes import SilentClients, connect_probe, probe

from .written_units import AccountUnits, all_committed, head, kinds, opened

LOCK_ACCOUNTS = "select 1 from accounts for no key update"
Freeze = Callable[[psycopg.Connection[Any]], object]


def idle(connection: psycopg.Connection[Any]) -> None:
    """Stop between two statements."""
    connection.execute(LOCK_ACCOUNTS)


def pipelined(connection: psycopg.Connection[Any]) -> None:
    """Stop with a pipeline open, as before its COMMIT is sent."""
    connection.execute(LOCK_ACCOUNTS)
    connection.pgconn.enter_pipeline_mode()
    connection.pgconn.send_query_params(b"select 1", [])
    connection.pgconn.flush()


def copying(connection: psycopg.Connection[Any]) -> None:
    """Stop in the middle of a COPY."""
    connection.execute(LOCK_ACCOUNTS)
    connection.pgconn.exec_(b"copy journal_batches from stdin")
    connection.pgconn.put_copy_data(b"batch_1\t1\tt\tnow\n")
    connection.pgconn.flush()


def reading(connection: psycopg.Connection[Any]) -> None:
    """Read without a lock, as the audit does."""
    connection.execute("select 1 from accounts")


@pytest.fixture
def silent(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the service on which a test stops."""
    with closing(connect(database_url, statement_timeout_ms=15_000)) as connection:
        yield connection


@pytest.fixture
def probing(database_url: str) -> Iterator[KeptConnection]:
    kept = KeptConnection(partial(connect_probe, database_url))
    yield kept
    kept.discard()


def await_silence(rows: psycopg.Connection[Any], silent: psycopg.Connection[Any]) -> None:
    limit = time.monotonic() + 60
    waits = "select wait_event_type = 'Client' from pg_stat_activity where pid = %s"
    while rows.execute(waits, (silent.info.backend_pid,)).fetchone() != (True,):
        assert time.monotonic() < limit
        time.sleep(0.005)


def await_more_of_copy(rows: psycopg.Connection[Any], copying: psycopg.Connection[Any]) -> None:
    """Send more of a COPY, and wait until the server has read it and waits for the rest."""
    limit = time.monotonic() + 60
    read = "select bytes_processed from pg_stat_progress_copy where pid = %s"
    before = rows.execute(read, (copying.info.backend_pid,)).fetchone()
    copying.pgconn.put_copy_data(b"".join(b"batch_%d\t1\tt\tnow\n" % random.getrandbits(64) for _ in range(10_000)))
    while copying.pgconn.flush():
        assert time.monotonic() < limit
    while rows.execute(read, (copying.info.backend_pid,)).fetchone() == before:
        assert time.monotonic() < limit
        time.sleep(0.005)
    await_silence(rows, copying)


def is_alive(rows: psycopg.Connection[Any], connection: psycopg.Connection[Any]) -> bool:
    found = rows.execute("select 1 from pg_stat_activity where pid = %s", (connection.info.backend_pid,))
    return found.fetchone() is not None


def has_ended(rows: psycopg.Connection[Any], connection: psycopg.Connection[Any]) -> bool:
    """Wait for the session's end, for a minute at most."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if not is_alive(rows, connection):
            return True
        time.sleep(0.005)
    return False


@pytest.mark.parametrize("freeze", [idle, pipelined, copying])
def test_a_write_transaction_of_a_silent_process_is_ended(
    *,
    probing: KeptConnection,
    writer: BatchWriter,
    rows: psycopg.Connection[Any],
    silent: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    freeze: Freeze,
) -> None:
    [account] = opened(writer)
    monkeypatch.setattr(probes, "CLIENT_SILENT_S", 3600.0)
    freeze(silent)
    await_silence(rows, silent)
    probe(probing, SilentClients(), RELEASE)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        rows.execute(f"{LOCK_ACCOUNTS} nowait")
    monkeypatch.setattr(probes, "CLIENT_SILENT_S", 0.0)
    probe(probing, SilentClients(), RELEASE)
    assert has_ended(rows, silent)
    assert all_committed(writer.write([account.credit()]))


def test_a_copy_is_ended_once_its_client_sends_no_more_of_it(
    probing: KeptConnection,
    rows: psycopg.Connection[Any],
    silent: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long ago its statement began: a large batch may take longer than a client may be silent."""
    monkeypatch.setattr(probes, "CLIENT_SILENT_S", 0.001)
    times = iter((0.0, 10.0, 20.0, 30.0))
    clients = SilentClients(lambda: next(times))
    copying(silent)
    for _ in range(3):
        await_more_of_copy(rows, silent)
        probe(probing, clients, RELEASE)
        assert is_alive(rows, silent)
    probe(probing, clients, RELEASE)
    assert has_ended(rows, silent)


def test_reads_and_sessions_of_others_are_never_ended(
    *,
    database_url: str,
    probing: KeptConnection,
    writer: BatchWriter,
    rows: psycopg.Connection[Any],
    silent: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened(writer)
    monkeypatch.setattr(probes, "CLIENT_SILENT_S", 0.0)
    reading(silent)
    with closing(psycopg.connect(database_url, application_name="psql")) as other:
        idle(other)
        await_silence(rows, silent)
        await_silence(rows, other)
        probe(probing, SilentClients(), RELEASE)
        # An ended session answers no more.
        silent.execute("select 1")
        other.execute("select 1")


def test_a_process_that_continues_finds_its_commit_void(
    database_url: str,
    probing: KeptConnection,
    writer: BatchWriter,
    rows: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process decides on the account while the first is frozen between its locks and its COMMIT."""
    [account] = opened(writer)
    theirs = AccountUnits(account.account_id)
    monkeypatch.setattr(probes, "CLIENT_SILENT_S", 0.0)

    class FrozenWithLocks(connections.BoundedConnection):
        def wait(self, *arguments: Any, **more: Any) -> Any:
            if self.info.transaction_status != psycopg.pq.TransactionStatus.IDLE and in_batch:
                in_batch.pop()
                await_silence(rows, self)
                probe(probing, SilentClients(), RELEASE)
                assert has_ended(rows, self)
                results.extend(writer.write([theirs.credit(700)]))
            return super().wait(*arguments, **more)

    results: list[UnitResult] = []
    in_batch: list[bool] = []
    monkeypatch.setattr(connections, "BoundedConnection", FrozenWithLocks)
    with closing(BatchWriter(Database(database_url).keep_writer(), now=utc_now)) as frozen:
        assert all_committed(frozen.write([AccountUnits().opening()]))
        in_batch.append(True)
        with pytest.raises(CommitUnanswered) as caught:
            frozen.write([account.credit(100)])
        assert frozen.look_up(caught.value.batch_id) is False
    assert kinds(caught.value.if_void) == ["NotWritten"]
    assert all_committed(results)
    assert head(rows, account.account_id) == (1, 700, 1)
