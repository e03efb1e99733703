"""What every room's tests may use: a real PostgreSQL for the session and a fresh database for each test.

Where tests run in several workers, each worker has a session of its own, and a module's tests stay together.
"""

from __future__ import annotations

import functools
import gc
import inspect
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog
import trio
from greenlet import enable_optional_cleanup  # type: ignore[attr-defined]  # the stubs lack it
from hypothesis import HealthCheck, settings
from trio.testing import MockClock

from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.telemetry import logs

from .bucket_server import BucketServer, bucket_server
from .fresh_databases import FreshDatabases
from .persistence.account_history import write_books

WORKERS_PER_CORE = 2
"""Most journeys wait more than they compute."""
WORKERS_MAX = 8
TEST_S = 120.0
"""How long an asynchronous test may take; journeys and tests with a virtual clock have bounds of their own."""
FOREIGN = ("HOLDFAST_", "LISTEN_", "NOTIFY_", "OTEL_", "PG")
"""Variables that begin so change how the service or a library runs."""

settings.register_profile(
    "suite", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


def pytest_configure() -> None:
    """Run alike for everybody: without the settings, proxies, file mode and signals of who starts the tests."""
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name.lower().endswith("_proxy"):
            del os.environ[name]
    # Else every worker rewrites the assertions of every module, and each process of the service compiles all of it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.umask(0o022)
    # A shell's background job ignores interrupts, and so would the commands that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # After the end of a thread whose greenlets are still referred to, greenlet searches all objects for it, from
    # whatever function this thread runs, and imports gc there. That fails where a function has no __import__, as
    # the constructor of a named tuple has none, and the test that runs then fails with it.
    enable_optional_cleanup(False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many workers ``-n auto`` means here: no more than modules were named, and none for a single one."""
    workers = min(WORKERS_MAX, WORKERS_PER_CORE * len(os.sched_getaffinity(0)))
    named = {word.partition("::")[0] for word in config.args}
    if all(word.endswith(".py") for word in named):
        workers = min(workers, len(named))
    return workers if workers > 1 else 0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without searching for cycles, and search none of the modules and items afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bound each test; in a worker, put first what takes long, so that no worker is left with it alone."""
    for item in items:
        is_journey = item.path.parent.name == "journeys"
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj) and not is_journey:
            item.obj = _bounded(item.obj)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parent.name != "journeys")


def _bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def run(**fixtures: object) -> None:
        has_real_time = not isinstance(trio.lowlevel.current_clock(), MockClock)
        with trio.fail_after(TEST_S if has_real_time else math.inf):
            await test(**fixtures)

    return run


@pytest.fixture(autouse=True)
def default_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Log every level, as in a new process: a command that ran in this one has left a stream that is closed by now.

    Tracebacks are plain: one with the variables of each frame takes seconds.
    """
    monkeypatch.setattr(logs, "_lines", logs._Lines())
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure([*structlog.get_config()["processors"][:-1], renderer])
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server of this session's own; the URL of its ``holdfast`` database, which is empty.

    It runs without fsync: nothing here outlives the session. It runs without autovacuum: a test that reads plans
    has the statistics that it made, whenever it runs.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="holdfast-tests-"))
    unsafe_but_fast = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    server = EmbeddedPostgres(data_dir, settings={**unsafe_but_fast, "autovacuum": "off"})
    try:
        url = server.start()
        yield url
    finally:
        server.stop()
        server.release()
        shutil.rmtree(data_dir)


@pytest.fixture(scope="session")
def fresh_databases(postgres_url: str) -> Iterator[FreshDatabases]:
    """The session's databases."""
    with closing(FreshDatabases(postgres_url)) as databases:
        yield databases


@pytest.fixture
def database_url(fresh_databases: FreshDatabases) -> Iterator[str]:
    """A migrated, empty database."""
    url = fresh_databases.take()
    try:
        yield url
    finally:
        fresh_databases.give_back(url)


@pytest.fixture
def books_url(database_url: str) -> str:
    """A database with a valid history: to write it takes a third of what a copy of its files does."""
    with connected(database_url) as connection:
        write_books(connection)
    return database_url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A database whose gate is open; its watcher does not run."""
    database = Database(database_url)
    await database.open()
    yield database
    database.close()


@pytest.fixture(scope="session")
def bucket() -> Iterator[BucketServer]:
    """A bucket at a server of this session; tests find their objects by content hash."""
    with bucket_server() as found:
        yield found
