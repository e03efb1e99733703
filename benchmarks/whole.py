"""Whole tasks: create, submit, signed callback, download of one small PNG, store, capture; beside a row-lock peer.

The service and the peer (:mod:`benchmarks.row_lock_peer`) run as processes of their own on one PostgreSQL, and take
turns under the same load and the same provider, which ends each job at once. At their limit, a bounded number of
tasks is open at all times; the run ends when all of them are captured. CPU is user and system time of the service's
processes, without PostgreSQL. Then tasks are created at half of the service's own limit, and the median time from a
task's creation to its capture is what it waits beyond its provider, which needs no time.

Run: python -m benchmarks.whole [--seconds 6] [--rounds 6] [--processes 1] [--quick] [--count]
"""

from __future__ import annotations

import argparse
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psycopg
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import create, load
from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.servers import (
    SECRET,
    api_keys,
    cpu_s,
    creates,
    free_port,
    peer_command,
    peer_keys,
    peer_settings,
    process,
    service_settings,
)

OPEN_MAX = 128
CONNECTIONS = 32
SLOTS = 64
POLL_S = 0.05
STALLED_S = 60.0
ACCOUNTS = 8


@dataclass(frozen=True, slots=True)
class Side(create.Side):
    """The service or the peer, and how to see in the rows what it has finished.

    ``finished`` counts captured tasks, ``waits`` lists the seconds from creation to capture of those created since
    a time.
    """

    finished: str
    waits: str


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run: tasks captured, seconds, the service's CPU seconds, and what creates took, sorted."""

    tasks: int
    took_s: float
    cpu_s: float
    refused: int
    creates_s: list[float]

    @property
    def rate(self) -> float:
        """Return captured tasks a second."""
        return self.tasks / self.took_s

    @property
    def cpu_ms(self) -> float:
        """Return CPU milliseconds a task."""
        return self.cpu_s / self.tasks * 1e3

    @property
    def p99_ms(self) -> float:
        """Return the milliseconds that one create in a hundred takes at least."""
        return self.creates_s[int(len(self.creates_s) * 0.99)] * 1e3


def drive(side: Side, rows: psycopg.Connection, *, seconds: float, rate: float | None = None) -> Run:
    """Create tasks for ``seconds``, at ``rate`` or with :data:`OPEN_MAX` open, and wait until all are captured."""

    def finished() -> int:
        found = rows.execute(side.finished).fetchone()
        assert found is not None
        return int(found[0])

    waiting = selectors.DefaultSelector()
    # In turn, so that none is idle for so long that the server closes it.
    idle = deque(load.Connection(("127.0.0.1", side.port)) for _ in range(CONNECTIONS))
    for connection in idle:
        waiting.register(connection.socket, selectors.EVENT_READ, connection)
    before, cpu_before = finished(), cpu_s(side.process)
    creates_s: list[float] = []
    begun = polled = progressed = time.perf_counter()
    sent = created = done = refused = 0
    while True:
        now = time.perf_counter()
        if now - begun < seconds:
            allowed = created + refused + OPEN_MAX if rate is None else int((now - begun) * rate)
            while idle and sent < allowed and sent - refused - done < (OPEN_MAX if rate is None else sys.maxsize):
                idle.popleft().send(side.requests[sent % len(side.requests)])
                sent += 1
        elif len(idle) == CONNECTIONS and done == created:
            break
        for key, _ in waiting.select(timeout=0.002):
            received = key.data.receive()
            if received is None:
                continue
            status, latency_s = received
            creates_s.append(latency_s)
            assert status in (200, 503), status
            created += status == 200
            refused += status == 503
            idle.append(key.data)
        if now - polled > POLL_S:
            polled, found = now, finished() - before
            if found > done:
                done, progressed = found, now
            assert now - progressed < STALLED_S, f"{side.name}: {created - done} tasks are not finished"
    took_s = time.perf_counter() - begun
    for connection in idle:
        connection.socket.close()
    return Run(done, took_s, cpu_s(side.process) - cpu_before, refused, sorted(creates_s))


def wait_s(side: Side, rows: psycopg.Connection, *, seconds: float, rate: float) -> list[float]:
    """Create tasks at ``rate``; return their sorted waits in seconds."""
    since = rows.execute("select clock_timestamp()").fetchone()
    assert since is not None
    drive(side, rows, seconds=seconds, rate=rate)
    return sorted(row[0] for row in rows.execute(side.waits, since))


def peer_side(port: int, server: subprocess.Popen[bytes], keys: list[str]) -> Side:
    """Return the peer."""
    return Side(
        "peer",
        port,
        server,
        creates(keys),
        "select count(*) from peer_tasks where status = 'succeeded'",
        "select extract(epoch from updated_at - created_at)::float8 from peer_tasks where created_at >= %s",
    )


def service_side(port: int, server: subprocess.Popen[bytes], keys: list[str]) -> Side:
    """Return the service."""
    return Side(
        "service",
        port,
        server,
        creates(keys),
        "select count(*) from assets",
        "select extract(epoch from updated_at - created_at)::float8 from tasks where created_at >= %s",
    )


