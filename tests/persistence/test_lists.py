"""Lists of ten thousand entries: each is returned once while others arrive, and all pages cost the same."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from sqlalchemy import Column, Connection, MetaData, Table, select, text
from tests.made_requests import make_request

from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.pricing import quote_input
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Review, accept_task
from holdfast.persistence.queries.orders import troubled_orders
from holdfast.persistence.queries.paging import ScanEnd, newest_of_accounts
from holdfast.persistence.queries.reports import reports_page
from holdfast.persistence.queries.tasks import (
    failed_tasks,
    find_tasks,
    newest_tasks,
    open_reviews,
    task_by_id,
    tasks_of_account,
    unfinished_tasks,
    usage_of_account,
)
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast.persistence.server.connections import connected
from holdfast.providers.media.kinds import kind_rules
from holdfast.telemetry.reports.report import ReportFilter

from .read_costs import Reads

T = TypeVar("T")

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
COUNT = 10_000
PAGE = 100
ADA, BOB = "acct_ada", "acct_bob"
US = timedelta(microseconds=1)


@functools.cache
def documents(*, in_review: bool = False) -> dict[str, str]:
    """Return a task's JSON columns, of the usual length."""
    priced = quote_input(load_catalog(None, kind_rules()), "studio/image-1", {"prompt": "a lighthouse at dusk"})
    assert not isinstance(priced, Refusal)
    request = make_request(priced.terms, input=priced.input, quote_id="quo_" + "1" * 300, api_key_id="key_1")
    task = accept_task(ADA, "task_1", request, NOON)
    state = task.state
    if in_review:
        review = Review(case_id="rev_1", reason="content_flagged", decision="capture_blocked", deadline_at=NOON)
        state = msgspec.structs.replace(state, review=review)
    columns = {"request": task.request.without_input, "input": task.request.input, "state": state}
    return {name: msgspec.json.encode(value).decode() for name, value in columns.items()}


def readable(found: Sequence[T | UnreadableEntry | ScanEnd]) -> list[T]:
    """Return the entries of a list all of whose rows can be decoded, and whose scan has no end."""
    assert not any(isinstance(entry, UnreadableEntry | ScanEnd) for entry in found)
    return [entry for entry in found if not isinstance(entry, UnreadableEntry | ScanEnd)]


def add_tasks(
    rows: Connection, account_id: str, first: int, count: int, *, status: str = "succeeded", wakes: bool = False
) -> None:
    """Write tasks numbered from ``first``, three at each microsecond, one in a hundred failed."""
    rows.execute(
        text(
            "insert into tasks (account_id, request_id, version, status, model, provider, created_at, updated_at, "
            "wake_at, dispatched, request, input, state, overall_deadline_at, dispatch_s, run_s) "
            "select :account, 'task_' || :account || lpad(n::text, 9, '0'), 1, "
            "case when n % 100 = 0 and :status = 'succeeded' then 'failed' else :status end, "
            "case when n % 2 = 0 then 'studio/image-1' else 'studio/tone-1' end, 'studio', "
            "cast(:noon as timestamptz) + make_interval(secs => (n / 3) * 1e-6), cast(:noon as timestamptz), "
            "case when :wakes then cast(:noon as timestamptz) end, :status <> 'queued', cast(:request as json), "
            "cast(:input as json), cast(:state as json), now(), 60, 900 "
            "from generate_series(cast(:first as int), cast(:last as int)) n"
        ),
        {
            "account": account_id,
            "noon": NOON,
            "first": first,
            "last": first + count - 1,
            "status": status,
            "wakes": wakes,
            **documents(in_review=status == "review"),
        },
    )


def add_usage(rows: Connection, account_id: str, count: int) -> None:
    """Write a usage entry for each of the first tasks; every third has a cost."""
    rows.execute(
        text(
            "insert into usage_entries (account_id, request_id, ts, model, modality, api_key_id, status, "
            "billable_units, tokens_in, tokens_out, latency_ms, cost_micro, error, operation_id, status_history) "
            "select account_id, request_id, created_at, model, 'image', 'key_1', status, 1, 0, 0, 10, "
            "case when right(request_id, 1)::int % 3 = 0 then right(request_id, 3)::int else 0 end, null, null, "
            """'[{"status": "queued", "ts": "2026-11-20T12:00:00Z"}]' from tasks """
            "where account_id = :account order by created_at limit :count"
        ),
        {"account": account_id, "count": count},
    )


