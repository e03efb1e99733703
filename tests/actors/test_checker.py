"""The checker: finds every difference that the audit finds, reports it once, and continues where it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
import trio.testing
from sqlalchemy import select
from tests.persistence.account_history import AccountHistory
from tests.persistence.tampered_rows import BALANCES, CASES, CHAINS, LOT_LEFT, LOT_SUMS, NEWEST, tamper

from holdfast.actors.workers.checker import SLOWER_MAX, Checker, Pace
from holdfast.ledger.values import utc_now
from holdfast.persistence.audit.audit import QUERY_RULES
from holdfast.persistence.audit.progress import known_differences, load_progress
from holdfast.persistence.records import tables
from holdfast.persistence.records.rows import AuditProgress
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry.reports.report import Report

SLICES_OF_ACCOUNTS = len(QUERY_RULES) + 4
"""The slices of a few small accounts: choosing them, their history, their orders, the rules, storing the result."""


@dataclass
class Load:
    """A journal's load, as a test sets it."""

    commit_s: float = 0.001
    queued_units: int = 0


@dataclass
class Checking:
    """A checker whose reports are kept, and what it has stored."""

    database: Database
    reports: list[Report] = field(default_factory=list)
    accounts_max: int = 100
    operations_max: int = 1_000

    def __post_init__(self) -> None:
        self.checker = self.new()

    def new(self) -> Checker:
        return Checker(
            database=self.database,
            now=utc_now,
            report=self.reports.append,
            pace=Pace(1.0, Load()),
            accounts_max=self.accounts_max,
            operations_max=self.operations_max,
        )

    async def passes(self, slices_max: int = 400) -> int:
        """Check to the end of the pass; return how many slices that took."""
        for number in range(1, slices_max + 1):
            if await self.checker.check_next():
                return number
        raise AssertionError(f"no pass ended within {slices_max} slices")

    async def broken(self) -> set[str]:
        """The rules that the stored differences name."""
        return {each.rule for each in await self.database.read(known_differences)}

    async def progress(self) -> AuditProgress:
        found = await self.database.read(load_progress)
        assert found is not None
        return found


@pytest.fixture
async def checking(books_url: str, nursery: trio.Nursery) -> AsyncIterator[Checking]:
    database = Database(books_url)
    await database.open()
    with trio.fail_after(60):
        yield Checking(database)
    database.close()


async def test_a_pass_over_valid_rows_reports_nothing(checking: Checking) -> None:
    before = utc_now()
    slices = await checking.passes()
    assert slices <= SLICES_OF_ACCOUNTS + 3
    assert checking.reports == []
    progress = await checking.progress()
    assert (progress.passes, progress.skipped, progress.after) == (1, 0, "")
    assert progress.verified_up_to is not None
    assert before <= progress.verified_up_to <= utc_now()
    assert progress.operations_done == 32
    assert progress.newest_operation_id is not None


@pytest.mark.parametrize(("statements", "names"), CASES[::7])
async def test_each_change_is_reported(checking: Checking, statements: list[str], names: set[str]) -> None:
    tamper(checking.database.url, *statements)
    # In the first pass already, which is a bounded number of slices.
    assert await checking.passes() <= SLICES_OF_ACCOUNTS + 3
    assert await checking.broken() == names
    assert {report.kind for report in checking.reports} == {"difference"}
    for report in checking.reports:
        assert report.reason is not None
        assert report.reason.startswith(f"account {report.account_id}: ")
        # One of them says what is wrong, and the others are named.
        assert sum(f"(rule: {name})" in report.reason for name in names) == 1
    assert {name for name in names if not any(name in (each.reason or "") for each in checking.reports)} == set()
    assert len({report.account_id for report in checking.reports}) == len(checking.reports)
    # Each difference once, whatever is found again.
    before = len(checking.reports)
    await checking.passes()
    assert len(checking.reports) == before


async def test_a_difference_is_named_in_words(checking: Checking) -> None:
    tamper(
        checking.database.url,
        "update operations set balance_after_micro = 3000000 where account_id = 'acct_bob' and number = 2",
    )
    await checking.passes()
    [report] = checking.reports
    assert report.reason is not None
    assert report.reason.startswith(
        "account acct_bob: operation 2's balance is 3.00, the postings up to it sum to 5.00; operation 3's"
    )


