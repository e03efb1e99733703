"""Whole tasks at a fixed rate, alone and beside a followed one in turn, once the memory of log lines is full.

``holdfast follow ID --live`` and an open page follow one task: the command asks again every second, the page every
four. The lines that a process has in memory are searched for it, so tasks run at their limit first, until the line
of the first one is dropped; that memory is a quarter of its default, to be full within a minute. Then tasks are
created at ``--rate``, or at three quarters of that limit if it is less. All have ended before each reading of the
process's memory.

Run: python -m benchmarks.follow [--rate 500] [--seconds 10] [--rounds 3] [--accounts 200]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx2
import psycopg

from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.reads import create_tasks
from benchmarks.servers import (
    SECRET,
    SERVE,
    api_keys,
    environment_without_settings,
    free_port,
    process,
    service_settings,
)
from benchmarks.soak import resident_mb
from benchmarks.whole import SLOTS, Run, Side, drive, service_side
from holdfast_console.operators.following import LIVE_S

TOKEN = "the-operators-token-of-the-benchmark-0123456789"
LINES_BYTES = 1 << 24
OF_LIMIT = 0.75
FULL_S = 240.0


class Page:
    """The open page of a followed task."""

    def __init__(self, port: int, task_id: str) -> None:
        self.shown = 0
        self.slowest_s = 0.0
        self._client = httpx2.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {TOKEN}", "X-Refresh": "1"},
            timeout=60,
            trust_env=False,
        )
        self._task_id = task_id

    def show(self) -> str:
        """Load the page."""
        begun = time.perf_counter()
        page = self._client.get("/ops/follow", params={"id": self._task_id}).raise_for_status().text
        assert self._task_id in page
        self.shown += 1
        self.slowest_s = max(self.slowest_s, time.perf_counter() - begun)
        return page


@contextmanager
def followed(page: Page, settings: Mapping[str, str], task_id: str) -> Iterator[None]:
    """Follow the task by the command and on the page until the end of the context."""
    ended = threading.Event()

    def show() -> None:
        while not ended.is_set():
            page.show()
            ended.wait(LIVE_S)

    command = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "follow", "--live", task_id],
        env={**environment_without_settings(), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert command.stdout is not None
    command.stdout.readline()  # it has begun
    # What it prints is read, so that it goes on.
    printed = threading.Thread(target=command.stdout.read)
    shown = threading.Thread(target=show)
    printed.start()
    shown.start()
    try:
        yield
        assert command.poll() is None, "the command has ended"
    finally:
        ended.set()
        command.terminate()
        command.wait(60)
        printed.join()
        shown.join()
        command.stdout.close()


def fill(side: Side, rows: psycopg.Connection, of_first: Page, seconds: float) -> float:
    """Run tasks at their limit until the lines of the first are dropped; return that limit, in tasks a second."""
    begun, rates = time.perf_counter(), list[float]()
    while "older lines are missing" not in of_first.show():
        assert time.perf_counter() - begun < FULL_S, "the memory of lines is not full"
        rates.append(drive(side, rows, seconds=seconds).rate)
    return statistics.median(rates)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500.0, help="tasks created a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accounts", type=int, default=200)
    options = parser.parse_args()
    port, provider_port = free_port(), free_port()
    provider_url = f"http://127.0.0.1:{provider_port}"
    with fresh_database() as (url, folder), tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        print(describe(folder, options), flush=True)
        settings = service_settings(Path(name), database_url=url, port=port, provider_url=provider_url, slots=SLOTS)
        settings |= {"HOLDFAST_OPERATOR_TOKEN": TOKEN, "HOLDFAST_LOG_MEMORY_BYTES": str(LINES_BYTES)}
        provider = [sys.executable, "-m", "benchmarks.instant_provider", str(provider_port), SECRET]
        with (
            psycopg.connect(url, autocommit=True) as rows,
            process(provider, f"{provider_url}/files/0.png"),
            process(SERVE, f"http://127.0.0.1:{port}/readyz", settings) as service,
        ):
            # The first account has no other task, so its page misses lines only if they are dropped.
            first, *keys = api_keys(f"http://127.0.0.1:{port}", options.accounts + 1)
            [(_, first_id)], [(_, task_id)] = (create_tasks(port, [key], 1) for key in (first, keys[0]))
            side, page = service_side(port, service, keys), Page(port, task_id)
            limit = fill(side, rows, Page(port, first_id), options.seconds)
            rate, memory_mb = min(options.rate, limit * OF_LIMIT), [resident_mb(service.pid)]
            print(
                f"at their limit {limit:,.0f} tasks/s; {memory_mb[0]:,.0f} MB resident with all lines", flush=True
            )
            pairs: list[tuple[Run, Run]] = []
            for number in range(options.rounds):
                runs: dict[bool, Run] = {}
                for is_followed in (False, True) if number % 2 == 0 else (True, False):
                    with followed(page, settings, task_id) if is_followed else nullcontext():
                        runs[is_followed] = drive(side, rows, seconds=options.seconds, rate=rate)
                    memory_mb.append(resident_mb(service.pid))
                pairs.append((runs[False], runs[True]))
                shown = (
                    f"{run.rate:,.0f}/s, create p99 {run.p99_ms:.1f} ms, CPU {run.cpu_ms:.2f} ms"
                    for run in pairs[-1]
                )
                print(f"alone {' | followed '.join(shown)}; {memory_mb[-1]:,.0f} MB", flush=True)
        alone, beside = zip(*pairs, strict=True)
        grown_bytes = (memory_mb[-1] - memory_mb[0]) * 1e6 / sum(run.tasks for run in (*alone, *beside))
        figures = {
            "offered, rate": rate,
            "alone, rate": statistics.median(run.rate for run in alone),
            "followed, over alone": statistics.median(b.rate / a.rate for a, b in pairs),
            "alone, CPU ms": statistics.median(run.cpu_ms for run in alone),
            "alone, p99 ms": statistics.median(run.p99_ms for run in alone),
            "followed, p99 ms": statistics.median(run.p99_ms for run in beside),
            "followed, CPU": statistics.median(b.cpu_ms / a.cpu_ms for a, b in pairs),
            "slowest page, s": page.slowest_s,
            "full, MB": memory_mb[0],
            "end, MB": memory_mb[-1],
            "grown, bytes a task": grown_bytes,
        }
        print(", ".join(f"{name} {value:,.2f}" for name, value in figures.items()))
        print_figures(figures)


if __name__ == "__main__":
    main()
