"""The statement that writes many rows of a kind at once.

A batch of rows becomes one array for each column and one ``INSERT … SELECT FROM unnest(…)`` or
``UPDATE … FROM unnest(…)`` for all of them: one statement for each kind, not for each row. Where a batch has many
new rows of a kind, COPY replaces the statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects.postgresql import ARRAY

from holdfast.persistence.journal.literals import ColumnCodec, codec_of
from holdfast.persistence.records import tables
from holdfast.persistence.records.outbox_rows import (
    OutboxAttemptRow,
    OutboxOutcomeRow,
    OutboxResendRow,
    OutboxRow,
    WebhookSecretRow,
)
from holdfast.persistence.records.rows import (
    AccountHead,
    AccountRow,
    ApiKeyRevokedRow,
    ApiKeyRow,
    ApiKeyUsedRow,
    AssetRow,
    AssetsDeletedRow,
    AssetsExpiryRow,
    BatchRow,
    HoldRow,
    HoldSettledRow,
    IdempotencyRow,
    OperationRow,
    OrderChangedRow,
    OrderRow,
    PaymentEventRow,
    PostingRow,
    SessionRevokedRow,
    SessionRow,
    SignInRow,
    TaskChangedRow,
    TaskEventRow,
    TaskRequestRow,
    TaskRow,
    UnappliedPaymentEventRow,
    UsageChangedRow,
    UsageRow,
)

BULK_ROWS = 64
"""From this number of new rows of a kind, one COPY is cheaper than a statement in the pipeline."""


@dataclass(frozen=True, slots=True)
class Statement:
    """How one kind of row is written: its SQL and columns, the key that duplicates collapse by, COPY for many."""

    sql: str
    columns: tuple[ColumnCodec, ...]
    key_fields: tuple[int, ...] | None = None
    copy_sql: str | None = None

    def parameters(self, rows: Sequence[tuple[Any, ...]]) -> list[str]:
        """Return one array literal for each column. Of several changes to one row the last includes the others."""
        if self.key_fields is not None and len(rows) > 1:
            newest = {tuple(row[i] for i in self.key_fields): row for row in rows}
            rows = list(newest.values())
        return [codec.array(column) for codec, column in zip(self.columns, zip(*rows, strict=True), strict=True)]

    def copy_text(self, rows: Sequence[tuple[Any, ...]]) -> str:
        """Return the input of ``copy_sql``: one line for each row."""
        cells = [codec.cells(column) for codec, column in zip(self.columns, zip(*rows, strict=True), strict=True)]
        return "\n".join(map("\t".join, zip(*cells, strict=True))) + "\n"


def _columns(table: Table, fields: Sequence[str]) -> tuple[tuple[ColumnCodec, ...], str, str]:
    """Return the columns of ``fields``, their parameters, and the select list over the unnested arrays."""
    columns = tuple(codec_of(table.c[field]) for field in fields)
    casts = ", ".join(f"%s::{codec.pg_type}[]" for codec in columns)
    picks = ", ".join(
        f"v.{field}::text[]" if isinstance(table.c[field].type, ARRAY) else f"v.{field}" for field in fields
    )
    return columns, casts, picks


def _insert(
    table: Table, row: type[Any], *, on_conflict: str = "", once_by: Sequence[str] | None = None
) -> Statement:
    fields = row._fields
    columns, casts, picks = _columns(table, fields)
    names = ", ".join(fields)
    sql = f"insert into {table.name} ({names}) select {picks} from unnest({casts}) as v({names}) {on_conflict}"
    key_fields = None if once_by is None else tuple(fields.index(key) for key in once_by)
    copy_sql = None if on_conflict else f"copy {table.name} ({names}) from stdin"
    return Statement(sql.strip(), columns, key_fields, copy_sql)


def _update(table: Table, row: type[Any], *, keyed: Sequence[str]) -> Statement:
    fields = row._fields
    columns, casts, _ = _columns(table, fields)
    changes = ", ".join(f"{f} = v.{f}" for f in fields if f not in keyed)
    match = " and ".join(f"t.{k} = v.{k}" for k in keyed)
    sql = f"update {table.name} t set {changes} from unnest({casts}) as v({', '.join(fields)}) where {match}"
    return Statement(sql, columns, tuple(fields.index(k) for k in keyed))


def _delete(table: Table, row: type[Any]) -> Statement:
    """Delete all rows that have the fields' values."""
    fields = row._fields
    columns, casts, _ = _columns(table, fields)
    match = " and ".join(f"t.{f} = v.{f}" for f in fields)
    sql = f"delete from {table.name} t using unnest({casts}) as v({', '.join(fields)}) where {match}"
    return Statement(sql, columns)


