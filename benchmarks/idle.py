"""What an idle service costs: CPU of the service and of PostgreSQL, wakes, transactions, memory.

One process of the service with the settings of production, without a card provider, on a fresh database of its
own. Its provider, which answers, is probed as providers are. With ``--emulators`` it has the development's
settings, studio and card provider instead.
The figures begin a while after the start, when what happens once has happened. CPU is what the scheduler has
accounted, in percent of a core; the machine may be busy meanwhile, which makes each wake dearer.

Run: python -m benchmarks.idle [--seconds 60] [--emulators]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import psycopg

from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.servers import SECRET, SERVE, free_port, process, service_settings
from holdfast.settings.checks import REQUIRED_SECRETS

SETTLE_S = 20.0
"""By then sums of the start's reports are stored, and first passes done."""
SLOTS = 8


def family_of(pid: int) -> set[int]:
    """Return the process and its descendants."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
    family = {pid}
    while more := {each for each, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def running_s(pid: int) -> float:
    """Return how long the threads of a process have run."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def server_s(postmaster: int, but: int) -> dict[int, float]:
    """Return how long each process of a PostgreSQL server has run, ``but`` one; at 0 all that have ended."""
    fields = Path(f"/proc/{postmaster}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    ran_s = {0: (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")}
    for pid in family_of(postmaster) - {but}:
        with contextlib.suppress(OSError):
            ran_s[pid] = running_s(pid)
    return ran_s


def wakes(pid: int) -> int:
    """Return how often the threads of a process have waited for something."""
    statuses = [(thread / "status").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    lines = [line for status in statuses for line in status.splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def memory_mb(pid: int, kind: str) -> float:
    """Return a process's resident set ("Rss") or its proportional share of it ("Pss")."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) * 1024 / 1e6


def transactions(rows: psycopg.Connection) -> int:
    """Return how many transactions the database has ended."""
    query = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    found = rows.execute(query).fetchone()
    assert found is not None
    return int(found[0])


def measure(url: str, folder: Path, service: int, seconds: float) -> dict[str, float]:
    """Measure for so long."""
    server = int(next(folder.rglob("postmaster.pid")).read_text().split()[0])
    with psycopg.connect(url, autocommit=True) as rows:
        mine = rows.info.backend_pid
        before = running_s(service), server_s(server, mine), transactions(rows), wakes(service)
        begun = time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - begun
        of_server = sum(ran_s - before[1].get(pid, 0.0) for pid, ran_s in server_s(server, mine).items())
        return {
            "service, % of a core": (running_s(service) - before[0]) / took_s * 100,
            "PostgreSQL, % of a core": of_server / took_s * 100,
            "transactions/s": (transactions(rows) - before[2]) / took_s,
            "wakes/s": (wakes(service) - before[3]) / took_s,
            "PSS, MB": memory_mb(service, "Pss"),
            "RSS, MB": memory_mb(service, "Rss"),
        }


@contextlib.contextmanager
def running_service(url: str, folder: Path, *, emulators: bool) -> Iterator[int]:
    """Start a service, and what it needs; returns its process id."""
    port, provider_port = free_port(), free_port()
    provider_url = f"http://127.0.0.1:{provider_port}"
    settings = service_settings(folder, database_url=url, port=port, provider_url=provider_url, slots=SLOTS)
    with contextlib.ExitStack() as stack:
        if emulators:
            del settings["HOLDFAST_CATALOG"]
        else:
            settings |= {"HOLDFAST_ENV": "production", "HOLDFAST_PROCESSES": "0"}
            settings |= {f"HOLDFAST_{name}": token_hex() for name in REQUIRED_SECRETS}
            command = [sys.executable, "-m", "benchmarks.instant_provider", str(provider_port), SECRET]
            stack.enter_context(process(command, provider_url))
        service = stack.enter_context(process(SERVE, f"http://127.0.0.1:{port}/readyz", settings))
        yield service.pid


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--emulators", action="store_true")
    options = parser.parse_args()
    with fresh_database() as (url, folder):
        print(describe(folder, options))
        with running_service(url, folder, emulators=options.emulators) as service:
            time.sleep(SETTLE_S)
            figures = measure(url, folder, service, options.seconds)
    for name, figure in figures.items():
        print(f"{name}: {figure:.2f}")
    print_figures(figures)


if __name__ == "__main__":
    main()
