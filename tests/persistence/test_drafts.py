"""What a batch sends: a void unit writes nothing, and no other unit is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import psycopg
import pytest

from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.journal.statements import BULK_ROWS, STATEMENTS, draft_of, preconditions_of
from holdfast.persistence.journal.units import Committed, Fence, Stale, Unit
from holdfast.persistence.journal.writer import _LOCK, _PROBE, BatchWriter, CommitUnanswered, ConnectionLost
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRevokedRow, ApiKeyRow
from holdfast.persistence.records.rows import IdempotencyProbe, NewTaskRow, SignInRow, TaskChangedRow
from holdfast.persistence.records.tables import metadata
from holdfast.persistence.server.connections import KeptConnection, connected
from holdfast.persistence.server.database import Database

from .marked_units import MarkedUnits, assert_only_these_rows, assert_sound, committed, found, opened
from .values import make_task
from .written_units import AT, BEYOND_ASCII, kinds


@pytest.fixture(params=[1, 10_000], ids=["copied", "not copied"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """New rows are written by COPY, or by statements."""
    monkeypatch.setattr("holdfast.persistence.journal.statements.BULK_ROWS", request.param)


# --------------------------------------------------------------------------------------------------- void units


@pytest.mark.parametrize("how_many", [3, BULK_ROWS + 3], ids=["few", "copied"])
@pytest.mark.parametrize("void", ["first", "last"])
def test_a_void_unit_writes_nothing_and_leaves_the_committed_head(
    writer: BatchWriter, rows: psycopg.Connection[Any], how_many: int, void: str
) -> None:
    ours, neighbour = opened(writer, 2)
    gone = (Fence("task", "task_gone", 7),)
    last = how_many - 1
    bad = 0 if void == "first" else last
    units = [ours.credit(fences=gone if place == bad else ()) for place in range(how_many)]
    units += [neighbour.credit()]
    verdicts = writer.write(units)
    expected = [] if void == "first" else units[:last]
    assert committed(units, verdicts) == [*expected, units[-1]]
    assert_only_these_rows(rows, [*expected, units[-1]])


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_the_rows_of_a_batch_are_those_of_its_committed_units(
    writer: BatchWriter,
    rows: psycopg.Connection[Any],
    database_url: str,
    seed: int,
) -> None:
    rng = random.Random(seed)
    accounts = opened(writer, 4)
    expected: list[Unit] = []
    counts: Counter[str] = Counter()
    for _ in range(6):
        batch = [_some_unit(rng, rng.choice(accounts)) for _ in range(rng.randrange(1, 14))]
        verdicts = writer.write(batch)
        counts.update(kinds(verdicts))
        expected += committed(batch, verdicts)
        for place, account in enumerate(accounts):
            accounts[place] = _reloaded(database_url, account)
    assert_only_these_rows(rows, [unit for unit in expected if unit.advances])
    assert counts["Committed"]
    assert counts["Stale"]
    assert_sound(database_url)


def _some_unit(rng: random.Random, account: MarkedUnits) -> Unit:
    luck = rng.random()
    if luck < 0.12:
        return account.check()
    if luck < 0.24:
        return account.credit(fences=(Fence("task", "task_gone", 7),))
    if luck < 0.5:
        return account.credit(key=f"k{rng.randrange(4)}")
    if luck < 0.6 and account.state.balance_micro - account.state.held_micro >= 30:
        return account.hold(new_id("hold"))
    if luck < 0.75 and account.state.holds:
        return account.release(next(iter(account.state.holds)))
    return account.credit()


def _reloaded(url: str, account: MarkedUnits) -> MarkedUnits:
    """Load the state from the rows, as an actor does whose units are void."""
    fresh = MarkedUnits(account.account_id, marks=account.marks)
    with connected(url) as connection:
        fresh.state = load_account(connection, account.account_id).state
    return fresh


def test_a_batch_without_committed_units_leaves_no_marker(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    batches = found(rows, "select count(*) from journal_batches")
    unit = account.credit(fences=(Fence("task", "task_gone", 7),), extra=(SignInRow("email:a", 1, AT, {}),))
    first_sign_in = Unit(fences=(Fence("sign_in", "email:a", 0), Fence("task", "task_gone", 7)))
    assert kinds(writer.write([unit, first_sign_in])) == ["Stale", "Stale"]
    assert found(rows, "select count(*) from journal_batches") == batches
    assert found(rows, "select key from sign_ins") == []
    assert_only_these_rows(rows, [])


def test_rows_without_a_fence_are_written_beside_void_units(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    free = Unit(rows=(account.mark(),))
    batch = [account.credit(fences=(Fence("task", "task_gone", 7),)), free, account.check()]
    assert kinds(writer.write(batch)) == ["Stale", "Committed", "Stale"]
    assert_only_these_rows(rows, [free])


def test_an_empty_batch_reads_and_writes_nothing(writer: BatchWriter, rows: psycopg.Connection[Any]) -> None:
    assert preconditions_of([]) == ({}, None, ())
    assert draft_of([]) == ([], [])
    assert writer.write([]) == []
    assert found(rows, "select count(*) from journal_batches") == [0]


@pytest.mark.parametrize("is_copied", [False, True])
def test_few_large_rows_are_copied_as_many_are(
    writer: BatchWriter, rows: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, is_copied: bool
) -> None:
    """The driver moves the unsent rest of a statement with every send, so its time grows with the square."""
    monkeypatch.setattr("holdfast.persistence.journal.statements.BULK_BYTES", 100_000)
    text = "é\\\n\t" * (20_000 if is_copied else 1_000)
    tasks = [make_task("a", f"task_{n}", AT) for n in range(2)]
    tasks = [
        msgspec.structs.replace(each, request=msgspec.structs.replace(each.request, input={"prompt": text[n:]}))
        for n, each in enumerate(tasks)
    ]
    draft = draft_of([Unit(rows=tuple(map(NewTaskRow, tasks)))])
    assert [sql.split()[1] for sql, _ in draft.copies] == (["tasks"] if is_copied else [])
    assert sum(len(each) for _, parameters in draft.statements for each in parameters) < 100_000
    assert writer.write([Unit(rows=tuple(map(NewTaskRow, tasks)))]) == [Committed()]
    assert found(rows, "select input ->> 'prompt' from tasks order by request_id") == [text, text[1:]]


# ------------------------------------------------------------------------------------------------- broken units


WRONG: Any = 5
BROKEN: dict[str, Callable[[MarkedUnits], Unit]] = {
    "a time that is none": lambda account: account.credit(extra=(ApiKeyRevokedRow("a", "k", WRONG),)),
    "a row that nothing writes": lambda account: account.credit(extra=(WRONG,)),
    "NUL in a row": lambda account: account.credit(extra=(ApiKeyRevokedRow("a", "a\x00b", AT),)),
    "NUL in a fence": lambda account: account.credit(fences=(Fence("task", "a\x00b", 1),)),
    "no UTF-8 in a fence": lambda account: account.credit(fences=(Fence("task", "\ud800", 1),)),
    "no UTF-8 in a key": lambda account: account.credit(key="\ud800"),
    "no UTF-8 in a new row": lambda account: account.credit(
        extra=(SignInRow("\ud800", 1, AT, {}), _api_key("\ud800"))
    ),
    "NUL in a new row": lambda account: account.credit(extra=(_api_key("\x00"),)),
    "a key twice": lambda account: account.credit(extra=(_api_key("same"), _api_key("same"))),
}


def _api_key(key_id: str) -> ApiKeyRow:
    return ApiKeyRow(ApiKeyRecord("a", key_id, "p", KeyTerms("n", ()), AT), key_id.encode(errors="replace"))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", BROKEN)
def test_a_failing_unit_is_voided_with_those_decided_on_it(
    writer: BatchWriter,
    rows: psycopg.Connection[Any],
    name: str,
) -> None:
    neighbour, broken = opened(writer, 2)
    batch = [neighbour.credit(), BROKEN[name](broken), broken.credit(), neighbour.credit(key="k")]
    assert kinds(writer.write(batch)) == ["Committed", "Broken", "Stale", "Committed"]
    assert_only_these_rows(rows, [batch[0], batch[3]])
    after = neighbour.credit()
    assert writer.write([after]) == [Committed()]


# ------------------------------------------------------------------------------------------- connections that break


class BreakingConnection(psycopg.Connection[Any]):
    """A connection whose session is terminated before its n-th exchange, or before an exchange continues."""

    ends_before: tuple[str, int] = ("", 0)
    seen: Counter[str]

    def passes(self, kind: str) -> None:
        self.seen[kind] += 1
        if (kind, self.seen[kind]) == self.ends_before:
            with closing(psycopg.connect(self.info.dsn, autocommit=True)) as operator:
                operator.execute("select pg_terminate_backend(%s, 5000)", (self.info.backend_pid,))

    def wait(self, gen: Any, *arguments: Any, **more: Any) -> Any:
        self.passes("exchange")
        return super().wait(self._watched(gen), *arguments, **more)

    def _watched(self, exchange: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        ready = None
        while True:
            try:
                wanted = exchange.send(ready)
            except StopIteration as end:
                return end.value
            ready = yield wanted
            self.passes("step")


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("kind", ["exchange", pytest.param("step", marks=pytest.mark.slow)])
def test_a_batch_is_atomic_wherever_the_connection_breaks(
    writer: BatchWriter,
    rows: psycopg.Connection[Any],
    database_url: str,
    kind: str,
) -> None:
    """The connection breaks one request later each time. A batch that was not written can be written again."""
    ours, other = opened(writer, 2)
    expected: list[Unit] = []
    outcomes: Counter[str] = Counter()
    for n in range(1, 60):
        connections: list[BreakingConnection] = []

        def connect(n: int = n, connections: list[BreakingConnection] = connections) -> psycopg.Connection[Any]:
            connection = BreakingConnection.connect(database_url)
            connection.seen = Counter()
            connection.ends_before = (kind, n) if not connections else ("", 0)
            connections.append(connection)
            return connection

        stale = Unit(fences=(Fence("account", ours.account_id, -5),), rows=(_api_key("stale"),))
        batch = [stale, other.credit(key=f"k{n}"), other.credit()]
        with closing(BatchWriter(KeptConnection(connect), now=utc_now)) as breaking:
            try:
                verdicts = breaking.write(batch)
            except CommitUnanswered as lost:
                durable = breaking.look_up(lost.batch_id)
                verdicts = lost.if_durable if durable else lost.if_void
                outcomes["durable" if durable else "void"] += 1
            except ConnectionLost:
                verdicts = [Stale(())] * 3
                outcomes["lost"] += 1
            assert kinds(verdicts)[0] == "Stale"
            if kinds(verdicts)[1:] != ["Committed"] * 2:
                assert_only_these_rows(rows, expected)
                assert kinds(breaking.write(batch)) == ["Stale", "Committed", "Committed"]
            expected += batch[1:]
            assert_only_these_rows(rows, expected)
        if len(connections) == 1:
            break
    assert len(connections) == 1
    assert outcomes["lost"] or outcomes["void"]


# ------------------------------------------------------------------------------------------------- rows found again


@pytest.mark.usefixtures("either_way")
def test_a_change_finds_its_rows_to_the_microsecond_in_any_time_zone(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    begun = datetime(2026, 10, 25, 1, 59, 59, 999999, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))
    times = [begun + timedelta(microseconds=n) for n in range(3)]
    for n, at in enumerate(times):
        task = make_task("a", f"task_{n}", at)
        assert writer.write([Unit(rows=(NewTaskRow(task),))]) == [Committed()]
    rows.execute("set timezone = 'Asia/Kathmandu'")
    entries = rows.execute("select request_id, ts from usage_entries order by request_id").fetchall()
    changes = []
    for n, (request_id, ts) in enumerate(entries):
        task = make_task("a", request_id, ts, version=2)
        state = msgspec.structs.replace(task.state, cost_micro=7 + n)
        task = msgspec.structs.replace(task, status="succeeded", wake_at=None, dispatched=True, state=state)
        fence = Fence("task", request_id, 1)
        changes.append(Unit(fences=(fence,), rows=(TaskChangedRow(task, "proc_1", has_new_usage=True),)))
    assert set(writer.write(changes)) == {Committed()}
    assert found(rows, "select cost_micro from usage_entries order by ts") == [7, 8, 9]
    assert set(found(rows, "select version from tasks where status = 'succeeded' and wake_at is null")) == {2}


def test_a_session_with_another_encoding_writes_the_same_text(
    database_url: str, rows: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    names = [f"{BEYOND_ASCII}{n}" for n in range(BULK_ROWS)]
    keys = [ApiKeyRow(ApiKeyRecord("a", name, "p", KeyTerms(name, (name,)), AT), name.encode()) for name in names]
    with closing(BatchWriter(Database(database_url).keep_writer(), now=utc_now)) as writer:
        assert writer.write([Unit(rows=tuple(keys[1:])), Unit(rows=(keys[0],))]) == [Committed()] * 2
        assert writer.write([Unit(rows=(_api_key(BEYOND_ASCII),))]) == [Committed()]
    monkeypatch.undo()
    assert set(found(rows, "select key_id from api_keys")) == {*names, BEYOND_ASCII}
    assert set(found(rows, "select name from api_keys")) == {*names, "n"}


# -------------------------------------------------------------------------------------------------------- the plans


def test_the_writer_finds_every_row_by_its_whole_key(database_url: str, rows: psycopg.Connection[Any]) -> None:
    """Statistics with one task for each account must not lead to a plan that reads all of an account's tasks."""
    for table in metadata.tables:
        rows.execute(f"alter table {table} set (autovacuum_enabled = off)")
        rows.execute(f"reindex table {table}")
    # As if earlier tests had left nothing: a table known to be empty, or with large indexes, is read whole.
    names = list(metadata.tables)
    rows.execute("update pg_class set reltuples = -1, relpages = 0 where relname = any(%s)", (names,))
    rows.execute(
        "insert into tasks select 'acct_' || i, 'task_' || i, 1, 'queued', 'm', 'p', now(), now(), now(), false, "
        "'{}', '{}', '{}', null, null, now(), 60, 900 from generate_series(1, 5000) i"
    )
    rows.execute(
        "insert into usage_entries select account_id, request_id, created_at, 'm', 'image', null, 'queued', "
        "0, 0, 0, null, 0, null, null, '[]' from tasks"
    )
    rows.execute("insert into holds select account_id, request_id, 1, request_id, 1, null from tasks")
    rows.execute("analyze tasks, usage_entries, holds")
    statements = {
        **{f"lock {kind}": sql for kind, sql in _LOCK.items()},
        "probe": _PROBE,
        **{f"{each.sql.split()[0]} {each.table.name} {each.kind.__name__}": each.sql for each in STATEMENTS},
        **{
            f"lone {each.lone_sql.split()[0]} {each.table.name} {each.kind.__name__}": each.lone_sql
            for each in STATEMENTS
        },
    }
    plans = {}
    with closing(Database(database_url).connect_writer()) as connection:
        for name, sql in statements.items():
            wanted = sql.count("%s")
            for n in range(1, wanted + 1):
                sql = sql.replace("%s", f"${n}", 1)  # noqa: PLW2901 - one by one
            connection.execute(f"prepare statements as {sql}".encode())
            nulls = ", ".join(["null"] * wanted)
            lines = connection.execute(f"explain (costs off) execute statements({nulls})".encode()).fetchall()
            plans[name] = "\n".join(line for (line,) in lines)
            connection.execute("deallocate statements")
    assert [name for name, plan in plans.items() if "Seq Scan" in plan or "Join Filter" in plan] == []
    assert "uq_tasks_request_id" in plans["lock task"]
    assert "uq_tasks_request_id" in plans["update tasks TaskChangedRow"]
    assert "(ts = v.ts) AND (request_id = v.request_id)" in plans["update usage_entries TaskChangedRow"]
    assert "(hold_id = v.hold_id)" in plans["update holds Operation"]
    assert "pk_accounts" in plans["update accounts AccountHead"]
    assert "uq_tasks_request_id" in plans["lone update tasks TaskChangedRow"]
    assert "pk_accounts" in plans["lone update accounts AccountHead"]


