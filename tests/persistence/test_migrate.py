from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from tests.fresh_databases import drop_tables

from holdfast.persistence.records.tables import metadata
from holdfast.persistence.server import migrate as migrate_module
from holdfast.persistence.server import revisions as revisions_module
from holdfast.persistence.server import upgrade as upgrade_module
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.migrate import (
    MigrationBlocked,
    MigrationRefused,
    MigrationReport,
    migrate,
    pending,
)
from holdfast.persistence.server.revisions import installed_revisions, is_migrated, schema_of
from holdfast.persistence.server.upgrade import alembic_config

REVISIONS = ("1000", "1001", "1002", "1003", "1004", "1005", "1006", "1007", "1008")
NEXT_REVISION = """
from alembic import op

revision = "1040"
down_revision = "1008"
serves_from = "1000"


def upgrade():
    op.execute("alter table sign_ins add note text")
    op.execute("{}")
"""


@pytest.fixture
def empty_url(database_url: str) -> str:
    """An empty database."""
    drop_tables(database_url)
    return database_url


@pytest.fixture
def add_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that makes this release one with a further revision, whose last statement it is given."""

    def add(statement: str) -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(upgrade_module.FOLDER, folder)
        (folder / "versions" / "v1040_note.py").write_text(NEXT_REVISION.format(statement))
        monkeypatch.setattr(upgrade_module, "FOLDER", folder)
        monkeypatch.setattr(revisions_module, "VERSIONS", folder / "versions")

    return add


def test_the_migrated_schema_equals_the_tables_of_the_code(database_url: str) -> None:
    with connected(database_url) as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        found = compare_metadata(context, metadata)
    assert [
        each for each in found if not (isinstance(each, list) and all(map(serves_an_older_release, each)))
    ] == []


def serves_an_older_release(difference: tuple[Any, ...]) -> bool:
    """Whether the database has a default that the code does not need: the older one does not write the column."""
    kind, *_, wanted = difference
    return kind == "modify_default" and wanted is None


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
    with psycopg.connect(empty_url) as connection:
        assert schema_of(connection) == (REVISIONS[-1], "1000")
    assert pending(empty_url) == ()
    assert migrate(empty_url) == MigrationReport(before=REVISIONS[-1], after=REVISIONS[-1], applied=())


def test_a_later_revision_changes_tables_with_their_rows(
    database_url: str, add_revision: Callable[[str], None]
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("insert into sign_ins values ('a@b.c', 1, now(), '{}')")
    add_revision("update sign_ins set note = 'kept'")
    assert pending(database_url) == ("1040",)
    assert is_migrated(database_url) is False
    assert migrate(database_url) == MigrationReport(before=REVISIONS[-1], after="1040", applied=("1040",))
    with psycopg.connect(database_url) as connection:
        # Processes of the release before it may go on.
        assert schema_of(connection) == ("1040", "1000")
        assert connection.execute("select key, note from sign_ins").fetchall() == [("a@b.c", "kept")]
    assert migrate(database_url).applied == ()


def test_a_migration_that_fails_changes_nothing(database_url: str, add_revision: Callable[[str], None]) -> None:
    add_revision("select 1 / 0")
    with pytest.raises(DBAPIError, match="division by zero"):
        migrate(database_url)
    assert pending(database_url) == ("1040",)
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.errors.UndefinedColumn):
        connection.execute("select note from sign_ins")


def test_a_migration_is_refused_while_a_table_is_read(
    database_url: str, add_revision: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_revision("select")
    monkeypatch.setattr(migrate_module, "DDL_LOCK_S", 0.05)
    with psycopg.connect(database_url) as backup:
        backup.execute("select from sign_ins")
        with pytest.raises(MigrationBlocked, match="such as a backup"):
            migrate(database_url)
    assert pending(database_url) == ("1040",)


def until_blocked(connection: psycopg.Connection[Any], pid: int | None = None) -> None:
    """Wait until a session waits for a lock: that of a process id, or a migration's."""
    name = "application_name = 'holdfast migrate'" if pid is None else f"pid = {pid}"
    sql = f"select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and {name}"
    ends = time.monotonic() + 60
    while connection.execute(sql).fetchone() is None:
        connection.commit()
        assert time.monotonic() < ends


def test_a_migration_lets_the_journals_batches_end_before_it_locks_more(
    database_url: str, add_revision: Callable[[str], None]
) -> None:
    add_revision("do $$ begin create index on operations (at); alter table accounts add note text; end $$")
    with (
        psycopg.connect(database_url) as batch,
        psycopg.connect(database_url) as watcher,
        ThreadPoolExecutor() as threads,
    ):
        batch.execute("select from accounts for no key update")
        migrated = threads.submit(migrate, database_url)
        until_blocked(watcher)
        batch.execute("lock table operations in row exclusive mode nowait")
        batch.commit()
        assert migrated.result().applied == ("1040",)


