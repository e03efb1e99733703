"""What every room's tests may use: a real PostgreSQL for the session and a fresh database for each test."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from holdfast.persistence.database import Database
from holdfast.persistence.embedded import EmbeddedPostgres
from holdfast.persistence.migrate import migrate

TEMPLATE = "holdfast_template"


def on_database(url: str, name: str) -> str:
    """The same server's URL for another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server of this session's own, holding a migrated template database; the URL of its ``holdfast`` database.

    It runs without fsync: nothing here outlives the session.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="holdfast-tests-"))
    unsafe_but_fast = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    server = EmbeddedPostgres(data_dir, settings=unsafe_but_fast)
    try:
        url = server.start()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create database {TEMPLATE}")
        migrate(on_database(url, TEMPLATE))
        yield url
    finally:
        server.stop()
        server.release()
        shutil.rmtree(data_dir)


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """A fresh, migrated, empty database; dropped afterwards, whoever is still connected."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name} template {TEMPLATE}")
    try:
        yield on_database(postgres_url, name)
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"drop database {name} with (force)")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A database whose gate is open; its watcher does not run."""
    database = Database(database_url)
    await database.open()
    yield database
    database.close()
