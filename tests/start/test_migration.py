"""The parent migrates by a process of its own, and only a database that needs it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import trio
from tests.fresh_databases import drop_tables
from trio.testing import MockClock

from holdfast.persistence.server import migrate as migrate_module
from holdfast.persistence.server.revisions import is_migrated
from holdfast.settings.settings import load_settings
from holdfast.sockets.emulator_sockets import EmulatorSockets
from holdfast.sockets.listening import SlotSockets, Sockets
from holdfast.start.children import migration
from holdfast.start.exit_codes import BAD_CONFIGURATION, CLEAN, GAVE_UP
from holdfast.start.parent.parent import Parent

from .fake_processes import FakeProcess, FakeStarter


@pytest.fixture
def parent(database_url: str, tmp_path: Path) -> Iterator[Parent]:
    given = {"HOLDFAST_DATA_DIR": str(tmp_path), "HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_PROCESSES": "1"}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Parent(
            load_settings(given),
            sockets=Sockets({0: SlotSockets(listening)}, is_shared=False),
            emulators=EmulatorSockets(),
            embedded=None,
            metrics_dir=str(tmp_path),
            variables={**os.environ, **given},
        )


async def test_a_migrated_database_needs_no_process(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError("no process was needed")

    monkeypatch.setattr(trio, "run_process", refuse)
    assert await parent._migrate() == CLEAN


async def test_a_process_migrates_what_is_not_up_to_date(parent: Parent, database_url: str) -> None:
    drop_tables(database_url)
    assert await parent._migrate() == CLEAN
    assert is_migrated(database_url)


async def test_a_database_of_before_the_first_release_is_not_tried_again(
    parent: Parent, database_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = '0140'")
    assert await parent._migrate() == BAD_CONFIGURATION
    assert "before the first release" in capfd.readouterr().err


def test_a_migration_that_other_sessions_block_may_be_started_again(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drop_tables(database_url)
    monkeypatch.setattr(migrate_module, "DDL_LOCK_S", 0.05)
    monkeypatch.setenv("HOLDFAST_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database_url)
    with psycopg.connect(database_url) as other:
        other.execute("create table accounts (id text)")
        assert migration.main() == GAVE_UP
    assert "Another session" in capsys.readouterr().err


async def test_a_process_that_cannot_be_started_is_a_failure(
    parent: Parent, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = '0001'")

    async def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(trio, "run_process", refuse)
    assert await parent._migrate() == GAVE_UP


async def test_a_migration_before_a_worker_is_not_cut_short(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    starter, migrations = FakeStarter(), [CLEAN]

    async def is_old() -> bool:
        await trio.lowlevel.checkpoint()
        return False

    async def migrate() -> int:
        await trio.sleep(7200)
        return migrations.pop()

    async def start(*_arguments: object, **_options: object) -> FakeProcess:
        return await starter.start(0)

    monkeypatch.setattr(parent, "_is_migrated", is_old)
    monkeypatch.setattr(parent, "_migrate", migrate)
    monkeypatch.setattr("holdfast.start.parent.parent.start_process", start)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parent._tree.run)
        await trio.sleep(7201)
        assert len(starter.started) == 1
        starter.of(0).be_ready()
        await parent._tree.wait_ready()
        await parent._tree.stop()


async def test_a_worker_is_not_started_on_older_tables(
    parent: Parent, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    with pytest.raises(OSError, match="not migrated"):
        await parent._start_worker(0)


async def test_a_worker_is_started_while_the_database_is_away(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent, "_database_url", "postgresql://absent@127.0.0.1:1/nothing")
    started: list[str] = []

    async def start(module: str, *_arguments: object, **_options: object) -> None:
        started.append(module)

    monkeypatch.setattr("holdfast.start.parent.parent.start_process", start)
    await parent._start_worker(0)
    assert started == ["holdfast.start.children.worker"]
