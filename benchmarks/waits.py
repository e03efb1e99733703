"""Waiting requests and streams: what creates beside them feel, and how soon a waiting client has its result.

Creates are measured beside requests that wait for other tasks, beside streams of other tasks, beside a stream of
each creating account, and beside as many of one of them, each time next to creates alone and in each round in the
other order, so that a machine whose speed changes favours neither; the provider never responds. CPU is user and
system time without PostgreSQL, and on a busy machine it tells more than the rate. Then each task is created and
waited for, with a provider that ends it at once: the delay is from the time of its end, which is decided before
the commit, to the response. With two processes the waiting request reaches either. What there are 0 of is left
out.

Run: python -m benchmarks.waits [--seconds 4] [--rounds 5] [--accounts 200] [--waiting 2000] [--streams 1000]
     [--tasks 200]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from http.client import HTTPConnection
from itertools import cycle, islice
from pathlib import Path

from benchmarks import load
from benchmarks.conditions import fresh_database, print_figures
from benchmarks.create import Run, Side, drive, ratios_of
from benchmarks.reads import create_tasks, gets
from benchmarks.servers import (
    BODY,
    SECRET,
    SERVE,
    api_keys,
    creates,
    free_port,
    one_service,
    process,
    service_settings,
    silent_provider,
)

CLIENTS = 4
"""How many clients create and wait, one task after the other."""
PLACES = {
    "HOLDFAST_CONNECTIONS_MAX": "16384",
    "HOLDFAST_CONNECTIONS_PER_PEER_MAX": "16384",
    "HOLDFAST_WAITING_PER_ACCOUNT_MAX": "16384",
}


def _received(connections: Sequence[socket.socket]) -> int:
    """Return how many bytes have arrived since the last call."""
    count = 0
    for connection in connections:
        with contextlib.suppress(BlockingIOError):
            while found := len(connection.recv(1 << 20)):
                count += found
            raise AssertionError("the service ended a request that should wait")
    return count


@contextlib.contextmanager
def opened(port: int, requests: Sequence[bytes]) -> Iterator[None]:
    """Send each request over a connection of its own, and read what comes until the end of the context."""
    connections = []
    for request in requests:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(request)
        connection.setblocking(False)
        connections.append(connection)
    time.sleep(2.0)  # until they wait: the service answers only when they no longer do
    while _received(connections):  # a new stream begins with its account's unfinished tasks
        time.sleep(1.0)
    ended = threading.Event()

    def read() -> None:
        while not ended.wait(0.5):
            _received(connections)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()
        for connection in connections:
            connection.close()
        time.sleep(1.0)


def beside(options: argparse.Namespace) -> None:
    """Measure creates beside requests that wait."""
    with silent_provider() as provider_url, one_service(options, provider_url, **PLACES) as service:
        keys = api_keys(service.base, options.accounts)
        tasks = create_tasks(service.port, keys, -(-max(options.waiting, options.streams) // options.accounts))
        side = Side("the service", service.port, service.process, creates(keys))

        def of_tasks(query: str, count: int) -> list[bytes]:
            return [
                load.get(f"/v2/task/{request_id}{query}", {"Authorization": f"Bearer {key}"})
                for key, request_id in islice(cycle(tasks), count)
            ]

        of_accounts = gets("/v2/control/stream", keys)
        cases = {
            f"{options.waiting} waiting": of_tasks("?wait=60", options.waiting),
            f"{options.streams} streams of tasks": of_tasks("/stream", options.streams),
            f"{options.accounts} streams of accounts": of_accounts,
            f"{options.accounts} streams of one account": of_accounts[:1] * options.accounts,
        }
        cases = {title: requests for title, requests in cases.items() if requests}
        pairs: dict[str, list[tuple[Run, Run]]] = {title: [] for title in cases}
        drive(side, connections=32, seconds=options.seconds)
        for number in range(options.rounds):
            for title, requests in cases.items():
                runs: dict[bool, Run] = {}
                for is_alone in (False, True) if number % 2 else (True, False):
                    with opened(service.port, [] if is_alone else requests):
                        runs[is_alone] = drive(side, connections=32, seconds=options.seconds)
                run, alone = runs[False], runs[True]
                pairs[title].append((run, alone))
                print(
                    f"beside {title}: {run.rate:,.0f}/s, p99 {run.p99_ms:.1f} ms, CPU {run.cpu_us:,.0f} us | "
                    f"alone {alone.rate:,.0f}/s, p99 {alone.p99_ms:.1f} ms, CPU {alone.cpu_us:,.0f} us",
                    flush=True,
                )
    for title, found in pairs.items():
        ratios = ratios_of(found)
        cpu_us = [statistics.median(run.cpu_us for run in each) for each in zip(*found, strict=True)]
        print(
            f"creates beside {title}: {ratios.rate:.3f} x the rate, {ratios.p99:.2f} x the p99, "
            f"{ratios.cpu:.3f} x the CPU ({cpu_us[0]:,.0f} us a create, alone {cpu_us[1]:,.0f} us)"
        )
        print_figures(ratios.figures(title))


def call(port: int, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> dict[str, str]:
    """Send a request over a connection of its own, so that either process may get it; return the response."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=90)) as connection:
        connection.request(method, path, body, headers)
        found: dict[str, str] = json.load(connection.getresponse())
        return found


