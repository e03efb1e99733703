"""Creates at a fixed rate, alone and beside a followed task in turn, once the memory of log lines is full.

``holdfast follow ID --live`` and an open page follow one task: the command asks again every second, the page every
four. The provider never responds, and after each round its tasks are cancelled, so that none is left. The lines in
memory are searched, so creates run at their limit first, until the line of the first one is dropped; that memory is
a quarter of its default, to be full within a minute.

Run: python -m benchmarks.follow [--rate 500] [--seconds 10] [--rounds 3] [--accounts 200]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import selectors
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import httpx2

from benchmarks import load
from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.reads import create_tasks
from benchmarks.servers import (
    SERVE,
    api_keys,
    cpu_s,
    creates,
    environment_without_settings,
    free_port,
    process,
    service_settings,
    silent_provider,
)
from benchmarks.soak import resident_mb
from holdfast_console.operators.following import LIVE_S

TOKEN = "the-operators-token-of-the-benchmark-0123456789"
LINES_BYTES = 1 << 24
CONNECTIONS = 32
FULL_S = 240.0
SAMPLED_S = 6.0
"""After this long the service's metrics have what its memory is now."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run: creates, seconds, the service's CPU seconds, and what creates took, sorted."""

    creates: int
    took_s: float
    cpu_s: float
    creates_s: list[float]

    @property
    def rate(self) -> float:
        """Return creates a second."""
        return self.creates / self.took_s

    @property
    def cpu_ms(self) -> float:
        """Return CPU milliseconds a create."""
        return self.cpu_s / self.creates * 1e3

    @property
    def p99_ms(self) -> float:
        """Return the milliseconds that one create in a hundred takes at least."""
        return self.creates_s[int(len(self.creates_s) * 0.99)] * 1e3


@dataclass(frozen=True, slots=True)
class Side:
    """The service, and the API keys that create tasks in turn."""

    port: int
    process: subprocess.Popen[bytes]
    keys: list[str]


def send(port: int, requests: Iterator[tuple[str, bytes]], rate: float) -> list[tuple[str, bytes, float]]:
    """Send requests of API keys, at most at ``rate``; return the key, body and latency of each response."""
    waiting = selectors.DefaultSelector()
    idle = deque(load.Connection(("127.0.0.1", port)) for _ in range(CONNECTIONS))
    key_of: dict[load.Connection, str] = {}
    for connection in idle:
        waiting.register(connection.socket, selectors.EVENT_READ, connection)
    received: list[tuple[str, bytes, float]] = []
    begun, sent, is_all = time.perf_counter(), 0, False
    while not is_all or len(idle) < CONNECTIONS:
        while not is_all and idle and sent < (time.perf_counter() - begun) * rate:
            found = next(requests, None)
            if found is None:
                is_all = True
                break
            connection = idle.popleft()
            key_of[connection] = found[0]
            connection.send(found[1])
            sent += 1
        for ready, _ in waiting.select(timeout=0.002):
            response = ready.data.receive()
            if response is not None:
                assert response[0] == 200, ready.data.body
                received.append((key_of[ready.data], ready.data.body, response[1]))
                idle.append(ready.data)
    for connection in idle:
        connection.socket.close()
    return received


def drive(side: Side, *, seconds: float, rate: float = math.inf) -> Run:
    """Create tasks for ``seconds``, at ``rate`` or as fast as it goes; afterwards cancel them."""
    cpu_before, begun = cpu_s(side.process), time.perf_counter()
    made = itertools.cycle(zip(side.keys, creates(side.keys), strict=True))
    created = send(side.port, itertools.takewhile(lambda _: time.perf_counter() - begun < seconds, made), rate)
    took_s, used_s = time.perf_counter() - begun, cpu_s(side.process) - cpu_before
    cancels = (
        (
            key,
            load.post(f"/v2/task/{json.loads(body)['request_id']}/cancel", b"", {"Authorization": f"Bearer {key}"}),
        )
        for key, body, _ in created
    )
    send(side.port, cancels, math.inf)
    return Run(len(created), took_s, used_s, sorted(latency_s for _, _, latency_s in created))


def lines_mb(port: int) -> float:
    """Return how much the log lines in memory take."""
    time.sleep(SAMPLED_S)
    text = httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=10, trust_env=False).text
    [value] = [line.split()[1] for line in text.splitlines() if line.startswith("holdfast_log_memory_bytes ")]
    return float(value) / 1e6


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


def fill(side: Side, of_first: Page, seconds: float) -> float:
    """Run creates at their limit until the lines of the first are dropped; return that limit, in a second."""
    begun, rates = time.perf_counter(), list[float]()
    while "older lines are missing" not in of_first.show():
        assert time.perf_counter() - begun < FULL_S, "the memory of lines is not full"
        rates.append(drive(side, seconds=seconds).rate)
    return statistics.median(rates)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500.0, help="tasks created a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accounts", type=int, default=200)
    options = parser.parse_args()
    port = free_port()
    with (
        fresh_database() as (url, folder),
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name,
        silent_provider() as provider_url,
    ):
        print(describe(folder, options), flush=True)
        settings = service_settings(Path(name), database_url=url, port=port, provider_url=provider_url, slots=1)
        settings |= {"HOLDFAST_OPERATOR_TOKEN": TOKEN, "HOLDFAST_LOG_MEMORY_BYTES": str(LINES_BYTES)}
        with process(SERVE, f"http://127.0.0.1:{port}/readyz", settings) as service:
            # The first account has no other task, so its page misses lines only if they are dropped.
            first, *keys = api_keys(f"http://127.0.0.1:{port}", options.accounts + 1)
            [(_, first_id)], [(_, task_id)] = (create_tasks(port, [key], 1) for key in (first, keys[0]))
            side, page = Side(port, service, keys), Page(port, task_id)
            limit = fill(side, Page(port, first_id), options.seconds)
            memory_mb, of_lines_mb = [resident_mb(service.pid)], [lines_mb(port)]
            print(
                f"at their limit {limit:,.0f} creates/s; {memory_mb[0]:,.0f} MB resident with all lines", flush=True
            )
            pairs: list[tuple[Run, Run]] = []
            for number in range(options.rounds):
                runs: dict[bool, Run] = {}
                for is_followed in (False, True) if number % 2 == 0 else (True, False):
                    with followed(page, settings, task_id) if is_followed else nullcontext():
                        runs[is_followed] = drive(side, seconds=options.seconds, rate=options.rate)
                    memory_mb.append(resident_mb(service.pid))
                    of_lines_mb.append(lines_mb(port))
                pairs.append((runs[False], runs[True]))
                shown = (
                    f"{run.rate:,.0f}/s, create p99 {run.p99_ms:.1f} ms, CPU {run.cpu_ms:.2f} ms"
                    for run in pairs[-1]
                )
                print(
                    f"alone {' | followed '.join(shown)}; {memory_mb[-1]:,.0f} MB, lines {of_lines_mb[-1]:,.1f} MB",
                    flush=True,
                )
        alone, beside = zip(*pairs, strict=True)
        figures = {
            "offered, rate": options.rate,
            "limit, rate": limit,
            "alone, rate": statistics.median(run.rate for run in alone),
            "followed, over alone": statistics.median(b.rate / a.rate for a, b in pairs),
            "alone, CPU ms": statistics.median(run.cpu_ms for run in alone),
            "alone, p99 ms": statistics.median(run.p99_ms for run in alone),
            "followed, p99 ms": statistics.median(run.p99_ms for run in beside),
            "followed, CPU": statistics.median(b.cpu_ms / a.cpu_ms for a, b in pairs),
            "slowest page, s": page.slowest_s,
            "lines, MB": max(of_lines_mb),
            "full, MB": memory_mb[0],
            "end, MB": memory_mb[-1],
        }
        print(", ".join(f"{name} {value:,.2f}" for name, value in figures.items()))
        print_figures(figures)


if __name__ == "__main__":
    main()