@pytest.fixture
def rows(database_url: str) -> Any:
    """A connection to a database where two accounts have ten thousand tasks each."""
    with connected(database_url) as connection:
        # Mixed, so that an account's rows are not adjacent.
        for first in range(0, COUNT, 1000):
            for account_id in (ADA, BOB):
                add_tasks(connection, account_id, first, 1000)
        add_usage(connection, ADA, COUNT)
        connection.execute(text("analyze tasks"))
        connection.execute(text("analyze usage_entries"))
        yield connection
        connection.rollback()


def walk(
    rows: Connection,
    list_page: Callable[..., list[Any]],
    time: str,
    *,
    between: Callable[[int], None],
    **narrow: Any,
) -> list[str]:
    """Return every id of ADA's list, page by page."""
    seen: list[str] = []
    after = None
    while True:
        entries = list_page(rows, ADA, limit=PAGE, after=after, **narrow)
        if not entries:
            return seen
        seen += [entry.request_id for entry in entries]
        after = (getattr(entries[-1], time), entries[-1].request_id)
        between(len(seen))


def test_pages_return_each_task_once_while_new_ones_arrive(rows: Connection) -> None:
    arrived = 0

    def arrive(_: int) -> None:
        nonlocal arrived
        add_tasks(rows, ADA, COUNT + 3 + arrived * 10, 10)
        arrived += 1

    seen = walk(rows, tasks_of_account, "created_at", between=arrive)
    assert arrived == COUNT // PAGE
    assert seen == [f"task_{ADA}{number:09}" for number in reversed(range(COUNT))]


@pytest.mark.parametrize(
    ("list_page", "time", "index"),
    [(tasks_of_account, "created_at", "pk_tasks"), (usage_of_account, "ts", "pk_usage_entries")],
    ids=["tasks", "usage"],
)
def test_the_last_page_costs_as_much_as_the_first(
    rows: Connection, list_page: Callable[..., list[Any]], time: str, index: str
) -> None:
    reads = Reads(rows)
    first, plan = reads.cost(lambda rows: list_page(rows, ADA, limit=PAGE))
    seen = list_page(rows, ADA, limit=COUNT)
    edge = seen[-PAGE - 1]
    after = (getattr(edge, time), edge.request_id)
    last, last_plan = reads.cost(lambda rows: list_page(rows, ADA, limit=PAGE, after=after))
    assert len(list_page(rows, ADA, limit=PAGE, after=after)) == PAGE
    assert index in plan
    assert index in last_plan
    assert last <= 2 * first + 10, (first, last)
    whole, _ = reads.cost(lambda rows: list_page(rows, ADA, limit=COUNT))
    assert first * 10 < whole, (first, whole)


def test_the_newest_tasks_of_several_accounts_cost_those_of_each(rows: Connection) -> None:
    accounts = [ADA, BOB, "acct_none"]
    reads = Reads(rows)
    alone = [reads.cost(functools.partial(tasks_of_account, account_id=each, limit=PAGE))[0] for each in accounts]
    together, plan = reads.cost(lambda rows: newest_tasks(PAGE)(rows, accounts))
    assert "pk_tasks" in plan
    assert "Sort" not in plan
    assert together <= sum(alone) + 10, (alone, together)
    found = newest_tasks(PAGE)(rows, accounts)
    assert [len(found[each]()) for each in accounts] == [PAGE, PAGE, 0]
    # Callers of the same account share what is found of it, so it is decoded again.
    assert [found[each]() for each in accounts] == [tasks_of_account(rows, each, limit=PAGE) for each in accounts]


def test_entries_of_the_same_time_are_left_in_the_servers_order(database_url: str) -> None:
    """It compares ids by its collation; here by the order in which an enumeration has them."""
    entries = Table("entries", MetaData(), *map(Column, ("account_id", "at", "id")))
    with connected(database_url) as rows:
        rows.execute(text("create type letter as enum ('b', 'a', 'c')"))
        rows.execute(text("create temp table entries (account_id text, at timestamptz, id letter)"))
        rows.execute(text("insert into entries select 'acct_ada', now(), unnest(enum_range(null::letter))"))
        pages = newest_of_accounts(rows, select(entries), (entries.c.at, entries.c.id), [ADA], limit=3)
    assert [each.id for each in pages[ADA]] == [b"c", b"a", b"b"]


