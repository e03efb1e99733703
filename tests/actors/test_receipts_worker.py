"""The receipts worker: what it does while it has the claim, and what it finds late."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text
from tests.persistence.account_history import START, AccountHistory, payment
from tests.receipt_books import TERMS, audit_receipts

from holdfast.actors.workers import receipts
from holdfast.actors.workers.receipts import LATE_S, OVERLAP_S, WHOLE_EVERY_S, ReceiptsWorker
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database


class Clock:
    """Service time, which a test moves."""

    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> datetime:
        return self.at


async def test_what_is_committed_late_is_found_within_an_hour(database: Database, database_url: str) -> None:
    clock = Clock()
    worker = ReceiptsWorker(database=database, terms=TERMS, now=clock)
    with connected(database_url) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        history = AccountHistory(connection, "acct_ada")
        history.order("a", payment("a"))
        assert await worker.issue() is False
        assert audit_receipts(database_url).receipts == 1
        # A little late: within what each reading overlaps.
        clock.at += timedelta(seconds=OVERLAP_S - 1)
        history.order("b", payment("b"))
        await worker.issue()
        assert audit_receipts(database_url).receipts == 2
        # Later: the readings of every minute go so far back.
        clock.at = START + timedelta(seconds=2 * OVERLAP_S)
        await worker.issue()
        await worker.issue()
        history.order("c", payment("c"))
        clock.at = START + timedelta(seconds=LATE_S - 5)
        await worker.issue()
        assert audit_receipts(database_url).receipts == 2
        await worker.issue()
        assert audit_receipts(database_url).receipts == 3
        # As late as after an hour in which its process was frozen: only readings of the whole ledger see it.
        AccountHistory(connection, "acct_bob").order("d", payment("d"))
        clock.at = START + timedelta(seconds=WHOLE_EVERY_S - 1)
        await worker.issue()
        await worker.issue()
        assert audit_receipts(database_url).receipts == 3
        clock.at += timedelta(seconds=1)
        await worker.issue()
        await worker.issue()
    assert audit_receipts(database_url) == ([], 4, 0, 40_000_000)


async def test_a_page_that_ends_among_recent_operations_passes_none_over(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of Ada's operations are committed after the page that they would be on was read."""
    monkeypatch.setattr(receipts, "OPERATIONS_MAX", 2)
    clock = Clock()
    worker = ReceiptsWorker(database=database, terms=TERMS, now=clock)
    with connected(database_url) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        bob, ada = (AccountHistory(connection, f"acct_{name}") for name in ("bob", "ada"))
        for number in range(2):
            bob.order(f"bob{number}", payment(f"bob{number}"))
        assert await worker.issue() is True
        for number in range(3):
            ada.order(f"ada{number}", payment(f"ada{number}"))
        assert await worker.issue() is True
        assert await worker.issue() is False
        # What is settled is passed over for good.
        clock.at += timedelta(seconds=2 * OVERLAP_S)
        while await worker.issue():
            pass
    assert audit_receipts(database_url) == ([], 5, 0, 50_000_000)


async def test_recent_operations_without_readable_orders_are_read_once_a_pass(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "OPERATIONS_MAX", 2)
    clock = Clock()
    worker = ReceiptsWorker(database=database, terms=TERMS, now=clock)
    with connected(database_url) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        history = AccountHistory(connection, "acct_ada")
        for number in range(3):
            history.order(f"ada{number}", payment(f"ada{number}"))
        connection.execute(text("update orders set state = '{\"facts\": 1}'"))
        for _ in range(3):
            assert await worker.issue() is False
            clock.at += timedelta(seconds=1)


async def test_issued_at_is_service_time(database: Database, database_url: str) -> None:
    clock = Clock()
    clock.at += timedelta(days=3)
    with connected(database_url) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        AccountHistory(connection, "acct_ada").order("a", payment("a"))
        await ReceiptsWorker(database=database, terms=TERMS, now=clock).issue()
        found = connection.execute(text("select issued_at, moved_at, email, seller ->> 'name' from receipts")).one()
    assert tuple(found) == (clock.at, START, "acct_ada@example.com", TERMS.seller.name)
