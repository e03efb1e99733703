"""Processes frozen in the middle of a commit: how soon the others answer at their rate, and what /readyz says.

Clients create tasks through the processes that stay healthy, for accounts of all of them. One process is stopped
(SIGSTOP) while a transaction of it is open, and continues after a while. Below a parent all workers share one port;
there new clients come eight seconds after the freeze, because a frozen worker's connections wait for it.
The books are audited at the end.

Run: python -m benchmarks frozen [--rounds 20] [--processes 2] [--parent]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2
import psycopg
import trio

from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.processes import PROVIDER_URL, servers
from benchmarks.roll_clients import RollClients
from benchmarks.rolls import workers_of
from benchmarks.servers import BODY, SERVE, api_keys, free_port, process, service_settings
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.server.connections import connected

ACCOUNTS = 32
CLIENTS = 8
BASE_S = 5.0
NEW_CLIENTS_S = 8.0
HEALED_S = 10.0
"""From this second on the others should answer as before."""
FROZEN_S = 15.0
REST_S = 4.0
IN_COMMIT = (
    "select count(*) from pg_stat_activity where application_name = 'holdfast' and backend_xid is not null "
    "and wait_event_type = 'Client' and state_change < clock_timestamp() - interval '0.2 s'"
)


@dataclass
class Target:
    """The processes, their addresses, and whether all of them have the same one."""

    pids: Sequence[int]
    urls: Sequence[str]
    is_shared: bool = False

    def healthy(self, frozen: int) -> list[str]:
        """Return the addresses through which the others are reached."""
        return [self.urls[0]] if self.is_shared else [url for n, url in enumerate(self.urls) if n != frozen]


@contextmanager
def target(url: str, folder: Path, options: argparse.Namespace) -> Iterator[Target]:
    """Run the processes, or a parent with workers."""
    with ExitStack() as stack:
        if not options.parent:
            started = stack.enter_context(servers(url, folder, options.processes))
            yield Target([each.process.pid for each in started], [each.url for each in started])
            return
        port = free_port()
        settings = service_settings(folder, database_url=url, port=port, provider_url=PROVIDER_URL, slots=1)
        base = f"http://127.0.0.1:{port}"
        command = [*SERVE, "--processes", str(options.processes)]
        parent = stack.enter_context(process(command, f"{base}/readyz", settings))
        while len(workers_of(parent.pid)) < options.processes:
            time.sleep(0.1)
        time.sleep(REST_S)
        yield Target(workers_of(parent.pid), [base], is_shared=True)


async def freeze_in_commit(pid: int, database: psycopg.Connection) -> None:
    """Stop a process at a moment at which a transaction of it is open."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        await trio.sleep(0.4)
        if database.execute(IN_COMMIT).fetchone() != (0,):
            return
        os.kill(pid, signal.SIGCONT)
        await trio.sleep(0.05)


async def readiness(urls: Sequence[str]) -> Counter[str]:
    """Ask each address for its /readyz, on a new connection; the provider, which is away, does not count."""
    found: Counter[str] = Counter()
    async with httpx2.AsyncClient(timeout=2, trust_env=False) as http:
        for url in urls:
            try:
                body = (await http.get(f"{url}/readyz")).json()
                found["ready" if body["database"] and body["tree"] else "not ready"] += 1
            except httpx2.HTTPError:
                found["no answer"] += 1
    return found


@dataclass
class Round:
    """What was seen: answers a second before the freeze, in each second of it, and /readyz at its end."""

    base: float
    seconds: list[int]
    ready: Counter[str]

    @property
    def ratio(self) -> float:
        """The rate from the tenth second on, in relation to that before."""
        return statistics.mean(self.seconds[int(HEALED_S) :]) / self.base


def busy(clients: RollClients, many: int) -> partial[Coroutine[object, object, None]]:
    """Return what runs so many clients that keep their connections and never pause."""
    return partial(clients.run, keep_alive=many, fresh=0, slow=0, idle=0, pause_s=0.0)


async def run_round(found: Target, frozen: int, keys: list[str], database: psycopg.Connection) -> Round:
    """Measure, freeze one process, measure again, and let it continue."""
    healthy = found.healthy(frozen)
    clients: list[RollClients] = []

    def good() -> int:
        return sum(each.tally.statuses[200] for each in clients)

    async def start(nursery: trio.Nursery, urls: Sequence[str]) -> None:
        for url in urls:
            clients.append(RollClients(url, keys, BODY))
            nursery.start_soon(busy(clients[-1], CLIENTS // len(urls)))

    async with trio.open_nursery() as nursery:
        await start(nursery, healthy)
        beside = RollClients(found.urls[0 if found.is_shared else frozen], keys, BODY)
        nursery.start_soon(busy(beside, 2))
        await trio.sleep(1)
        before = good()
        await trio.sleep(BASE_S)
        base = (good() - before) / BASE_S
        pid = found.pids[frozen]
        await freeze_in_commit(pid, database)
        try:
            begun, seconds, is_joined = trio.current_time(), [], not found.is_shared
            for second in range(int(FROZEN_S)):
                if not is_joined and second >= NEW_CLIENTS_S:
                    await start(nursery, healthy)
                    is_joined = True
                before = good()
                await trio.sleep_until(begun + second + 1)
                seconds.append(good() - before)
            ready = await readiness(healthy)
        finally:
            os.kill(pid, signal.SIGCONT)
        nursery.cancel_scope.cancel()
    await trio.sleep(REST_S)
    return Round(base, seconds, ready)


def main() -> None:
    """Run the rounds, then the audit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parent", action="store_true", help="workers below a parent")
    options = parser.parse_args()
    with fresh_database() as (url, folder):
        print(describe(folder, options))
        with target(url, folder, options) as found, psycopg.connect(url, autocommit=True) as database:
            keys = api_keys(found.urls[0], ACCOUNTS)
            rounds = []
            for number in range(options.rounds):
                rounds.append(trio.run(run_round, found, number % len(found.pids), keys, database))
                last = rounds[-1]
                print(
                    f"#{number + 1}: {last.base:.0f}/s before; each second frozen {last.seconds}; "
                    f"from the tenth on {last.ratio:.2f} of it; /readyz {dict(last.ready)}",
                    flush=True,
                )
        with connected(url) as connection:
            wrong = run_audit(connection)
        ratios = [each.ratio for each in rounds]
        kind = " below a parent" if options.parent else ""
        share = f"least {min(ratios):.2f}, median {statistics.median(ratios):.2f}"
        print(
            f"{len(rounds)} rounds, {options.processes} processes{kind}: {share} "
            f"of the rate from the tenth second on; audit: {wrong or 'clean'}"
        )
        print_figures({"least rate": min(ratios), "median rate": statistics.median(ratios)})


if __name__ == "__main__":
    main()
