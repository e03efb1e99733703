"""What grows while a service runs: resident memory and markers of batches, minute by minute, under a constant load.

Accounts sign in, then create tasks at a constant rate; each task runs to its end. Memory is compared between the
quarters of the run: the first fills caches and wakes accounts, and the last must not exceed the second by more than
``--growth``. Markers are deleted after a day, so their number is bounded by the commits of one.

Run: python -m benchmarks.soak [--minutes 60] [--rate 30] [--accounts 1900] [--growth 0.1]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
from pathlib import Path

import psycopg

from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.servers import SECRET, SERVE, api_keys, free_port, process, service_settings
from benchmarks.whole import SLOTS, drive, service_side

SAMPLE_S = 10.0


def resident_mb(pid: int) -> float:
    """Return a process's resident set in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Sampler(threading.Thread):
    """Samples the resident set until stopped, and prints one sample a minute."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.samples: list[float] = []
        self.stopped = threading.Event()
        self._pid = pid

    def run(self) -> None:
        """Sample, until :attr:`stopped` is set."""
        while not self.stopped.wait(SAMPLE_S):
            self.samples.append(resident_mb(self._pid))
            if len(self.samples) % 6 == 0:
                print(f"minute {len(self.samples) // 6}: {self.samples[-1]:.0f} MB", flush=True)


def main() -> int:
    """Measure and print; return 1 if memory grew more than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=30.0, help="tasks created a second")
    parser.add_argument("--accounts", type=int, default=1900)
    parser.add_argument(
        "--growth", type=float, default=0.1, help="how much more than the second quarter the last may use"
    )
    options = parser.parse_args()
    port, provider_port = free_port(), free_port()
    provider_url = f"http://127.0.0.1:{provider_port}"
    with fresh_database() as (url, folder), tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        print(describe(folder, options), flush=True)
        settings = service_settings(Path(name), database_url=url, port=port, provider_url=provider_url, slots=SLOTS)
        provider = [sys.executable, "-m", "benchmarks.instant_provider", str(provider_port), SECRET]
        with (
            psycopg.connect(url, autocommit=True) as rows,
            process(provider, f"{provider_url}/files/0.png"),
            process(SERVE, f"http://127.0.0.1:{port}/readyz", settings) as server,
        ):
            started_mb = resident_mb(server.pid)
            side = service_side(port, server, api_keys(f"http://127.0.0.1:{port}", options.accounts))
            signed_in_mb = resident_mb(server.pid)
            sampler = Sampler(server.pid)
            sampler.start()
            run = drive(side, rows, seconds=options.minutes * 60, rate=options.rate)
            sampler.stopped.set()
            sampler.join()
            markers = rows.execute(
                "select count(*), pg_total_relation_size('journal_batches') from journal_batches"
            )
            batches, size_bytes = markers.fetchone() or (0, 0)
    quarter = max(1, len(sampler.samples) // 4)
    second, last = (
        statistics.median(each) for each in (sampler.samples[quarter : 2 * quarter], sampler.samples[-quarter:])
    )
    print(
        f"{run.tasks} tasks of {options.accounts} accounts in {run.took_s / 60:.0f} minutes: resident "
        f"{started_mb:.0f} MB at the start, {signed_in_mb:.0f} with all signed in, "
        f"{second:.0f} in the second quarter, "
        f"{last:.0f} in the last | {batches} markers, {size_bytes / 1e6:.0f} MB: "
        f"{size_bytes / 1e6 * 86400 / run.took_s:.0f} MB in a day"
    )
    print_figures(
        {
            "tasks": run.tasks,
            "at the start, MB": started_mb,
            "all signed in, MB": signed_in_mb,
            "second quarter, MB": second,
            "last quarter, MB": last,
            "markers": batches,
            "markers, MB": size_bytes / 1e6,
        }
    )
    return 1 if last > second * (1 + options.growth) else 0


if __name__ == "__main__":
    sys.exit(main())