def delays(port: int, keys: Sequence[str], count: int) -> list[float]:
    """Create tasks, one after the other, and wait for each; return the delays from their ends in seconds."""
    found = []
    for number in range(count):
        headers = {"Authorization": f"Bearer {keys[number % len(keys)]}", "Content-Type": "application/json"}
        created = call(port, "POST", "/v2/task/create", headers, BODY)
        task = call(port, "GET", f"/v2/task/{created['request_id']}?wait=60", headers)
        now = time.time()
        assert task["status"] == "succeeded", task
        found.append(now - datetime.fromisoformat(task["completed_at"]).timestamp())
    return found


def wakes(options: argparse.Namespace, processes: int) -> None:
    """Measure how soon clients that wait have their results."""
    port, provider_port = free_port(), free_port()
    provider_url = f"http://127.0.0.1:{provider_port}"
    provider = [sys.executable, "-m", "benchmarks.instant_provider", str(provider_port), SECRET]
    serve = SERVE if processes == 1 else [*SERVE, "--processes", str(processes)]
    with fresh_database() as (url, _), tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        settings = service_settings(Path(name), database_url=url, port=port, provider_url=provider_url, slots=64)
        with (
            process(provider, f"{provider_url}/files/0.png"),
            process(serve, f"http://127.0.0.1:{port}/readyz", {**settings, **PLACES}),
        ):
            keys = api_keys(f"http://127.0.0.1:{port}", 2 * CLIENTS)
            found: list[float] = []

            def run(client: int) -> None:
                delays(port, keys[client::CLIENTS], 5)
                found.extend(delays(port, keys[client::CLIENTS], options.tasks // CLIENTS))

            clients = [threading.Thread(target=run, args=(client,)) for client in range(CLIENTS)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
    found.sort()
    median, p99 = statistics.median(found) * 1e3, found[int(len(found) * 0.99)] * 1e3
    title = "one process" if processes == 1 else f"{processes} processes"
    print(f"a result reaches its waiting client {median:.1f} ms after its end, p99 {p99:.1f} ms ({title})")
    print_figures({f"{title}, delay ms": median, f"{title}, delay p99 ms": p99})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--accounts", type=int, default=200)
    parser.add_argument("--waiting", type=int, default=2000)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=200)
    options = parser.parse_args()
    beside(options)
    for processes in (1, 2) if options.tasks else ():
        wakes(options, processes)


if __name__ == "__main__":
    main()
