"""Creates of three cells beside one, and of a cell while another is killed, starts, or gives an account away.

Each cell has a service process and a database of its own; all databases are in one PostgreSQL, which a killed
service leaves running. Each connection calls the cell of its account and pauses between its requests: what a create
costs depends on how many are committed together, so one cell and all take turns with the same load of each. CPU is
user and system time of the loaded processes. Then the latencies of the first cell, of all rounds together, while
the second one gives an account with ``--tasks`` tasks to the third, is killed, and is started again, are compared
with those while nothing happens. That is measured twice in each round, and the ratio of both is the noise.

Run: python -m benchmarks cells [--seconds 5] [--connections 12] [--accounts 60] [--rounds 4] [--pause-s 0.1]
     [--tasks 500]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import psycopg

from benchmarks import load
from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.servers import (
    BODY,
    SERVE,
    api_keys,
    cpu_s,
    creates,
    environment_without_settings,
    free_port,
    owners,
    process,
    service_settings,
    silent_provider,
)
from holdfast.ledger.values import place_carried_by
from holdfast.persistence.server.migrate import migrate

PLACES = (range(0x556), range(0x556, 0xAAB), range(0xAAB, 0x1000))
SHARED = ("SERVER_KEY", "CALLBACK_SECRET", "SANDBOX_SECRET", "OPERATOR_TOKEN")
CHECKSUM_CHARS = 6
"""The end of an API key, after its place."""


@dataclass
class Cell:
    """One cell: its port, its environment, the requests of its accounts, and the process that runs it last."""

    port: int
    settings: dict[str, str]
    process: subprocess.Popen[bytes]
    requests: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it is called."""
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


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
def running_cells(url: str, folder: Path, provider_url: str, accounts: int) -> Iterator[list[Cell]]:
    """Run the cells, each on its own database beside the one at ``url``, with their accounts."""
    ports = [free_port() for _ in PLACES]
    listed = write_cells(folder, ports)
    cells = []
    with ExitStack() as stack:
        for number, port in enumerate(ports, 1):
            own = folder / f"cell-{number}"
            own.mkdir()
            with psycopg.connect(url, autocommit=True) as rows:
                rows.execute(f"create database cell_{number}")
            database_url = urlsplit(url)._replace(path=f"/cell_{number}").geturl()
            migrate(database_url)
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
            cells.append(Cell(port, settings, started))
        for key in api_keys(cells[0].url, accounts):
            cells[cell_of(key)].requests += creates([key])
        yield cells


def cell_of(key: str) -> int:
    """Return the index of the cell that has a key's account."""
    place = place_carried_by(key[:-CHECKSUM_CHARS])
    return next(number for number, places in enumerate(PLACES) if place in places)


def cpu_of_create_us(cells: Sequence[Cell], options: argparse.Namespace) -> tuple[float, float]:
    """Load cells, each with as many connections; return CPU microseconds a create, and creates a second."""
    before = [cpu_s(cell.process) for cell in cells]
    result = load.run(
        [cell.port for cell in cells],
        lambda cell, n: cells[cell].requests[n % len(cells[cell].requests)],
        connections=options.connections * len(cells),
        seconds=options.seconds,
        pause_s=options.pause_s,
    )
    assert set(result.statuses) == {200}, result.statuses
    used_s = sum(cpu_s(cell.process) - used for cell, used in zip(cells, before, strict=True))
    return used_s / len(result.latencies_s) * 1e6, result.rate


def compare_cpu(cells: Sequence[Cell], options: argparse.Namespace) -> None:
    """Let one cell and all take turns, and print the ratio."""
    ratios = []
    sides = [cells[:1], cells]
    for number in range(options.rounds + 1):
        sides.reverse()
        found = {len(side): cpu_of_create_us(side, options) for side in sides}
        (one, one_rate), (every, every_rate) = found[1], found[len(cells)]
        print(
            f"one cell {one:,.0f} us of CPU a create at {one_rate:,.0f}/s, "
            f"three {every:,.0f} us at {every_rate:,.0f}/s" + ("" if number else " (warm-up)"),
            flush=True,
        )
        if number:
            ratios.append(every / one)
    print(f"CPU of a create in three cells over one: {statistics.median(ratios):.3f} (median)")
    print_figures({"CPU, three over one": statistics.median(ratios)})