async def test_a_difference_that_is_gone_is_reported_and_forgotten(checking: Checking) -> None:
    url = checking.database.url
    tamper(url, "update accounts set balance_micro = balance_micro + 1 where id = 'acct_bob'")
    await checking.passes()
    broken = await checking.broken()
    assert broken == {BALANCES, NEWEST, LOT_SUMS, LOT_LEFT}
    tamper(url, "update accounts set balance_micro = balance_micro - 1 where id = 'acct_bob'")
    await checking.passes()
    assert await checking.broken() == set()
    assert [report.kind for report in checking.reports] == ["difference", "recovery"]
    assert checking.reports[1].reason == f"account acct_bob no longer breaks: {'; '.join(sorted(broken))}"
    tamper(url, "update accounts set balance_micro = balance_micro + 1 where id = 'acct_bob'")
    await checking.passes()
    assert [report.kind for report in checking.reports[2:]] == ["difference"]


async def test_a_difference_of_an_account_without_rows_is_gone(checking: Checking) -> None:
    url = checking.database.url
    tamper(url, "insert into sessions values ('acct_x', 'ses_1', '', now(), now(), null)")
    await checking.passes()
    tamper(url, "delete from sessions where account_id = 'acct_x'")
    await checking.passes()
    assert [report.kind for report in checking.reports] == ["difference", "recovery"]
    assert await checking.broken() == set()


