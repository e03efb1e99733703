"""Rolls under load: workers are replaced while clients create tasks, and none may be refused, cut or lost.

The clients keep connections, open one for each request, send and read slowly, or pause between requests. Then
workers are killed, which cuts what they were answering; the longest wait of the fast clients is printed. The books
are audited at the end.

Run: python -m benchmarks rolls [--rolls 20] [--processes 2] [--kills 5]
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from benchmarks.conditions import describe, print_figures
from benchmarks.roll_clients import RollClients, Tally
from benchmarks.servers import SERVE, api_keys, free_port, process
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.embedded import database_url_of

ACCOUNTS = 8
SETTLE_S = 2.0


def children_of(parent: int) -> list[int]:
    """Return the pids of a process's children; the system lists them by the thread that started them."""
    lists = [path.read_text() for path in Path(f"/proc/{parent}/task").glob("*/children")]
    return sorted(int(pid) for found in lists for pid in found.split())


def workers_of(parent: int) -> list[int]:
    """Return the pids of the parent's workers."""
    return [
        pid
        for pid in children_of(parent)
        if b"holdfast.start.children.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


async def until(holds: Callable[[], bool]) -> None:
    """Poll until ``holds``."""
    while not holds():  # noqa: ASYNC110 - other processes raise no events here
        await trio.sleep(0.05)


async def roll(parent: int, log: Path, rolls: int, clients: RollClients) -> None:
    """Ask for each roll when the one before is complete."""

    def is_complete(number: int) -> bool:
        logged = log.read_bytes()
        assert b"roll abandoned" not in logged, logged[-2000:]
        return logged.count(b"roll complete") >= number

    async with trio.open_nursery() as nursery:
        nursery.start_soon(clients.run)
        for number in range(1, rolls + 1):
            os.kill(parent, signal.SIGUSR2)
            await until(partial(is_complete, number))
            print(f"roll {number}: {clients.tally.requests:,} requests so far", flush=True)
        await trio.sleep(SETTLE_S)
        clients.is_stopping = True


async def kill(parent: int, log: Path, kills: int, clients: RollClients) -> None:
    """Kill a worker, wait until another has started in its place, and repeat."""

    def starts() -> int:
        return log.read_bytes().count(b'path=holdfast text="up: ')

    def has_started_again(before: int) -> bool:
        return starts() > before

    async with trio.open_nursery() as nursery:
        nursery.start_soon(clients.run)
        for number in range(kills):
            await trio.sleep(SETTLE_S)
            workers, before = workers_of(parent), starts()
            os.kill(workers[number % len(workers)], signal.SIGKILL)
            await until(partial(has_started_again, before))
        await trio.sleep(SETTLE_S)
        clients.is_stopping = True


def lost(tally: Tally, url: str) -> list[str]:
    """Return the tasks that were answered and do not exist."""
    with connected(url) as connection:
        found = {row[0] for row in connection.exec_driver_sql("select request_id from tasks")}
    return [request_id for request_id in tally.created.values() if request_id not in found]


def show(title: str, tally: Tally, url: str) -> None:
    """Print one line."""
    print(
        f"{title}: {tally.requests:,} requests, {len(tally.refused)} refused, {len(tally.cut)} cut, "
        f"{len(lost(tally, url))} lost; statuses {dict(tally.statuses)}; longest wait {tally.longest_s:.2f} s"
    )
    print_figures(
        {
            f"{title}, requests": tally.requests,
            f"{title}, refused": len(tally.refused),
            f"{title}, cut": len(tally.cut),
            f"{title}, lost": len(lost(tally, url)),
            f"{title}, longest wait s": tally.longest_s,
        }
    )
    for line in [*tally.refused, *tally.cut, *tally.failed][:10]:
        print(f"  {line}")


def main() -> None:
    """Run rolls, then kills, then the audit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rolls", type=int, default=20)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        print(describe(folder, options))
        log, data_dir, port = folder / "log", folder / "var", free_port()
        environ = {
            "HOLDFAST_DATA_DIR": str(data_dir),
            "HOLDFAST_PORT": str(port),
            "HOLDFAST_TASKS_IN_FLIGHT_MAX": "1000000",
        }
        base = f"http://127.0.0.1:{port}"
        command = [*SERVE, "--processes", str(options.processes)]
        with process(command, f"{base}/readyz", environ, log=log) as parent:
            keys = api_keys(base, ACCOUNTS)
            database_url = database_url_of(data_dir)
            assert database_url is not None
            rolling, killing = RollClients(base, keys), RollClients(base, keys)
            if options.rolls:
                trio.run(roll, parent.pid, log, options.rolls, rolling)
                show(f"{options.rolls} rolls of {options.processes} workers", rolling.tally, database_url)
            if options.kills:
                trio.run(kill, parent.pid, log, options.kills, killing)
                show(f"{options.kills} workers killed", killing.tally, database_url)
            with connected(database_url) as connection:
                found = run_audit(connection)
            print(f"audit: {found or 'clean'}")


if __name__ == "__main__":
    main()
