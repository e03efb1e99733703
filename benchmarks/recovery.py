"""Recovery of many active accounts that are killed at once: how long it takes, and what is lost.

Clients recharge every account in turn while it happens, and wait through the outage. ``restart``: the journal
crashes, so the supervisor restarts it and the accounts after it. ``crash``: every actor raises, which pauses the
group. Afterwards each account's balance is compared with what its clients were answered.

Run: python -m benchmarks.recovery [--accounts 10000]
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import structlog
import trio

from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.holds import account_directory
from benchmarks.memory import plant_accounts
from holdfast.actors.account.messages import CreditChanged, Recharge
from holdfast.actors.runtime.faults import Crashed, OutcomeUnknown
from holdfast.actors.runtime.mailbox import SystemMessage
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.server.database import Database
from holdfast.start.service import tune_interpreter
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.spec import ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import RunningChild
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter

CLIENTS = 256
AMOUNT_MICRO = 1_000_000
DEADLINE_S = 120.0


class Killed:
    """The accounts below a supervisor, and the counts of a run."""

    def __init__(self, journal: Journal, directory: KeyedDirectory) -> None:
        self.directory = directory
        self.answered: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.loads_most = 0
        self._journal = journal
        self._break = trio.Event()
        self.tree = Supervisor(
            "accounts-bench",
            [ChildSpec("journal", self._journal_child, shutdown_s=5.0), ChildSpec("accounts", lambda: directory)],
            strategy="rest_for_one",
            intensity=Intensity(3, 30.0),
            reporter=(reporter := Reporter()),
            conditions=Conditions(reporter),
        )

    def _journal_child(self) -> RunningChild:
        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fail_when_broken)
                await self._journal.run(task_status=task_status)
                nursery.cancel_scope.cancel()

        return RunningChild(run, self._journal.stop)

    async def _fail_when_broken(self) -> None:
        await self._break.wait()
        self._break = trio.Event()
        raise RuntimeError("the journal is broken on purpose")

    async def restart(self) -> None:
        """Crash the journal."""
        self._break.set()
        await trio.lowlevel.checkpoint()

    async def crash(self) -> None:
        """Crash every actor."""
        for child in list(self.directory.by_key.values()):
            if child.actor is not None:
                child.mailbox.put_system(SystemMessage.CRASH)
        await trio.lowlevel.checkpoint()

    async def recharge_all(self, ids: list[str]) -> None:
        """Recharge each account once."""
        left = iter(ids)

        async def client() -> None:
            for account_id in left:
                ask: Any = self.directory.ref(account_id).ask(
                    Recharge(AMOUNT_MICRO), deadline_s=DEADLINE_S, while_down="wait"
                )
                try:
                    reply = await ask
                except OutcomeUnknown:
                    self.unknown[account_id] += 1
                except Crashed:
                    pass
                else:
                    assert isinstance(reply, CreditChanged)
                    self.answered[account_id] += 1

        async with trio.open_nursery() as clients:
            for _ in range(CLIENTS):
                clients.start_soon(client)

    async def watch_loads(self) -> None:
        """Record how many actors load their rows at the same time."""
        while True:
            loading = [c for c in self.directory.by_key.values() if c.actor is not None and not c.actor.is_serving]
            self.loads_most = max(self.loads_most, len(loading))
            await trio.sleep(0.001)


async def measure(url: str, ids: list[str]) -> None:
    """Kill the accounts in both ways, and print what was seen."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    tune_interpreter()
    database = Database(url)
    await database.open()
    killed = Killed(*account_directory(database))
    async with trio.open_nursery() as nursery:
        await nursery.start(killed.tree.run)
        nursery.start_soon(killed.watch_loads)
        begun = time.perf_counter()
        await killed.recharge_all(ids)
        print(f"first recharge of each, loading included: {time.perf_counter() - begun:.1f} s")
        begun = time.perf_counter()
        await killed.recharge_all(ids)
        print(f"second, all active: {time.perf_counter() - begun:.1f} s")
        for name, kill in (("restart", killed.restart), ("crash", killed.crash)):
            await _killed_once(name, kill, killed, ids)
        await killed.tree.stop()
        nursery.cancel_scope.cancel()
    database.close()
    _compare(url, killed)


async def _killed_once(name: str, kill: Callable[[], Awaitable[None]], killed: Killed, ids: list[str]) -> None:
    await killed.recharge_all(ids)
    active = killed.directory.active_count
    killed.loads_most = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(killed.recharge_all, ids)
        await trio.sleep(0.02)
        begun = time.perf_counter()
        await kill()
    await killed.recharge_all(ids)
    took_s = time.perf_counter() - begun
    print(
        f"{name}: {active} active were killed; {len(ids)} had answered again after "
        f"{took_s:.1f} s, at most {killed.loads_most} loaded at a time"
    )
    print_figures({f"{name}, s": took_s, f"{name}, loading at a time": killed.loads_most})


def _compare(url: str, killed: Killed) -> None:
    with psycopg.connect(url) as connection:
        balances: dict[str, Any] = dict(
            connection.execute("select id, balance_micro / %s from accounts", [AMOUNT_MICRO]).fetchall()
        )
    lost = [each for each, balance in balances.items() if balance < killed.answered[each]]
    most = {each: killed.answered[each] + killed.unknown[each] for each in balances}
    doubled = [each for each, balance in balances.items() if balance > most[each]]
    print(
        f"answered {killed.answered.total()}, outcome unknown {killed.unknown.total()}; "
        f"lost {len(lost)}, counted twice {len(doubled)}"
    )
    assert not lost
    assert not doubled


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accounts", type=int, default=10_000)
    options = parser.parse_args()
    with fresh_database() as (url, folder):
        print(describe(folder, options))
        trio.run(measure, url, plant_accounts(url, options.accounts))


if __name__ == "__main__":
    main()
