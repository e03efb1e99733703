"""Durable holds a second: account actors with a group-committing journal, compared with a row lock per hold.

Both sides write the same rows on the same database in the same run: the account's head, an operation, two
postings, a hold, a task and a usage entry. Each case is warmed up by a run that does not count, and each run begins
after a checkpoint. The baseline is one transaction a hold with SELECT … FOR UPDATE on 16 threads, each with its
own connection and prepared statements.

Run: python -m benchmarks.holds [--seconds 5]
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import psycopg
import trio

from benchmarks.conditions import describe, fresh_database, print_figures
from holdfast.actors.account.actor import AccountActor
from holdfast.actors.account.limits import AccountLimits
from holdfast.actors.account.messages import CreateTask, Recharge, TaskAccepted
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.refs import TrioActorRef
from holdfast.actors.task.dependencies import queued
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.pricing import PricedInput, quote_input
from holdfast.ledger.credit.account import AccountState, decide_hold
from holdfast.ledger.credit.operations import CHAIN_START, Lot, Lots, Operation
from holdfast.ledger.orders.order import Seller
from holdfast.ledger.tasks.task import TaskRequest, TaskState, accept_task
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.statements import STATEMENTS, RowStatement
from holdfast.persistence.journal.units import Committed, Unit
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRow
from holdfast.persistence.records.rows import AccountHead, AccountRow, NewTaskRow
from holdfast.persistence.server.database import Database
from holdfast.providers.media.kinds import kind_rules
from holdfast.start.service import tune_interpreter
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.reporter import Reporter

CLIENTS = 256
THREADS = 16
CREDIT_MICRO = 10**14


class IgnoringRef(TrioActorRef):
    """An address that drops its messages: only the write path is measured."""

    def tell(self, message: object) -> None:
        """Drop the message."""


def priced() -> PricedInput:
    """Return an image task at catalog prices."""
    found = quote_input(load_catalog(None, kind_rules()), "studio/image-1", {"prompt": "a lighthouse at dusk"})
    assert isinstance(found, PricedInput)
    return found


# ------------------------------------------------------------------------------------------------- account actors


def account_directory(database: Database) -> tuple[Journal, KeyedDirectory]:
    """Create a journal and a directory of account actors; messages to the dispatcher are dropped."""
    journal = Journal(BatchWriter(database.keep_writer(), now=utc_now), database.gate)
    dispatcher = IgnoringRef("urn:benchmark:dispatcher")
    limits = AccountLimits(tasks_in_flight_max=10**9)

    async def load(account_id: str) -> Any:
        return await database.read(load_account, account_id)

    def factory(account_id: str, mailbox: Mailbox) -> AccountActor:
        return AccountActor(
            account_id,
            mailbox,
            journal,
            load=load,
            database=database,
            begin_task=partial(queued, dispatcher),
            now=utc_now,
            limits=limits,
            seller=Seller(**dict.fromkeys(Seller.__struct_fields__, "benchmark")),
        )

    async def probe() -> bool:
        return True

    directory = KeyedDirectory(
        "accounts",
        factory,
        gate=database.gate,
        probe=probe,
        reporter=Reporter(),
        dead_letters=DeadLetters(),
        limits=KeyedLimits(),
    )
    return journal, directory


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run of the actors. ``latencies_s`` are sorted."""

    rate: float
    latencies_s: list[float]
    units_per_batch: float

    def percentile_ms(self, share: float) -> float:
        """Return the latency quantile ``share`` of the holds."""
        return self.latencies_s[int(len(self.latencies_s) * share)] * 1e3


async def actors(url: str, accounts_count: int, seconds: float) -> Run:
    """Measure holds by 256 in-process clients through account actors."""
    database = Database(url)
    await database.open()
    work = priced()
    journal, directory = account_directory(database)
    latencies: list[float] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: journal.run(task_status=task_status))
        await nursery.start(directory.run)
        opened = []
        for _ in range(accounts_count):
            account_id, key_id, at = new_id("acct"), new_id("key"), utc_now()
            rows = (
                AccountRow(AccountHead(account_id), f"{account_id}@example.com", "User", "b", at),
                ApiKeyRow(
                    ApiKeyRecord(account_id, key_id, "hk_test_x", KeyTerms("k", ("tasks:write",)), at),
                    key_id.encode(),
                ),
            )
            assert isinstance(await journal.write(Unit(rows=rows)), Committed)
            await directory.ref(account_id).ask(Recharge(CREDIT_MICRO))
            opened.append((account_id, key_id))
        end = trio.current_time() + seconds
        batches, units = _journal_counts()

        async def client(number: int) -> None:
            turn = number
            while trio.current_time() < end:
                account_id, key_id = opened[turn % accounts_count]
                turn += 7919
                request = TaskRequest(
                    input=work.input,
                    terms=work.terms,
                    quote_id="quo_bench",
                    api_key_id=key_id,
                    hold_id=new_id("hold"),
                    hold_micro=work.terms.hold_micro,
                )
                command = CreateTask(request, "tasks:write")
                begun = trio.current_time()
                reply = await directory.ref(account_id).ask(command)
                assert isinstance(reply, TaskAccepted), reply
                latencies.append(trio.current_time() - begun)

        begun = time.perf_counter()
        async with trio.open_nursery() as clients:
            for number in range(CLIENTS):
                clients.start_soon(client, number)
        took = time.perf_counter() - begun
        batches_after, units_after = _journal_counts()
        nursery.cancel_scope.cancel()
    database.close()
    per_batch = (units_after - units) / max(1.0, batches_after - batches)
    return Run(len(latencies) / took, sorted(latencies), per_batch)


