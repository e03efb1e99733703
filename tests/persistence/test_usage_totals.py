"""Totals of usage: random histories against the log's entries, and what reading and writing them costs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import Connection, text
from tests.usage_sums import GROUPINGS, Sums, sums_of

from holdfast.ledger.credit.operations import OperationKind
from holdfast.ledger.tasks.task import Task, TaskStatus
from holdfast.ledger.tasks.usage_totals import UsageGroup, days_of
from holdfast.persistence.audit.rules import RULES, find_differences
from holdfast.persistence.journal.statements import STATEMENTS, draft_of
from holdfast.persistence.journal.units import Unit
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.queries import usage_totals as queries
from holdfast.persistence.queries.usage_totals import usage_totals
from holdfast.persistence.records.resulting_rows import usage_counted_row
from holdfast.persistence.records.rows import NewTaskRow, Row, TaskChangedRow, UsageCountedRow
from holdfast.persistence.server.connections import connected

from .read_costs import Reads
from .values import make_operation, make_task
from .written_units import all_committed

ADA, BOB = "acct_ada", "acct_bob"
ZONES = ("UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Chatham")
CLOCKS_SET_BACK = datetime(2026, 10, 25, 1, tzinfo=UTC)
"""In Berlin; the clocks of Los Angeles are set back a week later."""
ENDS: tuple[TaskStatus, ...] = ("succeeded", "failed", "canceled")
OPEN: tuple[TaskStatus, ...] = ("queued", "processing", "review")
LONG_USER = "".join(map(chr, random.Random(1).sample(range(0x20000, 0x2A000), 512)))
"""As long as a text of ``metadata`` may be, with characters of four bytes that cannot be compressed."""


@pytest.fixture
def reader(database_url: str) -> Iterator[Connection]:
    with connected(database_url) as connection:
        yield connection


def new_task(account_id: str, number: int, dice: random.Random, at: datetime) -> Task:
    """A task of one of a few models, keys and end users, some of them without."""
    task = make_task(account_id, f"task_{account_id}_{number}", at, dice.choice(("studio/one", "studio/two")))
    end_user = dice.choice((None, None, "", "ann", "bea", "=1+1", LONG_USER))
    request = msgspec.structs.replace(
        task.request,
        api_key_id=dice.choice((None, "key_1", "key_2")),
        metadata={"order": "7"} if end_user is None else {"end_user": end_user},
    )
    return msgspec.structs.replace(task, request=request)


def any_time(dice: random.Random) -> datetime:
    """Some time around the clocks' change, often where one stored total ends and the next begins."""
    at = CLOCKS_SET_BACK + timedelta(seconds=dice.randrange(-6 * 86_400, 10 * 86_400))
    if dice.random() < 0.5:
        at = at.replace(minute=dice.choice((0, 15, 30, 45)), second=0)
    return at + dice.choice((0, 0, 1, -1)) * timedelta(microseconds=1)


def history(account_id: str, dice: random.Random, tasks: int) -> Iterator[tuple[Row, ...]]:
    """Yield what the units write that create tasks, change them and end most of them, in a random order."""
    opened: list[Task] = []
    number = 0
    while number < tasks or opened:
        if number < tasks and dice.random() < 0.4:
            task = new_task(account_id, number, dice, any_time(dice))
            number += 1
            hold = make_operation(
                account_id, 2 * number, OperationKind.HOLD, task.created_at, hold_id=task.request.hold_id
            )
            yield NewTaskRow(task), msgspec.structs.replace(hold, reference=task.request_id)
            opened.append(task)
        elif opened:
            task = opened.pop(dice.randrange(len(opened)))
            changed = msgspec.structs.replace(task, version=task.version + 1, status=dice.choice(OPEN))
            if dice.random() < 0.3:
                yield (TaskChangedRow(changed, "proc_1", has_new_usage=True),)
                opened.append(changed)
            elif number < tasks or dice.random() < 0.8:
                status = dice.choice(ENDS)
                cost_micro = dice.choice((0, 1, 999_999, 10**12)) if status == "succeeded" else 0
                state = msgspec.structs.replace(task.state, cost_micro=cost_micro)
                ended = msgspec.structs.replace(changed, status=status, wake_at=None, state=state)
                kind = OperationKind.CAPTURE if status == "succeeded" else OperationKind.RELEASE
                hold_number = int(task.request_id.rpartition("_")[2])
                settled = make_operation(
                    account_id, 2 * hold_number + 3, kind, task.created_at, hold_id=task.request.hold_id
                )
                yield TaskChangedRow(ended, "proc_1", has_new_usage=True), usage_counted_row(ended), settled


def entries_of(rows: psycopg.Connection[Any], account_id: str) -> list[dict[str, Any]]:
    query = (
        "select u.*, u.cost_micro as cost, t.request -> 'metadata' ->> 'order' as \"metadata[order]\" "
        "from usage_entries u join tasks t using (request_id) where u.account_id = %s"
    )
    return rows.cursor(row_factory=dict_row).execute(query, (account_id,)).fetchall()


