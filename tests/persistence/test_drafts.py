"""A batch made ready as if all of it fitted: of a unit that falls nothing is written, and nothing else is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeVar

import msgspec
import psycopg
import pytest

from holdfast.ledger.clock import utc_now
from holdfast.ledger.credit.account import AccountState, decide_credit, decide_hold, decide_release
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.ids import new_id
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import usage_of
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.journal.drafts import preconditions_of, prepare
from holdfast.persistence.journal.statements import BULK_ROWS, STATEMENTS
from holdfast.persistence.journal.units import Committed, Fence, Stale, Unit, UnitResult
from holdfast.persistence.journal.writer import _LOCK, _PROBE, BatchWriter, CommitUnanswered, ConnectionLost
from holdfast.persistence.records.accounts import (
    AccountHead,
    AccountRow,
    ApiKeyRecord,
    ApiKeyRevokedRow,
    ApiKeyRow,
    IdempotencyProbe,
    IdempotencyRow,
    RememberedReply,
    SignInRow,
)
from holdfast.persistence.records.rows import Row
from holdfast.persistence.records.tasks import TaskChangedRow, UsageChangedRow
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database

from .values import make_task

R = TypeVar("R")

AT = datetime(2026, 11, 20, 12, 0, 0, 123000, tzinfo=UTC)
BEYOND_ASCII = "\u00e9\u4f60\U0001f980"


@pytest.fixture
def rows(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to look at the rows with."""
    with closing(psycopg.connect(database_url, autocommit=True)) as connection:
        yield connection


@pytest.fixture
def writer(database_url: str) -> Iterator[BatchWriter]:
    with closing(BatchWriter(Database(database_url).connect_writer, now=utc_now)) as writer:
        yield writer