def test_a_migration_is_repeated_after_a_deadlock(
    database_url: str, add_revision: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_revision("do $$ begin perform pg_advisory_xact_lock(7); alter table webhooks add note text; end $$")
    with (
        psycopg.connect(database_url) as reader,
        psycopg.connect(database_url) as watcher,
        ThreadPoolExecutor() as threads,
    ):
        # The migration is the one to end, then and each time.
        reader.execute("set deadlock_timeout = '1h'")
        for deadlocks_max, expected in ((1, None), (5, ("1040",))):
            monkeypatch.setattr(migrate_module, "DEADLOCKS_MAX", deadlocks_max)
            reader.execute("select from webhooks")
            watcher.execute("select pg_advisory_lock(7)")
            migrated = threads.submit(migrate, database_url)
            until_blocked(watcher)
            read = threads.submit(reader.execute, "select from sign_ins")
            until_blocked(watcher, reader.info.backend_pid)
            watcher.execute("select pg_advisory_unlock(7)")
            watcher.commit()
            read.result()
            reader.commit()
            if expected is None:
                with pytest.raises(MigrationBlocked, match="another order"):
                    migrated.result()
            else:
                assert migrated.result().applied == expected


def test_revisions_are_named_and_ordered_as_alembic_applies_them() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert installed_revisions() == tuple(script.revision for script in scripts.walk_revisions())[::-1] == REVISIONS


def test_only_a_database_at_the_newest_revision_is_migrated(empty_url: str) -> None:
    assert is_migrated("postgresql://absent@127.0.0.1:1/nothing") is None
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


def test_a_start_waits_for_the_migration_of_another_process_and_says_whose(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate_module, "LOCK_WAIT_S", 0.05)
    reports: list[MigrationReport] = []
    waiter = threading.Thread(target=lambda: reports.append(migrate(empty_url)))
    with structlog.testing.capture_logs() as lines, psycopg.connect(empty_url, application_name="other") as other:
        other.execute("select pg_advisory_xact_lock(%s)", (migrate_module.LOCK_KEY,))
        waiter.start()
        pid = other.info.backend_pid
        while len(lines) < 2 and waiter.is_alive():
            waiter.join(0.01)
        other.rollback()
        waiter.join()
    assert reports == [MigrationReport(before=None, after=REVISIONS[-1], applied=REVISIONS)]
    assert lines[0]["event"] == "waiting for the migration of another process"
    assert lines[0]["for_s"] >= 0
    holder = lines[0]["backend"]
    assert (holder["pid"], holder["application_name"]) == (pid, "other")
    assert holder["state"] == "idle in transaction"


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (signal.SIGKILL, "connection.exec_driver_sql('select pg_sleep(3600)')"),
        # A client that is frozen between two statements, with a shorter limit than an hour's sleep.
        (signal.SIGSTOP, "time.sleep(3600)"),
    ],
)
def test_a_process_that_dies_or_freezes_in_a_migration_holds_no_lock(
    empty_url: str, number: signal.Signals, step: str
) -> None:
    program = (
        "import sys, time\n"
        "from holdfast.persistence.server import migrate, upgrade\n"
        "def slow(connection, revision):\n"
        "    print('migrating', flush=True)\n"
        f"    {step}\n"
        "upgrade.upgrade = slow\n"
        "assert '60s' in migrate._CLIENT_MUST_LIVE\n"
        "migrate._CLIENT_MUST_LIVE = migrate._CLIENT_MUST_LIVE.replace('60s', '1s')\n"
        "migrate.migrate(sys.argv[1])\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, empty_url], stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == b"migrating\n"
            first.send_signal(number)
            assert migrate(empty_url).applied == REVISIONS
        finally:
            first.kill()


def test_a_database_of_a_newer_release_is_refused(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    with pytest.raises(MigrationRefused, match="9999"):
        migrate(database_url)


@pytest.mark.parametrize("revision", ["0001", "0140"])
def test_a_database_of_before_the_first_release_is_refused_in_one_line(database_url: str, revision: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = %s", (revision,))
    with pytest.raises(
        MigrationRefused, match=f"{revision}, of before the first release, .* [0-9a-f]{{40}}"
    ) as refused:
        migrate(database_url)
    assert "\n" not in str(refused.value)
    assert is_migrated(database_url) is False


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
