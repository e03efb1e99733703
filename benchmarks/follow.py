"""Creates beside a followed task, in turn with creates alone, once the memory of log lines is full.

``holdfast follow ID --live`` and an open page follow one task: the command asks again every second, the page every
four. The lines that a process has in memory are searched for it, so creates come first until the oldest lines are
dropped. The provider never responds, and the account of the followed task creates as the others do.

Run: python -m benchmarks.follow [--seconds 12] [--rounds 5] [--accounts 200]
"""

from __future__ import annotations

import argparse
import os
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

from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.create import Run, Side, drive
from benchmarks.reads import create_tasks
from benchmarks.servers import (
    SERVE,
    api_keys,
    creates,
    environment_without_settings,
    free_port,
    process,
    service_settings,
)
from holdfast_console.operators.following import LIVE_S

TOKEN = "the-operators-token-of-the-benchmark-0123456789"
CONNECTIONS = 32
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


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def fill(side: Side, page: Page, seconds: float) -> float:
    """Create tasks until the oldest lines are dropped; return the seconds that this took."""
    begun = time.perf_counter()
    while "older lines are missing" not in page.show():
        assert time.perf_counter() - begun < FULL_S, "the memory of lines is not full"
        drive(side, connections=CONNECTIONS, seconds=seconds)
    return time.perf_counter() - begun


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--accounts", type=int, default=200)
    options = parser.parse_args()
    port = free_port()
    with fresh_database() as (url, folder), tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        print(describe(folder, options), flush=True)
        settings = service_settings(
            Path(name), database_url=url, port=port, provider_url="http://127.0.0.1:9", slots=1
        )
        settings["HOLDFAST_OPERATOR_TOKEN"] = TOKEN
        with process(SERVE, f"http://127.0.0.1:{port}/readyz", settings) as service:
            keys = api_keys(f"http://127.0.0.1:{port}", options.accounts)
            [(_, task_id)] = create_tasks(port, keys[:1], 1)
            side, page = Side("the service", port, service, creates(keys)), Page(port, task_id)
            took_s = fill(side, page, options.seconds)
            before_mb = resident_mb(service.pid)
            print(f"the memory of lines is full after {took_s:.0f} s: {before_mb:,.0f} MB resident", flush=True)
            pairs: list[tuple[Run, Run]] = []
            for number in range(options.rounds):
                runs: dict[bool, Run] = {}
                for is_followed in (False, True) if number % 2 == 0 else (True, False):
                    with followed(page, settings, task_id) if is_followed else nullcontext():
                        runs[is_followed] = drive(side, connections=CONNECTIONS, seconds=options.seconds)
                pairs.append((runs[False], runs[True]))
                shown = [f"{run.rate:,.0f}/s, p99 {run.p99_ms:.1f} ms" for run in pairs[-1]]
                print(f"alone {shown[0]} | followed {shown[1]}", flush=True)
            after_mb = resident_mb(service.pid)
        rate = statistics.median(beside.rate / alone.rate for alone, beside in pairs)
        p99 = statistics.median(beside.p99_ms / alone.p99_ms for alone, beside in pairs)
        cpu = statistics.median(beside.cpu_us / alone.cpu_us for alone, beside in pairs)
        tasks = sum(run.rate * options.seconds for pair in pairs for run in pair)
        grown_bytes = (after_mb - before_mb) * 1e6 / tasks
        print(
            f"creates beside a followed task: {rate:.2f} x the rate, {p99:.2f} x the p99, {cpu:.2f} x the CPU; the "
            f"page within {page.slowest_s:.2f} s; {grown_bytes:,.0f} bytes more for each task since then"
        )
        print_figures(
            {
                "followed, rate": rate,
                "followed, p99": p99,
                "followed, CPU": cpu,
                "slowest page, s": page.slowest_s,
                "full, MB": before_mb,
                "grown, bytes a task": grown_bytes,
            }
        )


if __name__ == "__main__":
    main()