def totals_of(
    reader: Connection,
    groups: Sequence[UsageGroup],
    since: datetime,
    until: datetime,
    zone: ZoneInfo,
    **filters: str,
) -> Sums:
    days, bounds = days_of(since, until, zone) if "day" in groups else ([], [since, until])
    found = usage_totals(reader, ADA, groups, bounds, filters)
    assert found is not None
    sums = {
        tuple(days[total.part - 1].isoformat() if name == "day" else getattr(total, name) for name in groups): (
            total.count,
            total.cost_micro,
        )
        for total in found
    }
    assert len(sums) == len(found)
    return sums


def broken_totals(reader: Connection) -> list[str]:
    """Return what the audit says of the totals."""
    reader.rollback()
    rules = [rule for rule in RULES if "usage totals" in rule.name]
    assert len(rules) == 3
    return [found.what for rule in rules for found, _ in find_differences(reader, rule, [ADA, BOB])]


@pytest.mark.parametrize("seed", range(6))
def test_totals_are_the_sums_of_the_entries_by_any_groups_in_any_zone(
    writer: BatchWriter, rows: psycopg.Connection[Any], reader: Connection, seed: int
) -> None:
    dice = random.Random(seed)
    written = [Unit(rows=each) for account_id in (ADA, BOB) for each in history(account_id, dice, 120)]
    at = 0
    while at < len(written):
        size = dice.choice((1, 3, 40))
        assert all_committed(writer.write(written[at : at + size]))
        at += size
    entries = entries_of(rows, ADA)
    assert {entry["status"] for entry in entries} >= {*ENDS}
    for groups in GROUPINGS:
        for zone_name in ZONES:
            zone = ZoneInfo(zone_name)
            since, until = sorted((any_time(dice), any_time(dice) + timedelta(microseconds=2)))
            wanted = sums_of(entries, groups, zone, since=since, until=until)
            assert totals_of(reader, groups, since, until, zone) == wanted, (groups, zone_name, since, until)
            reader.rollback()
    for groups in GROUPINGS:
        filters = some_filters(dice)
        since, until = sorted((any_time(dice), any_time(dice) + timedelta(microseconds=2)))
        wanted = sums_of(entries, groups, zone, since=since, until=until, filters=filters)
        assert totals_of(reader, groups, since, until, zone, **filters) == wanted, (groups, filters, since, until)
        reader.rollback()
    assert broken_totals(reader) == []


def some_filters(dice: random.Random) -> dict[str, str]:
    """What usage may be selected by: one or more columns, each with a value that some tasks have, or none."""
    values: dict[str, tuple[str, ...]] = {
        "model": ("studio/one", "studio/three"),
        "api_key_id": ("key_1",),
        "status": (*ENDS, "queued"),
        "end_user": ("ann", "=1+1", LONG_USER),
        "metadata[order]": ("7", "8"),
    }
    return {name: dice.choice(values[name]) for name in dice.sample([*values], k=dice.randint(1, 3))}


def test_tasks_that_have_not_ended_are_counted_as_they_are(
    writer: BatchWriter, rows: psycopg.Connection[Any], reader: Connection
) -> None:
    dice = random.Random(5)
    for account_id in (ADA, BOB):
        for unit in history(account_id, dice, 20):
            if isinstance(unit[0], NewTaskRow) or len(unit) == 1:
                assert all_committed(writer.write([Unit(rows=unit)]))
    assert rows.execute("select count(*) from usage_totals").fetchone() == (0,)
    since, until, zone = CLOCKS_SET_BACK - timedelta(days=9), CLOCKS_SET_BACK + timedelta(days=12), ZoneInfo("UTC")
    for groups in GROUPINGS:
        found = totals_of(reader, groups, since, until, zone)
        assert found == sums_of(entries_of(rows, ADA), groups, zone)
        assert sum(count for count, _ in found.values()) == 20


