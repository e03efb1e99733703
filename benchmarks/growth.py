"""What grows with the books: every cost with many operations, beside the same with few, in one run.

Two databases on one server hold books of the same shape (:mod:`benchmarks.books`): a tenth of all operations is one
account's, the others have a hundred each. One service runs on each, and requests go to both in turn. Printed
are medians over HTTP, so that a ratio compares what a caller feels: creating a task, reading one, first and last
page of the largest account's tasks and usage, first page of its statement, the first create of an account that
has not been used since the start; then the time from the start to ready with open tasks whose process was killed,
the audit's operations a second, and the disk a task.

Run: python -m benchmarks.growth [--operations 10000000] [--small 10000] [--open 10000] [--samples 200]
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg

from benchmarks.books import GROUP, Key, Share, build, write_share
from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.servers import BODY, CATALOG, SCHEMA, SECRET, SERVE, free_port, process
from benchmarks.whole import SLOTS
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.pricing import PricedInput, quote_input
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.migrate import migrate
from holdfast.providers.media.kinds import kind_rules

PAGE = 100
COLD_MAX = 80


@dataclass
class Books:
    """One database with its books, the service that serves it, and the seconds measured, by name."""

    name: str
    url: str
    work: PricedInput
    keys: list[Key]
    catalog: Path
    operations: int = 0
    tasks: int = 0
    size_bytes: int = 0
    port: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    _turn: int = 0
    _http: http.client.HTTPConnection | None = None

    @contextmanager
    def served(self, folder: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a service on these books; yields its process once it is ready."""
        self.port = free_port()
        data = folder / self.name
        data.mkdir(exist_ok=True)
        settings = self.settings(data) | environment
        with process(SERVE, f"http://127.0.0.1:{self.port}/readyz", settings) as server:
            self._http = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            yield server
            self._http.close()

    def settings(self, data: Path) -> dict[str, str]:
        """Return the environment of this service."""
        return {
            "HOLDFAST_DATA_DIR": str(data),
            "HOLDFAST_DATABASE_URL": self.url,
            "HOLDFAST_PORT": str(self.port),
            "HOLDFAST_CATALOG": str(self.catalog),
            "HOLDFAST_TASKS_IN_FLIGHT_MAX": "1000000",
        }

    def call(self, method: str, path: str, credential: str, body: bytes | None = None) -> Any:
        """Send one request on the persistent connection and return the parsed body."""
        assert self._http is not None
        headers = {"Authorization": f"Bearer {credential}", "Content-Type": "application/json"}
        self._http.request(method, path, body=body, headers=headers)
        response = self._http.getresponse()
        content = response.read()
        assert response.status == 200, (path, response.status, content)
        return msgspec.json.decode(content)

    def time(self, name: str, action: Callable[[], object]) -> None:
        """Record the seconds that ``action`` takes under ``name``."""
        begun = time.perf_counter()
        action()
        self.seconds.setdefault(name, []).append(time.perf_counter() - begun)

    def next_key(self) -> Key:
        """Return the key of another account than the last call did."""
        self._turn += 1
        return self.keys[self._turn * 7919 % len(self.keys)]

    def hang_up(self) -> None:
        """Close the connection; the next call opens another."""
        assert self._http is not None
        self._http.close()

    def create(self, key: Key) -> Any:
        """Create a task."""
        return self.call("POST", "/v2/task/create", key.secret, BODY)

    def last_page(self, path: str, credential: str) -> str:
        """Walk a list to its end; return the path of its last page."""
        page, last = f"{path}?limit={PAGE}", f"{path}?limit={PAGE}"
        while True:
            cursor = self.call("GET", page, credential)["next_cursor"]
            if cursor is None:
                return last
            page = last = f"{path}?limit={PAGE}&cursor={cursor}"


def measure(books: Books, samples: int) -> list[Callable[[], None]]:
    """Return ``samples`` times every measurement of running books, each to be called in turn with the other's."""
    largest = books.keys[0]
    task = books.call("GET", "/v2/task/list?limit=1", largest.secret)["data"][0]["request_id"]
    pages = {
        "tasks, first page": (f"/v2/task/list?limit={PAGE}", largest.secret),
        "tasks, last page": (books.last_page("/v2/task/list", largest.secret), largest.secret),
        "usage, first page": (f"/v2/usage/logs?limit={PAGE}", largest.token),
        "usage, last page": (books.last_page("/v2/usage/logs", largest.token), largest.token),
        "usage totals, by day and model": ("/v2/usage/totals?group_by=day,model", largest.token),
        "usage totals, by day in New York": (
            "/v2/usage/totals?group_by=day,api_key_id&time_zone=America/New_York",
            largest.token,
        ),
        "statement, first page": (f"/v2/control/ledger?limit={PAGE}", largest.token),
        "statement, last page": (books.last_page("/v2/control/ledger", largest.token), largest.token),
        "read a task": (f"/v2/task/{task}", largest.secret),
    }

    def one_of(name: str, path: str, credential: str) -> Callable[[], None]:
        return lambda: books.time(name, lambda: books.call("GET", path, credential))

    reads = [one_of(name, *where) for name, where in pages.items()]
    creates: list[Callable[[], None]] = [
        lambda: books.time("create a task", lambda: books.create(largest)),
    ]
    return (creates + reads) * samples