def counts(port: int) -> dict[tuple[str, str], float]:
    """Return the counters of a counting service: its own and the journal's."""
    from benchmarks.counting import METRIC

    found = {}
    text = httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=10, trust_env=False).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"{METRIC}_total":
                found[sample.labels["kind"], sample.labels["name"]] = sample.value
            elif sample.name in {"holdfast_journal_commit_seconds_count", "holdfast_journal_units_total"}:
                name = sample.labels.get("result", "batches")
                found["journal", name] = sample.value
    return found


def print_counts(side: Side, rows: psycopg.Connection, seconds: float) -> None:
    """Print what one task costs the event loop, largest first in each kind."""
    drive(side, rows, seconds=seconds / 2)
    before = counts(side.port)
    run = drive(side, rows, seconds=seconds)
    each = {key: (value - before.get(key, 0)) / run.tasks for key, value in counts(side.port).items()}
    for kind in sorted({kind for kind, _ in each}):
        named = sorted(
            ((value, name) for (each_kind, name), value in each.items() if each_kind == kind), reverse=True
        )
        print(f"{kind}: {sum(value for value, _ in named):.2f} a task")
        for value, name in named:
            if value >= 0.02 and len(named) > 1:
                print(f"    {value:6.2f}  {name}")


def compare(peer: Side, service: Side, rows: psycopg.Connection, *, seconds: float, rounds: int) -> None:
    """Measure both in turn, each first in every other round, and print each round and the medians."""
    sides = (peer, service)
    for side in sides:
        drive(side, rows, seconds=seconds / 2)
    of_services: list[Run] = []
    ratios, rate_ratios = [], []
    for number in range(1, rounds + 1):
        sides = sides[::-1]
        runs = {side.name: drive(side, rows, seconds=seconds) for side in sides}
        of_peer, of_service = runs[peer.name], runs[service.name]
        ratios.append(of_service.cpu_ms / of_peer.cpu_ms)
        rate_ratios.append(of_service.rate / of_peer.rate)
        of_services.append(of_service)
        refused = f", {of_service.refused} creates refused" if of_service.refused else ""
        print(
            f"round {number}: service {of_service.cpu_ms:.2f} ms CPU a task, {of_service.rate:.0f} tasks/s{refused}"
            f" | peer {of_peer.cpu_ms:.2f} ms, {of_peer.rate:.0f}/s | CPU ratio {ratios[-1]:.2f}",
            flush=True,
        )
    rate = statistics.median(run.rate for run in of_services)
    half = rate / 2
    waits = wait_s(service, rows, seconds=seconds, rate=half)
    wait, p99 = statistics.median(waits), waits[int(len(waits) * 0.99)]
    print(
        f"whole tasks: CPU {statistics.median(ratios):.2f} x the peer's, {rate:.0f} tasks/s "
        f"(medians of {rounds}) | at {half:.0f} tasks/s the median task waits {wait:.3f} s "
        f"beyond its provider, p99 {p99:.3f} s"
    )
    print_figures(
        {
            "CPU ms": statistics.median(run.cpu_ms for run in of_services),
            "beside the peer, CPU": statistics.median(ratios),
            "rate": rate,
            "beside the peer, rate": statistics.median(rate_ratios),
            "wait s": wait,
            "wait p99 s": p99,
        }
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--processes", type=int, default=1, help="how many processes the service runs in")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--count", action="store_true", help="count steps, tasks, hops, messages and reads instead")
    options = parser.parse_args()
    seconds, rounds = (2.0, 1) if options.quick else (options.seconds, options.rounds)
    module = "benchmarks.counting" if options.count else "holdfast"
    port, peer_port, provider_port = free_port(), free_port(), free_port()
    provider_url = f"http://127.0.0.1:{provider_port}"
    with fresh_database() as (url, folder), tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        data = Path(name)
        print(describe(folder, options), flush=True)
        settings = service_settings(data, database_url=url, port=port, provider_url=provider_url, slots=SLOTS)
        provider = [sys.executable, "-m", "benchmarks.instant_provider", str(provider_port), SECRET]
        serve = [sys.executable, "-m", module, "serve"]
        if options.processes > 1:
            serve += ["--processes", str(options.processes)]
        with (
            psycopg.connect(url, autocommit=True) as rows,
            process(provider, f"{provider_url}/files/0.png"),
            process(serve, f"http://127.0.0.1:{port}/readyz", settings) as server,
        ):
            service = service_side(port, server, api_keys(f"http://127.0.0.1:{port}", ACCOUNTS))
            if options.count:
                print_counts(service, rows, seconds)
                return
            keys = peer_keys(rows, ACCOUNTS)
            environment = peer_settings(data, database_url=url, port=peer_port, provider_url=provider_url)
            with process(peer_command(peer_port), f"http://127.0.0.1:{peer_port}/docs", environment) as other:
                peer = peer_side(peer_port, other, keys)
                compare(peer, service, rows, seconds=seconds, rounds=rounds)


if __name__ == "__main__":
    main()
