"""Receipts in rows: issued once each, numbered without gaps, never changed, and what the audit says of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from tests.fresh_databases import FreshDatabases
from tests.receipt_books import TERMS, audit_receipts, issue_all

from holdfast.ledger.orders.facts import DisputeFacts, DisputeStatus, OrderFacts, PaymentEvent, RefundFacts
from holdfast.ledger.receipts import Receipt, issue_receipts
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.audit.rules import BrokenRule
from holdfast.persistence.claims.receipts import BEGINNING, read_due, store_receipts
from holdfast.persistence.queries.receipts import receipts_of_all, sum_receipts
from holdfast.persistence.server.connections import connected

from .account_history import AccountHistory, payment, refund
from .tampered_rows import RECEIPTS, RECEIPTS_SUM


@pytest.fixture
def money(database_url: str) -> Iterator[Connection]:
    """A connection that commits each statement."""
    with connected(database_url) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection


def audited(connection: Connection) -> dict[BrokenRule, str]:
    connection.commit()
    return run_audit(connection)


def decide(connection: Connection, most: int = 250) -> list[Receipt]:
    """What a worker decides now."""
    due = read_due(connection, BEGINNING, settled_at=datetime.now(UTC), most=most)
    return issue_receipts(
        due.operations,
        due.orders,
        due.firsts,
        due.emails,
        TERMS,
        last_number=due.last_number,
        now=datetime.now(UTC),
    )


def test_only_money_of_the_card_provider_has_receipts(money: Connection, database_url: str) -> None:
    ada = AccountHistory(money, "acct_ada")
    ada.credit(5_000_000)
    ada.grant(1_000_000)
    ada.adjust(1_000_000)
    ada.order("sand", payment("sand"), provider="sandbox", sandbox_event_id="evt_s")
    ada.order("paid", payment("paid"))
    ada.order("back", payment("back"), refund("back"))
    assert issue_all(money) == 3
    found = audit_receipts(database_url)
    assert found == ([], 2, 1, 16_000_000)
    assert issue_all(money) == 0


def test_pages_are_read_to_their_end(money: Connection, database_url: str) -> None:
    for name in ("ada", "bob", "cho"):
        history = AccountHistory(money, f"acct_{name}")
        for number in range(3):
            history.credit(1_000_000)
            history.order(f"{name}{number}", payment(f"{name}{number}"), refund(f"{name}{number}"))
    # A page may end within an order, or between two of an account.
    assert issue_all(money, most=2) == 18
    assert audit_receipts(database_url) == ([], 9, 9, 9 * 6_000_000)


def test_of_two_that_decide_at_once_one_issues(money: Connection, database_url: str) -> None:
    ada = AccountHistory(money, "acct_ada")
    ada.order("a", payment("a"))
    frozen = decide(money)
    ada.order("b", payment("b"), refund("b"))
    assert issue_all(money) == 3
    # The other one was frozen after it had decided. It is late, and adds nothing.
    assert store_receipts(money, frozen) is False
    ada.order("c", payment("c"))
    assert issue_all(money) == 1
    assert audit_receipts(database_url) == ([], 3, 1, 26_000_000)


def test_a_receipt_that_is_refused_leaves_no_gap(money: Connection, database_url: str) -> None:
    ada = AccountHistory(money, "acct_ada")
    ada.order("a", payment("a"), refund("a"))
    decided = decide(money)
    doubled = [*decided, decided[0]]
    with pytest.raises(DBAPIError, match="receipts"):
        store_receipts(money, doubled)
    assert money.scalar(text("select last_number from receipt_series")) == 0
    assert issue_all(money) == 2
    assert audit_receipts(database_url).faults == []


@pytest.mark.parametrize(
    "statement", ["update receipts set email = 'eve@example.com'", "delete from receipts", "truncate receipts"]
)
def test_receipts_cannot_be_changed(money: Connection, database_url: str, statement: str) -> None:
    AccountHistory(money, "acct_ada").order("a", payment("a"))
    issue_all(money)
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.errors.RestrictViolation):
        connection.execute(statement)


def test_money_may_wait_for_its_receipt_for_a_quarter_of_an_hour(money: Connection) -> None:
    AccountHistory(money, "acct_ada").order("a", payment("a"))
    assert audited(money) == {}
    money.execute(text("update receipt_series set begun_at = now() - interval '16 minutes'"))
    found = {broken.rule: what for broken, what in audited(money).items()}
    assert found.keys() == {RECEIPTS, RECEIPTS_SUM}
    assert found[RECEIPTS].endswith("the books have the credit op_reserved_a of 10.00 for order ord_a")
    assert found[RECEIPTS_SUM] == "its receipts less its credit notes sum to 0.00, its books have received 10.00"
    issue_all(money)
    assert audited(money) == {}


def test_the_sums_by_month_are_those_of_the_books(money: Connection) -> None:
    ada, bob = (AccountHistory(money, f"acct_{name}") for name in ("ada", "bob"))
    ada.order("a", payment("a"), refund("a"))
    bob.order("b", payment("b"))
    issue_all(money)
    assert [tuple(each) for each in sum_receipts(money)] == [
        ("2026-11", "USD", 2, 20_000_000, 1, 4_000_000, 16_000_000)
    ]
    assert [tuple(each) for each in sum_receipts(money, "acct_bob")] == [
        ("2026-11", "USD", 1, 10_000_000, 0, 0, 10_000_000)
    ]
    newest = receipts_of_all(money, filters={"kind": "credit_note"}, limit=10)
    # Bob paid between Ada's payment and her refund.
    assert [each.number for each in newest if isinstance(each, Receipt)] == ["R-000003"]


def event_of(name: str, number: int, kind: str) -> PaymentEvent:
    """One of a payment's later events, of three credits; all together take less than was paid."""
    charge = f"ch_{name}"
    if kind == "refund":
        made = RefundFacts(status="succeeded", seen=("succeeded",), amount_micro=3_000_000, charge_id=charge)
        facts = OrderFacts(refunds={f"re_{name}_{number}": made})
    elif kind == "failed refund":
        made = RefundFacts(status="failed", seen=("succeeded", "failed"), amount_micro=3_000_000, charge_id=charge)
        facts = OrderFacts(refunds={f"re_{name}_{number - 1}": made})
    else:
        status: DisputeStatus = (
            "lost" if kind == "lost dispute" else "won" if kind == "won dispute" else "needs_response"
        )
        case = DisputeFacts(status=status, seen=(status,), amount_micro=3_000_000, currency="USD", charge_id=charge)
        facts = OrderFacts(disputes={f"dp_{name}": case})
    return PaymentEvent(event_id=f"evt_{name}_{number}", type=kind, at=number, reason=kind, facts=facts)