@pytest.mark.parametrize(
    "filters", [{"status": "succeeded"}, {"model": "studio/tone-1"}, {"status": "failed"}, {"status": "canceled"}]
)
def test_a_filter_reads_only_the_accounts_rows_until_the_page_is_full(
    rows: Connection, filters: dict[str, str]
) -> None:
    """A selective filter reads more rows: at worst all of the account's, never another account's."""
    # One account is half of this table, and reading all of it may be cheaper; among many accounts it never is.
    rows.execute(text("set local enable_seqscan = off"))
    reads = Reads(rows)
    unfiltered, _ = reads.cost(lambda rows: tasks_of_account(rows, ADA, limit=PAGE))
    all_of_them, _ = reads.cost(lambda rows: tasks_of_account(rows, ADA, limit=COUNT))
    cost, plan = reads.cost(lambda rows: tasks_of_account(rows, ADA, limit=PAGE, filters=filters))
    found = len(tasks_of_account(rows, ADA, limit=PAGE, filters=filters))
    assert "pk_usage_entries" in plan
    if filters in ({"status": "succeeded"}, {"model": "studio/tone-1"}):
        # Each task is found by its key, in a few pages of an index and of the table.
        assert (found, cost <= unfiltered + 4 * PAGE) == (PAGE, True), (unfiltered, cost)
    else:
        assert found == (PAGE if filters == {"status": "failed"} else 0)
        assert cost <= all_of_them + 10, (all_of_them, cost)


def name_users(rows: Connection, account_id: str) -> list[dict[str, str]]:
    """Give an account's tasks keys, end users and other metadata; return what filters select by, newest first."""
    rows.execute(
        text(
            """
            update tasks set request = jsonb_set(
                jsonb_set(request::jsonb, '{api_key_id}', to_jsonb('key_' || n % 3)),
                '{metadata}',
                jsonb_build_object('project', 'p' || n % 4, 'a"b', case when n % 2 = 0 then 'é' else '' end)
                    || case when n % 7 = 0 then jsonb_build_object('end_user', 'user ' || n % 5) else '{}' end
            )::json
            from (select request_id as id, right(request_id, 3)::int as n from tasks) of_id
            where id = request_id and account_id = :account
            """
        ),
        {"account": account_id},
    )
    rows.execute(
        text(
            "update usage_entries u set api_key_id = t.request ->> 'api_key_id', "
            "end_user = t.request -> 'metadata' ->> 'end_user' from tasks t "
            "where t.request_id = u.request_id and u.account_id = :account"
        ),
        {"account": account_id},
    )
    return [
        {
            "id": task.request_id,
            "status": task.status,
            "model": task.model,
            "api_key_id": task.request.api_key_id or "",
            **({} if task.request.end_user is None else {"end_user": task.request.end_user}),
            **{f"metadata[{name}]": value for name, value in task.request.metadata.items()},
        }
        for task in readable(tasks_of_account(rows, account_id, limit=COUNT))
    ]


def test_tasks_are_selected_by_key_end_user_and_metadata(rows: Connection) -> None:
    dice = random.Random(4)
    for account_id in ("acct_small", "acct_other"):
        add_tasks(rows, account_id, 0, 300)
        add_usage(rows, account_id, 300)
    known = name_users(rows, "acct_small")
    name_users(rows, "acct_other")
    of_none = {"model": "studio/none", "end_user": "none", "metadata[project]": "p9", "metadata[none]": ""}
    for number in range(60):
        chosen = dice.choice(known)
        names = dice.sample([name for name in chosen if name != "id"], k=dice.randint(1, 3))
        filters = {name: chosen[name] for name in names}
        if dice.random() < 0.2:
            filters |= dict([dice.choice([*of_none.items()])])
        wanted = [each["id"] for each in known if filters.items() <= each.items()]
        # A page for each entry is 300 statements: a few filters tell as much as all.
        for scanned_max in (None, 17, 300, *((1,) if number < 5 else ())):
            found = list[str]()
            after: tuple[datetime, str] | None = None
            while True:
                page = tasks_of_account(
                    rows, "acct_small", limit=11, filters=filters, after=after, scanned_max=scanned_max
                )
                tasks = [each for each in page if not isinstance(each, UnreadableEntry | ScanEnd)]
                found += [each.request_id for each in tasks]
                if page and isinstance(page[-1], ScanEnd):
                    assert scanned_max is not None
                    after = page[-1]
                elif len(page) == 11:
                    after = tasks[-1].created_at, tasks[-1].request_id
                else:
                    break
            assert found == wanted, (filters, scanned_max)


