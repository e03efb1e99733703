"""The state of the database server: who blocks whom, and that a part that cannot be read is missing, with why."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from holdfast.persistence.queries import server_state
from holdfast.persistence.queries.server_state import read_server_state
from holdfast.persistence.records.table_base import metadata
from holdfast.persistence.server.connections import connected, driver_of


@pytest.fixture
def rows(database_url: str) -> Any:
    with connected(database_url) as connection:
        yield connection
        connection.rollback()


def test_a_waiting_statement_is_shown_with_its_blocker(rows: Connection, database_url: str) -> None:
    with (
        psycopg.connect(database_url, application_name="patient") as waiting,
        psycopg.connect(database_url, application_name="selfish") as blocking,
    ):
        blocking.execute("lock table coupons in access exclusive mode")
        # Sent without waiting for the answer.
        waiting.pgconn.send_query(b"select count(*) from coupons where code_prefix = 'password=hunter2'")
        found = read_server_state(rows)
        while not found.blocked:
            found = read_server_state(rows)
        [blocked] = found.blocked
        assert (blocked.pid, blocked.table) == (waiting.info.backend_pid, "coupons")
        assert (blocked.blocker_pid, blocked.blocker_application) == (blocking.info.backend_pid, "selfish")
        assert (blocked.blocker_state, blocked.blocker_statement.split()[0]) == ("idle in transaction", "lock")
        assert "hunter2" not in blocked.statement
        # Its size cannot be known while the table is locked.
        assert found.missing["tables"] == "it took longer than 1 s"
        assert found.transactions[0].pid == blocking.info.backend_pid
        assert {each.application for each in found.connections} >= {"patient", "selfish"}
        blocking.rollback()
        while waiting.pgconn.get_result() is not None:
            pass
    after = read_server_state(rows)
    assert after.blocked == []
    assert "tables" not in after.missing
    assert {each.table for each in after.tables} & metadata.tables.keys()
    assert rows.execute(text("show statement_timeout")).scalar_one() != "1s"


def test_what_is_not_permitted_is_said(rows: Connection) -> None:
    rows.execute(text("create role guest"))
    rows.execute(text("revoke execute on function pg_blocking_pids from public"))
    rows.execute(text("set local role guest"))
    found = read_server_state(rows)
    assert (found.role, found.is_monitor) == ("guest", False)
    assert found.missing["blocked"].startswith("the database's role may not read it")
    assert found.missing["statements"] == "the extension pg_stat_statements is not in this database"
    assert found.tables
    assert found.connections_max > 0


def test_other_faults_are_raised(rows: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(server_state._PARTS, "replicas", "select 1 / 0")
    with pytest.raises(Exception, match="division by zero"):
        read_server_state(rows)


def test_a_first_statement_that_began_to_wait_meanwhile_is_shown(rows: Connection, database_url: str) -> None:
    with psycopg.connect(database_url) as waiting, psycopg.connect(database_url) as blocking:
        blocking.execute("lock table coupons in access exclusive mode")
        with driver_of(rows).transaction():
            # From now on this transaction sees the activity of now.
            rows.execute(text("select from pg_stat_activity"))
            waiting.pgconn.send_query(b"select from coupons")
            found = read_server_state(rows)
            while not found.blocked:
                found = read_server_state(rows)
        blocking.rollback()
        while waiting.pgconn.get_result() is not None:
            pass
        [blocked] = found.blocked
        assert (blocked.pid, blocked.blocker_pid) == (waiting.info.backend_pid, blocking.info.backend_pid)
        assert blocked.waits_s >= 0
