"""``POST /v2/task/create`` over HTTP, beside a row-lock peer and an empty endpoint.

The service, the peer (:mod:`benchmarks.row_lock_peer`) and an empty endpoint on unmodified quart-trio and hypercorn
run as processes of their own and take turns under the same load: first on many accounts, then on one, and both
again with longer flushes of PostgreSQL's log; then on one account with 20 lots and a limit of its key, beside one
with a single lot and none. Service and peer share one PostgreSQL, and a provider that never responds, so that only
creates are measured. CPU is user and system time without PostgreSQL.

A create authenticates the key, validates and prices the input, holds the credit, writes seven rows and responds
when they are durable.

Run: python -m benchmarks.create [--seconds 4] [--connections 32] [--accounts 200] [--rounds 5]
     [--commit-delay-us 0 1000]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks import load
from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.servers import (
    BODY,
    SERVE,
    api_keys,
    cpu_s,
    creates,
    free_port,
    peer_command,
    peer_keys,
    peer_settings,
    process,
    service_settings,
    silent_provider,
)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the servers: its port, its process, and the requests to send in turn."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    requests: list[bytes]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run: responses a second, their latency, and CPU microseconds each."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


class Ratios(NamedTuple):
    """By how much runs differ: medians of their ratios."""

    rate: float
    p99: float
    cpu: float

    def figures(self, title: str) -> dict[str, float]:
        """Return them as figures with a title."""
        return {f"{title}, rate": self.rate, f"{title}, p99": self.p99, f"{title}, CPU": self.cpu}


def ratios_of(pairs: Sequence[tuple[Run, Run]]) -> Ratios:
    """Return what the first run of each pair is of the second."""
    return Ratios(
        statistics.median(run.rate / other.rate for run, other in pairs),
        statistics.median(run.p99_ms / other.p99_ms for run, other in pairs),
        statistics.median(run.cpu_us / other.cpu_us for run, other in pairs),
    )


def drive(side: Side, *, connections: int, seconds: float) -> Run:
    """Load one server."""
    before = cpu_s(side.process)
    result = load.run(
        [side.port],
        lambda _, n: side.requests[n % len(side.requests)],
        connections=connections,
        seconds=seconds,
    )
    assert set(result.statuses) == {200}, result.statuses
    cpu_us = (cpu_s(side.process) - before) / len(result.latencies_s) * 1e6
    return Run(result.rate, result.percentile_ms(0.5), result.percentile_ms(0.99), cpu_us)


def compare(title: str, sides: list[Side], *, rounds: int, connections: int, seconds: float) -> None:
    """Measure the sides in turn; print each round, and the medians of the ratios. The first side is the service."""
    runs: list[list[Run]] = []
    for number in range(rounds + 1):
        found = [drive(side, connections=connections, seconds=seconds) for side in sides]
        shown = " | ".join(
            f"{side.name} {run.rate:,.0f}/s, p50 {run.p50_ms:.1f} and p99 {run.p99_ms:.1f} ms,"
            f" CPU {run.cpu_us:,.0f} us"
            for side, run in zip(sides, found, strict=True)
        )
        print(f"{title}: {shown}" + (" (warm-up)" if number == 0 else ""), flush=True)
        if number:
            runs.append(found)
    for index, side in enumerate(sides[1:], 1):
        ratios = ratios_of([(found[0], found[index]) for found in runs])
        print(
            f"{title}: {ratios.rate:.2f} x the rate of {side.name}, {ratios.p99:.2f} x its p99, "
            f"{ratios.cpu:.2f} x its CPU (medians of {rounds} rounds)"
        )
        print_figures(ratios.figures(f"{title}, beside {side.name}"))
    print_figures(
        {
            f"{title}, rate": statistics.median(found[0].rate for found in runs),
            f"{title}, CPU us": statistics.median(found[0].cpu_us for found in runs),
            f"{title}, p99 ms": statistics.median(found[0].p99_ms for found in runs),
        }
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--accounts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--commit-delay-us", type=int, nargs="+", default=[0, 1000], help="how much longer each flush of the log is"
    )
    options = parser.parse_args()
    port, peer_port, bare_port = free_port(), free_port(), free_port()
    with (
        fresh_database() as (url, folder),
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name,
        silent_provider() as provider_url,
        psycopg.connect(url, autocommit=True) as rows,
    ):
        print(describe(folder, options), flush=True)
        rows.execute("alter system set commit_siblings = 0")
        settings = service_settings(Path(name), database_url=url, port=port, provider_url=provider_url, slots=1)
        of_peer = peer_settings(Path(name), database_url=url, port=peer_port, provider_url=provider_url)
        bare_command = [sys.executable, "-m", "benchmarks.bare", str(bare_port)]
        their_keys = peer_keys(rows, options.accounts)
        with (
            process(SERVE, f"http://127.0.0.1:{port}/readyz", settings) as service,
            process(peer_command(peer_port), f"http://127.0.0.1:{peer_port}/docs", of_peer) as peer,
            process(bare_command, f"http://127.0.0.1:{bare_port}/bare") as empty,
        ):
            keys = api_keys(f"http://127.0.0.1:{port}", options.accounts)
            bare = Side("the empty endpoint", bare_port, empty, [load.post("/bare", BODY, {})])
            cases = ((f"{options.accounts} accounts", options.accounts), ("one account", 1))
            for delay_us, (title, count) in itertools.product(options.commit_delay_us, cases):
                rows.execute(f"alter system set commit_delay = {delay_us}")
                rows.execute("select pg_reload_conf()")
                sides = [
                    Side("the service", port, service, creates(keys[:count])),
                    Side("the peer", peer_port, peer, creates(their_keys[:count])),
                    bare,
                ]
                compare(
                    f"{title}, each flush {delay_us} us longer" if delay_us else title,
                    sides,
                    rounds=options.rounds,
                    connections=options.connections,
                    seconds=options.seconds,
                )
            base, limit = f"http://127.0.0.1:{port}", {"credits": "1000000", "window": "month"}
            compare(
                "20 lots and a limit",
                [
                    Side("the service", port, service, creates(api_keys(base, 1, lots=20, limit=limit))),
                    Side("one lot without a limit", port, service, creates(api_keys(base, 1))),
                ],
                rounds=options.rounds,
                connections=options.connections,
                seconds=options.seconds,
            )


if __name__ == "__main__":
    main()
