"""The one statement that writes many rows of a kind.

A batch of rows turns into one array a column and one ``INSERT … SELECT FROM unnest(…)`` or
``UPDATE … FROM unnest(…)`` for all of them: a statement a kind, not a statement a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, Integer, LargeBinary, SmallInteger, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSON, TIMESTAMP

from holdfast.persistence import tables
from holdfast.persistence.outbox_rows import (
    OutboxAgainRow,
    OutboxAttemptRow,
    OutboxOutcomeRow,
    OutboxRow,
    WebhookSecretRow,
)
from holdfast.persistence.rows import (
    AccountHead,
    AccountRow,
    ApiKeyRevokedRow,
    ApiKeyRow,
    ApiKeyUsedRow,
    AssetRow,
    AssetsRemovedRow,
    BatchRow,
    HoldRow,
    HoldSettledRow,
    IdempotencyRow,
    OperationRow,
    OrderChangedRow,
    OrderRow,
    PaymentEventKeptRow,
    PaymentEventRow,
    PostingRow,
    SessionRevokedRow,
    SessionRow,
    SignInRow,
    TaskChangedRow,
    TaskEventRow,
    TaskRow,
    UsageChangedRow,
    UsageRow,
)

# -------------------------------------------------------------------------------- array literals by column type

Render = Callable[[Iterable[Any]], str]


_BETWEEN = "\x1f"


def _texts(values: Iterable[str | None]) -> str:
    """A text array. The whole column is escaped at once: joined by a character that none of it holds."""
    column = list(values)
    if None not in column:
        joined = _BETWEEN.join(column)  # type: ignore[arg-type]  # there is no None among them
        if joined.count(_BETWEEN) == len(column) - 1:
            return '{"' + _escaped(joined).replace(_BETWEEN, '","') + '"}'
    return "{" + ",".join(["NULL" if v is None else '"' + _escaped(v) + '"' for v in column]) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _integers(values: Iterable[int | None]) -> str:
    return "{" + ",".join(["NULL" if v is None else str(v) for v in values]) + "}"


def _booleans(values: Iterable[bool | None]) -> str:
    return "{" + ",".join(["NULL" if v is None else "t" if v else "f" for v in values]) + "}"


def _times(values: Iterable[datetime | None]) -> str:
    return "{" + ",".join(["NULL" if v is None else _quoted_time(v) for v in values]) + "}"


@functools.lru_cache(maxsize=4096)
def _quoted_time(at: datetime) -> str:
    """Cached: the moment of a decision stands in many columns of its rows."""
    return '"' + at.isoformat() + '"'


def _binaries(values: Iterable[bytes | None]) -> str:
    return "{" + ",".join(["NULL" if v is None else '"\\\\x' + v.hex() + '"' for v in values]) + "}"


def _text_lists(values: Iterable[Sequence[str] | None]) -> str:
    """A text array a row travels as its own literal, cast back by the statement (rows may differ in length)."""
    return _texts(None if v is None else _texts(v) for v in values)


_BY_TYPE: tuple[tuple[type[Any], str, Render], ...] = (
    (JSON, "json", _texts),
    (TIMESTAMP, "timestamptz", _times),
    (Text, "text", _texts),
    (BigInteger, "bigint", _integers),
    (SmallInteger, "smallint", _integers),
    (Integer, "integer", _integers),
    (Boolean, "boolean", _booleans),
    (LargeBinary, "bytea", _binaries),
)


# ----------------------------------------------------------------------------------------- statements by kind


@dataclass(frozen=True, slots=True)
class Statement:
    """How one kind of row is written: the SQL, each column's renderer, and the key duplicates collapse by."""

    sql: str
    renders: tuple[Render, ...]
    key_fields: tuple[int, ...] | None

    def parameters(self, rows: Sequence[tuple[Any, ...]]) -> list[str]:
        """One array literal a column. Of several changes to one row the last stands: it holds the others."""
        if self.key_fields is not None and len(rows) > 1:
            newest = {tuple(row[i] for i in self.key_fields): row for row in rows}
            rows = list(newest.values())
        return [render(column) for render, column in zip(self.renders, zip(*rows, strict=True), strict=True)]


def _columns(table: Table, fields: Sequence[str]) -> tuple[list[str], list[Render], list[str]]:
    casts: list[str] = []
    renders: list[Render] = []
    picks: list[str] = []
    for field in fields:
        kind = table.c[field].type
        if isinstance(kind, ARRAY):
            casts.append("%s::text[]")
            renders.append(_text_lists)
            picks.append(f"v.{field}::text[]")
            continue
        pg_type, render = next((pg, r) for known, pg, r in _BY_TYPE if isinstance(kind, known))
        casts.append(f"%s::{pg_type}[]")
        renders.append(render)
        picks.append(f"v.{field}")
    return casts, renders, picks


