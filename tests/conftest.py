"""What every room's tests may use: a real PostgreSQL for the session and a fresh database for each test.

Where tests run in several workers, each has a session of its own. Tests that share a running service then go to
one worker, all tests of a module to one, and each journey with services of its own wherever there is room; what
takes long goes first.
"""

from __future__ import annotations

import os
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

from .bucket_server import BucketServer, bucket_server

TEMPLATE = "holdfast_template"
WORKERS_PER_CORE = 2
"""Most journeys wait more than they compute."""
WORKERS_MAX = 8
SHARED_SERVICE = "house"
"""How the names of session fixtures end that are a running service, and cost seconds to start."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many workers ``-n auto`` means here; none where a single test was asked for."""
    if any("::" in word for word in config.args):
        return 0
    return min(WORKERS_MAX, WORKERS_PER_CORE * len(os.sched_getaffinity(0)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker: say which tests must stay together, and put first what takes long."""
    if not hasattr(config, "workerinput"):
        return
    ranks: dict[pytest.Item, int] = {}
    for item in items:
        shared = [name for name in getattr(item, "fixturenames", ()) if name.endswith(SHARED_SERVICE)]
        is_journey = item.path.parent.name == "journeys"
        ranks[item] = 0 if shared else 1 if is_journey else 2
        if item.get_closest_marker("xdist_group") is None and (shared or not is_journey):
            item.add_marker(pytest.mark.xdist_group(shared[0] if shared else item.path.stem))
    items.sort(key=ranks.__getitem__)


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


@pytest.fixture(scope="session")
def bucket() -> Iterator[BucketServer]:
    """A bucket behind a server of this session's own; what a test puts there it finds by its own content's hash."""
    with bucket_server() as found:
        yield found
