"""Three cells beside one: CPU of a create, and latencies of a cell while something happens to another.

Each cell has a service process, a PostgreSQL and a load client of its own, and is offered creates at a rate far
below its limit. Cells stand for machines, so the first one, which is watched, has one core and the disk for itself.
The other two, and whatever happens to them, share a second core, and their databases are in memory.

What a create costs depends on how many are committed together. So for the CPU each cell has one connection, which
makes nearly each create a commit; the creates a flush are shown. CPU is that of the service's threads, and that of
PostgreSQL's processes, with the first cell alone and with all three in turn. Then creates come at random moments,
the same in each window, on many connections, and the latencies of the first cell are compared while

- an account of the second cell with ``--tasks`` tasks is moved to the third and back by the command;
- the second is killed, and its requests arrive at the other two, as through a proxy;
- it starts again, with no requests yet.

In each round there are two windows in which nothing happens; the ratio of both is the noise. Each figure is the
median over the rounds.

Run: python -m benchmarks cells [--rate 100] [--seconds 6] [--rounds 6] [--connections 24] [--accounts 60]
     [--tasks 1000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import httpx2
import psycopg

from benchmarks import load
from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.idle import family_of, running_s
from benchmarks.servers import (
    SERVE,
    api_keys,
    creates,
    environment_without_settings,
    free_port,
    owners,
    process,
    service_settings,
    silent_provider,
)
from holdfast.ledger.values import place_carried_by

PLACES = (range(0x556), range(0x556, 0xAAB), range(0xAAB, 0x1000))
MEMORY = Path("/dev/shm")
CORES = (0, 1, 1)
"""The core of each cell."""
DISKS = (None, MEMORY, MEMORY)
"""The folder of each cell's PostgreSQL, None for that of temporary files."""
SHARED = ("SERVER_KEY", "CALLBACK_SECRET", "SANDBOX_SECRET", "OPERATOR_TOKEN")
CHECKSUM_CHARS = 6
"""The end of an API key, after its place."""
USUAL = "nothing happens"


@dataclass
class Cell:
    """One cell: its settings, also as a file, its PostgreSQL, requests of its accounts, and its last process."""

    port: int
    core: int
    settings: dict[str, str]
    file: Path
    postmaster: int
    process: subprocess.Popen[bytes]
    requests: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it is called."""
        return f"http://127.0.0.1:{self.port}"

    def cpu_s(self) -> tuple[float, float]:
        """Return how long its service has run, and how long its PostgreSQL."""
        service, database = (
            sum(running_s(pid) for pid in family_of(first)) for first in (self.process.pid, self.postmaster)
        )
        return service, database


class Cost(NamedTuple):
    """What a create costs a cell: CPU of its service and of its PostgreSQL; and how many are flushed together."""

    service_us: float
    database_us: float
    flushed_together: float

    def __str__(self) -> str:
        return f"{self.service_us:,.0f} + {self.database_us:,.0f} us at {self.flushed_together:.2f} a flush"


class Window(NamedTuple):
    """What the watched cell shows in one window: latencies, and the mean flush of its log in milliseconds."""

    p50_ms: float
    p99_ms: float
    flush_ms: float


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Have what this thread starts run on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def write_cells(folder: Path, ports: Sequence[int]) -> Path:
    """Write the list of the cells."""
    file = folder / "cells.toml"
    lines = []
    for number, (places, port) in enumerate(zip(PLACES, ports, strict=True), 1):
        shown, url = f"{places.start:03x}-{places.stop - 1:03x}", f"http://127.0.0.1:{port}"
        lines.append(f'[[cell]]\nnumber = {number}\nplaces = "{shown}"\nemails = "{shown}"\n')
        lines.append(f'url = "{url}"\noperators_url = "{url}"\n')
    file.write_text("".join(lines))
    return file


@contextmanager
def running_cells(folder: Path, provider_url: str, options: argparse.Namespace) -> Iterator[list[Cell]]:
    """Print the conditions, and run the cells with their accounts."""
    ports = [free_port() for _ in PLACES]
    listed = write_cells(folder, ports)
    cells = []
    with ExitStack() as stack:
        for number, (port, core, disk) in enumerate(zip(ports, CORES, DISKS, strict=True), 1):
            own = folder / f"cell-{number}"
            own.mkdir()
            with on_core(core):
                database_url, database = stack.enter_context(fresh_database(disk))
                settings = service_settings(
                    own, database_url=database_url, port=port, provider_url=provider_url, slots=1
                )
                settings |= {
                    "HOLDFAST_CELL": str(number),
                    "HOLDFAST_CELLS": str(listed),
                    "HOLDFAST_RECEIPT_PREFIX": f"C{number}-",
                    **{f"HOLDFAST_{name}": f"the-{name.lower()}-of-the-benchmark-0123456789" for name in SHARED},
                }
                started = stack.enter_context(process(SERVE, f"http://127.0.0.1:{port}/readyz", settings))
            file = own / "settings.env"
            file.touch(0o600)
            file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            postmaster = int(next(database.rglob("postmaster.pid")).read_text().split()[0])
            cells.append(Cell(port, core, settings, file, postmaster, started))
            if number == 1:
                print(describe(database, options), flush=True)
        for key in api_keys(cells[0].url, options.accounts):
            cells[cell_of(key)].requests += creates([key])
        yield cells


def cell_of(key: str) -> int:
    """Return the index of the cell that has a key's account."""
    place = place_carried_by(key[:-CHECKSUM_CHARS])
    return next(number for number, places in enumerate(PLACES) if place in places)