@pytest.mark.parametrize(
    ("tampering", "said"),
    [
        (
            "update usage_totals set count = count + 1 where span_s = 900 and end_user_by = ''",
            "is 2 tasks and 0.000007",
        ),
        ("update usage_totals set cost_micro = 8 where span_s = 900 and end_user_by = 'model'", "and 0.000008"),
        (
            "update usage_totals set cost_micro = 8 where span_s = 86400 and end_user_by = 'status'",
            "in the 86400 s",
        ),
        ("update usage_totals set end_user = 'bob' where span_s = 3600 and end_user_by = 'api_key_id'", "bob"),
        ("delete from usage_totals where span_s = 900", "is 0 tasks and 0.00, the sum is 1 and 0.000007"),
        ("delete from usage_totals where span_s = 86400", "in the 86400 s"),
        ("update usage_entries set end_user = null", "ann"),
        ("update usage_entries set ts = ts + interval '20 minutes'", "the sum is 0"),
        (
            "insert into usage_totals select account_id, end_user_by, span_s, start_at, 'x', api_key_id, status, "
            "end_user, 1, 1 from usage_totals where span_s = 900 and end_user_by = ''",
            "the total of x, succeeded",
        ),
    ],
)
def test_the_audit_finds_a_total_that_is_not_the_sum(
    writer: BatchWriter, rows: psycopg.Connection[Any], reader: Connection, tampering: str, said: str
) -> None:
    task = make_task(ADA, "task_1", CLOCKS_SET_BACK)
    request = msgspec.structs.replace(task.request, metadata={"end_user": "ann"})
    ended = msgspec.structs.replace(
        task,
        version=2,
        status="succeeded",
        request=request,
        state=msgspec.structs.replace(task.state, cost_micro=7),
    )
    task = msgspec.structs.replace(task, request=request)
    changed = (TaskChangedRow(ended, "proc_1", has_new_usage=True), usage_counted_row(ended))
    assert all_committed(writer.write([Unit(rows=(NewTaskRow(task),)), Unit(rows=changed)]))
    assert broken_totals(reader) == []
    assert rows.execute(tampering.encode()).rowcount > 0
    assert said in "; ".join(broken_totals(reader))


def test_only_the_ends_of_tasks_write_totals_by_one_statement() -> None:
    [sql] = [each.sql for each in STATEMENTS if each.kind is UsageCountedRow]
    dice = random.Random(3)
    units = [Unit(rows=each) for each in history(ADA, dice, 60)]
    ends = [unit for unit in units if any(isinstance(row, UsageCountedRow) for row in unit.rows)]
    others = [unit for unit in units if unit not in ends]
    assert len(ends) > 10 < len(others)
    assert "usage_totals" not in str(draft_of(others))
    assert [statement for statement, _ in draft_of(units).statements].count(sql) == 1


# --------------------------------------------------------------------------------------------------------- its cost


def add_usage(reader: Connection, account_id: str, each: int) -> None:
    """Write ``each`` entries of every group, hour after hour of a month, and their totals."""
    reader.execute(
        text(
            "insert into usage_entries (account_id, request_id, ts, model, modality, api_key_id, status, "
            "billable_units, tokens_in, tokens_out, cost_micro, status_history, end_user) "
            "select :account, 'task_' || h || '_' || u || '_' || n, "
            "timestamptz '2026-10-01 00:00:00+00' + make_interval(hours => h, secs => n), "
            "'model_' || u % 2, 'image', 'key_1', 'succeeded', 1, 0, 0, 1, '[]', 'user_' || u "
            "from generate_series(0, 31 * 24 - 1) h, generate_series(1, 3) u, generate_series(1, :each) n"
        ),
        {"account": account_id, "each": each},
    )
    [statement] = [each for each in STATEMENTS if each.kind is UsageCountedRow]
    columns = ", ".join(statement.columns)
    into, _, rest = statement.sql.partition("from (select unnest(")
    _, _, rest = rest.partition(") v\n")
    source = f"from (select {columns} from usage_entries where account_id = %s) v\n"
    reader.exec_driver_sql(into + source + rest, (account_id,))


def test_a_read_costs_the_same_however_much_usage_the_groups_have(reader: Connection) -> None:
    for account_id, each in ((ADA, 1), (BOB, 12)):
        add_usage(reader, account_id, each)
    reader.execute(text("analyze usage_entries, usage_totals, holds, tasks"))
    since, until = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
    reads = Reads(reader)
    for groups in GROUPINGS:
        for zone_name in ("UTC", "America/Los_Angeles", "Asia/Kathmandu"):
            bounds = [since, until]
            if "day" in groups:
                _, bounds = days_of(since, until, ZoneInfo(zone_name))
            costs = [
                reads.cost(partial(usage_totals, account_id=account_id, groups=groups, bounds=bounds))[0]
                for account_id in (ADA, BOB)
            ]
            assert costs[1] <= costs[0] * 1.1 + 20, (groups, zone_name, costs)
    reader.rollback()


def test_a_time_with_too_many_groups_or_totals_is_not_summed(
    reader: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_usage(reader, ADA, 1)
    bounds = [datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)]
    groups: tuple[UsageGroup, ...] = ("end_user",)
    for name, most in (("GROUPS_MAX", 3), ("STORED_MAX", 5 * 31)):
        with monkeypatch.context() as limits:
            limits.setattr(queries, name, most)
            found = usage_totals(reader, ADA, groups, bounds)
            assert found is not None
            assert len(found) == 3
            limits.setattr(queries, name, most - 1)
            assert usage_totals(reader, ADA, groups, bounds) is None
            # What a filter leaves out is read nevertheless.
            nothing = {"model": "studio/none"}
            assert usage_totals(reader, ADA, groups, bounds, nothing) == (None if name == "STORED_MAX" else [])
    reader.rollback()
