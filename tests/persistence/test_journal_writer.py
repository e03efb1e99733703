"""The batch writer on a real server: what it writes, what it rejects, and how it looks up a lost COMMIT."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Table
from sqlalchemy.dialects.postgresql import JSON

from holdfast.ledger.clock import utc_now
from holdfast.ledger.credit.account import AccountState, decide_credit, decide_hold, decide_release
from holdfast.ledger.credit.operations import Operation, OperationKind
from holdfast.ledger.ids import new_id
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal.drafts import Prepared, prepare
from holdfast.persistence.journal.statements import KINDS, STATEMENTS
from holdfast.persistence.journal.units import (
    AlreadyReplied,
    Broken,
    Committed,
    Fence,
    NotWritten,
    Stale,
    Unit,
    UnitResult,
)
from holdfast.persistence.journal.writer import BatchWriter, CommitUnanswered, ConnectionLost
from holdfast.persistence.records.accounts import (
    AccountHead,
    AccountRow,
    ApiKeyRecord,
    ApiKeyRevokedRow,
    ApiKeyRow,
    ApiKeyUsedRow,
    IdempotencyProbe,
    IdempotencyRow,
    SessionRevokedRow,
    SessionRow,
    SignInRow,
    StoredReply,
)
from holdfast.persistence.records.orders import OrderChangedRow, OrderRow, PaymentEventRow, UnappliedPaymentEventRow
from holdfast.persistence.records.outbox import (
    OutboxAttemptRow,
    OutboxOutcomeRow,
    OutboxResendRow,
    OutboxRow,
    WebhookSecretRow,
)
from holdfast.persistence.records.rows import Row
from holdfast.persistence.records.tasks import (
    AssetRow,
    AssetsDeletedRow,
    AssetsExpiryRow,
    TaskChangedRow,
    TaskEventRow,
    TaskRequestRow,
    UsageChangedRow,
)
from holdfast.persistence.server.database import Database

from .values import make_operation, make_order, make_task

AT = datetime(2026, 11, 20, 12, 0, 0, 123000, tzinfo=UTC)
HOSTILE = (
    "",
    " ",
    "NULL",
    "null",
    '"',
    "\\",
    '\\"',
    "{}",
    '{"a","b"}',
    "a,b",
    "'; drop table accounts; --",
    "%s %(x)s $1",
    "line\nbreak\ttab\r",
    "\u00e9\u4f60\u597d\U0001f980\u200f\u2028",
    "\\x41",
    "\\\\",
)


@pytest.fixture
def rows(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to read the rows with."""
    with closing(psycopg.connect(database_url, autocommit=True)) as connection:
        yield connection


class PreparingWriter(BatchWriter):
    """Prepares its batches first, as the journal does."""

    def write(self, units: Sequence[Unit], prepared: Prepared | None = None) -> list[UnitResult]:
        assert prepared is None
        return super().write(units, prepare(units))


@pytest.fixture(params=[BatchWriter, PreparingWriter], ids=["unprepared", "prepared"])
def writer(database_url: str, request: pytest.FixtureRequest) -> Iterator[BatchWriter]:
    with closing(request.param(Database(database_url).connect_writer, now=utc_now)) as writer:
        yield writer


@dataclass
class AccountUnits:
    """Decides units for one account as its actor would, on a state of its own."""

    account_id: str = field(default_factory=lambda: new_id("acct"))

    def __post_init__(self) -> None:
        self.state = AccountState(self.account_id)

    def opening(self) -> Unit:
        email = f"{self.account_id}@example.com"
        return Unit(rows=(AccountRow(AccountHead(self.account_id), email, "User", "b", AT),))

    def credit(self, amount_micro: int = 100, **more: Any) -> Unit:
        decided = decide_credit(
            self.state,
            operation_id=new_id("op"),
            amount_micro=amount_micro,
            source="sandbox",
            reference="r",
            reason="because",
            at=AT,
        )
        return self.unit(decided, **more)

    def hold(self, hold_id: str, amount_micro: int) -> Unit:
        decided = decide_hold(
            self.state,
            operation_id=new_id("op"),
            hold_id=hold_id,
            amount_micro=amount_micro,
            reference="r",
            at=AT,
        )
        return self.unit(decided)

    def release(self, hold_id: str) -> Unit:
        decided = decide_release(
            self.state, operation_id=new_id("op"), hold_id=hold_id, reference="r", reason="because", at=AT
        )
        return self.unit(decided)

    def unit(
        self, operation: Operation | Refusal | None = None, *, key: str | None = None, extra: tuple[Row, ...] = ()
    ) -> Unit:
        state = self.state
        assert not isinstance(operation, Refusal)
        if operation is not None:
            state.apply(operation)
        fence = Fence("account", self.account_id, state.version)
        state.version += 1
        head = AccountHead(
            self.account_id,
            state.version,
            state.number,
            state.balance_micro,
            state.held_micro,
            state.chain_head,
        )
        probe = None
        if key is not None:
            probe = IdempotencyProbe(self.account_id, "POST /x", key)
            extra = (
                *extra,
                IdempotencyRow(probe, StoredReply(b"print", f"reply to {key}".encode()), utc_now()),
            )
        operations = () if operation is None else (operation,)
        return Unit(fences=(fence,), rows=(head, *operations, *extra), probe=probe)


