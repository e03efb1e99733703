"""The parent migrates by a process of its own, and only a database that needs it."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest
import trio

from holdfast.exit_codes import CLEAN, GAVE_UP
from holdfast.listening import Sockets
from holdfast.parent.parent import Parent
from holdfast.persistence.server.revisions import is_migrated
from holdfast.settings import load_settings


@pytest.fixture
def parent(database_url: str, tmp_path: Path) -> Parent:
    given = {"HOLDFAST_DATA_DIR": str(tmp_path), "HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_PROCESSES": "1"}
    return Parent(load_settings(given), Sockets((), (), is_ours=True), None, str(tmp_path), {**os.environ, **given})


async def test_a_migrated_database_needs_no_process(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError("no process was needed")

    monkeypatch.setattr(trio, "run_process", refuse)
    assert await parent._migrate() == CLEAN


async def test_a_process_migrates_what_is_not_up_to_date(parent: Parent, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    assert await parent._migrate() == CLEAN
    assert is_migrated(database_url)


async def test_a_process_that_cannot_be_started_is_a_failure(
    parent: Parent, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = '0001'")

    async def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(trio, "run_process", refuse)
    assert await parent._migrate() == GAVE_UP
