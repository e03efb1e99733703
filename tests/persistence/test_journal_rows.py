"""The rows that the batch writer writes: every kind stores what it is given."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Table
from sqlalchemy.dialects.postgresql import JSON

from holdfast.ledger.alerts.account_events import AccountDisabled
from holdfast.ledger.alerts.alerts import Alerts
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.credit.limits import Limit
from holdfast.ledger.credit.operations import NewLot, OperationKind
from holdfast.ledger.orders.top_ups import AutoTopUp
from holdfast.ledger.values import utc_now
from holdfast.persistence.journal.statements import STATEMENTS, WRITTEN_KINDS, RowStatement
from holdfast.persistence.journal.units import (
    Broken,
    Committed,
    Fence,
    Unit,
)
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.records import tables
from holdfast.persistence.records.event_rows import AlertsRow, WebhookDeletedRow, WebhookRow
from holdfast.persistence.records.key_rows import (
    ApiKeyLimitRow,
    ApiKeyMoreLimitsRow,
    ApiKeyRecord,
    ApiKeyRevokedRow,
    ApiKeyRow,
    ApiKeyTermsRow,
    ApiKeyUsedRow,
    GroupKeyRow,
    KeyGroupDeletedRow,
    KeyGroupRow,
)
from holdfast.persistence.records.rows import (
    AccountAccessRow,
    AccountChangeRow,
    AccountClosedRow,
    AccountClosingRow,
    AccountEmailRow,
    AccountHead,
    AccountKeptRow,
    AccountLimitRow,
    AccountRow,
    AssetRow,
    AssetsDeletedRow,
    AssetsExpiryRow,
    AutoTopUpRow,
    CouponGrantedRow,
    GivenEmailRow,
    IdempotencyProbe,
    IdempotencyRow,
    JournaledRow,
    LotAnnouncedRow,
    NewTaskRow,
    OrderPaymentRow,
    OutboxAttemptRow,
    OutboxOutcomeRow,
    OutboxResendRow,
    OutboxRow,
    PaymentEventRow,
    SessionRevokedRow,
    SessionRow,
    SessionsRevokedRow,
    SignInDeletedRow,
    SignInRow,
    StoredReply,
    TaskChangedRow,
    TaskEventRow,
    UsageCountedRow,
    WebhookSecretRow,
)

from .values import make_operation, make_order, make_task
from .written_units import AT, all_committed, opened

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


Removed = AssetsDeletedRow | KeyGroupDeletedRow | SignInDeletedRow | WebhookDeletedRow

KEYS = {
    "assets": ["account_id", "request_id"],
    "tasks": ["request_id"],
    "usage_entries": ["account_id", "request_id"],
}
"""The columns that find a row where its changes do not name all of its primary key."""


def written(value: Any) -> list[tuple[Table, dict[str, Any]]]:
    """Return the rows that a value becomes: the table of each, and its cells by column."""
    return [
        (statement.table, dict(zip(statement.columns, row, strict=True)))
        for statement in STATEMENTS
        # Usage is added to totals, which are tested apart.
        if statement.kind is type(value) and type(value) is not UsageCountedRow
        for row in statement.rows_of([value])
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


def is_gone(rows: psycopg.Connection[Any], removed: Removed) -> bool:
    """Whether the assets, the key group with its keys, the sign-in or the webhook are deleted."""
    place: tuple[str, ...]
    match removed:
        case WebhookDeletedRow():
            query = "select 1 from webhooks where account_id = %s and webhook_id = %s"
            place = (removed.account_id, removed.webhook_id)
        case KeyGroupDeletedRow():
            query = (
                "select from key_groups where account_id = %s and group_id = %s "
                "union all select from group_keys where account_id = %s and group_id = %s"
            )
            place = (removed.account_id, removed.group_id) * 2
        case AssetsDeletedRow():
            query = "select 1 from assets where account_id = %s and request_id = %s"
            place = (removed.account_id, removed.request_id)
        case SignInDeletedRow():
            query, place = "select 1 from sign_ins where key = %s", (removed.key,)
    return rows.execute(query, place).fetchone() is None


def given(table: Table, name: str, value: Any) -> Any:
    """Return a cell as :func:`stored` should return it."""
    if isinstance(table.c[name].type, JSON):
        return msgspec.json.decode(msgspec.json.encode(value))
    return list(value) if isinstance(value, tuple) else value


def hostile_values(t: Any, i: int) -> list[Any]:
    """Return a value of every kind, with ``t`` in every text."""
    a, r, n = f"acct{i}{t}", f"task{i}{t}", i + 1
    later = AT + timedelta(milliseconds=1)
    task = make_task(a, r, AT, t)
    changed = msgspec.structs.replace(
        task,
        version=2,
        status="running",
        updated_at=later,
        wake_at=None,
        state=make_task(a, r, later, t).state,
        request=make_task(a, r, later, t + "!").request,
    )
    end = msgspec.structs.replace(
        changed.state, tokens_in=5, error=t, operation_id=t, cost_micro=-7, completed_at=AT + timedelta(days=10**4)
    )
    changed = msgspec.structs.replace(changed, state=end)
    order = make_order(a, f"ord{i}{t}", AT, t)
    order_state = msgspec.structs.replace(order.state, payment_id=f"pi{i}{t}", charge_id=t)
    order_changed = msgspec.structs.replace(order, version=2, updated_at=later, state=order_state)
    key = ApiKeyRecord(a, f"key{i}{t}", t, KeyTerms(t, (t, "", "x,y", '{"', "\\")), AT)
    return [
        AccountRow(AccountHead(a, chain_head=b"\x00\\'\""), f"{i}{t}@x", t, t, AT),
        AccountChangeRow(a, AT, "api_key_created", f"chg{i}{t}", t, t),
        AccountHead(a, 1, n, 10, 3, b"\xff", t),
        AccountAccessRow(a, AT),
        AccountEmailRow(a, f"new{i}{t}@x", t + "!"),
        AccountClosingRow(a, AT),
        AccountKeptRow(a, 2),
        GivenEmailRow(f"{i}{t}".encode(), n, AT),
        AccountClosedRow(a, f"closed{i}{t}@x", later),
        make_operation(a, n - 1, OperationKind.GRANT, AT, t, lot=NewLot(t, t, later)),
        make_operation(a, n, OperationKind.HOLD, AT, t, hold_id=f"hold{i}{t}"),
        make_operation(a, n + 1, OperationKind.CAPTURE, AT, t, hold_id=f"hold{i}{t}"),
        NewTaskRow(task, t),
        TaskChangedRow(changed, t, has_new_request=True, has_new_usage=True),
        UsageCountedRow(a, AT, t, t, "failed", t, 7),
        TaskEventRow(a, r, t, t, AT, t, b"\x00" + t.encode()),
        order,
        msgspec.structs.replace(order_changed, wake_at=later),
        AutoTopUpRow(a, t, later, later, AutoTopUp(account_id=a, customer_id=t, off_reason=t)),
        OrderPaymentRow(t, f"pi{i}{t}", a, f"ord{i}{t}"),
        PaymentEventRow(t, f"evt{i}", None, t, t, AT, t, b"\x00"),
        PaymentEventRow(t, f"evt{i}", a, t, t, AT, "applied", t.encode()),
        OutboxRow(a, t, t, t, AT, AT, AT, task, f"evt{i}{t}", r, status=t),
        OutboxOutcomeRow(a, f"evt{i}{t}", 0, AT, later, t, later, t),
        OutboxResendRow(a, f"evt{i}{t}", later, later, t + "!", 7, None, t),
        OutboxAttemptRow(a, f"evt{i}{t}", 1, AT, None, t, 12),
        WebhookSecretRow(a, 1, AT),
        OutboxRow(a, t, t, t, AT, None, AT, AccountDisabled(t, t), f"evw{i}{t}", webhook_id=t),
        WebhookRow(a, f"wh{i}{t}", t, (t, "", "x,y", '{"', "\\"), True, AT, later),
        WebhookDeletedRow(a, f"gone{i}{t}"),
        AlertsRow(a, Alerts(announced={t: t}, mail_stopped_at=AT)),
        AssetsDeletedRow(a, f"gone{i}{t}"),
        AssetRow(a, r, 0, f"asset{i}{t}", t, 2**40, t, AT, AT),
        AssetsExpiryRow(a, r, later),
        ApiKeyRow(key, f"secret{i}".encode(), (t, "", "x,y", '{"', "\\")),
        ApiKeyUsedRow(a, f"key{i}{t}", later),
        ApiKeyTermsRow(a, f"key{i}{t}", KeyTerms(t + "!", (), ("", t, '{"'), later, is_paused=True)),
        ApiKeyLimitRow(a, f"key{i}{t}", 2**40, "week", later, n),
        ApiKeyMoreLimitsRow(a, f"key{i}{t}", (Limit(n, "day", (t, '{"', "\\")), Limit(2**40, "total"))),
        KeyGroupRow(a, f"grp{i}{t}", t, (Limit(n, "day", (t, '{"', "\\")),), later),
        GroupKeyRow(a, f"key{i}{t}", f"grp{i}{t}"),
        GroupKeyRow(a, f"free{i}{t}", None),
        KeyGroupDeletedRow(a, f"gone{i}{t}"),
        AccountLimitRow(a, "month", None, 2**40, later, n),
        ApiKeyRevokedRow(a, f"key{i}{t}", later),
        CouponGrantedRow(a, f"cpn{i}{t}", later),
        LotAnnouncedRow(a, n - 1, 30 + i),
        SessionRow(a, f"ses{i}{t}", f"token{i}".encode(), AT, later),
        SessionRow(a, f"other{i}{t}", f"other token{i}".encode(), AT, later),
        SessionsRevokedRow(a, f"ses{i}{t}", AT),
        SessionRevokedRow(a, f"ses{i}{t}", later),
        IdempotencyRow(IdempotencyProbe(a, t, t), StoredReply(b"", t.encode()), AT),
        SignInRow(f"email:{i}{t}", 1, AT, {"k": t, t or "empty": [t, None]}),
        SignInDeletedRow(f"gone:{i}{t}", 3),
    ]


class Misspelt(JournaledRow, frozen=True):
    """A row type with a field that no table has."""

    account_id: str
    key_id: str
    revoked: datetime


def test_a_field_that_is_no_column_is_found_when_the_statements_are_made() -> None:
    with pytest.raises(AssertionError, match="revoked is no column of api_keys"):
        RowStatement(tables.api_keys, Misspelt)


def test_changes_of_one_row_by_different_types_write_different_columns() -> None:
    """A batch writes the changes of one type after those of another, in whichever order they were decided."""
    written_by: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for statement in STATEMENTS:
        if statement.sql.startswith("update "):
            for column in re.findall(r"(\w+) = v\.", statement.sql.partition(" from ")[0]):
                written_by[statement.table.name, column].add(statement.kind.__name__)
    assert written_by["api_keys", "is_paused"] == {"ApiKeyTermsRow"}
    several = {table for (table, _), kinds in written_by.items() if len(kinds) > 1}
    # An outcome is void if the event was resent since: its round_at is another.
    # An account's actor closes it, and a sign-in keeps it: each is fenced by a version that was read, so that an
    # earlier batch has written. It is closed for good seven days after its address can have changed. A session that
    # is revoked twice has either time.
    assert several == {"accounts", "outbox", "sessions"}


def test_a_resend_without_a_condition_sends_a_null() -> None:
    [resend] = [each for each in STATEMENTS if each.kind is OutboxResendRow]
    cells = list(resend.rows_of([OutboxResendRow("acct_1", "evt_1", AT, unless_since=None)]))
    assert resend.statement(cells)[1][resend.columns.index("round_at")] == "{null}"


@pytest.mark.parametrize(
    ("bulk_rows", "is_alone"), [(1, False), (10_000, False), (10_000, True)], ids=["copied", "not copied", "alone"]
)
def test_every_kind_of_row_stores_hostile_text_unchanged(
    bulk_rows: int,
    is_alone: bool,
    writer: BatchWriter,
    rows: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.persistence.journal.statements.BULK_ROWS", bulk_rows)
    everything = [hostile_values(text, i) for i, text in enumerate(HOSTILE)]
    assert {type(value) for value in everything[0]} == WRITTEN_KINDS
    units = [
        Unit(fences=(Fence("sign_in", f"email:{i}{text}", 0),), rows=tuple(everything[i]))
        for i, text in enumerate(HOSTILE)
    ]
    deleted_assets = [
        AssetRow(f"acct{i}{text}", f"gone{i}{text}", 0, f"deleted_assets{i}{text}", text, 1, text, AT, AT)
        for i, text in enumerate(HOSTILE)
    ]
    deleted_webhooks = [
        WebhookRow(f"acct{i}{text}", f"gone{i}{text}", text, (text,), True, AT, AT)
        for i, text in enumerate(HOSTILE)
    ]
    deleted_groups = [
        row
        for i, text in enumerate(HOSTILE)
        for row in (
            KeyGroupRow(f"acct{i}{text}", f"gone{i}{text}", text, (), AT),
            GroupKeyRow(f"acct{i}{text}", f"old{i}{text}", f"gone{i}{text}"),
        )
    ]
    assert all_committed(writer.write([Unit(rows=(*deleted_assets, *deleted_webhooks, *deleted_groups))]))
    for i, text in enumerate(HOSTILE):
        claim = (f"acct{i}{text}", f"cpn{i}{text}", AT)
        rows.execute("insert into coupon_uses values (%s, %s, 'cpu_1', 5, %s, null)", claim)
        rows.execute("insert into sign_ins values (%s, 3, now(), '{}')", (f"gone:{i}{text}",))
    for batch in [[unit] for unit in units] if is_alone else [units]:
        assert all_committed(writer.write(batch))
    for values in everything:
        found = [each for value in values if not isinstance(value, Removed) for each in written(value)]
        newest: dict[tuple[Any, ...], Any] = {}
        for table, cells in found:
            for name, value in cells.items():
                newest[table.name, *_place(table, cells), name] = given(table, name, value)
        for table, cells in found:
            assert stored(rows, table, cells) == {
                name: newest[table.name, *_place(table, cells), name] for name in cells
            }
        assert all(is_gone(rows, value) for value in values if isinstance(value, Removed))
    revoked = rows.execute("select session_id, revoked_at from sessions").fetchall()
    assert {at for session_id, at in revoked if session_id.startswith("other")} == {AT}


def _place(table: Table, cells: dict[str, Any]) -> list[Any]:
    return list(key_of(table, cells).values())


def test_an_applied_event_replaces_a_stored_one_and_is_final(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    def unapplied(body: bytes) -> Unit:
        return Unit(rows=(PaymentEventRow("card", "evt_1", None, None, "t", AT, "unmatched", body),))

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
    changes = [TaskChangedRow(make_task("a", "task_1", AT, f"text {n}", version=n), "proc_1") for n in (2, 3)]
    fences = [Fence("task", "task_1", n) for n in (1, 2)]
    assert all_committed(writer.write([Unit(rows=(NewTaskRow(task),))]))
    units = [Unit(fences=(f,), rows=(c,)) for f, c in zip(fences, changes, strict=True)]
    assert all_committed(writer.write(units))
    [(table, cells)] = written(changes[1])
    assert stored(rows, table, cells) == {name: given(table, name, value) for name, value in cells.items()}


def test_the_last_spending_of_a_limit_in_a_batch_is_stored(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    spendings = [AccountLimitRow("a", "day", 10, None, AT, captured) for captured in (1, 2, 3, 4)]
    for some in (spendings[:2], spendings[2:]):
        assert all_committed(writer.write([Unit(rows=(each,)) for each in some]))
        assert rows.execute("select captured_micro from account_limits").fetchall() == [(some[-1].captured_micro,)]
        rows.rollback()


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
