"""The rows the journal writes, as frozen tuples, and the one statement that writes many of each kind.

Each row type names its table and how it lands there. Its fields are the table's columns, so that a batch of
rows turns into one array a column and one ``INSERT … SELECT FROM unnest(…)`` or ``UPDATE … FROM unnest(…)``
for all of them: a statement a kind, not a statement a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import BigInteger, Boolean, Integer, LargeBinary, SmallInteger, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSON, TIMESTAMP

from holdfast.persistence import tables


class AccountRow(NamedTuple):
    """A new account, empty."""

    id: str
    email: str
    role: str
    brand_id: str
    created_at: datetime
    version: int
    operation_count: int
    balance_micro: int
    held_micro: int
    chain_head: bytes


class AccountHead(NamedTuple):
    """An account's version and totals behind a unit of work; the fence of every account unit."""

    id: str
    version: int
    operation_count: int
    balance_micro: int
    held_micro: int
    chain_head: bytes


class OperationRow(NamedTuple):
    """One operation of the immutable journal."""

    account_id: str
    number: int
    operation_id: str
    kind: str
    amount_micro: int
    balance_after_micro: int
    held_after_micro: int
    hold_id: str | None
    reference: str
    reason: str
    at: datetime
    chain_hash: bytes


class PostingRow(NamedTuple):
    """One posting of the immutable journal."""

    account_id: str
    number: int
    line: int
    ledger_account: str
    amount_micro: int


class HoldRow(NamedTuple):
    """A hold as it opens."""

    account_id: str
    hold_id: str
    amount_micro: int
    reference: str
    opened_number: int


class HoldSettledRow(NamedTuple):
    """A hold as it ends."""

    account_id: str
    hold_id: str
    settled_number: int


class TaskRow(NamedTuple):
    """A new task. ``request`` and ``state`` are JSON text."""

    account_id: str
    request_id: str
    version: int
    status: str
    model: str
    provider: str
    created_at: datetime
    updated_at: datetime
    wake_at: datetime | None
    dispatched: bool
    request: str
    state: str


class TaskChangedRow(NamedTuple):
    """A task after one step."""

    account_id: str
    request_id: str
    version: int
    status: str
    updated_at: datetime
    wake_at: datetime | None
    dispatched: bool
    state: str


class TaskEventRow(NamedTuple):
    """A provider's callback as received, and what it did."""

    account_id: str
    request_id: str
    provider: str
    event_id: str
    received_at: datetime
    verdict: str
    body: bytes


class UsageRow(NamedTuple):
    """A new usage entry. ``status_history`` is JSON text."""

    account_id: str
    request_id: str
    ts: datetime
    model: str
    modality: str
    api_key_id: str | None
    status: str
    billable_units: int
    tokens_in: int
    tokens_out: int
    latency_ms: int | None
    cost_micro: int
    error: str | None
    operation_id: str | None
    status_history: str


class UsageChangedRow(NamedTuple):
    """A usage entry after its task's public status changed."""

    account_id: str
    request_id: str
    status: str
    billable_units: int
    tokens_in: int
    tokens_out: int
    latency_ms: int | None
    cost_micro: int
    error: str | None
    operation_id: str | None
    status_history: str


class AssetRow(NamedTuple):
    """A stored output."""

    account_id: str
    request_id: str
    position: int
    asset_id: str
    sha256: str
    bytes: int
    content_type: str
    created_at: datetime
    expires_at: datetime


class ApiKeyRow(NamedTuple):
    """A new API key; only the hash of its secret."""

    account_id: str
    key_id: str
    secret_sha256: bytes
    prefix: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime


class ApiKeyRevokedRow(NamedTuple):
    """An API key as it is revoked."""

    account_id: str
    key_id: str
    revoked_at: datetime


class ApiKeyUsedRow(NamedTuple):
    """When an API key was last used, written at most once a minute."""

    account_id: str
    key_id: str
    last_used_at: datetime


class SessionRow(NamedTuple):
    """A new session; only the hash of its token."""

    account_id: str
    session_id: str
    token_sha256: bytes
    created_at: datetime
    expires_at: datetime


class SessionRevokedRow(NamedTuple):
    """A session as it is signed out."""

    account_id: str
    session_id: str
    revoked_at: datetime


class SignInRow(NamedTuple):
    """The sign-in state of an e-mail or an address of origin. ``state`` is JSON text."""

    key: str
    version: int
    updated_at: datetime
    state: str


class IdempotencyRow(NamedTuple):
    """A remembered answer. The fence proved that no live record of the key exists; an expired one is replaced."""

    account_id: str
    route: str
    key: str
    fingerprint: bytes
    reply: bytes
    created_at: datetime


class BatchRow(NamedTuple):
    """The mark by which a lost answer to COMMIT is settled."""

    batch_id: str
    units: int
    committed: bool
    at: datetime


Row: TypeAlias = (
    AccountRow
    | AccountHead
    | OperationRow
    | PostingRow
    | HoldRow
    | HoldSettledRow
    | TaskRow
    | TaskChangedRow
    | TaskEventRow
    | UsageRow
    | UsageChangedRow
    | AssetRow
    | ApiKeyRow
    | ApiKeyRevokedRow
    | ApiKeyUsedRow
    | SessionRow
    | SessionRevokedRow
    | SignInRow
    | IdempotencyRow
    | BatchRow
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


def _insert(table: Table, row: type[Any], *, on_conflict: str = "") -> Statement:
    fields = row._fields
    casts, renders, picks = _columns(table, fields)
    names = ", ".join(fields)
    sql = (
        f"insert into {table.name} ({names}) select {', '.join(picks)} "  # noqa: S608 - names from our own tables
        f"from unnest({', '.join(casts)}) as v({names}) {on_conflict}"
    )
    return Statement(sql.strip(), tuple(renders), None)


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
    UsageRow: _insert(tables.usage_entries, UsageRow),
    UsageChangedRow: _update(tables.usage_entries, UsageChangedRow, keyed=["account_id", "request_id"]),
    AssetRow: _insert(tables.assets, AssetRow),
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
    BatchRow: _insert(tables.journal_batches, BatchRow),
}
"""The write path's whole vocabulary, in the order a batch's statements run."""