@pytest.mark.parametrize("left", [1, 2])
async def test_many_differences_are_one_report(
    checking: Checking, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    accounts = await checking.database.read(lambda rows: rows.scalars(select(tables.accounts.c.id)).all())
    monkeypatch.setattr("holdfast.actors.workers.checker.REPORTS_MAX", len(accounts) - left)
    tamper(checking.database.url, "update accounts set balance_micro = balance_micro + 1, operation_count = 99")
    await checking.passes()
    *first, last = checking.reports
    assert [report.account_id in accounts for report in first] == [True] * (len(accounts) - left)
    assert last.reason is not None
    assert last.reason.startswith("1 more account differs:" if left == 1 else "2 more accounts differ:")


async def test_another_checker_continues_where_the_last_one_was(checking: Checking) -> None:
    checking.accounts_max = 1
    checking.checker = checking.new()
    tamper(checking.database.url, "update operations set reason = 'a gift' where account_id = 'acct_ada'")
    while (await checking.database.read(load_progress)) is None:
        assert not await checking.checker.check_next()
    assert (await checking.progress()).after == "acct_ada"
    assert [report.account_id for report in checking.reports] == ["acct_ada"]
    checking.checker = checking.new()
    await checking.passes()
    # The first account was not checked again, and its difference was not reported again.
    progress = await checking.progress()
    assert (progress.accounts_done, progress.operations_done) == (7, 32)
    assert [report.account_id for report in checking.reports] == ["acct_ada"]


async def test_the_history_of_a_large_account_is_read_in_pages(
    checking: Checking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persistence.audit.audit.OPERATIONS_MAX", 3)
    checking.accounts_max = 1
    checking.checker = checking.new()
    tamper(
        checking.database.url,
        "update operations set reason = 'a gift' where account_id = 'acct_ada' and number = 9",
    )
    await checking.passes()
    assert await checking.broken() == {CHAINS}
    assert (await checking.progress()).operations_done == 32


async def test_a_check_that_takes_too_long_is_skipped_and_verifies_nothing(
    checking: Checking, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = QUERY_RULES[0]._replace(  # canceled at once, as the server cancels what takes longer than a scan may
        breaking="select account_id, pg_cancel_backend(pg_backend_pid())::text || pg_sleep(60) as sum_micro"
        " from accounts a, lateral (select id as account_id) l"
    )
    monkeypatch.setattr("holdfast.persistence.audit.audit.QUERY_RULES", (slow, *QUERY_RULES[1:]))
    await checking.passes()
    progress = await checking.progress()
    assert (progress.passes, progress.skipped, progress.verified_up_to) == (1, 1, None)
    assert checking.database.gate.is_open


async def test_a_check_that_fails_is_skipped_and_the_others_are_made(
    checking: Checking, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = QUERY_RULES[0]._replace(breaking="select * from no_such_table")
    monkeypatch.setattr("holdfast.persistence.audit.audit.QUERY_RULES", (wrong, *QUERY_RULES[1:]))
    tamper(checking.database.url, "update accounts set balance_micro = balance_micro + 1 where id = 'acct_bob'")
    await checking.passes()
    assert await checking.broken() == {BALANCES, NEWEST, LOT_SUMS, LOT_LEFT}
    progress = await checking.progress()
    assert (progress.skipped, progress.verified_up_to) == (1, None)


async def test_rows_written_between_slices_are_no_difference(checking: Checking) -> None:
    with connected(checking.database.url) as connection:
        history = AccountHistory(connection, "acct_bee")
        connection.commit()
        while not await checking.checker.check_next():
            history.credit(1_000_000)
            connection.commit()
    assert checking.reports == []
    assert (await checking.progress()).operations_done > 32


async def test_a_result_that_cannot_be_stored_is_not_reported_again(
    checking: Checking, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper(checking.database.url, "update operations set reason = 'a gift' where account_id = 'acct_bob'")
    work = checking.database.work
    failures = 2

    async def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise DatabaseAway("it restarts")
        return await work(*args, **kwargs)

    monkeypatch.setattr(checking.database, "work", failing)
    for _ in range(2):
        with pytest.raises(DatabaseAway):
            await checking.passes()
        checking.checker.forget()
    await checking.passes()
    assert [report.account_id for report in checking.reports] == ["acct_bob"]
    assert await checking.broken() == {CHAINS}


async def test_nothing_is_checked_while_the_database_is_away(checking: Checking, nursery: trio.Nursery) -> None:
    tamper(checking.database.url, "update operations set reason = 'a gift' where account_id = 'acct_bob'")
    found = trio.Event()
    checker = Checker(database=checking.database, now=utc_now, report=lambda _: found.set(), pace=Pace(1.0, Load()))
    checking.database.gate.close("it restarts")
    await nursery.start(checker.run)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not found.is_set()
    checking.database.gate.open()
    await found.wait()
    nursery.cancel_scope.cancel()


def test_the_pace_gives_the_checks_a_share_of_the_time() -> None:
    assert Pace(0.05, Load()).pause_s(1.0) == pytest.approx(19.0)
    assert Pace(1.0, Load()).pause_s(1.0) == 0.0


def test_the_pace_slows_down_while_the_journal_is_busy() -> None:
    load = Load()
    pace = Pace(0.5, load)
    assert pace.pause_s(1.0) == 1.0
    load.queued_units = 100
    assert [pace.pause_s(1.0) for _ in range(6)] == [2, 4, 8, 16, SLOWER_MAX, SLOWER_MAX]
    load.queued_units = 0
    assert [pace.pause_s(1.0) for _ in range(5)] == [8, 4, 2, 1, 1]
    load.commit_s = 0.05
    assert pace.pause_s(1.0) == 2.0


async def test_the_checker_runs_only_while_it_is_ours(
    books_url: str, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_ours = False
    database = Database(books_url)
    await database.open()
    tamper(books_url, "update operations set reason = 'a gift' where account_id = 'acct_bob' and number = 2")
    found: list[Report] = []
    has_reported = trio.Event()

    def report(each: Report) -> None:
        found.append(each)
        has_reported.set()

    asked = trio.Event()

    def ours() -> bool:
        asked.set()
        return is_ours

    monkeypatch.setattr("holdfast.actors.workers.checker.IDLE_S", 0.01)
    checker = Checker(database=database, now=utc_now, report=report, pace=Pace(1.0, Load()), is_ours=ours)
    await nursery.start(checker.run)
    await asked.wait()
    assert found == []
    assert await database.read(load_progress) is None
    is_ours = True
    await has_reported.wait()
    assert [each.account_id for each in found] == ["acct_bob"]
    assert found[0].at <= datetime.now(UTC)
    nursery.cancel_scope.cancel()
    database.close()