STATEMENTS: dict[type[Any], Statement] = {
    # New rows precede their changes. Otherwise the order is free: the tables have no foreign keys.
    AccountRow: _insert(tables.accounts, AccountRow),
    AccountHead: _update(tables.accounts, AccountHead, keyed=["id"]),
    OperationRow: _insert(tables.operations, OperationRow),
    PostingRow: _insert(tables.postings, PostingRow),
    HoldRow: _insert(tables.holds, HoldRow),
    HoldSettledRow: _update(tables.holds, HoldSettledRow, keyed=["account_id", "hold_id"]),
    TaskRow: _insert(tables.tasks, TaskRow),
    TaskChangedRow: _update(tables.tasks, TaskChangedRow, keyed=["request_id"]),
    TaskRequestRow: _update(tables.tasks, TaskRequestRow, keyed=["request_id"]),
    TaskEventRow: _insert(tables.task_events, TaskEventRow, on_conflict="on conflict do nothing"),
    OrderRow: _insert(tables.orders, OrderRow),
    OrderChangedRow: _update(tables.orders, OrderChangedRow, keyed=["account_id", "order_id"]),
    PaymentEventRow: _insert(
        tables.payment_events,
        PaymentEventRow,
        on_conflict="on conflict (provider, event_id) do update set account_id = excluded.account_id, "
        "order_id = excluded.order_id, verdict = excluded.verdict, received_at = excluded.received_at, "
        "body = excluded.body where payment_events.verdict not in ('applied', 'stale') "
        # Another order's event: the table's trigger rejects it, and the unit with it.
        "or payment_events.order_id is distinct from excluded.order_id",
        once_by=["provider", "event_id", "order_id"],
    ),
    UnappliedPaymentEventRow: _insert(
        tables.payment_events, UnappliedPaymentEventRow, on_conflict="on conflict do nothing"
    ),
    UsageRow: _insert(tables.usage_entries, UsageRow),
    UsageChangedRow: _update(tables.usage_entries, UsageChangedRow, keyed=["account_id", "ts", "request_id"]),
    AssetRow: _insert(tables.assets, AssetRow),
    AssetsExpiryRow: _update(tables.assets, AssetsExpiryRow, keyed=["account_id", "request_id"]),
    AssetsDeletedRow: _delete(tables.assets, AssetsDeletedRow),
    ApiKeyRow: _insert(tables.api_keys, ApiKeyRow),
    ApiKeyRevokedRow: _update(tables.api_keys, ApiKeyRevokedRow, keyed=["account_id", "key_id"]),
    ApiKeyUsedRow: _update(tables.api_keys, ApiKeyUsedRow, keyed=["account_id", "key_id"]),
    SessionRow: _insert(tables.sessions, SessionRow),
    SessionRevokedRow: _update(tables.sessions, SessionRevokedRow, keyed=["account_id", "session_id"]),
    SignInRow: _update(tables.sign_ins, SignInRow, keyed=["key"]),
    IdempotencyRow: _insert(
        tables.idempotency_records,
        IdempotencyRow,
        on_conflict="on conflict (account_id, route, key) do update set fingerprint = excluded.fingerprint, "
        "reply = excluded.reply, created_at = excluded.created_at",
    ),
    OutboxRow: _insert(tables.outbox, OutboxRow),
    OutboxOutcomeRow: _update(
        tables.outbox, OutboxOutcomeRow, keyed=["account_id", "event_id", "attempts", "round_at"]
    ),
    OutboxResendRow: _update(tables.outbox, OutboxResendRow, keyed=["account_id", "event_id"]),
    OutboxAttemptRow: _insert(tables.outbox_attempts, OutboxAttemptRow, on_conflict="on conflict do nothing"),
    WebhookSecretRow: _insert(tables.webhook_secrets, WebhookSecretRow, on_conflict="on conflict do nothing"),
    BatchRow: _insert(tables.journal_batches, BatchRow),
}
"""Every statement of the write path, in the order a batch runs them."""