def opened(writer: BatchWriter, how_many: int = 1) -> list[AccountUnits]:
    accounts = [AccountUnits() for _ in range(how_many)]
    assert all_committed(writer.write([account.opening() for account in accounts]))
    return accounts


def all_committed(results: Sequence[UnitResult]) -> bool:
    return all(isinstance(verdict, Committed) for verdict in results)


def kinds(results: Sequence[UnitResult]) -> list[str]:
    return [type(verdict).__name__ for verdict in results]


def head(rows: psycopg.Connection[Any], account_id: str) -> tuple[int, int, int]:
    found = rows.execute(
        "select version, balance_micro, operation_count from accounts where id = %s", (account_id,)
    ).fetchone()
    assert found is not None
    return found[0], found[1], found[2]


def count(rows: psycopg.Connection[Any], table: str) -> int:
    found = rows.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(table))).fetchone()
    assert found is not None
    return int(found[0])


KEYS = {
    "assets": ["account_id", "request_id"],
    "tasks": ["request_id"],
    "usage_entries": ["account_id", "request_id"],
}
"""The columns that find a row where its changes do not name all of its primary key."""


def written(value: Any) -> list[tuple[Table, dict[str, Any]]]:
    """Return the rows that a value becomes: the table of each, and its cells by column."""
    mappings = [statement.mapping for statement in STATEMENTS if statement.mapping.kind is type(value)]
    return [
        (mapping.table, dict(zip(mapping.columns, row, strict=True)))
        for mapping in mappings
        for row in mapping.rows([value])
    ]


def key_of(table: Table, cells: dict[str, Any]) -> dict[str, Any]:
    names = KEYS.get(table.name, [column.name for column in table.primary_key])
    return {name: cells[name] for name in names}