def test_plans_for_few_rows_are_replaced_as_the_tables_grow(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    rows.execute("alter table accounts set (autovacuum_enabled = off)")
    [account] = opened(writer)
    rows.execute("analyze accounts")
    for _ in range(8):
        assert writer.write([account.credit()]) == [Committed()]
    assert "Join Filter" in "".join(_plans(writer)), "no plan reads all accounts, so this test shows nothing"
    many = opened(writer, 400)
    for start in range(0, 400, 50):
        assert set(writer.write([one.credit() for one in many[start : start + 50]])) == {Committed()}
    plans = _plans(writer)
    assert len(plans) == 3
    assert [plan for plan in plans if "Index Cond: (id = " not in plan] == []


def _plans(writer: BatchWriter) -> list[str]:
    """Return the plans by which the writer's session locks and changes accounts."""
    connection = writer._connection.get()
    known = connection.execute("select name, statement from pg_prepared_statements").fetchall()
    plans = []
    for name, statement in known:
        if "accounts t" in statement:
            nulls = ", ".join(["null"] * statement.count("$"))
            found = connection.execute(f"explain (costs off) execute {name} ({nulls})".encode()).fetchall()
            plans.append("\n".join(line for (line,) in found))
    connection.commit()
    return plans


# ---------------------------------------------------------------------------------------------------- preconditions


def test_preconditions_list_each_row_once_and_new_sign_ins() -> None:
    probe = IdempotencyProbe("a", "POST /x", "k")
    seen, new = Fence("sign_in", "email:seen", 3), Fence("sign_in", "email:new", 0)
    units = [
        Unit(fences=(Fence("account", "a", 1), new), probe=probe),
        Unit(fences=(Fence("account", "a", 2), seen), probe=probe),
        Unit(fences=(new._replace(expected=1),)),
    ]
    preconditions = preconditions_of(units)
    assert preconditions.locks == {"account": '{"a"}', "sign_in": '{"email:new","email:seen"}'}
    assert preconditions.first_sign_ins == '{"email:new"}'
    assert preconditions.probes == ('{"a"}', '{"POST /x"}', '{"k"}')