def offer_on_core(
    core: int, ports: Sequence[int], requests: Sequence[bytes], connections: int, options: argparse.Namespace
) -> load.Result:
    """Load servers from one core. For a process of its own."""
    os.sched_setaffinity(0, {core})
    return load.offer(ports, requests, rate=options.rate, connections=connections, seconds=options.seconds)


class Loads:
    """The load clients."""

    def __init__(self, clients: ProcessPoolExecutor, options: argparse.Namespace) -> None:
        self._clients = clients
        self._options = options

    def offer(
        self,
        cells: Sequence[Cell],
        connections: int,
        away: Cell | None = None,
        event: Callable[[], object] = lambda: None,
    ) -> list[load.Result]:
        """Load cells while something happens; the requests of one that is ``away`` arrive at the others."""
        present = [cell.port for cell in cells if cell is not away]
        offered = []
        for cell in cells:
            ports = present if cell is away else [cell.port]
            given = (cell.core, ports, cell.requests, connections, self._options)
            offered.append(self._clients.submit(offer_on_core, *given))
        event()
        results = [each.result() for each in offered]
        for cell, result in zip(cells, results, strict=True):
            assert set(result.statuses) <= ({200, 503} if cell is away else {200}), result.statuses
        return results


def flushes(cell: Cell) -> tuple[int, float]:
    """Return how often a cell's PostgreSQL has flushed its log, and how many milliseconds that took."""
    with psycopg.connect(cell.settings["HOLDFAST_DATABASE_URL"], autocommit=True) as rows:
        found = rows.execute(
            "select sum(fsyncs), sum(fsync_time) from pg_stat_io where object = 'wal' and context = 'normal'"
        ).fetchone()
    assert found is not None
    return int(found[0]), float(found[1])


def costs(cells: Sequence[Cell], loads: Loads) -> list[Cost]:
    """Load cells; return what a create costs in each."""
    before = [(*cell.cpu_s(), flushes(cell)[0]) for cell in cells]
    results = loads.offer(cells, connections=1)
    after = [(*cell.cpu_s(), flushes(cell)[0]) for cell in cells]
    found = []
    for was, now, result in zip(before, after, results, strict=True):
        created = len(result.latencies_s)
        service_s, database_s, flushed = (new - old for old, new in zip(was, now, strict=True))
        found.append(Cost(service_s / created * 1e6, database_s / created * 1e6, created / flushed))
    return found


def compare_costs(cells: Sequence[Cell], loads: Loads, options: argparse.Namespace) -> None:
    """Load the first cell alone and all together in turn, and print the ratios."""
    sides = [cells[:1], cells]
    rounds: list[tuple[Cost, list[Cost]]] = []
    for number in range(options.rounds + 1):
        sides.reverse()
        found = {len(side): costs(side, loads) for side in sides}
        [alone], every = found[1], found[len(cells)]
        shown = ", ".join(f"{name} {cost}" for name, cost in zip(("first", "second", "third"), every, strict=True))
        print(f"the first cell alone {alone}; all: {shown}" + ("" if number else " (warm-up)"), flush=True)
        if number:
            rounds.append((alone, every))
    figures = {}
    for part, name in enumerate(("CPU us", "PostgreSQL us", "creates a flush")):
        figures[f"{name}, alone"] = statistics.median(alone[part] for alone, _ in rounds)
        figures[f"{name}, beside two over alone"] = statistics.median(
            every[0][part] / alone[part] for alone, every in rounds
        )
        figures[f"{name}, all three over alone"] = statistics.median(
            statistics.mean(each[part] for each in every) / alone[part] for alone, every in rounds
        )
    print_medians(f"each cell is offered {options.rate:.0f} creates a second on one connection", figures)