def activate(books: Books, samples: int) -> list[Callable[[], None]]:
    """Return first creates of accounts that have not been used since the start."""
    return [
        lambda: books.time("create, account not active", lambda: books.create(books.next_key()))
        for _ in range(min(samples, COLD_MAX))
    ]


def audit_s(books: Books) -> float:
    """Audit the books; return the seconds."""
    with connected(books.url) as connection:
        begun = time.perf_counter()
        found = run_audit(connection)
        took_s = time.perf_counter() - begun
    assert not found, found
    return took_s


def report(name: str, small: float, large: float, unit: str) -> None:
    """Print one cost of both, and its ratio."""
    print(f"{name:32} {small:10.2f} -> {large:10.2f} {unit:6} ratio {large / small:.2f}", flush=True)
    print_figures({f"{name}, small": small, f"{name}, large": large, f"{name}, ratio": large / small})


def write(name: str, server: str, catalog: Path, operations: int, processes: int) -> Books:
    """Create a database on ``server`` and write its books."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    migrate(url)
    loaded = load_catalog(catalog, kind_rules())
    work = quote_input(loaded, "gpu/image-1", msgspec.json.decode(BODY)["input"])
    assert isinstance(work, PricedInput)
    begun = time.perf_counter()
    keys = build(url, work, operations, processes=processes)
    took_s = time.perf_counter() - begun
    books = Books(name, url, work, keys, catalog)
    with psycopg.connect(url) as rows:
        books.operations, books.tasks, books.size_bytes = rows.execute(
            "select (select count(*) from operations), (select count(*) from tasks), "
            "pg_database_size(current_database())"
        ).fetchone() or (0, 0, 0)
    print(
        f"{name}: {books.operations:,} operations, {books.tasks:,} tasks, {len(keys):,} accounts, "
        f"{books.size_bytes / 1e6:,.0f} MB, written in {took_s:.0f} s",
        flush=True,
    )
    return books


def main() -> None:
    """Write both books, measure both in turn, and print every ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000_000)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    with fresh_database() as (server, root), tempfile.TemporaryDirectory(prefix="holdfast-growth-") as scratch:
        folder = Path(scratch)
        print(describe(root, options), flush=True)
        catalog = folder / "catalog.toml"
        catalog.write_text(CATALOG.format(url=f"http://127.0.0.1:{free_port()}", secret=SECRET, slots=SLOTS))
        catalog.with_name("prompt.json").write_text(SCHEMA)
        small = write("small", server, catalog, options.small, 1)
        large = write("large", server, catalog, options.operations, options.processes)
        for plan in (activate, measure):
            with small.served(folder), large.served(folder):
                for books in (small, large):
                    books.create(books.keys[0])
                plans = [plan(books, options.samples) for books in (small, large)]
                # One was idle while the other's last pages were found.
                small.hang_up()
                large.hang_up()
                for pair in zip(*plans, strict=True):
                    # Neither is always the one beside which the other's task is still submitted.
                    for action in random.sample(pair, 2):
                        action()
        for books in (small, large):
            for open_tasks in (0, options.open):
                write_share(Share(books.url, books.work, (GROUP,), open_tasks))
                begun = time.perf_counter()
                with books.served(folder):
                    books.seconds[f"start to ready, {open_tasks:,} open"] = [time.perf_counter() - begun]
        for name in small.seconds:
            each_ms = [statistics.median(books.seconds[name]) * 1e3 for books in (small, large)]
            report(name, each_ms[0], each_ms[1], "ms")
        for books, rounds in ((small, 3), (large, 1)):
            books.seconds["audit"] = [audit_s(books) for _ in range(rounds)]
        report(
            "audit, per operation",
            statistics.median(small.seconds["audit"]) / small.operations * 1e6,
            statistics.median(large.seconds["audit"]) / large.operations * 1e6,
            "us",
        )
        report("disk a task", small.size_bytes / small.tasks, large.size_bytes / large.tasks, "bytes")


if __name__ == "__main__":
    main()
