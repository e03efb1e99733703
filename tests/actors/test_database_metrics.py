"""The database metrics: its gauges follow the rows and the server's statistics; a long queue is counted in part."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isnan
from typing import Any

import psycopg
import pytest

from holdfast.actors.workers.sampler import DatabaseMetrics
from holdfast.persistence.queries import backlog
from holdfast.persistence.queries.backlog import WalSyncs, read_wal_syncs
from holdfast.persistence.server.database import Database
from holdfast.telemetry import metrics

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)

ADD_TASKS = """
    insert into tasks (account_id, request_id, version, status, model, provider, created_at, updated_at, wake_at,
        dispatched, request, input, state, overall_deadline_at, dispatch_s, run_s)
    select 'acct_1', 'task_' || %(provider)s || %(status)s || n, 1, %(status)s, 'm', %(provider)s,
        %(now)s - make_interval(secs => %(age_s)s + n), %(now)s, case when %(is_due)s then %(now)s end,
        %(dispatched)s, '{}', '{}', '{}', %(now)s, 60, 900
    from generate_series(0, %(number)s - 1) n
"""
ADD_EVENT = """
    insert into outbox (account_id, receiver, event_id, request_id, kind, url, created_at, due_at, status, attempts,
        round_at, tries, snapshot)
    values ('acct_1', 'acct_1', %s, 'task_1', 'succeeded', 'https://example.com', %s - make_interval(secs => 90),
        %s, %s, 0, %s, 0, '{}')
"""


@pytest.fixture
def rows(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with contextlib.closing(psycopg.connect(database_url, autocommit=True)) as connection:
        yield connection


def add_tasks(
    rows: psycopg.Connection[Any],
    provider: str,
    status: str,
    number: int,
    *,
    dispatched: bool,
    age_s: int = 0,
    is_due: bool = True,
) -> None:
    values = {
        "provider": provider, "status": status, "number": number, "dispatched": dispatched, "age_s": age_s,
        "is_due": is_due, "now": NOW,
    }  # fmt: skip
    rows.execute(ADD_TASKS, values)


def unfinished(provider: str, status: str) -> float:
    return float(metrics.TASKS_UNFINISHED.labels(provider, status)._value.get())


def queued_age_s(provider: str) -> float:
    return float(metrics.TASKS_QUEUED_AGE_S.labels(provider)._value.get())


async def test_the_gauges_follow_the_rows(database: Database, rows: psycopg.Connection[Any]) -> None:
    add_tasks(rows, "studio", "queued", 5, dispatched=False, age_s=60)
    add_tasks(rows, "box", "queued", 1, dispatched=False, age_s=7)
    add_tasks(rows, "studio", "processing", 3, dispatched=True)
    add_tasks(rows, "studio", "review", 2, dispatched=True)
    add_tasks(rows, "studio", "succeeded", 9, dispatched=True, is_due=False)
    rows.execute(ADD_EVENT, ("evt_1", NOW, NOW, "pending", NOW))
    rows.execute(ADD_EVENT, ("evt_2", NOW, None, "delivered", NOW))
    rows.execute(
        "update tasks set state = json_build_object('status_history', json_build_array("
        "json_build_object('status', 'queued', 'ts', %(now)s - interval '9 hours'),"
        "json_build_object('status', 'review', 'ts', %(now)s - n * '35 min'::interval)"
        ")) from (select request_id, row_number() over () as n from tasks where status = 'review') r "
        "where tasks.request_id = r.request_id",
        {"now": NOW},
    )
    meter = DatabaseMetrics(database=database, now=lambda: NOW)
    await meter.measure_backlog()
    assert metrics.REVIEWS_AGE_S._value.get() == 70 * 60
    assert (unfinished("studio", "queued"), unfinished("box", "queued")) == (5, 1)
    assert (unfinished("studio", "processing"), unfinished("studio", "review")) == (3, 2)
    assert (queued_age_s("studio"), queued_age_s("box")) == (64, 7)
    assert metrics.REVIEWS_OPEN._value.get() == 2
    assert metrics.EVENTS_PENDING._value.get() == 1
    assert metrics.EVENTS_PENDING_AGE_S._value.get() == 90
    assert (metrics.EVENTS_FAILING._value.get(), metrics.EVENTS_GIVEN_UP._value.get()) == (0, 0)

    rows.execute(
        "update outbox set attempts = 1, status = case event_id when 'evt_2' then 'given_up' else status end"
    )
    rows.execute(
        "insert into outbox_attempts (account_id, event_id, number, at, duration_ms) "
        "select account_id, event_id, 1, created_at, 5 from outbox"
    )
    await meter.measure_backlog()
    assert (metrics.EVENTS_FAILING._value.get(), metrics.EVENTS_GIVEN_UP._value.get()) == (1, 1)

    rows.execute("update tasks set wake_at = null, status = 'succeeded'")
    rows.execute("update outbox set due_at = null")
    await meter.measure_backlog()
    assert [unfinished("studio", status) for status in ("queued", "processing", "review")] == [0, 0, 0]
    assert (queued_age_s("studio"), queued_age_s("box"), metrics.EVENTS_PENDING_AGE_S._value.get()) == (0, 0, 0)
    assert (metrics.REVIEWS_OPEN._value.get(), metrics.REVIEWS_AGE_S._value.get()) == (0, 0)


async def test_the_files_of_all_accounts_are_counted(database: Database, rows: psycopg.Connection[Any]) -> None:
    rows.execute(
        "insert into files (account_id, file_id, filename, content_type, bytes, sha256, created_at, expires_at) "
        "select 'acct_' || n, 'file_' || n, 'a.png', 'image/png', 2 ^ 31, 's', now(), now() "
        "from generate_series(1, 3) n"
    )
    meter = DatabaseMetrics(database=database, now=lambda: NOW)
    await meter.measure_files()
    assert (metrics.FILES._value.get(), metrics.FILES_BYTES._value.get()) == (3, 3 * 2**31)
    rows.execute("delete from files")
    await meter.measure_files()
    assert (metrics.FILES._value.get(), metrics.FILES_BYTES._value.get()) == (0, 0)


async def test_a_long_queue_is_counted_in_part_and_hides_no_other(
    database: Database, rows: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "COUNTED_MAX", 10)
    add_tasks(rows, "a", "queued", 50, dispatched=False)
    add_tasks(rows, "b", "queued", 4, dispatched=False)
    await DatabaseMetrics(database=database, now=lambda: NOW).measure_backlog()
    assert (unfinished("a", "queued"), unfinished("b", "queued")) == (10, 4)


async def test_the_embedded_server_measures_its_flushes(database: Database) -> None:
    found = await database.read(read_wal_syncs)
    assert found is not None
    assert found.count >= 0
    assert found.seconds >= 0


async def test_the_gauge_has_the_mean_of_the_flushes_since_the_last_look() -> None:
    looks = [WalSyncs(100, 1.0), WalSyncs(100, 1.0), WalSyncs(110, 1.02), WalSyncs(5, 0.01), None, WalSyncs(9, 1.0)]

    class Statistics:
        async def read(self, _: object) -> WalSyncs | None:
            return looks.pop(0)

    statistics: Any = Statistics()
    meter = DatabaseMetrics(database=statistics, now=lambda: NOW)
    means = []
    while looks:
        await meter.measure_syncs()
        means.append(float(metrics.WAL_SYNC_S._value.get()))
    assert [None if isnan(mean) else round(mean, 6) for mean in means] == [None, None, 0.002, None, None, None]