def latencies_s(
    cells: Sequence[Cell], options: argparse.Namespace, event: Callable[[], object] | None = None
) -> list[float]:
    """Return the latencies of the first cell while the others have the same load and something happens."""

    def drive(cell: Cell) -> load.Result | None:
        # What happens may end the connections of the cell that it happens to.
        with suppress(OSError):
            return load.run(
                [cell.port],
                lambda _, n: cell.requests[n % len(cell.requests)],
                connections=options.connections,
                seconds=options.seconds,
                pause_s=options.pause_s,
            )
        return None

    with ThreadPoolExecutor() as threads:
        driven = [threads.submit(drive, cell) for cell in cells]
        if event is not None:
            event()
        result = driven[0].result()
    assert result is not None
    assert set(result.statuses) == {200}, result.statuses
    return result.latencies_s


def compare_latencies(cells: Sequence[Cell], options: argparse.Namespace, folder: Path) -> None:
    """Let things happen to the second cell, and print the latencies of the first beside its usual ones."""
    second, third = cells[1:]
    other_settings = folder / "third.env"
    other_settings.write_text("".join(f"{name}={value}\n" for name, value in third.settings.items()))
    pooled: dict[str, list[float]] = {}
    with ExitStack() as started:

        def start() -> None:
            second.process = started.enter_context(process(SERVE, f"{second.url}/readyz", second.settings))

        for number in range(options.rounds + 1):
            account_id = account_with_tasks(second, options.tasks)
            move = partial(
                subprocess.run,
                [sys.executable, "-m", "holdfast", "move-account", account_id, "--to", str(other_settings)],
                env={**environment_without_settings(), **second.settings},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            found = {
                "nothing happens": latencies_s(cells, options),
                "an account moves": latencies_s(cells, options, move),
                "nothing happens again": latencies_s(cells, options),
                "a cell is killed": latencies_s(cells, options, second.kill),
                "it starts": latencies_s(cells, options, start),
            }
            for name, latencies in found.items() if number else ():
                pooled.setdefault(name, []).extend(latencies)
    figures: dict[str, float] = {}
    for share, shown in ((0.5, "median"), (0.99, "p99")):
        at = {name: quantile_ms(latencies, share) for name, latencies in pooled.items()}
        print(f"{shown} of another cell: " + ", ".join(f"while {name} {ms:.1f} ms" for name, ms in at.items()))
        usual = at.pop("nothing happens")
        figures |= {f"{shown} while {name}, over usual": ms / usual for name, ms in at.items()}
    print_figures(figures)


def quantile_ms(latencies: Sequence[float], share: float) -> float:
    """Return a quantile of latencies in seconds."""
    return sorted(latencies)[int(len(latencies) * share)] * 1e3


def account_with_tasks(cell: Cell, tasks: int) -> str:
    """Create an account of a cell with so many tasks, and return its id."""
    found = (owners(cell.url, 1)[0] for _ in itertools.count())
    key, token = next(each for each in found if f"{cell_of(each[0]) + 1}" == cell.settings["HOLDFAST_CELL"])
    with httpx2.Client(base_url=cell.url, timeout=30, trust_env=False) as http:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        for _ in range(tasks):
            http.post("/v2/task/create", content=BODY, headers=headers).raise_for_status()
        account = http.get("/v2/control/account", headers={"Authorization": f"Bearer {token}"})
    return str(account.raise_for_status().json()["account_id"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=12, help="of each cell")
    parser.add_argument("--accounts", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pause-s", type=float, default=0.1)
    parser.add_argument("--tasks", type=int, default=500, help="of the account that moves")
    options = parser.parse_args()
    with (
        fresh_database() as (url, folder),
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name,
        silent_provider() as provider_url,
    ):
        print(describe(folder, options), flush=True)
        with running_cells(url, Path(name), provider_url, options.accounts) as cells:
            compare_cpu(cells, options)
            compare_latencies(cells, options, Path(name))


if __name__ == "__main__":
    main()