@pytest.fixture(params=[1, 10_000], ids=["copied", "not copied"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """New rows go in by COPY, or by statements."""
    monkeypatch.setattr("holdfast.persistence.journal.drafts.BULK_ROWS", request.param)


@dataclass
class Books:
    """Decides one account's units on a memory of its own. Each brings a key that tells it from all others."""

    account_id: str = field(default_factory=lambda: new_id("acct"))
    marks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = AccountState(self.account_id)

    def opening(self) -> Unit:
        email = f"{self.account_id}@example.com"
        return Unit(rows=(AccountRow(AccountHead(self.account_id), email, "User", "b", AT),))

    def mark(self) -> ApiKeyRow:
        mark = f"key_{self.account_id}_{len(self.marks)}"
        self.marks.append(mark)
        key = ApiKeyRecord(self.account_id, mark, "p", BEYOND_ASCII, ("a", 'b"'), AT)
        return ApiKeyRow(key, mark.encode())

    def credit(self, *, key: str | None = None, more: tuple[Row, ...] = (), fences: tuple[Fence, ...] = ()) -> Unit:
        operation = decide_credit(
            self.state,
            operation_id=new_id("op"),
            amount_micro=100,
            source="sandbox",
            reference="r",
            reason=BEYOND_ASCII,
            at=AT,
        )
        return self._unit(operation, key, more, fences)

    def hold(self, hold_id: str) -> Unit:
        operation = decide_hold(
            self.state, operation_id=new_id("op"), hold_id=hold_id, amount_micro=30, reference=hold_id, at=AT
        )
        return self._unit(operation)

    def release(self, hold_id: str) -> Unit:
        operation = decide_release(
            self.state, operation_id=new_id("op"), hold_id=hold_id, reference=hold_id, reason="r", at=AT
        )
        return self._unit(operation)

    def asks(self) -> Unit:
        """A refusal's question: it moves nothing."""
        return Unit(fences=(Fence("account", self.account_id, self.state.version),), moves=False)

    def _unit(
        self,
        operation: Any,
        key: str | None = None,
        more: tuple[Row, ...] = (),
        fences: tuple[Fence, ...] = (),
    ) -> Unit:
        state = self.state
        assert not isinstance(operation, Refusal)
        state.apply(operation)
        fence = Fence("account", self.account_id, state.version)
        state.version += 1
        head = AccountHead(
            self.account_id, state.version, state.number, state.balance_micro, state.held_micro, state.chain_head
        )
        extra: tuple[Row, ...] = (self.mark(), *more)
        probe = None
        if key is not None:
            probe = IdempotencyProbe(self.account_id, "POST /x", key)
            extra = (*extra, IdempotencyRow(probe, RememberedReply(b"print", b"reply"), utc_now()))
        return Unit(fences=(fence, *fences), rows=(head, operation, *extra), probe=probe)


def opened(writer: BatchWriter, how_many: int = 1) -> list[Books]:
    books = [Books() for _ in range(how_many)]
    assert set(written(writer, [book.opening() for book in books])) == {Committed()}
    return books


def written(writer: BatchWriter, units: Sequence[Unit]) -> list[UnitResult]:
    """What becomes of a batch that is handed over as the journal does."""
    ready = prepare(units)
    assert ready is not None
    return writer.write(units, ready)


def kinds(verdicts: Sequence[UnitResult]) -> list[str]:
    return [type(verdict).__name__ for verdict in verdicts]


def marks_of(units: Sequence[Unit]) -> set[str]:
    return {row.key.key_id for row in rows_of(units, ApiKeyRow)}


def rows_of(units: Sequence[Unit], kind: type[R]) -> list[R]:
    return [row for unit in units for row in unit.rows if isinstance(row, kind)]


def committed(units: Sequence[Unit], verdicts: Sequence[UnitResult]) -> list[Unit]:
    return [unit for unit, verdict in zip(units, verdicts, strict=True) if isinstance(verdict, Committed)]


def found(rows: psycopg.Connection[Any], query: str) -> list[Any]:
    """The first column."""
    return [row[0] for row in rows.execute(query).fetchall()]


def assert_exactly_these_stand(rows: psycopg.Connection[Any], standing: Sequence[Unit]) -> None:
    """Every row of ``standing`` is there, no row of any other unit is, and the heads are their last ones."""
    assert set(found(rows, "select key_id from api_keys")) == marks_of(standing)
    operations = rows_of(standing, Operation)
    ids = {operation.operation_id for operation in operations}
    assert set(found(rows, "select operation_id from operations")) == ids
    postings = sum(len(operation.postings) for operation in operations)
    assert found(rows, "select count(*) from postings") == [postings]
    keys = {row.probe.key for row in rows_of(standing, IdempotencyRow)}
    assert set(found(rows, "select key from idempotency_records")) == keys
    heads = {head.id: head for head in rows_of(standing, AccountHead)}
    query = "select id, version, operation_count, balance_micro, held_micro, chain_head from accounts"
    for row in rows.execute(query).fetchall():
        if row[1] > 0:
            assert AccountHead(*row) == heads.pop(row[0])
    assert heads == {}


def assert_sound(url: str) -> None:
    with connected(url) as connection:
        checks = run_audit(connection)
    # No task goes with these holds, and no usage with what ends them.
    strangers = ("task", "usage")
    assert [check for check in checks if not check.ok and not any(word in check.name for word in strangers)] == []


# ------------------------------------------------------------------------------------------------- units that fall


@pytest.mark.parametrize("how_many", [3, BULK_ROWS + 3], ids=["few", "copied"])
@pytest.mark.parametrize("falls", ["first", "last"])
def test_a_void_unit_writes_nothing_and_the_head_is_the_last_committed_one(
    writer: BatchWriter, rows: psycopg.Connection[Any], how_many: int, falls: str
) -> None:
    ours, neighbour = opened(writer, 2)
    gone = (Fence("task", "task_gone", 7),)
    last = how_many - 1
    bad = 0 if falls == "first" else last
    units = [ours.credit(fences=gone if place == bad else ()) for place in range(how_many)]
    units += [neighbour.credit()]
    verdicts = written(writer, units)
    standing = [] if falls == "first" else units[:last]
    assert committed(units, verdicts) == [*standing, units[-1]]
    assert_exactly_these_stand(rows, [*standing, units[-1]])


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("seed", range(8))
def test_the_rows_of_a_batch_are_those_of_its_committed_units(
    writer: BatchWriter,
    rows: psycopg.Connection[Any],
    database_url: str,
    seed: int,
) -> None:
    rng = random.Random(seed)
    books = opened(writer, 4)
    standing: list[Unit] = []
    happened: Counter[str] = Counter()
    for _ in range(6):
        batch = [_some_unit(rng, rng.choice(books)) for _ in range(rng.randrange(1, 14))]
        verdicts = written(writer, batch)
        happened.update(kinds(verdicts))
        standing += committed(batch, verdicts)
        for place, book in enumerate(books):
            books[place] = _reloaded(rows, book)
    assert_exactly_these_stand(rows, [unit for unit in standing if unit.moves])
    assert happened["Committed"]
    assert happened["Stale"]
    assert_sound(database_url)


def _some_unit(rng: random.Random, book: Books) -> Unit:
    luck = rng.random()
    if luck < 0.12:
        return book.asks()
    if luck < 0.24:
        return book.credit(fences=(Fence("task", "task_gone", 7),))
    if luck < 0.5:
        return book.credit(key=f"k{rng.randrange(4)}")
    if luck < 0.6 and book.state.balance_micro - book.state.held_micro >= 30:
        return book.hold(new_id("hold"))
    if luck < 0.75 and book.state.holds:
        return book.release(next(iter(book.state.holds)))
    return book.credit()


def _reloaded(rows: psycopg.Connection[Any], book: Books) -> Books:
    """What an actor does whose units fell: think anew from the rows."""
    fresh = Books(book.account_id, book.marks)
    head = rows.execute(
        "select version, operation_count, balance_micro, held_micro, chain_head from accounts where id = %s",
        (book.account_id,),
    ).fetchone()
    assert head is not None
    version, number, balance_micro, held_micro, chain_head = head
    query = "select hold_id, amount_micro from holds where account_id = %s and settled_number is null"
    fresh.state = AccountState(
        book.account_id,
        version=version,
        number=number,
        balance_micro=balance_micro,
        held_micro=held_micro,
        holds=dict(rows.execute(query, (book.account_id,)).fetchall()),
        chain_head=bytes(chain_head),
    )
    return fresh


def test_a_batch_of_which_nothing_stands_leaves_no_mark(writer: BatchWriter, rows: psycopg.Connection[Any]) -> None:
    [book] = opened(writer)
    batches = found(rows, "select count(*) from journal_batches")
    unit = book.credit(fences=(Fence("task", "task_gone", 7),), more=(SignInRow("email:a", 1, AT, {}),))
    first_sign_in = Unit(fences=(Fence("sign_in", "email:a", 0), Fence("task", "task_gone", 7)))
    assert kinds(written(writer, [unit, first_sign_in])) == ["Stale", "Stale"]
    assert found(rows, "select count(*) from journal_batches") == batches
    assert found(rows, "select key from sign_ins") == []
    assert_exactly_these_stand(rows, [])


def test_rows_that_need_no_fence_stand_beside_units_that_fall(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [book] = opened(writer)
    free = Unit(rows=(book.mark(),))
    batch = [book.credit(fences=(Fence("task", "task_gone", 7),)), free, book.asks()]
    assert kinds(written(writer, batch)) == ["Stale", "Committed", "Stale"]
    assert_exactly_these_stand(rows, [free])


def test_an_empty_batch_asks_and_writes_nothing(writer: BatchWriter, rows: psycopg.Connection[Any]) -> None:
    ready = prepare([])
    assert ready is not None
    assert ready.preconditions.is_empty
    assert ready.draft.is_empty
    assert writer.write([], ready) == []
    assert found(rows, "select count(*) from journal_batches") == [0]


# ---------------------------------------------------------------------------------------------- units that are sick


WRONG: Any = 5
NEVER_READY = {"a time that is none", "a row that nothing writes"}
SICK: dict[str, Callable[[Books], Unit]] = {
    "a time that is none": lambda book: book.credit(more=(ApiKeyRevokedRow("a", "k", WRONG),)),
    "a row that nothing writes": lambda book: book.credit(more=(WRONG,)),
    "NUL in a row": lambda book: book.credit(more=(ApiKeyRevokedRow("a", "a\x00b", AT),)),
    "NUL in a fence": lambda book: book.credit(fences=(Fence("task", "a\x00b", 1),)),
    "no UTF-8 in a fence": lambda book: book.credit(fences=(Fence("task", "\ud800", 1),)),
    "no UTF-8 in a key": lambda book: book.credit(key="\ud800"),
    "no UTF-8 in a new row": lambda book: book.credit(more=(SignInRow("\ud800", 1, AT, {}), _api_key("\ud800"))),
    "NUL in a new row": lambda book: book.credit(more=(_api_key("\x00"),)),
    "a key twice": lambda book: book.credit(more=(_api_key("same"), _api_key("same"))),
}


def _api_key(key_id: str) -> ApiKeyRow:
    return ApiKeyRow(ApiKeyRecord("a", key_id, "p", "n", (), AT), key_id.encode(errors="replace"))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", SICK)
def test_a_failing_unit_is_voided_with_those_decided_on_it(
    writer: BatchWriter,
    rows: psycopg.Connection[Any],
    name: str,
) -> None:
    neighbour, sick = opened(writer, 2)
    batch = [neighbour.credit(), SICK[name](sick), sick.credit(), neighbour.credit(key="k")]
    ready = prepare(batch)
    assert (ready is None) == (name in NEVER_READY)
    assert kinds(writer.write(batch, ready)) == ["Committed", "Broken", "Stale", "Committed"]
    assert_exactly_these_stand(rows, [batch[0], batch[3]])
    after = neighbour.credit()
    assert written(writer, [after]) == [Committed()]


# ------------------------------------------------------------------------------------------- connections that break


class Doomed(psycopg.Connection[Any]):
    """A connection whose session the operator ends before its n-th request of a kind."""

    ends_before: tuple[str, int] = ("", 0)
    seen: Counter[str]

    def passes(self, kind: str) -> None:
        self.seen[kind] += 1
        if (kind, self.seen[kind]) == self.ends_before:
            with closing(psycopg.connect(self.info.dsn, autocommit=True)) as operator:
                operator.execute("select pg_terminate_backend(%s, 5000)", (self.info.backend_pid,))

    def execute(self, query: Any, params: Any = None, **more: Any) -> Any:
        self.passes("statement")
        return super().execute(query, params, **more)

    def commit(self) -> None:
        self.passes("commit")
        super().commit()

    def wait(self, *arguments: Any, **more: Any) -> Any:
        self.passes("wait")
        return super().wait(*arguments, **more)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("kind", ["statement", "wait", "commit"])
def test_wherever_the_connection_breaks_a_batch_is_whole_or_not_there(
    writer: BatchWriter,
    rows: psycopg.Connection[Any],
    database_url: str,
    kind: str,
) -> None:
    """Broken ever later, until it breaks no more. A batch that is not there can be written as it is."""
    ours, other = opened(writer, 2)
    standing: list[Unit] = []
    fate: Counter[str] = Counter()
    for n in range(1, 60):
        made: list[Doomed] = []

        def connect(n: int = n, made: list[Doomed] = made) -> psycopg.Connection[Any]:
            connection = Doomed.connect(database_url)
            connection.seen = Counter()
            connection.ends_before = (kind, n) if not made else ("", 0)
            made.append(connection)
            return connection

        fallen = Unit(fences=(Fence("account", ours.account_id, -5),), rows=(_api_key("fallen"),))
        batch = [fallen, other.credit(key=f"k{n}"), other.credit()]
        with closing(BatchWriter(connect, now=utc_now)) as unlucky:
            try:
                verdicts = written(unlucky, batch)
            except CommitUnanswered as lost:
                durable = unlucky.look_up(lost.batch_id)
                verdicts = lost.if_durable if durable else lost.if_void
                fate["durable" if durable else "void"] += 1
            except ConnectionLost:
                verdicts = [Stale(())] * 3
                fate["lost"] += 1
            assert kinds(verdicts)[0] == "Stale"
            if kinds(verdicts)[1:] != ["Committed"] * 2:
                assert_exactly_these_stand(rows, standing)
                assert kinds(written(unlucky, batch)) == ["Stale", "Committed", "Committed"]
            standing += batch[1:]
            assert_exactly_these_stand(rows, standing)
        if len(made) == 1:
            break
    assert len(made) == 1
    assert fate["lost"] or fate["void"]


# ------------------------------------------------------------------------------------------------- rows found again


@pytest.mark.usefixtures("either_way")
def test_a_change_finds_its_rows_to_the_microsecond_in_any_time_zone(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    begun = datetime(2026, 10, 25, 1, 59, 59, 999999, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))
    times = [begun + timedelta(microseconds=n) for n in range(3)]
    for n, at in enumerate(times):
        task = make_task("a", f"task_{n}", at)
        assert written(writer, [Unit(rows=(task, usage_of(task)))]) == [Committed()]
    rows.execute("set timezone = 'Asia/Kathmandu'")
    entries = rows.execute("select request_id, ts from usage_entries order by request_id").fetchall()
    changes = []
    for n, (request_id, ts) in enumerate(entries):
        task = msgspec.structs.replace(
            make_task("a", request_id, ts, version=2), status="succeeded", wake_at=None, dispatched=True
        )
        usage = msgspec.structs.replace(usage_of(task), cost_micro=7 + n)
        fence = Fence("task", request_id, 1)
        changes.append(Unit(fences=(fence,), rows=(TaskChangedRow(task), UsageChangedRow(usage))))
    assert set(written(writer, changes)) == {Committed()}
    assert found(rows, "select cost_micro from usage_entries order by ts") == [7, 8, 9]
    assert set(found(rows, "select version from tasks where status = 'succeeded' and wake_at is null")) == {2}


def test_a_session_with_another_encoding_writes_the_same_text(
    database_url: str, rows: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    names = [f"{BEYOND_ASCII}{n}" for n in range(BULK_ROWS)]
    keys = [ApiKeyRow(ApiKeyRecord("a", name, "p", name, (name,), AT), name.encode()) for name in names]
    with closing(BatchWriter(Database(database_url).connect_writer, now=utc_now)) as writer:
        assert written(writer, [Unit(rows=tuple(keys[1:])), Unit(rows=(keys[0],))]) == [Committed()] * 2
        assert written(writer, [Unit(rows=(_api_key(BEYOND_ASCII),))]) == [Committed()]
    monkeypatch.undo()
    assert set(found(rows, "select key_id from api_keys")) == {*names, BEYOND_ASCII}
    assert set(found(rows, "select name from api_keys")) == {*names, "n"}


# -------------------------------------------------------------------------------------------------------- the plans


def test_the_writer_finds_every_row_by_its_whole_key(database_url: str, rows: psycopg.Connection[Any]) -> None:
    """Statistics of a day on which every account had one task must make no plan that reads all of an account's."""
    rows.execute(
        "insert into tasks select 'acct_' || i, 'task_' || i, 1, 'queued', 'm', 'p', now(), now(), now(), false, "
        "'{}', '{}' from generate_series(1, 5000) i"
    )
    rows.execute(
        "insert into usage_entries select account_id, request_id, created_at, 'm', 'image', null, 'queued', "
        "0, 0, 0, null, 0, null, null, '[]' from tasks"
    )
    rows.execute("insert into holds select account_id, request_id, 1, request_id, 1, null from tasks")
    rows.execute("analyze tasks, usage_entries, holds")
    asked = {
        **{f"lock {kind}": sql for kind, sql in _LOCK.items()},
        "probe": _PROBE,
        **{
            f"{each.sql.split()[0]} {each.mapping.table.name} {each.mapping.kind.__name__}": each.sql
            for each in STATEMENTS
        },
    }
    plans = {}
    with closing(Database(database_url).connect_writer()) as connection:
        for name, sql in asked.items():
            wanted = sql.count("%s")
            for n in range(1, wanted + 1):
                sql = sql.replace("%s", f"${n}", 1)  # noqa: PLW2901 - one by one
            connection.execute(f"prepare asked as {sql}".encode())
            nulls = ", ".join(["null"] * wanted)
            lines = connection.execute(f"explain (costs off) execute asked({nulls})".encode()).fetchall()
            plans[name] = "\n".join(line for (line,) in lines)
            connection.execute("deallocate asked")
    assert [name for name, plan in plans.items() if "Seq Scan" in plan or "Join Filter" in plan] == []
    assert "uq_tasks_request_id" in plans["lock task"]
    assert "uq_tasks_request_id" in plans["update tasks TaskChangedRow"]
    assert "(ts = v.ts) AND (request_id = v.request_id)" in plans["update usage_entries UsageChangedRow"]
    assert "(hold_id = v.hold_id)" in plans["update holds Operation"]
    assert "pk_accounts" in plans["update accounts AccountHead"]


def test_plans_for_few_rows_are_replaced_as_the_tables_grow(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    rows.execute("alter table accounts set (autovacuum_enabled = off)")
    [book] = opened(writer)
    rows.execute("analyze accounts")
    for _ in range(8):
        assert written(writer, [book.credit()]) == [Committed()]
    assert "Join Filter" in "".join(_plans(writer)), "a plan that reads all accounts: nothing is at stake here"
    many = opened(writer, 400)
    for start in range(0, 400, 50):
        assert set(written(writer, [one.credit() for one in many[start : start + 50]])) == {Committed()}
    plans = _plans(writer)
    assert len(plans) == 2
    assert [plan for plan in plans if "Index Cond: (id = " not in plan] == []


def _plans(writer: BatchWriter) -> list[str]:
    """How the writer's own session goes about locking and changing accounts."""
    connection = writer._connection
    assert connection is not None
    known = connection.execute("select name, statement from pg_prepared_statements").fetchall()
    plans = []
    for name, statement in known:
        if "accounts t" in statement:
            nulls = ", ".join(["null"] * statement.count("$"))
            found = connection.execute(f"explain (costs off) execute {name} ({nulls})".encode()).fetchall()
            plans.append("\n".join(line for (line,) in found))
    connection.commit()
    return plans


# ----------------------------------------------------------------------------------------------------- the question


def test_a_question_names_each_row_once_and_new_sign_ins_first() -> None:
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
    assert not preconditions.is_empty