# --------------------------------------------------------------------------------------------------- row locks


def _inserts(kind: type[Any]) -> list[tuple[RowStatement, str]]:
    """Return the statements that write a new value of a kind, each with its SQL for one row."""
    found = [each for each in STATEMENTS if each.kind is kind and each.sql.startswith("insert")]
    return [
        (each, f"{each.sql.partition(' select ')[0]} values ({','.join(['%s'] * len(each.columns))})")
        for each in found
    ]


_OPERATION = _inserts(Operation)
_TASK = _inserts(NewTaskRow)


def _write(connection: psycopg.Connection[Any], inserts: list[tuple[RowStatement, str]], value: Any) -> None:
    for statement, sql in inserts:
        for row in statement.rows_of([value]):
            connection.execute(
                sql, [msgspec.json.encode(each).decode() if isinstance(each, _DOCUMENTS) else each for each in row]
            )


_DOCUMENTS = (TaskRequest, TaskState, tuple)


def hold_under_lock(connection: psycopg.Connection[Any], account_id: str, work: PricedInput) -> None:
    """Place one hold in one transaction, under the account's row lock."""
    row = connection.execute(
        "select version, operation_count, balance_micro, held_micro, chain_head from accounts "
        "where id = %s for update",
        (account_id,),
    ).fetchone()
    assert row is not None
    version, number, balance_micro, held_micro, head = row
    state = AccountState(
        account_id,
        version=version,
        number=number,
        balance_micro=balance_micro,
        held_micro=held_micro,
        chain_head=bytes(head),
        lots=Lots([Lot(0, "paid", "recharge", "r", CREDIT_MICRO, None, balance_micro, held_micro)]),
    )
    at, hold_id, request_id = utc_now(), new_id("hold"), new_id("task")
    operation = decide_hold(
        state,
        operation_id=new_id("op"),
        hold_id=hold_id,
        amount_micro=work.terms.hold_micro,
        reference=request_id,
        at=at,
    )
    assert isinstance(operation, Operation)
    task = accept_task(
        account_id,
        request_id,
        TaskRequest(
            input=work.input,
            terms=work.terms,
            quote_id="quo_bench",
            api_key_id="key_bench",
            hold_id=hold_id,
            hold_micro=work.terms.hold_micro,
        ),
        at,
    )
    connection.execute(
        "update accounts set version = %s, operation_count = %s, balance_micro = %s, held_micro = %s, "
        "chain_head = %s where id = %s",
        (
            version + 1,
            operation.number,
            operation.balance_after_micro,
            operation.held_after_micro,
            operation.chain_hash,
            account_id,
        ),
    )
    _write(connection, _OPERATION, operation)
    _write(connection, _TASK, NewTaskRow(task))
    connection.commit()


def row_locks(url: str, accounts_count: int, seconds: float) -> float:
    """Measure holds a second by 16 threads, each hold in its own transaction under a row lock."""
    work = priced()
    with psycopg.connect(url) as connection:
        ids = [new_id("acct") for _ in range(accounts_count)]
        for account_id in ids:
            connection.execute(
                "insert into accounts (id, email, role, brand_id, created_at, version, operation_count, "
                "balance_micro, held_micro, chain_head) values (%s, %s, 'User', 'b', now(), 0, 0, %s, 0, %s)",
                (account_id, f"{account_id}@example.com", CREDIT_MICRO, CHAIN_START),
            )
    done = [0] * THREADS
    start = threading.Barrier(THREADS + 1)
    end = 0.0

    def worker(number: int) -> None:
        with psycopg.connect(url) as connection:
            turn = number
            start.wait()
            while time.perf_counter() < end:
                hold_under_lock(connection, ids[turn % accounts_count], work)
                turn += 7919
                done[number] += 1

    threads = [threading.Thread(target=worker, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    end = time.perf_counter() + seconds
    begun = time.perf_counter()
    start.wait()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - begun)


def settle_database(url: str) -> None:
    """Fill a new database's WAL, so that its segments are recycled from here on instead of created."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")


def main() -> None:
    """Measure both on many accounts and on one hot account, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with fresh_database() as (url, folder):
        switch_interval_s = sys.getswitchinterval()
        print(describe(folder, options))
        for name, accounts_count in (("1000 accounts", 1000), ("one hot account", 1)):
            tune_interpreter()
            trio.run(actors, url, accounts_count, options.seconds)
            settle_database(url)
            run = trio.run(actors, url, accounts_count, options.seconds)
            settle_database(url)
            # Tuned for one event loop; sixteen equal threads are faster as Python comes.
            sys.setswitchinterval(switch_interval_s)
            baseline = row_locks(url, accounts_count, options.seconds)
            print(
                f"{name}: {run.rate:,.0f} durable holds/s through actors (p50 {run.percentile_ms(0.5):.1f} ms, "
                f"p99 {run.percentile_ms(0.99):.1f} ms, {CLIENTS} clients, {run.units_per_batch:.0f} units a "
                f"batch) | baseline {baseline:,.0f}/s ({THREADS} threads, one transaction a hold) | "
                f"ratio {run.rate / baseline:.1f}",
                flush=True,
            )
            print_figures({f"{name}, holds/s": run.rate, f"{name}, over row locks": run.rate / baseline})


def _journal_counts() -> tuple[float, float]:
    batches = next(iter(metrics.JOURNAL_BATCH_UNITS.collect())).samples
    named = {sample.name.rsplit("_", 1)[1]: sample.value for sample in batches if "le" not in sample.labels}
    return named["count"], named["sum"]


if __name__ == "__main__":
    main()
