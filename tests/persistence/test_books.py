"""The books over all accounts agree with rows that are added up one by one."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import Connection, select

from holdfast.ledger.credit.operations import OperationKind
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.queries.books import RevenueBy, liabilities, revenue, trial_balance
from holdfast.persistence.records import tables
from holdfast.persistence.server.connections import connected

from .account_history import START, write_books


def micro(amount: str) -> int:
    return int(Decimal(amount) * 1_000_000)


def test_a_trial_balance_has_every_ledger_account_and_sums_to_zero(database_url: str) -> None:
    with connected(database_url) as connection:
        assert trial_balance(connection).ledger_accounts == []
        connection.rollback()
        write_books(connection)
        found = trial_balance(connection)
        sums: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for row in connection.execute(select(tables.postings)):
            sums[row.ledger_account] += row.amount_micro
            counts[row.ledger_account] += 1
        assert {each.ledger_account: (micro(each.balance), each.postings) for each in found.ledger_accounts} == {
            name: (sums[name], counts[name]) for name in sums
        }
        assert found.is_balanced
        assert sum(sums.values()) == 0
        assert {
            "available",
            "held",
            "revenue",
            "adjustments",
            "cash:sandbox",
            "cash:cardprovider",
            "promotions",
        } == set(sums)
        stored = connection.execute(select(tables.accounts)).all()
        assert (
            micro(found.stored_balance)
            == sum(row.balance_micro for row in stored)
            == sums["available"] + sums["held"]
        )
        assert micro(found.stored_held) == sum(row.held_micro for row in stored) == sums["held"]
        connection.rollback()
        assert run_audit(connection) == {}


def test_liabilities_are_the_accounts_balances_and_open_holds(database_url: str) -> None:
    with connected(database_url) as connection:
        write_books(connection)
        found = liabilities(connection)
        balances = [row.balance_micro for row in connection.execute(select(tables.accounts))]
    assert found.accounts == len(balances)
    assert micro(found.credit) == sum(each for each in balances if each > 0)
    assert micro(found.overdrawn) == sum(each for each in balances if each < 0) < 0
    assert (found.accounts_with_credit, found.accounts_overdrawn) == (
        sum(each > 0 for each in balances), sum(each < 0 for each in balances)
    )  # fmt: skip
    assert (found.holds_open, found.holds_open_total, found.held) == (2, "1.50", "1.50")


@pytest.mark.parametrize(("by", "names"), [("day", {""}), ("model", {"studio/still"}), ("provider", {"studio"})])
def test_revenue_is_what_was_captured_in_the_time(database_url: str, by: RevenueBy, names: set[str]) -> None:
    def total(connection: Connection, **time: int) -> int:
        until = START + timedelta(**time)
        return micro(revenue(connection, by, since=START, until=until).total)

    with connected(database_url) as connection:
        write_books(connection)
        found = revenue(connection, by, since=START, until=START + timedelta(days=1))
        assert {(line.day, line.name) for line in found.data} == {("2026-11-20", name) for name in names}
        captured = connection.execute(
            select(tables.operations).where(tables.operations.c.kind == OperationKind.CAPTURE)
        ).all()
        assert found.captures == sum(line.captures for line in found.data) == len(captured) == 3
        lines_micro = sum(micro(line.amount) for line in found.data)
        assert micro(found.total) == lines_micro == sum(row.amount_micro for row in captured) == 3_500_000
        balances = {each.ledger_account: each.balance for each in trial_balance(connection).ledger_accounts}
        assert found.total == balances["revenue"]
        first = min(row.at for row in captured)
        assert total(connection, milliseconds=(first - START) // timedelta(milliseconds=1)) == 0
