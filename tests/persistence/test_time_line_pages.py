"""Pages of time lines and statements: every entry once, in order, however many operations an account has."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from holdfast.persistence.queries.ledger import statement_of_account
from holdfast.persistence.queries.time_lines import TimeLineEntry, time_line_of_account
from holdfast.persistence.server.connections import connected

from .read_costs import Reads

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ADA = "acct_ada"
COUNT = 30_000


@pytest.fixture
def rows(database_url: str) -> Any:
    with connected(database_url) as connection:
        yield connection
        connection.rollback()


def add_operations(rows: Connection, account_id: str, ats: list[datetime]) -> None:
    """Write an account with operations at these times, numbered from 1."""
    rows.execute(
        text(
            "insert into accounts (id, email, role, brand_id, created_at, version, operation_count, balance_micro, "
            "held_micro, chain_head) values (:account, :account, 'User', 'b', :noon, 0, :count, 0, 0, '')"
        ),
        {"account": account_id, "noon": NOON, "count": len(ats)},
    )
    rows.execute(
        text(
            "insert into operations (account_id, number, operation_id, kind, amount_micro, balance_after_micro, "
            "held_after_micro, reference, reason, at, chain_hash) select :account, n, "
            "'op_' || md5(:account || n), 'hold', 1, 1, 1, 'task_1', '', at, '' "
            "from unnest(cast(:ats as timestamptz[])) with ordinality as each (at, n)"
        ),
        {"account": account_id, "ats": ats},
    )


def add_events(rows: Connection, account_id: str, count: int) -> None:
    """Write events, one in a hundred of them given up."""
    rows.execute(
        text(
            "insert into outbox (account_id, receiver, event_id, request_id, kind, url, created_at, status, "
            "attempts, round_at, tries, snapshot) select :account, :account, 'evt_' || n, 'task_' || n, "
            "'task.succeeded', 'u', "
            "cast(:noon as timestamptz) + n * interval '1 s', "
            "case when n % 100 = 0 then 'given_up' else 'delivered' end, 1, :noon, 1, '{}' "
            "from generate_series(1, :count) n"
        ),
        {"account": account_id, "noon": NOON, "count": count},
    )


def pages_of(rows: Connection, account_id: str, limit: int, **window: Any) -> list[TimeLineEntry]:
    """Walk an account's time line, and return every entry."""
    seen: list[TimeLineEntry] = []
    after = None
    while found := time_line_of_account(rows, account_id, limit=limit, after=after, **window):
        seen += found
        after = (seen[-1].at, seen[-1].id)
    return seen


@pytest.mark.parametrize("spacing_s", [0.001, 0.2, 3, 60])
def test_a_time_line_is_in_order_though_clocks_differ(rows: Connection, spacing_s: float) -> None:
    dice = random.Random(spacing_s)
    for number, count in enumerate((0, 1, 40, 300)):
        # Many of one millisecond, and some seconds away from the order of their numbers.
        seconds = [n * spacing_s - dice.choice((0, 0, 0, 0.05, 4, 9)) for n in range(count)]
        ats = [NOON + timedelta(milliseconds=int(1000 * each)) for each in seconds]
        add_operations(rows, f"acct_{number}", ats)
        since, until = sorted(dice.choice(ats or [NOON]) for _ in range(2))
        windows: list[dict[str, Any]] = [{}, {"since": since}, {"until": until}, {"since": since, "until": until}]
        for window in windows:
            found = pages_of(rows, f"acct_{number}", 7 if count < 100 else 60, **window)
            expected = [at for at in ats if ("since" not in window or at >= since)]
            expected = [at for at in expected if ("until" not in window or at < until)]
            assert [entry.at for entry in found] == sorted(expected, reverse=True)
            assert len({entry.id for entry in found}) == len(expected)
            statement = statement_of_account(rows, f"acct_{number}", limit=count + 1, **window)
            assert sorted(each.at for each in statement) == sorted(expected)


@pytest.mark.parametrize(
    "window",
    [
        {},
        {"after": (NOON + timedelta(seconds=COUNT // 2), "op")},
        {"after": (NOON + timedelta(seconds=300), "op")},
        {"since": NOON + timedelta(seconds=10), "until": NOON + timedelta(seconds=200)},
    ],
    ids=["first", "middle", "last", "window"],
)
def test_a_page_costs_as_much_in_a_busy_account(rows: Connection, window: dict[str, Any]) -> None:
    add_operations(rows, ADA, [NOON + timedelta(seconds=n) for n in range(COUNT)])
    add_events(rows, ADA, COUNT // 3)
    tables = ("operations", "outbox")
    for table in tables:
        rows.execute(text(f"analyze {table}"))
    cost, plan = Reads(rows).cost(lambda rows: time_line_of_account(rows, ADA, limit=50, **window), of=tables)
    assert len(time_line_of_account(rows, ADA, limit=50, **window) or ()) == 50
    assert "pk_operations" in plan
    assert "ix_outbox_retried" in plan
    pages = rows.execute(text("select sum(relpages) from pg_class where relname in ('operations', 'outbox')"))
    assert cost < 200 < pages.scalar_one() / 3, cost


def test_a_statement_of_a_few_minutes_reads_few_operations(rows: Connection) -> None:
    add_operations(rows, ADA, [NOON + timedelta(seconds=n) for n in range(COUNT)])
    rows.execute(text("analyze operations"))
    since, until = NOON + timedelta(seconds=10), NOON + timedelta(seconds=200)
    cost, _ = Reads(rows).cost(lambda rows: statement_of_account(rows, ADA, limit=50, since=since, until=until))
    assert cost < 200, cost


def test_an_operation_that_is_missing_hides_no_other(rows: Connection) -> None:
    add_operations(rows, ADA, [NOON + timedelta(minutes=n) for n in range(9)])
    rows.execute(text("alter table operations disable trigger user"))
    rows.execute(text("delete from operations where number = 5"))
    until = NOON + timedelta(minutes=7)
    assert len(pages_of(rows, ADA, 2, until=until)) == 6
    assert len(statement_of_account(rows, ADA, limit=9, since=NOON, until=until)) == 6
