"""Receipts of orders with refunds and disputes, issued by two processes that are killed and frozen meanwhile.

``RECEIPT_ORDERS=10000`` makes so many orders.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
import structlog
import trio
from tests.clients import until
from tests.receipt_books import audit_receipts

from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database

from .actor_system import Payments, make_system
from .order_checks import deliver, new_order

log = structlog.get_logger(__name__)

ORDERS = int(os.environ.get("RECEIPT_ORDERS", "300"))
ACCOUNTS = 20
AT_ONCE = 25
FAULTS = max(12, ORDERS // 400)
ROOT = Path(__file__).parents[2]


class Issuers:
    """Two processes that both issue all receipts, with no claim that keeps them apart."""

    def __init__(self, url: str, random: Random) -> None:
        self._command = [sys.executable, "-m", "tests.receipt_worker", url]
        self._random = random
        self._running = [self._start(), self._start()]
        self._frozen: subprocess.Popen[bytes] | None = None
        self.kills = self.freezes = 0

    def break_one(self) -> None:
        """Let the one that is frozen go on, or kill one and start another in its place, or freeze one."""
        if self._frozen is not None:
            self._frozen.send_signal(signal.SIGCONT)
            self._frozen = None
            return
        which = self._random.randrange(2)
        if self._random.random() < 0.5:
            self._running[which].kill()
            self._running[which].communicate()
            self._running[which] = self._start()
            self.kills += 1
        else:
            self._frozen = self._running[which]
            self._frozen.send_signal(signal.SIGSTOP)
            self.freezes += 1

    def thaw(self) -> None:
        if self._frozen is not None:
            self.break_one()

    def stop(self) -> None:
        for each in self._running:
            each.kill()
            each.communicate()

    def wait(self) -> None:
        """Wait until both have begun to look for receipts. Blocks."""
        for each in self._running:
            assert each.stdout is not None
            assert each.stdout.readline() == b"started\n"

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE)


@contextmanager
def issuers(url: str, random: Random) -> Iterator[Issuers]:
    found = Issuers(url, random)
    try:
        yield found
    finally:
        found.stop()


async def pay(system: Any, payments: Any, account_id: str, number: int) -> int:
    """Pay an order; refund a part of some, and dispute others. Return how many operations that takes."""
    order = await new_order(system, payments, account_id)
    events = [payments.paid(order.order_id)]
    if number % 3 == 1:
        events += [payments.refunded(order.order_id, 3_000_000, name=name) for name in ("re_a", "re_b")]
    elif number % 5 == 0:
        events.append(payments.disputed(order.order_id, "needs_response"))
        events.append(payments.disputed(order.order_id, "won" if number % 10 else "lost"))
    paid = await deliver(system, order, *events)
    return len(paid.state.moves)


@pytest.mark.slow
def test_numbers_have_no_gap_and_no_double_whatever_is_killed_or_frozen(database_url: str) -> None:
    """It takes as long as its number of orders does, so no test's bound ends it."""
    operations, during, broken = trio.run(pay_while_issuers_break, database_url)
    found = audit_receipts(database_url)
    log.info(
        "receipts audited", orders=ORDERS, operations=operations, during=during, kills=broken.kills,
        freezes=broken.freezes, found=found,
    )  # fmt: skip
    assert found.faults == []
    assert found.receipts + found.credit_notes == operations
    assert broken.kills > 0
    assert broken.freezes > 0
    assert during > 0
    with connected(database_url) as connection:
        assert run_audit(connection) == {}


async def pay_while_issuers_break(url: str) -> tuple[int, int, Issuers]:
    """Pay all orders; return how many operations that took, and how many receipts there were at its end."""
    database, payments = Database(url), Payments()
    system = make_system(database)
    operations = done = during = 0

    async def lane(first: int) -> None:
        nonlocal operations, done
        for number in range(first, ORDERS, AT_ONCE):
            made = await pay(system, payments, accounts[number % ACCOUNTS], number)
            operations += made
            done += 1
            if done % (ORDERS // FAULTS) == 0:
                await until(some_are_there, within_s=600)
                broken.break_one()

    async def some_are_there() -> bool:
        return count(url) > 0

    async def all_are_there() -> bool:
        return count(url) >= operations

    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: database.run(task_status=task_status))
        await nursery.start(lambda *, task_status: system.journal.run(task_status=task_status))
        await nursery.start(system.accounts.run)
        accounts = [(await system.open_account())[0] for _ in range(ACCOUNTS)]
        with issuers(url, Random(7)) as broken:
            await trio.to_thread.run_sync(broken.wait)
            async with trio.open_nursery() as lanes:
                for first in range(AT_ONCE):
                    lanes.start_soon(lane, first)
            during = count(url)
            broken.thaw()
            await until(all_are_there, within_s=600)
        nursery.cancel_scope.cancel()
    return operations, during, broken


def count(url: str) -> int:
    with psycopg.connect(url) as connection:
        [found] = connection.execute("select count(*) from receipts").fetchone() or (0,)
        return int(found)
