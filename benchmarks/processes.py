"""``POST /v2/task/create`` on one process and on several that share a database, with accounts apart and mixed.

*Apart*: each request goes to the process that owns its account. *Mixed*: it goes to any, and all but one in as many
as there are processes are forwarded. *Without links*: two processes, mixed, that have different secrets, so each
serves what it receives. CPU is that of the service processes, without the database and the client. The cost of a
forwarded ask, at both ends together, is what a mixed create costs more than one apart, for each that is forwarded.

The tasks stay queued: their provider has one slot and cannot be reached.

Run: python -m benchmarks.processes [--seconds 4] [--connections 32] [--rounds 4] [--accounts 32]
     [--processes 2 4]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psycopg

from benchmarks import load
from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.servers import SERVE, api_keys, cpu_s, creates, free_port, process, service_settings
from holdfast.cluster.placement import owners_of_places
from holdfast.ledger.values import place_carried_by

PROVIDER_URL = "http://127.0.0.1:9"
"""Where nothing listens."""
FORWARDED = 'holdfast_forwarded_asks_total{result="answered"}'
STALE = "holdfast_fence_stale_units_total"
READY_S = 180.0
CHECKSUM_CHARS = 6
"""The end of an API key, after its place."""


@dataclass
class Server:
    """A service process."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        lines = httpx2.get(f"{self.url}/metrics", timeout=30, trust_env=False).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@contextmanager
def servers(url: str, folder: Path, count: int, *, linked: bool = True) -> Iterator[list[Server]]:
    """Run ``count`` processes on one database until all see each other, or without links."""
    with ExitStack() as stack:
        started = []
        for number in range(count):
            data, port = folder / f"data-{count}-{linked}-{number}", free_port()
            data.mkdir()
            settings = service_settings(data, database_url=url, port=port, provider_url=PROVIDER_URL, slots=1)
            secret = f"the-server-key-of-the-benchmark-{0 if linked else number}-0123456789"
            settings["HOLDFAST_SERVER_KEY"] = secret
            server = stack.enter_context(process(SERVE, f"http://127.0.0.1:{port}/readyz", settings))
            started.append(Server(server, port))
        deadline = time.monotonic() + READY_S
        while any(server.metric("holdfast_members") != (count if linked else 1) for server in started):
            assert time.monotonic() < deadline, "the processes do not see each other"
            time.sleep(0.1)
        yield started


def owners_of_keys(url: str, started: Sequence[Server], keys: Sequence[str]) -> list[int]:
    """Return which process owns each key's account."""
    with psycopg.connect(url) as connection:
        found = connection.execute("select process_id, pid from processes where state = 'ready'").fetchall()
    numbers = {server.process.pid: number for number, server in enumerate(started)}
    members = {process_id: numbers[pid] for process_id, pid in found if pid in numbers}
    owners = owners_of_places(members)
    return [members[owners[place_carried_by(key[:-CHECKSUM_CHARS])]] for key in keys]


@dataclass
class Run:
    """The result of one run."""

    rate: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    stale: float
    forwarded: float


def measure(
    started: Sequence[Server], request: Callable[[int, int], bytes], *, connections: int, seconds: float
) -> Run:
    """Keep connections busy, spread evenly over the processes; ``request(process, n)`` is sent to a process."""
    before = [(cpu_s(server.process), server.metric(STALE), server.metric(FORWARDED)) for server in started]
    result = load.run([server.port for server in started], request, connections=connections, seconds=seconds)
    after = [(cpu_s(server.process), server.metric(STALE), server.metric(FORWARDED)) for server in started]
    assert set(result.statuses) == {200}, result.statuses
    used_s, stale, forwarded = (sum(b[i] - a[i] for a, b in zip(before, after, strict=True)) for i in range(3))
    count = len(result.latencies_s)
    return Run(
        result.rate,
        used_s / count * 1e6,
        result.percentile_ms(0.5),
        result.percentile_ms(0.99),
        stale,
        forwarded / count,
    )


