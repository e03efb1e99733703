from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, text
from tests.fresh_databases import FreshDatabases

from holdfast.ledger.credit.account import (
    AccountState,
    decide_hold,
)
from holdfast.ledger.credit.operations import Lot, Lots, Operation, OperationKind
from holdfast.persistence.audit import audit
from holdfast.persistence.audit.audit import ACCOUNTS_MAX, QUERY_RULES, RULE_NAMES, check_accounts, run_audit
from holdfast.persistence.audit.rules import find_differences
from holdfast.persistence.server.connections import connected

from .account_history import START, AccountHistory, write_books
from .read_costs import Reads
from .tampered_rows import (
    BALANCES,
    CASES,
    CHAINS,
    COUNTS,
    EVERYTHING,
    FLOORS,
    NEWEST,
    NUMBERS,
    ORPHANS,
    SHAPES,
    SUMS,
    TOTALS,
    UNREADABLE,
    tamper,
    tamper_within,
)


@pytest.fixture(scope="module")
def books_rows(fresh_databases: FreshDatabases) -> Iterator[Connection]:
    """A connection to a valid history that tests change in transactions alone: a database for each takes longer."""
    url = fresh_databases.take()
    with connected(url) as connection:
        write_books(connection)
        connection.commit()
        yield connection
    fresh_databases.give_back(url)


def broken(url: str) -> dict[str, str]:
    """The rules that are broken, and how, with the account."""
    with connected(url) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        return broken_in(connection)


def broken_in(connection: Connection, *, accounts_max: int = ACCOUNTS_MAX) -> dict[str, str]:
    """The rules that are broken, as of :func:`broken`."""
    found: dict[str, list[str]] = {}
    for check in check_accounts(connection, accounts_max=accounts_max):
        assert {broken.account_id for broken in check.found} <= check.accounts.keys()
        if check.is_done:
            for each, what in check.found.items():
                found.setdefault(each.rule, []).append(f"account {each.account_id}: {what}")
    return {rule: "; ".join(whats) for rule, whats in found.items()}


def test_an_empty_database_breaks_no_rule(database_url: str) -> None:
    assert broken(database_url) == {}


def test_a_valid_history_breaks_no_rule(books_url: str) -> None:
    checked = 0
    with connected(books_url) as connection:
        assert run_audit(connection) == {}
        for check in check_accounts(connection):
            checked += check.operations if check.is_done else 0
    assert checked == 32


def test_the_names_of_the_rules_are_unique() -> None:
    assert len(set(RULE_NAMES)) == len(RULE_NAMES) == 6 + 6 + len(QUERY_RULES)


def broken_by(rows: Connection, statements: list[str], accounts_max: int) -> set[str]:
    """The rules that statements break, which are rolled back."""
    with rows.begin() as changes:
        driver = rows.connection.driver_connection
        assert driver is not None
        tamper_within(driver, *statements)
        found = set(broken_in(rows, accounts_max=accounts_max))
        changes.rollback()
    return found


@pytest.mark.parametrize(("statements", "names"), CASES)
def test_each_broken_promise_is_found(books_rows: Connection, statements: list[str], names: set[str]) -> None:
    assert broken_by(books_rows, statements, ACCOUNTS_MAX) == names


@pytest.mark.slow
def test_each_broken_promise_is_found_two_accounts_at_a_time(books_rows: Connection) -> None:
    found = [broken_by(books_rows, statements, 2) for statements, _names in CASES]
    assert found == [names for _statements, names in CASES]


@pytest.mark.parametrize(("statements", "names"), UNREADABLE)
def test_a_value_that_cannot_be_read_breaks_its_rule(
    books_url: str, statements: list[str], names: set[str]
) -> None:
    tamper(books_url, *statements)
    assert set(broken(books_url)) == names


def test_a_fault_names_its_rows_and_counts_the_rest(books_url: str) -> None:
    tamper(
        books_url,
        "insert into sessions select 'acct_x', 'ses_' || n, int4send(n), now(), now(), null"
        " from generate_series(1, 12) n",
    )
    detail = broken(books_url)[ORPHANS]
    assert detail.startswith("account acct_x: session ses_")
    assert detail.count("session ses_") == 10
    assert detail.endswith(" and 2 more")


def test_a_fault_of_the_history_names_its_operation(books_url: str) -> None:
    tamper(books_url, "update operations set reason = '' where account_id = 'acct_bob' and number = 2")
    what = "account acct_bob: operation 2's hash does not match it and the operation before it"
    assert broken(books_url) == {CHAINS: what}


def test_a_wrong_balance_is_named_in_words(books_url: str) -> None:
    tamper(books_url, "update accounts set balance_micro = 3000000 where id = 'acct_bob'")
    found = broken(books_url)
    assert found[BALANCES] == (
        "account acct_bob: its balance is 3.00 with 0.00 held, its postings sum to 5.00 with 0.00 held"
    )
    assert "with a balance of 3.00" in found[NEWEST]


def test_overspending_is_found_even_when_all_sums_agree(database_url: str) -> None:
    with connected(database_url) as connection:
        history = AccountHistory(connection, "acct_eve")
        history.credit(1_000_000)
        overdrawn = AccountState(
            "acct_eve",
            number=1,
            balance_micro=9_000_000,
            chain_head=history.state.chain_head,
            lots=Lots([Lot(1, "paid", "order", "r", 9_000_000, None, 9_000_000)]),
        )
        decided = decide_hold(
            overdrawn,
            operation_id="op_eve",
            hold_id="hold_eve",
            amount_micro=2_000_000,
            reference="task_eve",
            at=START,
        )
        assert isinstance(decided, Operation)
        forged = replace(decided, balance_after_micro=1_000_000)
        forged = replace(forged, chain_hash=forged.hash_after(history.state.chain_head))
        history.write(forged)
        connection.commit()
    found = broken(database_url)
    assert FLOORS in found
    assert not {SUMS, SHAPES, NUMBERS, TOTALS, CHAINS, EVERYTHING, BALANCES, NEWEST, COUNTS} & set(found)


def test_a_history_of_several_pages_is_checked_to_its_end(books_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "OPERATIONS_MAX", 2)
    tamper(books_url, "update operations set reason = '' where account_id = 'acct_ada' and number = 10")
    what = "account acct_ada: operation 10's hash does not match it and the operation before it"
    assert broken(books_url) == {CHAINS: what}


def test_the_valid_history_has_every_kind_of_operation(books_url: str) -> None:
    with connected(books_url) as connection:
        kinds = set(connection.execute(text("select distinct kind from operations")).scalars())
    assert kinds == {str(kind) for kind in OperationKind}


def test_the_rules_cost_in_proportion_to_an_accounts_tasks(database_url: str) -> None:
    def costs(rows: Connection) -> dict[str, int]:
        reads = Reads(rows)
        return {
            rule.name: reads.cost(partial(find_differences, rule=rule, scope=["acct_ada"]))[0]
            for rule in QUERY_RULES
        }

    few, many = 100, 400
    with connected(database_url) as rows:
        history = AccountHistory(rows, "acct_ada")
        history.credit(1_000_000_000)
        found = []
        for begin, end in ((0, few), (few, many)):
            for number in range(begin, end):
                history.task(f"{number}", 1_000_000)
                history.end(f"{number}", "succeeded", 900_000)
            found.append(costs(rows))
    before, after = found
    # What grows with the square of the tasks has sixteen times the cost.
    assert {name: (before[name], cost) for name, cost in after.items() if cost > 8 * before[name]} == {}