def compare_latencies(cells: Sequence[Cell], loads: Loads, options: argparse.Namespace) -> None:
    """Let things happen to the second cell, and print the latencies of the first beside its usual ones."""
    watched, second, third = cells
    account_id = account_with_tasks(second, options.tasks)
    rounds: list[dict[str, Window]] = []

    def move() -> None:
        for source, target in ((second, third), (third, second)):
            command = [sys.executable, "-m", "holdfast", "--env-file", str(source.file)]
            command += ["move-account", account_id, "--to", str(target.file)]
            subprocess.run(command, env=environment_without_settings(), stdout=subprocess.DEVNULL, check=True)

    def kill() -> None:
        second.process.kill()
        second.process.wait()

    with ExitStack() as started:

        def start() -> None:
            second.process = started.enter_context(process(SERVE, f"{second.url}/readyz", second.settings))

        def window(
            event: Callable[[], object] = lambda: None,
            away: Cell | None = None,
            loaded: Sequence[Cell] = cells,
        ) -> Window:
            before = flushes(watched)
            with on_core(second.core):
                latencies_s = loads.offer(loaded, options.connections, away, event)[0].latencies_s
            after = flushes(watched)
            p50_ms, p99_ms = (latencies_s[int(len(latencies_s) * share)] * 1e3 for share in (0.5, 0.99))
            return Window(p50_ms, p99_ms, (after[1] - before[1]) / (after[0] - before[0]))

        for number in range(options.rounds + 1):
            found = {
                USUAL: window(),
                "an account moves": window(move),
                "nothing happens again": window(),
                "a cell is killed": window(kill, second),
                "it starts": window(start, loaded=[watched, third]),
            }
            for name, each in found.items():
                print(
                    f"while {name}: median {each.p50_ms:.2f} ms, p99 {each.p99_ms:.2f} ms, "
                    f"flush {each.flush_ms:.3f} ms" + ("" if number else " (warm-up)"),
                    flush=True,
                )
            if number:
                rounds.append(found)
    figures: dict[str, float] = {}
    for name in rounds[0]:
        figures[f"flush ms while {name}"] = statistics.median(found[name].flush_ms for found in rounds)
        for part, shown in enumerate(("median", "p99")):
            figures[f"{shown} ms while {name}"] = statistics.median(found[name][part] for found in rounds)
            if name != USUAL:
                figures[f"{shown} while {name}, over usual"] = statistics.median(
                    found[name][part] / found[USUAL][part] for found in rounds
                )
    print_medians("the first cell has a core and the disk for itself, all else shares the other core", figures)


def print_medians(condition: str, figures: Mapping[str, float]) -> None:
    """Print the medians over the rounds."""
    print(f"medians over the rounds; {condition}:")
    for name, figure in figures.items():
        print(f"  {name} {figure:.3g}")
    print_figures(figures)


def account_with_tasks(cell: Cell, tasks: int) -> str:
    """Create an account of a cell with so many tasks, and return its id."""
    while True:
        [(key, token)] = owners(cell.url, 1)
        if str(cell_of(key) + 1) == cell.settings["HOLDFAST_CELL"]:
            break
    [request] = creates([key])
    connection = load.Connection(("127.0.0.1", cell.port))
    for _ in range(tasks):
        connection.send(request)
        while connection.receive() is None:
            pass
    connection.socket.close()
    with httpx2.Client(base_url=cell.url, timeout=30, trust_env=False) as http:
        account = http.get("/v2/control/account", headers={"Authorization": f"Bearer {token}"})
    return str(account.raise_for_status().json()["account_id"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="creates a second that each cell is offered")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--connections", type=int, default=24, help="of each cell")
    parser.add_argument("--accounts", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=1000, help="of the account that moves")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name,
        silent_provider() as provider_url,
        running_cells(Path(name), provider_url, options) as cells,
        ProcessPoolExecutor(len(cells), get_context("forkserver")) as clients,
    ):
        loads = Loads(clients, options)
        compare_costs(cells, loads, options)
        compare_latencies(cells, loads, options)


if __name__ == "__main__":
    main()
