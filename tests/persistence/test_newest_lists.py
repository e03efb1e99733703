"""Operators' lists of everything: each entry once, filters, totals, and what a page costs among many rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from holdfast.persistence.queries import newest
from holdfast.persistence.queries.newest import (
    ListedAccount,
    list_accounts,
    list_coupons,
    list_orders,
    list_tasks,
    totals_of,
)
from holdfast.persistence.queries.paging import ScanEnd
from holdfast.persistence.server.connections import connected

from .read_costs import Reads
from .test_lists import documents

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
COUNT = 10_000
ID = "|| lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || lpad(n::text, 20, '0')"
TIMES = "(select n, cast(:noon as timestamptz) + n * interval '1 s' as at from generate_series(1, :count) n) s"
ACCOUNTS = f"""
insert into accounts (id, email, role, brand_id, created_at, version, operation_count, balance_micro, held_micro,
    chain_head, disabled_at)
select 'acct_' {ID}, 'person' || n || '@' || case when n = 7 then 'rare' else 'usual' end || '.example', 'User',
    'b', at, 0, 0, (n * 7919) % 10007, 0, '', case when n % 100 = 0 then at end from {TIMES}
"""
ORDERS = f"""
insert into orders (account_id, order_id, provider, origin, created_at, expires_at, status, reconcile_status,
    version, updated_at, request, state)
select 'acct_1', 'ord_' {ID}, 'sandbox', 'customer', at, at, case when n = 7 then 'held' else 'credited' end,
    'pending', 0, at, '{{"amount_micro": 1000000, "currency": "USD"}}', '{{}}' from {TIMES}
"""
TASKS = f"""
insert into tasks (account_id, request_id, version, status, model, provider, created_at, updated_at, dispatched,
    request, input, state, overall_deadline_at, dispatch_s, run_s)
select 'acct_1', 'task_' {ID}, 1, case when n = 7 then 'canceled' else 'succeeded' end, 'm', 'studio', at, at, true,
    cast(:request as json), cast(:input as json), cast(:state as json), at, 60, 900 from {TIMES}
"""
COUPONS = f"""
insert into coupons (coupon_id, code_sha256, code_prefix, amount_micro, uses_max, created_at, uses, disabled_at)
select 'cpn_' {ID}, sha256(n::text::bytea), 'ABC', 5000000, 3, at, n % 4, case when n % 5 = 0 then at end
from {TIMES}
"""
CAPTURES = """
insert into operations (account_id, number, operation_id, kind, amount_micro, balance_after_micro, held_after_micro,
    reference, reason, at, chain_hash)
select account, n, 'op_' || md5(account || n), kind, micro, 1, 1, 'task_1', '', at, '' from (values
    ('ada', 1, 'capture', 5, interval '-1 hour'), ('ada', 2, 'capture', 6, interval '-2 hours'),
    ('bob', 1, 'capture', 10, interval '-1 hour'), ('bob', 2, 'hold', 900, interval '-1 hour'),
    ('bob', 3, 'capture', 90, interval '-3 days')) o (account, n, kind, micro, ago),
    lateral (select cast(:noon as timestamptz) + ago as at) t
"""


@pytest.fixture
def rows(database_url: str) -> Any:
    with connected(database_url) as connection:
        yield connection
        connection.rollback()


def add(rows: Connection, statement: str, count: int = COUNT) -> None:
    rows.execute(text(statement), {"noon": NOON, "count": count, **(documents() if "tasks" in statement else {})})
    rows.execute(text(f"analyze {statement.split()[2]}"))


LISTS: list[tuple[str, str, Callable[..., list[Any]], dict[str, str]]] = [
    ("accounts", ACCOUNTS, lambda *a, **k: list_accounts(*a, now=NOON, **k), {"email": "@RARE."}),
    ("orders", ORDERS, list_orders, {"status": "held"}),
    ("tasks", TASKS, list_tasks, {"status": "canceled"}),
    ("coupons", COUPONS, list_coupons, {"state": "used_up"}),
]
NAMES = {"accounts": "account_id", "coupons": "coupon_id", "tasks": "request_id", "orders": "id"}


@pytest.mark.parametrize("case", LISTS, ids=[each[0] for each in LISTS])
def test_every_page_reads_few_rows_and_each_entry_comes_once(
    rows: Connection, monkeypatch: pytest.MonkeyPatch, case: tuple[Any, str, Callable[..., list[Any]], Any]
) -> None:
    listed, statement, read, narrow = case
    add(rows, statement)
    reads, seen = Reads(rows), list[str]()
    after: Any = None

    def read_next(at: Connection, filters: dict[str, str] = narrow, limit: int = 50) -> list[Any]:
        return read(at, limit=limit, filters=filters, after=after)

    while len(seen) < 300:
        seen += [getattr(each, NAMES[listed]) for each in read_next(rows, {})]
        after = (NOON, seen[-1])
        cost, plan = reads.cost(lambda at: read_next(at, {}), of=[listed])
        assert cost < 200, plan
    assert seen == sorted(set(seen), reverse=True)
    # With a filter a page ends after a bounded number of rows, and the pages together have every row.
    spec = newest._LISTS[listed]
    monkeypatch.setitem(newest._LISTS, listed, spec._replace(scanned_max=1_000))
    found, after, pages = list[Any](), None, 0
    cost, plan = reads.cost(read_next, of=[listed])
    assert cost < 1_500, plan
    while True:
        page = read_next(rows, limit=5_000)
        found += [each for each in page if not isinstance(each, ScanEnd)]
        pages += 1
        if not page or not isinstance(page[-1], ScanEnd):
            break
        after = page[-1]
    assert len(found) == (COUNT // 5 if listed == "coupons" else 1)
    assert pages == COUNT // 1_000 + 1
    totals, is_cut = totals_of(rows, listed, filters={}, limit=0)
    assert (sum(each.entries for each in totals), is_cut) == (1_000, True)


def test_times_bound_a_list_exactly(rows: Connection) -> None:
    add(rows, ACCOUNTS, 100)
    since, until = NOON + timedelta(seconds=10), NOON + timedelta(seconds=20)
    found = list_accounts(rows, limit=50, filters={}, now=NOON, since=since, until=until)
    assert [each.email for each in found if isinstance(each, ListedAccount)] == [
        f"person{n}@usual.example" for n in range(19, 9, -1)
    ]
    totals, is_cut = totals_of(rows, "accounts", filters={"state": "open"}, limit=0, since=since, until=until)
    balance = sum(n * 7919 % 10007 for n in range(10, 20))
    assert ([*totals[0]], is_cut) == (["open", 10, balance, "USD"], False)


def test_the_largest_balances_and_the_most_spent_come_first(rows: Connection) -> None:
    add(rows, ACCOUNTS, 100)
    for number, name in ((1, "ada"), (2, "bob")):
        rows.execute(
            text("update accounts set id = :name where email like :email"),
            {"name": name, "email": f"person{number}@%"},
        )
    add(rows, CAPTURES)

    def first(**filters: str) -> list[Any]:
        return list_accounts(rows, limit=4, filters=filters, now=NOON)

    by_balance = [each.balance_micro for each in first(order="balance")]
    assert by_balance == sorted((n * 7919 % 10007 for n in range(1, 101)), reverse=True)[:3]
    assert [(each.account_id, each.spent_micro) for each in first(order="spent")] == [("ada", 11), ("bob", 10)]
    week = first(order="spent", days="7")
    assert [(each.account_id, each.spent_micro) for each in week] == [("bob", 100), ("ada", 11)]
    assert [each.account_id for each in first(order="spent", days="7", email="person1@")] == ["ada"]
