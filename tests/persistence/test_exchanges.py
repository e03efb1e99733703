"""Several COPYs, or several prepared statements, in one exchange: all in one transaction, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import errors, pq
from tests.fresh_databases import FreshDatabases

from holdfast.persistence.journal.exchanges import CHUNK_BYTES, PreparedStatements, StatementsOutdated, copy_all
from holdfast.persistence.server.connections import connect
from holdfast.persistence.server.database_faults import ServerSilent

ONE = "copy one (id, body) from stdin"
TWO = "copy two (id) from stdin"


@pytest.fixture(scope="module")
def database_url(fresh_databases: FreshDatabases) -> Iterator[str]:
    """A database with the two tables; one that has tables of its own serves no other module."""
    url = fresh_databases.take()
    with psycopg.connect(url) as connection:
        connection.execute("create table one (id int primary key, body text)")
        connection.execute("create table two (id int primary key)")
    yield url
    fresh_databases.drop(url)


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection, to which both tables are empty."""
    with psycopg.connect(database_url) as connection:
        connection.execute("truncate one, two")
        connection.commit()
        yield connection


def counted(database_url: str) -> tuple[int, int]:
    """Return how many rows of the two tables another connection finds."""
    with psycopg.connect(database_url) as other:
        row = other.execute("select (select count(*) from one), (select count(*) from two)").fetchone()
    assert row is not None
    return row


