"""Claims and sweeps read in proportion to what they find, however much waits beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
from sqlalchemy import Connection, text
from tests.persistence.read_costs import Reads
from tests.sweepers import sweeper_of

from holdfast.ledger.catalog.terms import Deadlines
from holdfast.ledger.tasks.dispatch import Silence
from holdfast.ledger.values import utc_now
from holdfast.persistence.claims.expired import delete_expired
from holdfast.persistence.claims.lots import accounts_with_expired_lots
from holdfast.persistence.claims.processes import renew_lease, take_over, this_process
from holdfast.persistence.claims.tasks import (
    DEADLINE_MARGIN_S,
    claim_follow_ups,
    claim_of_silent,
    claim_overdue,
    claim_past_deadline,
)
from holdfast.persistence.queries.backlog import operator_backlog
from holdfast.persistence.queries.finding import Found, accounts_of_address, accounts_of_key
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database

WAITING = 5_000
BUFFERS_MAX = 60
"""Far fewer than the pages of that many rows."""
NOW = utc_now()
MINUTE = timedelta(minutes=1)
USUAL = Deadlines()
_ADD = text(
    "insert into tasks (account_id, request_id, version, status, model, provider, created_at, updated_at, wake_at, "
    "dispatched, owner, request, input, state, overall_deadline_at, dispatch_s, run_s) "
    "select 'acct_' || n % 10, :name || n, 1, :status, 'm', :provider, "
    "cast(:created_at as timestamptz) + n * interval '1 ms', :created_at, :wake_at, :dispatched, :owner, "
    "cast(:request as json), json_build_object('pad', repeat('x', 1000)), cast(:state as json), "
    "cast(:created_at as timestamptz) + n * interval '1 ms' + make_interval(secs => :overall_s), "
    ":dispatch_s, :run_s "
    "from generate_series(1, :number) n"
)


@pytest.fixture
def rows(database_url: str) -> Iterator[Connection]:
    with connected(database_url) as connection, connection.begin():
        yield connection


def add_tasks(
    rows: Connection,
    name: str,
    number: int,
    *,
    age: timedelta = MINUTE,
    deadlines: Deadlines = USUAL,
    status: str = "queued",
    provider: str = "gpu",
    owner: str | None = None,
    wake_at: datetime = NOW,
    state: str = "{}",
    request: str = "{}",
) -> None:
    """Insert tasks; those with an owner are dispatched."""
    values = {
        "overall_s": deadlines.overall_s,
        "dispatch_s": deadlines.dispatch_s,
        "run_s": deadlines.run_s,
        "created_at": NOW - age,
        "dispatched": owner is not None,
    }
    named = {
        "name": name,
        "status": status,
        "provider": provider,
        "owner": owner,
        "wake_at": wake_at,
        "state": state,
        "request": request,
    }
    rows.execute(_ADD, {**values, **named, "number": number})


def cost_of(rows: Connection, query: Callable[[Connection], Any]) -> int:
    """Return the buffers that a query touches, when the server knows its tables."""
    rows.execute(text("analyze"))
    return Reads(rows).cost(query)[0]


def overdue(rows: Connection) -> set[str]:
    return set(claim_overdue(rows, most=200, now=NOW))


def unanswered(rows: Connection, silence: Silence) -> set[str]:
    return set(claim_of_silent(rows, "gpu", silence, most=200, now=NOW))


def test_a_claim_of_overdue_tasks_reads_none_that_may_wait_longer(rows: Connection) -> None:
    add_tasks(rows, "young_", WAITING)
    add_tasks(rows, "patient_", WAITING, age=90 * MINUTE, deadlines=Deadlines(overall_s=7200), provider="studio")
    assert overdue(rows) == set()
    assert cost_of(rows, overdue) <= BUFFERS_MAX
    add_tasks(rows, "hasty_", 2, age=10 * MINUTE, deadlines=Deadlines(overall_s=300))
    add_tasks(rows, "old_", 2, age=timedelta(days=2), provider="studio")
    add_tasks(rows, "claimed_", 1, age=timedelta(days=2), wake_at=NOW + MINUTE)
    assert overdue(rows) == {"hasty_1", "hasty_2", "old_1", "old_2"}
    assert overdue(rows) == set()


def test_a_claim_for_a_silent_provider_reads_only_what_waited_enough(rows: Connection) -> None:
    add_tasks(rows, "patient_", WAITING, age=9 * MINUTE, deadlines=Deadlines(dispatch_s=3600))
    add_tasks(rows, "young_", WAITING, age=timedelta(0))
    add_tasks(rows, "elsewhere_", WAITING, age=9 * MINUTE, provider="studio")
    submissions, updates = Silence("submissions", 120), Silence("updates", 120)
    for silence in (submissions, updates):
        assert unanswered(rows, silence) == set()
        assert cost_of(rows, partial(unanswered, silence=silence)) <= BUFFERS_MAX
    add_tasks(rows, "usual_", 2, age=2 * MINUTE)
    add_tasks(rows, "submitted_", 1, age=2 * MINUTE, state='{"attempt": 1}')
    add_tasks(rows, "hasty_", 1, age=2 * MINUTE, deadlines=Deadlines(dispatch_s=3600, run_s=100))
    assert unanswered(rows, Silence("submissions", 59)) == set()
    assert unanswered(rows, submissions) == {"usual_1", "usual_2"}
    assert unanswered(rows, updates) == {"hasty_1"}


def test_a_claim_of_follow_ups_reads_none_of_a_running_process(rows: Connection) -> None:
    other = this_process()
    renew_lease(rows, other, NOW, [])
    add_tasks(rows, "theirs_", WAITING, owner=other.member_id)
    add_tasks(rows, "waiting_", WAITING)

    def claim(rows: Connection) -> dict[str, str]:
        return {row.request_id: row.owner_before for row in claim_follow_ups(rows, me="me", most=200, now=NOW)}

    assert claim(rows) == {}
    assert cost_of(rows, claim) <= BUFFERS_MAX
    add_tasks(rows, "mine_", 1, owner="me")
    add_tasks(rows, "later_", 1, owner="me", wake_at=NOW + MINUTE)
    add_tasks(rows, "lost_", 1, owner="proc_gone")
    assert claim(rows) == {"mine_1": "me", "lost_1": "proc_gone"}
    assert claim(rows) == {}


def test_a_claim_past_deadlines_reads_none_that_another_process_wakes(rows: Connection) -> None:
    other = this_process()
    renew_lease(rows, other, NOW, [])
    given = partial(add_tasks, age=MINUTE, request='{"deadline_s": 30}')
    soon, short = NOW + MINUTE, Deadlines(overall_s=30)
    add_tasks(rows, "theirs_", WAITING, owner=other.member_id, wake_at=soon)
    add_tasks(rows, "waiting_", WAITING)

    def claim(rows: Connection) -> set[str]:
        return set(claim_past_deadline(rows, most=200, now=NOW))

    assert claim(rows) == set()
    assert cost_of(rows, claim) <= BUFFERS_MAX
    given(rows, "in_time_", 1, deadlines=Deadlines(overall_s=90))
    given(rows, "this_moment_", 1, deadlines=Deadlines(overall_s=60))
    given(rows, "late_", 2, deadlines=short)
    given(rows, "just_due_", 1, owner=other.member_id, deadlines=short)
    left_since = NOW - timedelta(seconds=DEADLINE_MARGIN_S)
    given(rows, "left_", 1, owner=other.member_id, deadlines=short, wake_at=left_since)
    given(rows, "claimed_", 1, owner=other.member_id, deadlines=short, wake_at=soon)
    add_tasks(rows, "overdue_", 1, owner=other.member_id, deadlines=short, wake_at=left_since)
    assert claim(rows) == {"late_1", "late_2", "left_1"}
    assert claim(rows) == set()


def test_taking_over_reads_none_of_a_running_process(rows: Connection) -> None:
    me = this_process()
    renew_lease(rows, me, NOW, [])
    add_tasks(rows, "mine_", WAITING, owner=me.member_id)
    rows.execute(
        text(
            "insert into processes (process_id, pid, lease_until, providers, state, addresses, protocol) "
            "values ('proc_gone', 1, :at, '{}', 'ready', '{}', 0)"
        ),
        {"at": NOW - MINUTE},
    )
    add_tasks(rows, "lost_", 2, owner="proc_gone")
    rows.execute(text("analyze"))
    read = text("select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'tasks'")
    before = rows.execute(read).scalar_one()
    taken = take_over(rows, me, NOW, leases_are_reliable=True)
    assert {row.request_id for row in taken} == {"lost_1", "lost_2"}
    assert rows.execute(read).scalar_one() - before <= 10


def test_reviews_are_counted_without_reading_other_tasks(rows: Connection) -> None:
    add_tasks(rows, "open_", WAITING, owner="me", status="processing")
    add_tasks(rows, "review_", 3, owner="me", status="review")
    assert operator_backlog(rows).in_review == 3
    assert cost_of(rows, operator_backlog) <= BUFFERS_MAX


def test_a_sweep_of_sign_ins_reads_none_that_are_retained_for_longer(rows: Connection) -> None:
    add = text(
        "insert into sign_ins (key, version, updated_at, state) select :name || n, 1, "
        "now() - make_interval(days => :days), cast(:state as json) from generate_series(1, :number) n"
    )
    proven = '{"proven": []}'
    rows.execute(add, {"name": "proven_", "days": 3, "state": proven, "number": WAITING})
    rows.execute(add, {"name": "old_", "days": 2, "state": "{}", "number": 2})
    rows.execute(add, {"name": "gone_", "days": 40, "state": proven, "number": 1})
    day_s = 24 * 3600

    def sweep(rows: Connection) -> tuple[int, int]:
        return (
            delete_expired(rows, "sign_ins", retention_s=day_s, now=utc_now(), most=100),
            delete_expired(rows, "proven_sign_ins", retention_s=30 * day_s, now=utc_now(), most=100),
        )

    assert sweep(rows) == (2, 1)
    assert cost_of(rows, sweep) <= BUFFERS_MAX


def test_retention_is_measured_by_service_time(rows: Connection) -> None:
    """The database's clock may have been set by hours; then the service's rows are dated by service time."""
    service_now = utc_now() - timedelta(hours=2)
    add = text(
        "insert into idempotency_records (account_id, route, key, fingerprint, reply, created_at) "
        "values ('acct_1', 'POST /x', :key, '', '', :at)"
    )
    rows.execute(add, {"key": "kept", "at": service_now - timedelta(hours=23)})
    rows.execute(add, {"key": "expired", "at": service_now - timedelta(hours=25)})
    assert delete_expired(rows, "idempotency_records", retention_s=86_400, now=service_now, most=100) == 1
    assert list(rows.execute(text("select key from idempotency_records")).scalars()) == ["kept"]


async def test_a_sweep_of_a_million_rows_is_made_of_short_statements() -> None:
    class Rows:
        """Has more expired rows than a sweep may delete."""

        def __init__(self) -> None:
            self.statements: list[int] = []

        async def work(self, _: object, *, most: int, **_which: object) -> int:
            self.statements.append(most)
            return most

    rows = Rows()
    sweeper = sweeper_of(cast(Database, rows))
    removed = await sweeper.sweep()
    assert max(rows.statements) <= 1_000
    assert removed["idempotency_records"] == removed["outbox"] == 100_000


def test_a_search_reads_none_but_what_it_finds(rows: Connection) -> None:
    rows.execute(
        text(
            "insert into accounts (id, email, role, brand_id, created_at, version, operation_count, balance_micro, "
            "held_micro, chain_head) select 'acct_' || n, 'user' || n || '@example.com', 'User', 'b', now(), 1, "
            "0, 0, 0, '' from generate_series(1, :number) n"
        ),
        {"number": WAITING},
    )
    rows.execute(
        text(
            "insert into api_keys (account_id, key_id, secret_sha256, prefix, name, scopes, created_at, is_paused, "
            "models, window_start, captured_micro) "
            "select 'acct_' || n, 'key_1', sha256(n::text::bytea), 'hk_live_' || n, 'a key', '{}', now(), false, "
            "'{}', now(), 0 "
            "from generate_series(1, :number) n"
        ),
        {"number": WAITING},
    )
    rows.execute(text("analyze accounts, api_keys"))
    assert accounts_of_address(rows, "user77@", 50) == [Found("acct_77", "user77@example.com")]
    assert accounts_of_key(rows, "hk_live_77", 50) == [Found("acct_77", "user77@example.com")]
    for search in (
        lambda rows: accounts_of_address(rows, "user", 50),
        lambda rows: accounts_of_address(rows, "user77@", 50),
        lambda rows: accounts_of_key(rows, "hk_live_77", 50),
    ):
        assert cost_of(rows, search) <= BUFFERS_MAX


def test_the_used_lots_of_an_account_are_read_once(rows: Connection) -> None:
    rows.execute(
        text(
            "insert into accounts (id, email, role, brand_id, created_at, version, operation_count, balance_micro, "
            "held_micro, chain_head, lots) select id, id || '@example.com', 'User', 'b', :now, 1, :number, 0, 0, "
            "'', (select json_agg(json_build_array(n, 5, 5 - free)) from generate_series(1, :number) n) "
            "from (values ('acct_held', 0), ('acct_part', 1)) each (id, free)"
        ),
        {"now": NOW, "number": 1000},
    )
    rows.execute(
        text(
            "insert into credit_lots (account_id, number, kind, source, reference, amount_micro, created_at, "
            "expires_at) select id, n, 'paid', 'recharge', 'r', 5, :now, :now from generate_series(1, :number) n, "
            "unnest(array['acct_held', 'acct_part']) id"
        ),
        {"now": NOW, "number": 1000},
    )

    def due(rows: Connection) -> list[str]:
        return accounts_with_expired_lots(rows, NOW, after="", most=9)

    assert due(rows) == ["acct_part"]
    assert cost_of(rows, due) <= 500
    rows.execute(text("update credit_lots set number = 1001 where (account_id, number) = ('acct_held', 7)"))
    assert due(rows) == ["acct_held", "acct_part"]
