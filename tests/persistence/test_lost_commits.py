"""Commits whose answer was lost: they are looked up, and the look-up is true."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
import trio

from holdfast.ledger.values import utc_now
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import (
    Fence,
    Unit,
)
from holdfast.persistence.journal.writer import BatchWriter, CommitUnanswered, ConnectionLost
from holdfast.persistence.records.rows import AccountHead, AccountRow
from holdfast.persistence.server.connections import KeptConnection
from holdfast.persistence.server.database_gate import DatabaseGate

from .journal_bench import Author
from .written_units import AT, POISONS, all_committed, count, head, kinds, opened


class BreakingConnection(psycopg.Connection[Any]):
    """A connection that breaks at a chosen step."""

    before_exchange: Callable[[BreakingConnection, int], None] | None = None
    after_exchange: Callable[[BreakingConnection, int], None] | None = None
    exchanges = 0

    def wait(self, *arguments: Any, **more: Any) -> Any:
        self.exchanges += 1
        number = self.exchanges
        if self.before_exchange is not None:
            self.before_exchange(self, number)
        result = super().wait(*arguments, **more)
        if self.after_exchange is not None:
            self.after_exchange(self, number)
        return result


@dataclass
class Breaker:
    """Opens connections of which only the first one breaks."""

    url: str
    rows: psycopg.Connection[Any]
    traps: dict[str, Any] = field(default_factory=dict)
    connections: list[psycopg.Connection[Any]] = field(default_factory=list)

    def connect(self) -> psycopg.Connection[Any]:
        connection = BreakingConnection.connect(self.url)
        if not self.connections:
            for name, trap in self.traps.items():
                setattr(connection, name, trap)
        self.connections.append(connection)
        return connection

    def terminate(self, connection: psycopg.Connection[Any]) -> None:
        """Terminate a session, as an operator, a crash or a fail-over does."""
        pid = connection.info.backend_pid
        self.rows.execute("select pg_terminate_backend(%s, 5000)", (pid,))


def write_and_lose(writer: BatchWriter, units: Sequence[Unit]) -> CommitUnanswered:
    with pytest.raises(CommitUnanswered) as caught:
        writer.write(units)
    return caught.value


def test_a_connection_lost_before_anything_is_sent_loses_nothing(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    breaker = Breaker(database_url, rows)
    breaker.traps["before_exchange"] = lambda connection, _n: breaker.terminate(connection)
    unit = account.credit()
    with closing(BatchWriter(KeptConnection(breaker.connect), now=utc_now)) as breaking:
        with pytest.raises(ConnectionLost):
            breaking.write([unit])
        assert head(rows, account.account_id) == (0, 0, 0)
        assert all_committed(breaking.write([unit]))
    assert head(rows, account.account_id) == (1, 100, 1)


def test_a_connection_lost_before_the_commit_is_found_void(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    breaker = Breaker(database_url, rows)
    breaker.traps["before_exchange"] = lambda connection, n: breaker.terminate(connection) if n == 2 else None
    unit = account.credit()
    stale = Unit(fences=(Fence("account", account.account_id, 9),))
    with closing(BatchWriter(KeptConnection(breaker.connect), now=utc_now)) as breaking:
        lost = write_and_lose(breaking, [unit, stale])
        assert kinds(lost.if_durable) == ["Committed", "Stale"]
        assert kinds(lost.if_void) == ["NotWritten", "Stale"]
        assert breaking.look_up(lost.batch_id) is False
        assert breaking.look_up(lost.batch_id) is False
        assert head(rows, account.account_id) == (0, 0, 0)
        assert all_committed(breaking.write([unit]))
    assert head(rows, account.account_id) == (1, 100, 1)


def test_a_commit_whose_response_was_lost_is_found_durable(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)

    def cut(connection: BreakingConnection, number: int) -> None:
        if number == 2:
            connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    breaker = Breaker(database_url, rows, {"after_exchange": cut})
    with closing(BatchWriter(KeptConnection(breaker.connect), now=utc_now)) as breaking:
        lost = write_and_lose(breaking, [account.credit()])
        assert breaking.look_up(lost.batch_id) is True
        assert breaking.look_up(lost.batch_id) is True
        assert all_committed(breaking.write([account.credit()]))
    assert head(rows, account.account_id) == (2, 200, 2)


def test_a_commit_lost_among_single_units_keeps_the_other_results(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    first, broken, last = opened(writer, 3)
    breaker = Breaker(database_url, rows)
    # Exchanges 1 and 2 are of the whole batch: its locks and its rollback. Each unit alone has two.
    breaker.traps["before_exchange"] = lambda connection, n: breaker.terminate(connection) if n == 6 else None
    batch = [first.credit(), last.credit(), broken.unit(extra=(POISONS["lone surrogate"],))]
    with closing(BatchWriter(KeptConnection(breaker.connect), now=utc_now)) as breaking:
        lost = write_and_lose(breaking, batch)
        assert kinds(lost.if_durable) == ["Committed", "Committed", "NotWritten"]
        assert kinds(lost.if_void) == ["Committed", "NotWritten", "NotWritten"]
        assert breaking.look_up(lost.batch_id) is False
    assert head(rows, first.account_id) == (1, 100, 1)
    assert head(rows, last.account_id) == (0, 0, 0)


async def test_a_connection_lost_among_single_units_closes_the_gate(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    first, broken, last = opened(writer, 3)
    breaker = Breaker(database_url, rows)
    # Exchanges 1 and 2 are of the whole batch, 3 and 4 of the first unit alone.
    breaker.traps["before_exchange"] = lambda connection, n: breaker.terminate(connection) if n == 5 else None
    batch = [first.credit(), last.credit(), broken.unit(extra=(POISONS["NUL"],))]
    gate = DatabaseGate()
    gate.open()
    journal = Journal(BatchWriter(KeptConnection(breaker.connect), now=utc_now), gate)
    author = Author()
    for unit in batch:
        journal.submit(unit, author)
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await author.has_settled(3)
        assert kinds(author.results) == ["Committed", "NotWritten", "NotWritten"]
        assert not gate.is_open
        await journal.stop()
    assert head(rows, first.account_id) == (1, 100, 1)
    assert head(rows, last.account_id) == (0, 0, 0)


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_the_look_up_prevents_a_batch_that_still_runs_on_the_server(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    """The client is cut off while the server waits for a lock; a batch reported void must not commit later."""
    [account] = opened(writer)
    connections: list[psycopg.Connection[Any]] = []

    def connect() -> psycopg.Connection[Any]:
        connections.append(psycopg.connect(database_url))
        return connections[-1]

    caught: list[CommitUnanswered] = []

    def write(breaking: BatchWriter, unit: Unit) -> None:
        try:
            breaking.write([unit])
        except CommitUnanswered as lost:
            caught.append(lost)

    contested = AccountRow(AccountHead("acct_new"), "contested@example.com", "User", "b", AT)
    with (
        closing(BatchWriter(KeptConnection(connect), now=utc_now)) as breaking,
        closing(psycopg.connect(database_url)) as blocker,
    ):
        blocker.execute(
            "insert into accounts select 'acct_x', 'contested@example.com', role, brand_id, created_at, null,"
            " version, operation_count, balance_micro, held_micro, chain_head from accounts limit 1"
        )
        thread = threading.Thread(target=write, args=(breaking, account.credit(extra=(contested,))))
        thread.start()

        def of_zombie(condition: str) -> bool:
            found = rows.execute(
                f"select count(*) from pg_stat_activity where pid = %s and {condition}",
                (pid,),
            ).fetchone()
            return found is not None and found[0] == 1

        until(lambda: bool(connections))
        pid = connections[0].info.backend_pid
        until(lambda: of_zombie("wait_event_type = 'Lock'"))
        with socket.socket(fileno=socket.dup(connections[0].fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        assert of_zombie("wait_event_type = 'Lock'")
        assert breaking.look_up(caught[0].batch_id) is False
        blocker.rollback()
        until(lambda: not of_zombie("true"))
    assert head(rows, account.account_id) == (0, 0, 0)
    assert count(rows, "operations") == 0


@pytest.mark.parametrize("commits", [True, False])
def test_the_look_up_waits_for_a_commit_under_way(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any], commits: bool
) -> None:
    with closing(psycopg.connect(database_url)) as under_way:
        under_way.execute("insert into journal_batches values ('batch_1', 1, true, now())")
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(writer.look_up("batch_1")))
        thread.start()
        waiting = "select count(*) from pg_locks where not granted"
        until(lambda: rows.execute(waiting).fetchall() != [(0,)])
        assert found == []
        under_way.commit() if commits else under_way.rollback()
        thread.join(60)
    assert found == [commits]


def test_markers_are_dated_by_the_databases_clock(database_url: str, rows: psycopg.Connection[Any]) -> None:
    """They are deleted by it too: a service whose clock is years late must not lose its markers at once."""
    connection = KeptConnection(lambda: psycopg.connect(database_url))
    with closing(BatchWriter(connection, now=lambda: AT.replace(year=2001))) as writer:
        opened(writer)
        assert writer.look_up("batch_1") is False
    found = rows.execute("select count(*) from journal_batches where at > now() - interval '1 hour'").fetchone()
    assert found == (count(rows, "journal_batches"),)
    assert found != (0,)


def test_a_look_up_raises_while_the_database_is_away(database_url: str, rows: psycopg.Connection[Any]) -> None:
    breaker = Breaker(database_url, rows)
    breaker.traps["before_exchange"] = lambda connection, _n: breaker.terminate(connection)
    with closing(BatchWriter(KeptConnection(breaker.connect), now=utc_now)) as writer:
        with pytest.raises(ConnectionLost):
            writer.look_up("batch_1")
        assert writer.look_up("batch_1") is False