def stored(rows: psycopg.Connection[Any], table: Table, cells: dict[str, Any]) -> dict[str, Any]:
    """Return the same columns of a row as the server has them."""
    key = key_of(table, cells)
    query = sql.SQL("select {} from {} where {}").format(
        sql.SQL(", ").join(map(sql.Identifier, cells)),
        sql.Identifier(table.name),
        sql.SQL(" and ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in key),
    )
    found = rows.execute(query, list(key.values())).fetchone()
    assert found is not None
    return dict(zip(cells, found, strict=True))


def is_gone(rows: psycopg.Connection[Any], removed: AssetsDeletedRow) -> bool:
    """Whether the assets are deleted."""
    query = "select 1 from assets where account_id = %s and request_id = %s"
    return rows.execute(query, removed).fetchone() is None


def given(table: Table, name: str, value: Any) -> Any:
    """Return a cell as :func:`stored` should return it."""
    if isinstance(table.c[name].type, JSON):
        return msgspec.json.decode(msgspec.json.encode(value))
    return list(value) if isinstance(value, tuple) else value


# ----------------------------------------------------------------------------------------------------- round trips


def hostile_values(t: Any, i: int) -> list[Any]:
    """Return a value of every kind, with ``t`` in every text."""
    a, r, n = f"acct{i}{t}", f"task{i}{t}", i + 1
    later = AT + timedelta(milliseconds=1)
    task = make_task(a, r, AT, t)
    changed = msgspec.structs.replace(
        task, version=2, status="running", updated_at=later, wake_at=None, state=make_task(a, r, later, t).state
    )
    end = msgspec.structs.replace(
        changed.state, tokens_in=5, error=t, operation_id=t, cost_micro=-7, completed_at=AT + timedelta(days=10**4)
    )
    changed = msgspec.structs.replace(changed, state=end)
    order = make_order(a, f"ord{i}{t}", AT, t)
    order_state = msgspec.structs.replace(order.state, payment_id=f"pi{i}{t}", charge_id=t)
    order_changed = msgspec.structs.replace(order, version=2, updated_at=later, state=order_state)
    key = ApiKeyRecord(a, f"key{i}{t}", t, t, (t, "", "x,y", '{"', "\\"), AT)
    return [
        AccountRow(AccountHead(a, chain_head=b"\x00\\'\""), f"{i}{t}@x", t, t, AT),
        AccountHead(a, 1, n, 10, 3, b"\xff"),
        make_operation(a, n, OperationKind.HOLD, AT, t, hold_id=f"hold{i}{t}"),
        make_operation(a, n + 1, OperationKind.CAPTURE, AT, t, hold_id=f"hold{i}{t}"),
        task,
        TaskChangedRow(changed, t),
        TaskRequestRow(r, make_task(a, r, later, t + "!").request),
        TaskEventRow(a, r, t, t, AT, t, b"\x00" + t.encode()),
        OrderRow(order, None),
        OrderChangedRow(order_changed, later),
        UnappliedPaymentEventRow(t, f"evt{i}", None, t, t, AT, t, b"\x00"),
        PaymentEventRow(t, f"evt{i}", a, t, t, AT, t, t.encode()),
        UsageChangedRow(changed),
        OutboxRow(a, f"evt{i}{t}", r, t, t, AT, AT, AT, task, status=t),
        OutboxOutcomeRow(a, f"evt{i}{t}", 0, AT, later, t, later, t),
        OutboxResendRow(a, f"evt{i}{t}", None, later, t + "!", 7, None, t),
        OutboxAttemptRow(a, f"evt{i}{t}", 1, AT, None, t, 12),
        WebhookSecretRow(a, 1, AT),
        AssetsDeletedRow(a, f"gone{i}{t}"),
        AssetRow(a, r, 0, f"asset{i}{t}", t, 2**40, t, AT, AT),
        AssetsExpiryRow(a, r, later),
        ApiKeyRow(key, f"secret{i}".encode()),
        ApiKeyUsedRow(a, f"key{i}{t}", later),
        ApiKeyRevokedRow(a, f"key{i}{t}", later),
        SessionRow(a, f"ses{i}{t}", f"token{i}".encode(), AT, later),
        SessionRevokedRow(a, f"ses{i}{t}", later),
        IdempotencyRow(IdempotencyProbe(a, t, t), StoredReply(b"", t.encode()), AT),
        SignInRow(f"email:{i}{t}", 1, AT, {"k": t, t or "empty": [t, None]}),
    ]


@pytest.mark.parametrize("bulk_rows", [1, 10_000], ids=["copied", "not copied"])
def test_every_kind_of_row_stores_hostile_text_unchanged(
    bulk_rows: int, writer: BatchWriter, rows: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persistence.journal.drafts.BULK_ROWS", bulk_rows)
    everything = [hostile_values(text, i) for i, text in enumerate(HOSTILE)]
    assert {type(value) for value in everything[0]} == KINDS
    units = [
        Unit(fences=(Fence("sign_in", f"email:{i}{text}", 0),), rows=tuple(everything[i]))
        for i, text in enumerate(HOSTILE)
    ]
    deleted_assets = [
        AssetRow(f"acct{i}{text}", f"gone{i}{text}", 0, f"deleted_assets{i}{text}", text, 1, text, AT, AT)
        for i, text in enumerate(HOSTILE)
    ]
    assert all_committed(writer.write([Unit(rows=tuple(deleted_assets))]))
    assert all_committed(writer.write(units))
    for values in everything:
        found = [each for value in values if type(value) is not AssetsDeletedRow for each in written(value)]
        newest: dict[tuple[Any, ...], Any] = {}
        for table, cells in found:
            for name, value in cells.items():
                newest[table.name, *_place(table, cells), name] = given(table, name, value)
        for table, cells in found:
            assert stored(rows, table, cells) == {
                name: newest[table.name, *_place(table, cells), name] for name in cells
            }
        assert all(is_gone(rows, value) for value in values if isinstance(value, AssetsDeletedRow))


def _place(table: Table, cells: dict[str, Any]) -> list[Any]:
    return list(key_of(table, cells).values())


def test_an_applied_event_replaces_a_stored_one_and_is_final(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    def unapplied(body: bytes) -> Unit:
        return Unit(rows=(UnappliedPaymentEventRow("card", "evt_1", None, None, "t", AT, "unmatched", body),))

    def applied(body: bytes) -> Unit:
        return Unit(rows=(PaymentEventRow("card", "evt_1", "acct", "ord", "t", AT, "applied", body),))

    def now() -> Any:
        return rows.execute("select order_id, verdict, body from payment_events").fetchall()

    assert all_committed(writer.write([unapplied(b"first"), unapplied(b"again")]))
    assert all_committed(writer.write([unapplied(b"third")]))
    assert now() == [(None, "unmatched", b"first")]
    assert all_committed(writer.write([unapplied(b"fourth"), applied(b"fifth"), unapplied(b"sixth")]))
    assert now() == [("ord", "applied", b"fifth")]
    assert all_committed(writer.write([applied(b"seventh"), unapplied(b"eighth")]))
    assert now() == [("ord", "applied", b"fifth")]


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_an_event_applied_to_one_order_cannot_be_applied_to_another(
    writer: BatchWriter, rows: psycopg.Connection[Any], in_one_batch: bool
) -> None:
    def applied(order_id: str) -> Unit:
        return Unit(rows=(PaymentEventRow("card", "evt_1", "acct", order_id, "t", AT, "applied", b"{}"),))

    units = [applied("ord_1"), applied("ord_2")]
    batches = [units] if in_one_batch else [[unit] for unit in units]
    first, second = [verdict for batch in batches for verdict in writer.write(batch)]
    assert isinstance(first, Committed)
    assert isinstance(second, Broken)
    found = rows.execute("select order_id, verdict from payment_events").fetchall()
    assert found == [("ord_1", "applied")]


def test_the_last_of_two_changes_to_a_row_in_a_batch_is_stored(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    task = make_task("a", "task_1", AT)
    changes = [TaskChangedRow(make_task("a", "task_1", AT, f"text {n}", version=n)) for n in (2, 3)]
    fences = [Fence("task", "task_1", n) for n in (1, 2)]
    assert all_committed(writer.write([Unit(rows=(task,))]))
    units = [Unit(fences=(f,), rows=(c,)) for f, c in zip(fences, changes, strict=True)]
    assert all_committed(writer.write(units))
    [(table, cells)] = written(changes[1])
    assert stored(rows, table, cells) == {name: given(table, name, value) for name, value in cells.items()}


def test_an_expired_idempotency_record_is_replaced(writer: BatchWriter, rows: psycopg.Connection[Any]) -> None:
    [account] = opened(writer)
    old = IdempotencyRow(
        IdempotencyProbe(account.account_id, "POST /x", "k"),
        StoredReply(b"old", b"old"),
        utc_now() - timedelta(days=2),
    )
    assert all_committed(writer.write([Unit(rows=(old,))]))
    assert all_committed(writer.write([account.credit(key="k")]))
    assert rows.execute("select fingerprint, reply from idempotency_records").fetchall() == [
        (b"print", b"reply to k")
    ]


# ---------------------------------------------------------------------------------------------------------- fences


def test_a_chain_of_decisions_is_written_in_one_batch(writer: BatchWriter, rows: psycopg.Connection[Any]) -> None:
    [account] = opened(writer)
    units = [
        account.credit(1000),
        account.hold("h1", 300),
        account.hold("h2", 200),
        account.release("h1"),
        account.credit(5),
    ]
    assert all_committed(writer.write(units))
    assert head(rows, account.account_id) == (5, 1005, 5)
    assert rows.execute("select hold_id, settled_number from holds order by hold_id").fetchall() == [
        ("h1", 4),
        ("h2", None),
    ]


def test_a_stale_unit_voids_its_followers_and_no_other_account(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    ours, neighbour = opened(writer, 2)
    rows.execute("update accounts set version = version + 7 where id = %s", (ours.account_id,))
    batch = [ours.credit(), neighbour.credit(), ours.credit(), neighbour.credit(), ours.credit()]
    assert kinds(writer.write(batch)) == ["Stale", "Committed", "Stale", "Committed", "Stale"]
    assert head(rows, ours.account_id) == (7, 0, 0)
    assert head(rows, neighbour.account_id) == (2, 200, 2)


@pytest.mark.parametrize("moved_by", [1, 2, 3])
def test_a_follower_is_void_even_if_another_process_has_its_version(
    writer: BatchWriter, rows: psycopg.Connection[Any], moved_by: int
) -> None:
    [account] = opened(writer)
    rows.execute("update accounts set version = version + %s where id = %s", (moved_by, account.account_id))
    assert (
        kinds(writer.write([account.credit(), account.credit(), account.credit(), account.credit()]))
        == ["Stale"] * 4
    )
    assert head(rows, account.account_id) == (moved_by, 0, 0)
    assert count(rows, "operations") == 0


@pytest.mark.parametrize("kind", ["account", "task", "sign_in"])
def test_a_fence_on_a_row_that_is_not_there_is_stale(
    writer: BatchWriter, rows: psycopg.Connection[Any], kind: Any
) -> None:
    fence = Fence(kind, "missing", 0 if kind != "sign_in" else 3)
    assert writer.write([Unit(fences=(fence,), rows=(ApiKeyRevokedRow("a", "k", AT),))]) == [Stale((fence,))]
    assert count(rows, "journal_batches") == 0


def test_a_unit_needs_both_its_fences_and_names_the_stale_one(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    task = make_task(account.account_id, "task_1", AT, version=4)
    assert all_committed(writer.write([Unit(rows=(task,))]))
    unit = account.credit()
    joint = fenced_as(unit, fences=(*unit.fences, Fence("task", "task_1", 3)))
    assert writer.write([joint, account.credit()]) == [
        Stale((Fence("task", "task_1", 3),)),
        Stale((Fence("account", account.account_id, 1),)),
    ]
    assert head(rows, account.account_id) == (0, 0, 0)


def fenced_as(unit: Unit, *, fences: tuple[Fence, ...]) -> Unit:
    return Unit(fences=fences, rows=unit.rows, probe=unit.probe)


def test_the_first_sign_in_of_a_key_needs_no_row(writer: BatchWriter, rows: psycopg.Connection[Any]) -> None:
    def step(version: int) -> Unit:
        row = SignInRow("email:a@x", version + 1, AT, {})
        return Unit(fences=(Fence("sign_in", "email:a@x", version),), rows=(row,))

    assert kinds(writer.write([step(0), step(1), step(1)])) == ["Committed", "Committed", "Stale"]
    assert kinds(writer.write([step(0)])) == ["Stale"]
    assert rows.execute("select version from sign_ins").fetchall() == [(2,)]


def test_checking_a_fence_writes_nothing_and_moves_nothing(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    asked = [Unit(fences=(Fence("account", account.account_id, version),), moves=False) for version in (0, 0, 1)]
    assert kinds(writer.write(asked)) == ["Committed", "Committed", "Stale"]
    batches = count(rows, "journal_batches")
    first = account.credit()
    after_it = Unit(fences=(Fence("account", account.account_id, 1),), moves=False)
    assert all_committed(writer.write([first, after_it, account.credit()]))
    assert head(rows, account.account_id) == (2, 200, 2)
    assert count(rows, "journal_batches") == batches + 1


# ---------------------------------------------------------------------------------------------- idempotency probes


def test_a_used_key_returns_its_reply_and_voids_the_followers(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    assert all_committed(writer.write([account.credit(key="k")]))
    results = writer.write([account.credit(key="k"), account.credit(key="other")])
    assert results[0] == AlreadyReplied(StoredReply(b"print", b"reply to k"))
    assert isinstance(results[1], Stale)
    assert head(rows, account.account_id) == (1, 100, 1)


def test_a_key_used_twice_within_a_batch_is_written_once(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    results = writer.write([account.credit(key="k"), account.credit(key="k"), account.credit()])
    assert kinds(results) == ["Committed", "NotWritten", "Stale"]
    assert head(rows, account.account_id) == (1, 100, 1)


def test_two_accounts_may_use_the_same_key(writer: BatchWriter, rows: psycopg.Connection[Any]) -> None:
    one, two = opened(writer, 2)
    assert all_committed(writer.write([one.credit(key="k"), two.credit(key="k")]))
    assert count(rows, "idempotency_records") == 2


# ---------------------------------------------------------------------------------------------------- poison units


WRONG: Any = 5
NULL: Any = None
POISONS: dict[str, Row] = {
    "NUL": ApiKeyRevokedRow("a", "a\x00b", AT),
    "lone surrogate": ApiKeyRevokedRow("a", "\ud800", AT),
    "too large": AccountHead("a", 2**70),
    "not JSON": SignInRow("k", 1, AT, msgspec.Raw(b"{")),
    "wrong type": ApiKeyRevokedRow("a", "k", WRONG),
    "NULL": ApiKeyRow(ApiKeyRecord("a", "k", "p", NULL, (), AT), b""),
}


@pytest.mark.parametrize("name", POISONS)
def test_a_rejected_unit_voids_only_its_followers(
    writer: BatchWriter, rows: psycopg.Connection[Any], name: str
) -> None:
    neighbour, broken, other = opened(writer, 3)
    poison = broken.unit(extra=(POISONS[name],))
    batch = [neighbour.credit(), poison, broken.credit(), other.credit(), neighbour.credit()]
    results = writer.write(batch)
    assert kinds(results) == ["Committed", "Broken", "Stale", "Committed", "Committed"]
    assert head(rows, neighbour.account_id) == (2, 200, 2)
    assert head(rows, broken.account_id) == (0, 0, 0)
    assert isinstance(results[1], Broken)
    # The connection can be used for the next batch.
    assert all_committed(writer.write([other.credit()]))


def test_a_follower_is_void_when_units_are_written_one_by_one(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    broken, poisoned = opened(writer, 2)
    first, follower = broken.credit(), broken.credit()
    rows.execute("update accounts set version = version + 1 where id = %s", (broken.account_id,))
    results = writer.write([poisoned.unit(extra=(POISONS["NUL"],)), first, follower])
    assert kinds(results) == ["Broken", "Stale", "Stale"]
    assert head(rows, broken.account_id) == (1, 0, 0)


# ----------------------------------------------------------------------------------------------------- two writers


def test_two_writers_over_the_same_accounts_never_deadlock(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    account_ids = [account.account_id for account in opened(writer, 12)]
    outcomes: list[str] = []

    def work(order: int) -> None:
        with (
            closing(BatchWriter(Database(database_url).connect_writer, now=utc_now)) as mine,
            closing(psycopg.connect(database_url, autocommit=True)) as reader,
        ):
            for _ in range(25):
                seen: dict[str, int] = dict(reader.execute("select id, version from accounts").fetchall())
                units = []
                for account_id in account_ids[::order]:
                    account = AccountUnits(account_id)
                    account.state.version = seen[account_id]
                    sign_in = SignInRow(f"email:{account_id}", 1, AT, {})
                    units.append(account.unit())
                    units.append(Unit(fences=(Fence("sign_in", sign_in.key, 0),), rows=(sign_in,)))
                outcomes.extend(kinds(mine.write(units)))

    threads = [threading.Thread(target=work, args=(order,)) for order in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(outcomes) == 2 * 25 * 24
    assert set(outcomes) <= {"Committed", "Stale"}
    moved = rows.execute("select sum(version) from accounts").fetchone()
    assert moved is not None
    assert moved[0] + 12 == outcomes.count("Committed")


def test_a_batch_that_waits_too_long_for_a_lock_can_be_repeated(
    database_url: str, rows: psycopg.Connection[Any]
) -> None:
    def impatient() -> psycopg.Connection[Any]:
        connection = psycopg.connect(database_url)
        connection.execute("set lock_timeout = 50")
        connection.commit()
        return connection

    with closing(BatchWriter(impatient, now=utc_now)) as writer:
        [account] = opened(writer)
        unit = account.credit()
        with rows.transaction():
            rows.execute("select 1 from accounts for update")
            [refused] = writer.write([unit])
        assert isinstance(refused, NotWritten)
        assert refused.timed_out
        assert "LockNotAvailable" in refused.reason
        assert all_committed(writer.write([unit]))


# ---------------------------------------------------------------------------------------------------- lost answers


class BreakingConnection(psycopg.Connection[Any]):
    """A connection that breaks at a chosen step."""

    before_pipeline: Callable[[BreakingConnection, int], None] | None = None
    after_pipeline: Callable[[BreakingConnection, int], None] | None = None
    before_commit: Callable[[BreakingConnection], None] | None = None
    pipelines = 0

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        self.pipelines += 1
        if self.before_pipeline is not None:
            self.before_pipeline(self, self.pipelines)
        with super().pipeline() as pipeline:
            yield pipeline
        if self.after_pipeline is not None:
            self.after_pipeline(self, self.pipelines)

    def commit(self) -> None:
        if self.before_commit is not None:
            self.before_commit(self)
        super().commit()


@dataclass
class Breaker:
    """Opens connections of which only the first one breaks."""

    url: str
    rows: psycopg.Connection[Any]
    traps: dict[str, Any] = field(default_factory=dict)
    connections: list[psycopg.Connection[Any]] = field(default_factory=list)

    def connect(self) -> psycopg.Connection[Any]:
        connection = BreakingConnection.connect(self.url)
        if not self.connections:
            for name, trap in self.traps.items():
                setattr(connection, name, trap)
        self.connections.append(connection)
        return connection

    def terminate(self, connection: psycopg.Connection[Any]) -> None:
        """Terminate a session, as an operator, a crash or a fail-over does."""
        pid = connection.info.backend_pid
        self.rows.execute("select pg_terminate_backend(%s, 5000)", (pid,))


def write_and_lose(writer: BatchWriter, units: Sequence[Unit]) -> CommitUnanswered:
    with pytest.raises(CommitUnanswered) as caught:
        writer.write(units)
    return caught.value


def test_a_connection_lost_before_anything_is_sent_loses_nothing(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    breaker = Breaker(database_url, rows)
    breaker.traps["before_pipeline"] = lambda connection, _n: breaker.terminate(connection)
    unit = account.credit()
    with closing(BatchWriter(breaker.connect, now=utc_now)) as breaking:
        with pytest.raises(ConnectionLost):
            breaking.write([unit])
        assert head(rows, account.account_id) == (0, 0, 0)
        assert all_committed(breaking.write([unit]))
    assert head(rows, account.account_id) == (1, 100, 1)


@pytest.mark.parametrize("moment", ["before the rows", "before the commit"])
def test_a_connection_lost_before_the_commit_is_found_void(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any], moment: str
) -> None:
    [account] = opened(writer)
    breaker = Breaker(database_url, rows)
    if moment == "before the rows":
        breaker.traps["before_pipeline"] = lambda connection, n: breaker.terminate(connection) if n == 2 else None
    else:
        breaker.traps["before_commit"] = breaker.terminate
    unit = account.credit()
    stale = Unit(fences=(Fence("account", account.account_id, 9),))
    with closing(BatchWriter(breaker.connect, now=utc_now)) as breaking:
        lost = write_and_lose(breaking, [unit, stale])
        assert kinds(lost.if_durable) == ["Committed", "Stale"]
        assert kinds(lost.if_void) == ["NotWritten", "Stale"]
        assert breaking.look_up(lost.batch_id) is False
        assert breaking.look_up(lost.batch_id) is False
        assert head(rows, account.account_id) == (0, 0, 0)
        assert all_committed(breaking.write([unit]))
    assert head(rows, account.account_id) == (1, 100, 1)


def test_a_commit_whose_response_was_lost_is_found_durable(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)

    def cut(connection: BreakingConnection, number: int) -> None:
        if number == 2:
            connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    breaker = Breaker(database_url, rows, {"after_pipeline": cut})
    with closing(BatchWriter(breaker.connect, now=utc_now)) as breaking:
        lost = write_and_lose(breaking, [account.credit()])
        assert breaking.look_up(lost.batch_id) is True
        assert breaking.look_up(lost.batch_id) is True
        assert all_committed(breaking.write([account.credit()]))
    assert head(rows, account.account_id) == (2, 200, 2)


def test_a_commit_lost_among_single_units_keeps_the_other_results(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    first, broken, last = opened(writer, 3)
    breaker = Breaker(database_url, rows)
    commits: list[int] = []

    def second_commit(connection: BreakingConnection) -> None:
        # The batch with the poison does not reach its commit; then the units are written one by one.
        commits.append(1)
        if len(commits) == 2:
            breaker.terminate(connection)

    breaker.traps["before_commit"] = second_commit
    batch = [first.credit(), last.credit(), broken.unit(extra=(POISONS["lone surrogate"],))]
    with closing(BatchWriter(breaker.connect, now=utc_now)) as breaking:
        lost = write_and_lose(breaking, batch)
        assert kinds(lost.if_durable) == ["Committed", "Committed", "NotWritten"]
        assert kinds(lost.if_void) == ["Committed", "NotWritten", "NotWritten"]
        assert breaking.look_up(lost.batch_id) is False
    assert head(rows, first.account_id) == (1, 100, 1)
    assert head(rows, last.account_id) == (0, 0, 0)


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_the_look_up_prevents_a_batch_that_still_runs_on_the_server(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    """The client is cut off while the server waits for a lock; a batch reported void must not commit later."""
    [account] = opened(writer)
    connections: list[psycopg.Connection[Any]] = []

    def connect() -> psycopg.Connection[Any]:
        connections.append(psycopg.connect(database_url))
        return connections[-1]

    caught: list[CommitUnanswered] = []

    def write(breaking: BatchWriter, unit: Unit) -> None:
        try:
            breaking.write([unit])
        except CommitUnanswered as lost:
            caught.append(lost)

    contested = AccountRow(AccountHead("acct_new"), "contested@example.com", "User", "b", AT)
    with (
        closing(BatchWriter(connect, now=utc_now)) as breaking,
        closing(psycopg.connect(database_url)) as blocker,
    ):
        blocker.execute(
            "insert into accounts select 'acct_x', 'contested@example.com', role, brand_id, created_at, version,"
            " operation_count, balance_micro, held_micro, chain_head from accounts limit 1"
        )
        thread = threading.Thread(target=write, args=(breaking, account.credit(extra=(contested,))))
        thread.start()

        def of_zombie(condition: str) -> bool:
            found = rows.execute(
                f"select count(*) from pg_stat_activity where pid = %s and {condition}",
                (pid,),
            ).fetchone()
            return found is not None and found[0] == 1

        until(lambda: bool(connections))
        pid = connections[0].info.backend_pid
        until(lambda: of_zombie("wait_event_type = 'Lock'"))
        with socket.socket(fileno=socket.dup(connections[0].fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        thread.join(15)
        assert of_zombie("wait_event_type = 'Lock'")
        assert breaking.look_up(caught[0].batch_id) is False
        blocker.rollback()
        until(lambda: not of_zombie("true"))
    assert head(rows, account.account_id) == (0, 0, 0)
    assert count(rows, "operations") == 0


@pytest.mark.parametrize("commits", [True, False])
def test_the_look_up_waits_for_a_commit_under_way(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any], commits: bool
) -> None:
    with closing(psycopg.connect(database_url)) as under_way:
        under_way.execute("insert into journal_batches values ('batch_1', 1, true, now())")
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(writer.look_up("batch_1")))
        thread.start()
        waiting = "select count(*) from pg_locks where not granted"
        until(lambda: rows.execute(waiting).fetchall() != [(0,)])
        assert found == []
        under_way.commit() if commits else under_way.rollback()
        thread.join(15)
    assert found == [commits]


def test_markers_are_dated_by_the_databases_clock(database_url: str, rows: psycopg.Connection[Any]) -> None:
    """They are deleted by it too: a service whose clock is years late must not lose its markers at once."""
    with closing(BatchWriter(lambda: psycopg.connect(database_url), now=lambda: AT.replace(year=2001))) as writer:
        opened(writer)
        assert writer.look_up("batch_1") is False
    found = rows.execute("select count(*) from journal_batches where at > now() - interval '1 hour'").fetchone()
    assert found == (count(rows, "journal_batches"),)
    assert found != (0,)


def test_a_look_up_raises_while_the_database_is_away(database_url: str, rows: psycopg.Connection[Any]) -> None:
    breaker = Breaker(database_url, rows)
    with closing(BatchWriter(breaker.connect, now=utc_now)) as writer:
        assert writer.look_up("batch_1") is False
        breaker.terminate(breaker.connections[0])
        with pytest.raises(ConnectionLost):
            writer.look_up("batch_2")
        assert writer.look_up("batch_2") is False


# ---------------------------------------------------------------------------------------------- the immutable past


@pytest.mark.parametrize("table", ["operations", "postings"])
@pytest.mark.parametrize("statement", ["update {} set amount_micro = 1", "delete from {}", "truncate {}"])
def test_operations_and_postings_cannot_be_changed(
    writer: BatchWriter, rows: psycopg.Connection[Any], table: str, statement: str
) -> None:
    [account] = opened(writer)
    assert all_committed(writer.write([account.credit()]))
    before = count(rows, table)
    with pytest.raises(psycopg.errors.Error, match=table):
        rows.execute(sql.SQL(statement).format(sql.Identifier(table)))
    assert count(rows, table) == before