def test_a_filter_that_nothing_matches_reads_so_many_entries(rows: Connection) -> None:
    reads = Reads(rows)
    for list_page in (tasks_of_account, usage_of_account):
        none = functools.partial(list_page, account_id=ADA, limit=PAGE, filters={"model": "studio/none"})
        [end] = none(rows, scanned_max=1_000)
        assert isinstance(end, ScanEnd)
        assert end == (NOON + ((COUNT - 1_000) // 3) * US, f"task_{ADA}{COUNT - 1_000:09}")
        costs = [reads.cost(functools.partial(none, scanned_max=most))[0] for most in (1_000, COUNT)]
        assert costs[0] * 5 < costs[1], costs
        assert none(rows) == []


def test_the_tasks_of_an_end_user_are_found_among_any_number(rows: Connection) -> None:
    """An account may have few of one among very many."""
    for number in (17, 5_001, 9_000):
        of_one = {"id": f"task_{ADA}{number:09}"}
        rows.execute(text("update usage_entries set end_user = 'rare' where request_id = :id"), of_one)
    reads = Reads(rows)
    rows.execute(text("analyze usage_entries"))
    for list_page in (tasks_of_account, usage_of_account):
        for filters in ({"end_user": "rare"}, {"end_user": "rare", "status": "succeeded"}, {"end_user": "none"}):
            found = functools.partial(list_page, account_id=ADA, limit=PAGE, filters=filters)
            cost, plan = reads.cost(found)
            assert "ix_usage_entries_end_user" in plan
            assert cost < 40, cost
    assert [
        each.request_id for each in readable(tasks_of_account(rows, ADA, limit=9, filters={"end_user": "rare"}))
    ] == [f"task_{ADA}{number:09}" for number in (9_000, 5_001, 17)]


def test_open_reviews_are_found_without_reading_other_tasks(rows: Connection) -> None:
    for number in range(10):
        add_tasks(rows, f"acct_{number}", number * 100, 100, status="processing", wakes=True)
    add_tasks(rows, BOB, 2 * COUNT, 30, status="review", wakes=True)
    rows.execute(text("analyze tasks"))
    reads = Reads(rows)
    cost, plan = reads.cost(lambda rows: open_reviews(rows, filters={}, limit=PAGE))
    assert len(open_reviews(rows, filters={"reason": "content_flagged"}, limit=PAGE)) == 30
    assert open_reviews(rows, filters={"reason": "manual"}, limit=PAGE) == []
    assert "ix_tasks_review" in plan
    # At most a page of the database for each row, and the index itself.
    assert cost <= PAGE + 5, cost
    first = readable(open_reviews(rows, filters={}, limit=20))
    rest = readable(open_reviews(rows, filters={}, limit=20, after=(first[-1].created_at, first[-1].request_id)))
    assert [task.request_id for task in (*first, *rest)] == [f"task_{BOB}{2 * COUNT + n:09}" for n in range(30)]


def test_reads_of_tasks_leave_out_their_inputs(rows: Connection) -> None:
    """A large input, stored apart, in hundreds of the database's pages."""
    add_tasks(rows, "acct_large", 0, 3)
    # In hexadecimal digits of hashes, so that compression halves it at most.
    rows.execute(
        text(
            "update tasks set input = json_build_object('image', (select string_agg(md5(request_id || n), '') "
            "from generate_series(1, 60000) n)) where account_id = 'acct_large'"
        )
    )
    name = "task_acct_large000000001"
    whole, small = task_by_id(rows, name), find_tasks(rows, [name])[name][1]
    assert whole is not None
    assert len(str(whole.request.input["image"])) == 60_000 * 32
    assert small == msgspec.structs.replace(whole, request=whole.request.without_input)
    assert readable(tasks_of_account(rows, "acct_large", limit=3))[1] == small
    reads = Reads(rows)
    assert reads.cost(lambda rows: task_by_id(rows, name))[0] > 100
    assert reads.cost(lambda rows: find_tasks(rows, [name]))[0] < 10
    assert reads.cost(lambda rows: tasks_of_account(rows, "acct_large", limit=3))[0] < 10


def test_unfinished_tasks_are_found_without_reading_ended_ones(rows: Connection) -> None:
    for number in range(10):
        status = "queued" if number % 2 else "processing"
        add_tasks(rows, f"acct_{number}", number * 100, 100, status=status, wakes=True)
    rows.execute(text("analyze tasks"))
    cost, plan = Reads(rows).cost(lambda rows: unfinished_tasks(rows, filters={}, limit=PAGE))
    assert "ix_tasks_due" in plan
    assert any(index in plan for index in ("ix_tasks_waiting", "ix_tasks_waited", "ix_tasks_overdue"))
    in_flight = 1000
    assert cost <= in_flight + 50, cost
    oldest = readable(unfinished_tasks(rows, filters={}, limit=PAGE))
    assert {task.account_id for task in oldest} == {"acct_0"}
    queued = readable(unfinished_tasks(rows, filters={"status": "queued", "provider": "studio"}, limit=in_flight))
    assert {task.account_id for task in queued} == {f"acct_{number}" for number in (1, 3, 5, 7, 9)}
    assert unfinished_tasks(rows, filters={"provider": "another"}, limit=PAGE) == []


@pytest.mark.parametrize(("provider", "count"), [(None, PAGE), ("another", 0)])
def test_failed_tasks_are_found_through_their_own_index(rows: Connection, provider: str | None, count: int) -> None:
    add_tasks(rows, "acct_1", 0, 5000, status="failed")
    rows.execute(text("analyze tasks"))
    filters = {} if provider is None else {"provider": provider}
    _, plan = Reads(rows).cost(lambda rows: failed_tasks(rows, filters=filters, limit=PAGE))
    assert "ix_tasks_failed" in plan
    # In the order of the index, and without a look at the row of another provider's task.
    assert "'Sort" not in plan
    assert "Rows Removed by Filter" not in plan
    assert len(failed_tasks(rows, filters=filters, limit=PAGE)) == count


def test_held_orders_are_found_through_their_own_index(rows: Connection) -> None:
    rows.execute(
        text(
            "insert into orders (account_id, order_id, version, provider, origin, status, reconcile_status, "
            "created_at, updated_at, expires_at, request, state) select :account, 'ord_' || n, 1, 'cardprovider', "
            "'customer', 'credited', 'reconciled', :noon, :noon, :noon, '{}', '{}' from generate_series(1, 20000) n"
        ),
        {"account": ADA, "noon": NOON},
    )
    rows.execute(text("analyze orders"))
    cost, plan = Reads(rows).cost(lambda rows: troubled_orders(rows, filters={"trouble": "held"}, limit=PAGE))
    assert "ix_orders_odd" in plan
    assert cost < 10


def test_reports_on_one_subject_are_found_through_an_index(database_url: str) -> None:
    with connected(database_url) as rows:
        # Every thousandth report concerns the account, the task and the provider.
        rows.execute(
            text(
                "insert into reports (report_id, at, kind, level, path, account_id, task_id, provider, report) "
                "select 'rep_' || n, :noon - n * interval '1 second', 'crash', 'error', 'holdfast', "
                "'acct_' || case when n % 1000 = 0 then 0 else n end, "
                "'task_' || case when n % 1000 = 0 then 0 else n end, "
                "case when n % 1000 = 0 then 'studio' end, '{}' from generate_series(1, 20000) n"
            ),
            {"noon": NOON},
        )
        rows.execute(text("analyze reports"))
        reads = Reads(rows)
        for wanted, index in (
            (ReportFilter(account_id="acct_0", level="info"), "ix_reports_account_id"),
            (ReportFilter(task_id="task_0", level="info"), "ix_reports_task_id"),
            (ReportFilter(provider="studio", level="info"), "ix_reports_provider"),
        ):
            cost, plan = reads.cost(functools.partial(reports_page, wanted=wanted, limit=PAGE))
            assert index in plan
            assert cost < 30
        rows.rollback()


def test_usage_of_two_spans_adds_up_to_the_whole(rows: Connection) -> None:
    def cost(since: datetime, until: datetime) -> tuple[int, int]:
        found = readable(usage_of_account(rows, ADA, limit=2 * COUNT, since=since, until=until))
        return len(found), sum(entry.cost_micro for entry in found)

    total = rows.execute(
        text("select sum(cost_micro) from usage_entries where account_id = :account"), {"account": ADA}
    ).scalar_one()
    assert total > 0
    assert cost(NOON, NOON + COUNT * US) == (COUNT, total)
    dice = random.Random(7)
    for _ in range(8):
        a, b, c = sorted(NOON + dice.randrange(-10, COUNT // 3 + 10) * US for _ in range(3))
        (left_count, left), (right_count, right) = cost(a, b), cost(b, c)
        assert (left_count + right_count, left + right) == cost(a, c)