def show(name: str, run: Run) -> None:
    """Print one run."""
    print(
        f"{name:24} {run.rate:6,.0f}/s, CPU {run.cpu_us:6,.0f} us a create, p50 {run.p50_ms:5.1f} ms, "
        f"p99 {run.p99_ms:6.1f} ms, {run.stale:5.0f} stale units, {run.forwarded:4.0%} forwarded",
        flush=True,
    )


def main() -> None:
    """Measure all cases and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--accounts", type=int, default=32)
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[2, 4], help="of how many processes each run is"
    )
    options = parser.parse_args()
    shape = {"connections": options.connections, "seconds": options.seconds}

    with fresh_database() as (url, folder):
        print(describe(folder, options))
        with servers(url, folder, 1) as single:
            keys = api_keys(single[0].url, options.accounts)
            requests = creates(keys)
            for number in range(2):
                run = measure(single, lambda _, n: requests[n % len(requests)], **shape)
                show("one process" if number else "one process, warm-up", run)
            report("one process", [run])
        for count in options.processes:
            with servers(url, folder, count) as started:
                compare(started, requests, owners_of_keys(url, started, keys), options.rounds, **shape)
        with servers(url, folder, 2, linked=False) as unlinked:
            for number in range(2):
                run = measure(unlinked, lambda process, n: requests[(n // 2 + process) % len(requests)], **shape)
                show("two, without links" if number else "two, warm-up", run)
            report("two, without links", [run])


def report(name: str, runs: Sequence[Run]) -> None:
    """Report the medians of a case, and its stale units in all."""
    print_figures(
        {
            f"{name}, rate": statistics.median(run.rate for run in runs),
            f"{name}, CPU us": statistics.median(run.cpu_us for run in runs),
            f"{name}, stale units": sum(run.stale for run in runs),
        }
    )


def compare(
    started: Sequence[Server],
    requests: Sequence[bytes],
    owners: Sequence[int],
    rounds: int,
    *,
    connections: int,
    seconds: float,
) -> None:
    """Measure processes apart and mixed in turn and print the ratios; ``owners`` are those of the requests."""
    count = len(started)
    owned = [[r for r, owner in zip(requests, owners, strict=True) if owner == number] for number in range(count)]
    cases: dict[str, Callable[[int, int], bytes]] = {
        "apart": lambda process, n: owned[process][n % len(owned[process])],
        "mixed": lambda process, n: requests[(n // count + process) % len(requests)],
    }
    ratios, cpu_ratios, asks_us = [], [], []
    measured: dict[str, list[Run]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        # In turn first, so that what changes with time, as the growing queue does, favours neither.
        runs = {}
        for name in sorted(cases, reverse=number % 2 == 1):
            runs[name] = measure(started, cases[name], connections=connections, seconds=seconds)
            show(f"{count}, {name}" + (", warm-up" if number == 0 else ""), runs[name])
        apart, mixed = runs["apart"], runs["mixed"]
        if number:
            for name, run in runs.items():
                measured[name].append(run)
            ratios.append(mixed.rate / apart.rate)
            cpu_ratios.append(apart.cpu_us / mixed.cpu_us)
            asks_us.append((mixed.cpu_us - apart.cpu_us) / mixed.forwarded)
    print(
        f"{count} processes, mixed over apart: median {statistics.median(ratios):.2f} of {rounds} rounds by rate, "
        f"{statistics.median(cpu_ratios):.2f} by CPU; "
        f"a forwarded ask costs {statistics.median(asks_us):,.0f} us of CPU more; "
        f"{connections} connections, {len(requests)} accounts"
    )
    for name, kept in measured.items():
        report(f"{count}, {name}", kept)
    print_figures(
        {
            f"{count}, mixed over apart": statistics.median(ratios),
            f"{count}, forwarded ask CPU us": statistics.median(asks_us),
        }
    )


if __name__ == "__main__":
    main()
