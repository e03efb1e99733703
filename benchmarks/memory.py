"""Memory per active account: growth of the process's resident set, divided by the accounts activated.

Each account is a real row with a key and credit, woken by a command, idle afterwards: its actor, mailbox, parked
task, loaded state and place in the directory are all in the figure.

Run: python -m benchmarks.memory [--accounts 5000]
"""

from __future__ import annotations

import argparse
import gc
import os
from typing import Any

import psycopg
import trio

from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.holds import account_directory
from holdfast.actors.account.messages import CreditChanged, Recharge
from holdfast.ledger.credit.operations import CHAIN_START
from holdfast.ledger.values import new_id
from holdfast.persistence.server.database import Database

WARM_UP = 500
PARALLEL = 64


def resident_bytes() -> int:
    """Return the process's resident set."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - one line of the kernel's
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def plant_accounts(url: str, count: int) -> list[str]:
    """Insert rows of new accounts, each with a valid key."""
    ids = [new_id("acct") for _ in range(count)]
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.executemany(
            "insert into accounts (id, email, role, brand_id, created_at, version, operation_count, balance_micro, "
            "held_micro, chain_head) values (%s, %s, 'User', 'b', now(), 0, 0, 0, 0, %s)",
            [(account_id, f"{account_id}@example.com", CHAIN_START) for account_id in ids],
        )
        cursor.executemany(
            "insert into api_keys (account_id, key_id, secret_sha256, prefix, name, scopes, created_at, is_paused, "
            "models, window_start, captured_micro) "
            "values (%s, %s, %s, 'hk_test_x', 'k', '{tasks:read,tasks:write}', now(), false, '{}', now(), 0)",
            [(account_id, new_id("key"), account_id.encode()) for account_id in ids],
        )
    return ids


async def measure(url: str, ids: list[str]) -> float:
    """Measure the bytes per active account, after a warm-up that loads code and fills pools."""
    database = Database(url)
    await database.open()
    journal, directory = account_directory(database)

    async def wake(some: list[str]) -> None:
        left = iter(some)

        async def caller() -> None:
            for account_id in left:
                reply: Any = await directory.ref(account_id).ask(Recharge(1_000_000))
                assert isinstance(reply, CreditChanged)

        async with trio.open_nursery() as callers:
            for _ in range(PARALLEL):
                callers.start_soon(caller)

    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: journal.run(task_status=task_status))
        await nursery.start(directory.run)
        await wake(ids[:WARM_UP])
        gc.collect()
        before = resident_bytes()
        await wake(ids[WARM_UP:])
        gc.collect()
        grown = resident_bytes() - before
        assert directory.active_count == len(ids)
        nursery.cancel_scope.cancel()
    database.close()
    return grown / (len(ids) - WARM_UP)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accounts", type=int, default=5000)
    options = parser.parse_args()
    with fresh_database() as (url, folder):
        print(describe(folder, options))
        ids = plant_accounts(url, options.accounts + WARM_UP)
        each = trio.run(measure, url, ids)
        print(f"an active account: {each:,.0f} bytes of resident memory ({options.accounts} accounts)")
        print_figures({"an active account, KB": each / 1e3})


if __name__ == "__main__":
    main()