EVENTS = st.lists(
    st.sampled_from(["refund", "failed refund", "dispute", "won dispute", "lost dispute"]), max_size=4
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), EVENTS, st.integers(0, 3)), min_size=1, max_size=6))
def test_whatever_happens_to_payments_an_auditor_finds_them_in_order(
    fresh_databases: FreshDatabases, happenings: list[tuple[int, list[str], int]]
) -> None:
    """Payments of three accounts, between which receipts are issued, or decided and stored too late."""
    url = fresh_databases.take()
    try:
        with connected(url) as money:
            money.execution_options(isolation_level="AUTOCOMMIT")
            histories = [AccountHistory(money, f"acct_{each}") for each in range(3)]
            late: list[Receipt] = []
            for number, (account, kinds, passes) in enumerate(happenings):
                name = f"p{number}"
                events = [event_of(name, place, kind) for place, kind in enumerate(kinds, 2)]
                histories[account].order(name, payment(name), *events)
                if passes == 1:
                    late = decide(money)
                elif passes == 2:
                    issue_all(money, most=2)
                if passes == 3 and late:
                    store_receipts(money, late)
                    late = []
            issue_all(money)
            found = audit_receipts(url)
            assert found.faults == []
            assert found.receipts >= len(happenings)
            money.execute(text("update receipt_series set begun_at = now() - interval '1 day'"))
            assert audited(money) == {}
    finally:
        fresh_databases.give_back(url)
