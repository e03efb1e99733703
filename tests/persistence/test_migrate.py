from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, Column, inspect, select, text

from holdfast.persistence.records.tables import metadata
from holdfast.persistence.server import migrate as migrate_module
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.migrate import MigrationRefused, MigrationReport, migrate, pending
from holdfast.persistence.server.revisions import installed_revisions, is_migrated
from holdfast.persistence.server.upgrade import alembic_config, upgrade

REVISIONS = tuple(f"{number:04}" for number in range(1, 23))
DIRECTORIES = ("account_emails", "order_payments")


def example_of(column: Column[Any]) -> Any:
    """Return a value that the column may have."""
    if getattr(column.type, "item_type", None) is not None:
        return ["one", "other"]
    if isinstance(column.type, JSON):
        return {"a": 1}
    examples = {str: "a word", int: 7, bool: True, bytes: b"bytes"}
    return examples.get(column.type.python_type, datetime(2026, 11, 20, tzinfo=UTC))


def ended_task() -> dict[str, Any]:
    """Return a task that ended before events existed."""
    row = {column.name: example_of(column) for column in metadata.tables["tasks"].columns}
    documents = {"request": {"webhook_url": "https://example.com"}, "state": {"hosting": {"status": "ready"}}}
    return row | documents | {"request_id": "task_ended", "status": "succeeded"}


@pytest.fixture
def empty_url(database_url: str) -> str:
    """An empty database."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    return database_url


def test_the_migrated_schema_equals_the_tables_of_the_code(database_url: str) -> None:
    with connected(database_url) as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_the_migrated_tables_have_the_storage_settings_of_the_code(database_url: str) -> None:
    with connected(database_url) as connection:
        rows = connection.execute(
            text("select relname, reloptions from pg_class where relkind = 'r' and reloptions is not null")
        )
        found = {row.relname: row.reloptions for row in rows}
    wanted = {
        name: [f"{key}={value}" for key, value in table.dialect_options["postgresql"]["with"].items()]
        for name, table in metadata.tables.items()
        if table.dialect_options["postgresql"]["with"]
    }
    assert wanted
    assert found == wanted


def test_partial_indexes_keep_their_conditions(database_url: str) -> None:
    with connected(database_url) as connection:
        partial = set(
            connection.execute(
                text("select indexrelid::regclass::text from pg_index where indpred is not null")
            ).scalars()
        )
    assert partial == {
        index.name
        for table in metadata.tables.values()
        for index in table.indexes
        if index.dialect_options["postgresql"]["where"] is not None
    }


def test_an_empty_database_is_migrated_once(empty_url: str) -> None:
    assert pending(empty_url) == REVISIONS
    assert migrate(empty_url) == MigrationReport(before=None, after=REVISIONS[-1], applied=REVISIONS)
    assert pending(empty_url) == ()
    assert migrate(empty_url) == MigrationReport(before=REVISIONS[-1], after=REVISIONS[-1], applied=())


def test_a_database_of_the_first_version_migrates_with_its_rows(empty_url: str) -> None:
    with connected(empty_url) as connection:
        upgrade(connection, "0001")
        before_migration, columns = {}, {}
        for name, table in metadata.tables.items():
            if connection.execute(text("select to_regclass(:name)"), {"name": name}).scalar_one() is None:
                continue
            there = {c["name"] for c in inspect(connection).get_columns(name)}
            columns[name] = [c for c in table.columns if c.name in there]
            connection.execute(table.insert().values({c.name: example_of(c) for c in columns[name]}))
            if name == "tasks":
                connection.execute(table.insert().values({k: v for k, v in ended_task().items() if k in there}))
            before_migration[name] = connection.execute(select(*columns[name])).all()
        connection.commit()
    assert "outbox" not in before_migration
    assert len(before_migration) > 10

    assert migrate(empty_url) == MigrationReport(before="0001", after=REVISIONS[-1], applied=REVISIONS[1:])

    with connected(empty_url) as connection:
        for name, rows in before_migration.items():
            found = connection.execute(select(*columns[name])).all()
            assert found[0] == rows[0]
            assert len(found) == len(rows)
        ended = connection.execute(metadata.tables["tasks"].select()).all()[1]
        assert ended.state["hosting"] == {"status": "ready", "assets_ready_event": "skipped"}
        assert connection.execute(metadata.tables["outbox"].select()).all() == []
        asset = before_migration["assets"][0]
        known = [(asset.sha256, asset.content_type, asset.created_at, None)]
        assert connection.execute(metadata.tables["contents"].select()).all() == known
        [account], [order] = before_migration["accounts"], before_migration["orders"]
        directories = {name: connection.execute(metadata.tables[name].select()).all() for name in DIRECTORIES}
        payment = (order.provider, order.provider_payment_id, order.account_id, order.order_id)
        assert directories == {"account_emails": [(account.email, account.id)], "order_payments": [payment]}


def test_revisions_are_named_and_ordered_as_alembic_applies_them() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert installed_revisions() == tuple(script.revision for script in scripts.walk_revisions())[::-1] == REVISIONS


def test_only_a_database_at_the_newest_revision_is_migrated(empty_url: str) -> None:
    assert is_migrated("postgresql://absent@127.0.0.1:1/nothing") is None
    assert is_migrated(empty_url) is False
    with connected(empty_url) as connection:
        upgrade(connection, REVISIONS[-2])
    assert is_migrated(empty_url) is False
    migrate(empty_url)
    assert is_migrated(empty_url) is True


def test_a_migrated_database_needs_no_lock(database_url: str) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("select pg_advisory_lock(%s)", (migrate_module.LOCK_KEY,))
        assert migrate(database_url).applied == ()


def test_two_processes_never_migrate_at_once(empty_url: str) -> None:
    reports: list[MigrationReport] = []
    start = threading.Barrier(3)

    def run() -> None:
        start.wait()
        reports.append(migrate(empty_url))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(report.applied) for report in reports) == [0, 0, len(REVISIONS)]


def test_waiting_too_long_for_the_lock_is_refused(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate_module, "LOCK_TIMEOUT_S", 0.05)
    with psycopg.connect(empty_url) as other:
        other.execute("select pg_advisory_lock(%s)", (migrate_module.LOCK_KEY,))
        with pytest.raises(MigrationRefused, match="Another process"):
            migrate(empty_url)
    assert pending(empty_url) == REVISIONS


def test_a_database_of_a_newer_release_is_refused(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    with pytest.raises(MigrationRefused, match="9999"):
        migrate(database_url)


def test_an_unreachable_database_is_away() -> None:
    with pytest.raises(DatabaseAway):
        migrate("postgresql://absent@127.0.0.1:1/nothing?connect_timeout=2")


@pytest.mark.parametrize("table", ["operations", "postings", "checkpoints"])
@pytest.mark.parametrize("statement", ["update {} set number = 2", "delete from {}", "truncate {}"])
@pytest.mark.parametrize("role", ["origin", "replica"])
def test_the_journal_refuses_every_change(database_url: str, table: str, statement: str, role: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(f"set session_replication_role = {role}")
        with pytest.raises(psycopg.errors.RestrictViolation, match="immutable"):
            connection.execute(statement.format(table))