def test_the_copies_become_durable_with_the_commit_and_not_before(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    copy_all(connection, [(ONE, "1\ta\n2\tb\n"), (TWO, "1\n2\n3\n")])
    assert connection.info.transaction_status == pq.TransactionStatus.INTRANS
    assert counted(database_url) == (0, 0)
    connection.commit()
    assert counted(database_url) == (2, 3)


def test_copies_belong_to_the_open_transaction(connection: psycopg.Connection[Any], database_url: str) -> None:
    connection.execute("insert into two values (9)")
    copy_all(connection, [(ONE, "1\ta\n"), (TWO, "1\n")])
    connection.rollback()
    assert counted(database_url) == (0, 0)
    connection.execute("insert into two values (9)")
    copy_all(connection, [(ONE, "1\ta\n"), (TWO, "1\n")])
    connection.commit()
    assert counted(database_url) == (1, 2)


@pytest.mark.parametrize(
    ("copies", "error"),
    [
        ([(ONE, "1\ta\n1\tb\n"), (TWO, "1\n")], errors.UniqueViolation),
        ([(ONE, "1\ta\n"), (TWO, "1\n1\n")], errors.UniqueViolation),
        ([(ONE, "1\ta\x00\n"), (TWO, "1\n")], errors.CharacterNotInRepertoire),
        ([(ONE, "not a number\ta\n"), (TWO, "1\n")], errors.InvalidTextRepresentation),
        ([(ONE, "1\ta\n"), ("copy three (id) from stdin", "1\n")], errors.UndefinedTable),
        ([("copy one (id, from stdin", "1\n"), (TWO, "1\n")], errors.SyntaxError),
    ],
    ids=["first refused", "second refused", "NUL", "wrong type", "no such table", "no SQL"],
)
def test_the_first_error_is_raised_and_nothing_is_stored(
    connection: psycopg.Connection[Any],
    database_url: str,
    copies: list[tuple[str, str]],
    error: type[psycopg.Error],
) -> None:
    with pytest.raises(error):
        copy_all(connection, copies)
    connection.rollback()
    assert counted(database_url) == (0, 0)
    copy_all(connection, [(TWO, "5\n")])
    connection.commit()
    assert counted(database_url) == (0, 1)


def test_an_error_in_the_middle_of_a_long_text_is_raised(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    wrong_first = "x\ty\n" + "".join(f"{number}\t{'z' * 1000}\n" for number in range(20 * CHUNK_BYTES // 1000))
    with pytest.raises(errors.InvalidTextRepresentation):
        copy_all(connection, [(ONE, wrong_first), (TWO, "1\n")])
    connection.rollback()
    assert counted(database_url) == (0, 0)


def test_a_text_of_many_chunks_is_copied_completely(connection: psycopg.Connection[Any]) -> None:
    body = "é" * CHUNK_BYTES + "end"
    copy_all(connection, [(ONE, f"1\t{body}\n2\tshort\n"), (TWO, "1\n")])
    assert connection.execute("select body from one order by id").fetchall() == [(body,), ("short",)]


def test_text_without_a_utf8_form_is_refused_before_anything_is_sent(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    with pytest.raises(UnicodeEncodeError):
        copy_all(connection, [(TWO, "1\n"), (ONE, "1\t\ud800\n")])
    assert connection.info.transaction_status == pq.TransactionStatus.IDLE
    assert counted(database_url) == (0, 0)


def test_nothing_to_copy_sends_nothing(connection: psycopg.Connection[Any]) -> None:
    copy_all(connection, [])
    assert connection.info.transaction_status == pq.TransactionStatus.IDLE


def test_a_connection_that_is_cut_counts_as_broken(connection: psycopg.Connection[Any], database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s)", (connection.info.backend_pid,))
    long = "".join(f"{number}\t{'z' * 1000}\n" for number in range(20 * CHUNK_BYTES // 1000))
    with pytest.raises(psycopg.OperationalError):
        copy_all(connection, [(ONE, long), (TWO, "1\n")])
    assert connection.broken
    assert counted(database_url) == (0, 0)


# ------------------------------------------------------------------------------------------------ statements

INSERT = "insert into two select unnest(%s::int[])"
SELECT = "select id, id > 1 from two where id < %s::int order by id"


def names(connection: psycopg.Connection[Any]) -> int:
    """Return how many statements of ours the session has prepared."""
    row = connection.execute("select count(*) from pg_prepared_statements where name like 'holdfast%'").fetchone()
    assert row is not None
    return int(row[0])


class CountingConnection(psycopg.Connection[Any]):
    """A connection that counts its exchanges."""

    exchanges = 0

    def wait(self, *arguments: Any, **more: Any) -> Any:
        self.exchanges += 1
        return super().wait(*arguments, **more)


def test_statements_run_in_order_and_return_their_rows(database_url: str) -> None:
    with CountingConnection.connect(database_url) as connection:
        connection.execute("truncate one, two")
        connection.commit()
        before = connection.exchanges
        found = PreparedStatements(connection).run(
            [(INSERT, ("{1,2}",)), (SELECT, ("9",)), (INSERT, ("{3}",)), (SELECT, ("9",)), ("commit", ())]
        )
        assert found == [[], [(1, False), (2, True)], [], [(1, False), (2, True), (3, True)], []]
        assert connection.exchanges == before + 1
        assert connection.info.transaction_status == pq.TransactionStatus.IDLE
    assert counted(database_url) == (0, 3)


def test_statements_belong_to_the_open_transaction(connection: psycopg.Connection[Any], database_url: str) -> None:
    prepared = PreparedStatements(connection)
    prepared.run([(INSERT, ("{1}",))])
    assert connection.info.transaction_status == pq.TransactionStatus.INTRANS
    assert prepared.run([(INSERT, ("{2}",)), (SELECT, ("9",))])[1] == [(1, False), (2, True)]
    assert counted(database_url) == (0, 0)
    connection.rollback()
    assert counted(database_url) == (0, 0)


def test_all_statements_of_an_exchange_have_one_time_limit(database_url: str) -> None:
    with closing(connect(database_url, statement_timeout_ms=60_000)) as connection:
        connection.answer_s = 0.2
        with pytest.raises(ServerSilent):
            PreparedStatements(connection).run([("select pg_sleep(0.15)", ())] * 2)
        assert connection.closed


def test_a_statement_is_prepared_once(connection: psycopg.Connection[Any]) -> None:
    prepared = PreparedStatements(connection)
    for _ in range(3):
        prepared.run([(INSERT, ("{}",)), (SELECT, ("1",)), (SELECT, ("2",))])
    assert names(connection) == 3  # with BEGIN


def test_a_failed_statement_ends_the_transaction_and_later_ones_do_not_run(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    prepared = PreparedStatements(connection)
    for _ in range(3):
        with pytest.raises(errors.UniqueViolation, match="two_pkey"):
            prepared.run([(INSERT, ("{1,1}",)), (SELECT, ("9",)), ("commit", ())])
        assert connection.info.transaction_status == pq.TransactionStatus.INERROR
        connection.rollback()
        assert counted(database_url) == (0, 0)
    # BEGIN and the insertion: what did not run was not prepared.
    assert names(connection) == 2
    assert prepared.run([(INSERT, ("{1}",)), (SELECT, ("9",)), ("commit", ())])[1] == [(1, False)]
    assert counted(database_url) == (0, 1)


@pytest.mark.parametrize("change", ["alter table three alter id type bigint", "deallocate all"])
def test_statements_that_outlive_their_preparation_are_prepared_again(
    connection: psycopg.Connection[Any], change: str
) -> None:
    connection.execute("create temporary table three (id int)")
    prepared = PreparedStatements(connection)
    statements = [("insert into three values (%s)", ("1",)), ("select id from three", ()), ("commit", ())]
    prepared.run(statements)
    connection.execute(change)
    connection.commit()
    with pytest.raises(StatementsOutdated):
        prepared.run(statements)
    connection.rollback()
    assert prepared.run(statements)[1] == [(1,), (1,)]


def test_what_fails_when_it_was_just_prepared_is_not_outdated(connection: psycopg.Connection[Any]) -> None:
    """Otherwise the writer, which runs outdated statements again, would do so for ever."""
    prepared = PreparedStatements(connection)
    unsupported = "do $$ begin raise feature_not_supported; end $$"
    for error in (errors.FeatureNotSupported, StatementsOutdated, errors.FeatureNotSupported):
        with pytest.raises(error):
            prepared.run([(unsupported, ())])
        connection.rollback()


@pytest.mark.parametrize(("text", "error"), [("{\ud800}", UnicodeEncodeError), ("{1\0}", psycopg.DataError)])
def test_text_that_the_server_cannot_hold_is_never_sent(
    connection: psycopg.Connection[Any], text: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        PreparedStatements(connection).run([(INSERT, ("{1}",)), (INSERT, (text,))])
    assert connection.info.transaction_status == pq.TransactionStatus.IDLE


def test_requests_and_responses_larger_than_the_buffers_pass(connection: psycopg.Connection[Any]) -> None:
    """Both directions fill at once: a client that only sent, or only received, would wait for ever."""
    echo = "select %s::text"
    texts = [str(number) * 1_000_000 for number in range(10)]
    found = PreparedStatements(connection).run([(echo, (text,)) for text in texts])
    assert [value for [(value,)] in found] == texts


def test_a_session_that_was_terminated_says_so(connection: psycopg.Connection[Any], database_url: str) -> None:
    prepared = PreparedStatements(connection)
    prepared.run([(SELECT, ("1",))])
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        prepared.run([(INSERT, ("{1}",)), ("commit", ())])
    assert connection.broken
    assert counted(database_url) == (0, 0)
