"""The reads that clients repeat, beside a row-lock peer: one task, an account's newest twenty, its balance.

The service and the peer (:mod:`benchmarks.row_lock_peer`) run as processes of their own on one PostgreSQL and take
turns under the same load. The provider never responds, so that only reads are measured. The last part mixes nine
reads of a task with one create. CPU is user and system time without PostgreSQL.

Run: python -m benchmarks.reads [--seconds 4] [--connections 32] [--accounts 200] [--tasks 25] [--rounds 5]
     [--processes 1 2]
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
from pathlib import Path

import httpx2
import psycopg

from benchmarks import load
from benchmarks.conditions import describe, fresh_database
from benchmarks.create import Side, compare
from benchmarks.servers import (
    BODY,
    SERVE,
    api_keys,
    creates,
    free_port,
    peer_command,
    peer_keys,
    peer_settings,
    process,
    service_settings,
    silent_provider,
)

CREATES_IN = 10
"""Of so many mixed requests one is a create."""


def create_tasks(port: int, keys: list[str], count: int) -> list[tuple[str, str]]:
    """Create ``count`` tasks for each key; return the keys and ids of all tasks, shuffled."""
    created = []
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
        for _, key in itertools.product(range(count), keys):
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            answer = client.post("/v2/task/create", content=BODY, headers=headers)
            answer.raise_for_status()
            created.append((key, answer.json()["request_id"]))
    random.Random(1).shuffle(created)
    return created


def gets(path: str, keys: list[str]) -> list[bytes]:
    """Return a GET request of each key."""
    return [load.get(path, {"Authorization": f"Bearer {key}"}) for key in keys]


def parts(keys: list[str], tasks: list[tuple[str, str]]) -> dict[str, list[bytes]]:
    """Return the requests of each part."""
    one = [load.get(f"/v2/task/{request_id}", {"Authorization": f"Bearer {key}"}) for key, request_id in tasks]
    made = itertools.cycle(creates(keys))
    return {
        "one task": one,
        "newest twenty": gets("/v2/task/list", keys),
        "account": gets("/v2/control/account", keys),
        "reads and creates 9:1": [next(made) if n % CREATES_IN == 0 else read for n, read in enumerate(one)],
    }


def measure(options: argparse.Namespace, processes: int) -> None:
    """Measure service and peer, both in so many processes, and print."""
    port, peer_port = free_port(), free_port()
    serve = SERVE if processes == 1 else [*SERVE, "--processes", str(processes)]
    with (
        fresh_database() as (url, folder),
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name,
        silent_provider() as provider_url,
        psycopg.connect(url, autocommit=True) as rows,
    ):
        if processes == 1:
            print(describe(folder, options), flush=True)
        settings = service_settings(Path(name), database_url=url, port=port, provider_url=provider_url, slots=1)
        of_peer = peer_settings(Path(name), database_url=url, port=peer_port, provider_url=provider_url)
        their_keys = peer_keys(rows, options.accounts)
        with (
            process(serve, f"http://127.0.0.1:{port}/readyz", settings) as service,
            process(peer_command(peer_port, processes), f"http://127.0.0.1:{peer_port}/docs", of_peer) as peer,
        ):
            keys = api_keys(f"http://127.0.0.1:{port}", options.accounts)
            ours = parts(keys, create_tasks(port, keys, options.tasks))
            theirs = parts(their_keys, create_tasks(peer_port, their_keys, options.tasks))
            rows.execute("vacuum analyze")
            for title, requests in ours.items():
                sides = [
                    Side("the service", port, service, requests),
                    Side("the peer", peer_port, peer, theirs[title]),
                ]
                compare(
                    title if processes == 1 else f"{title}, {processes} processes",
                    sides,
                    rounds=options.rounds,
                    connections=options.connections,
                    seconds=options.seconds,
                )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--accounts", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=25, help="tasks of each account")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    for processes in options.processes:
        measure(options, processes)


if __name__ == "__main__":
    main()