def _insert(
    table: Table, row: type[Any], *, on_conflict: str = "", once_by: Sequence[str] | None = None
) -> Statement:
    fields = row._fields
    casts, renders, picks = _columns(table, fields)
    names = ", ".join(fields)
    sql = (
        f"insert into {table.name} ({names}) select {', '.join(picks)} "  # noqa: S608 - names from our own tables
        f"from unnest({', '.join(casts)}) as v({names}) {on_conflict}"
    )
    key_fields = None if once_by is None else tuple(fields.index(key) for key in once_by)
    return Statement(sql.strip(), tuple(renders), key_fields)


def _update(table: Table, row: type[Any], *, keyed: Sequence[str]) -> Statement:
    fields = row._fields
    casts, renders, _ = _columns(table, fields)
    changes = ", ".join(f"{f} = v.{f}" for f in fields if f not in keyed)
    match = " and ".join(f"t.{k} = v.{k}" for k in keyed)
    sql = (
        f"update {table.name} t set {changes} "  # noqa: S608 - names from our own tables
        f"from unnest({', '.join(casts)}) as v({', '.join(fields)}) where {match}"
    )
    return Statement(sql, tuple(renders), tuple(fields.index(k) for k in keyed))


def _delete(table: Table, row: type[Any]) -> Statement:
    """Remove all rows that have the fields' values."""
    fields = row._fields
    casts, renders, _ = _columns(table, fields)
    match = " and ".join(f"t.{f} = v.{f}" for f in fields)
    sql = (
        f"delete from {table.name} t using unnest({', '.join(casts)}) "  # noqa: S608 - names from our own tables
        f"as v({', '.join(fields)}) where {match}"
    )
    return Statement(sql, tuple(renders), None)


STATEMENTS: dict[type[Any], Statement] = {
    # New rows first, in an order that lets a later kind speak of an earlier one.
    AccountRow: _insert(tables.accounts, AccountRow),
    AccountHead: _update(tables.accounts, AccountHead, keyed=["id"]),
    OperationRow: _insert(tables.operations, OperationRow),
    PostingRow: _insert(tables.postings, PostingRow),
    HoldRow: _insert(tables.holds, HoldRow),
    HoldSettledRow: _update(tables.holds, HoldSettledRow, keyed=["account_id", "hold_id"]),
    TaskRow: _insert(tables.tasks, TaskRow),
    TaskChangedRow: _update(tables.tasks, TaskChangedRow, keyed=["account_id", "request_id"]),
    TaskEventRow: _insert(tables.task_events, TaskEventRow, on_conflict="on conflict do nothing"),
    OrderRow: _insert(tables.orders, OrderRow),
    OrderChangedRow: _update(tables.orders, OrderChangedRow, keyed=["account_id", "order_id"]),
    PaymentEventRow: _insert(
        tables.payment_events,
        PaymentEventRow,
        on_conflict="on conflict (provider, event_id) do update set account_id = excluded.account_id, "
        "order_id = excluded.order_id, verdict = excluded.verdict, received_at = excluded.received_at, "
        "body = excluded.body where payment_events.verdict not in ('applied', 'stale')",
        once_by=["provider", "event_id"],
    ),
    PaymentEventKeptRow: _insert(tables.payment_events, PaymentEventKeptRow, on_conflict="on conflict do nothing"),
    UsageRow: _insert(tables.usage_entries, UsageRow),
    UsageChangedRow: _update(tables.usage_entries, UsageChangedRow, keyed=["account_id", "request_id"]),
    AssetRow: _insert(tables.assets, AssetRow),
    AssetsRemovedRow: _delete(tables.assets, AssetsRemovedRow),
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
    OutboxAgainRow: _update(tables.outbox, OutboxAgainRow, keyed=["account_id", "event_id"]),
    OutboxAttemptRow: _insert(tables.outbox_attempts, OutboxAttemptRow, on_conflict="on conflict do nothing"),
    WebhookSecretRow: _insert(tables.webhook_secrets, WebhookSecretRow, on_conflict="on conflict do nothing"),
    BatchRow: _insert(tables.journal_batches, BatchRow),
}
"""The write path's whole vocabulary, in the order a batch's statements run."""
