"""The statements that write many rows of a kind at once.

A batch of rows becomes one array for each column and one ``INSERT … SELECT FROM unnest(…)`` or
``UPDATE … FROM unnest(…)`` for all of them: one statement for each kind, not for each row. Where a batch has many
new rows of a kind, COPY replaces the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import Table
from sqlalchemy.dialects.postgresql import ARRAY

from holdfast.persistence.journal.literals import ColumnCodec, codec_of
from holdfast.persistence.records import accounts, ledger, orders, outbox, tasks
from holdfast.persistence.records.mapping import RowMapping

BULK_ROWS = 64
"""From this number of new rows of a kind, one COPY is cheaper than a statement in the pipeline."""


class RowStatement(msgspec.Struct, frozen=True):
    """How the rows of one mapping are written: SQL for arrays of columns, and COPY for many new rows.

    Of several changes to one row, which ``key`` finds, only the last is written: it includes the others.
    """

    mapping: RowMapping
    codecs: tuple[ColumnCodec, ...]
    sql: str
    key: Callable[[tuple[Any, ...]], Any] | None = None
    copy_sql: str | None = None

    def parameters(self, rows: Sequence[tuple[Any, ...]]) -> list[str]:
        """Return one array literal for each column."""
        if self.key is not None and len(rows) > 1:
            rows = list({self.key(row): row for row in rows}.values())
        return [codec.array(column) for codec, column in zip(self.codecs, zip(*rows, strict=True), strict=True)]

    def copy_text(self, rows: Sequence[tuple[Any, ...]]) -> str:
        """Return the input of ``copy_sql``: one line for each row."""
        cells = [codec.cells(column) for codec, column in zip(self.codecs, zip(*rows, strict=True), strict=True)]
        return "\n".join(map("\t".join, zip(*cells, strict=True))) + "\n"


def _arrays(mapping: RowMapping) -> tuple[tuple[ColumnCodec, ...], str]:
    """Return the codecs of a mapping's columns, and the table ``v`` that their arrays make."""
    codecs = tuple(codec_of(mapping.table.c[name]) for name in mapping.columns)
    casts = ", ".join(f"%s::{codec.pg_type}[]" for codec in codecs)
    return codecs, f"unnest({casts}) as v({', '.join(mapping.columns)})"


def _key(mapping: RowMapping, names: Sequence[str]) -> Callable[[tuple[Any, ...]], Any]:
    return itemgetter(*(mapping.columns.index(name) for name in names))


def _insert(mapping: RowMapping, *, on_conflict: str = "", once_by: Sequence[str] = ()) -> RowStatement:
    table, names = mapping.table, ", ".join(mapping.columns)
    codecs, arrays = _arrays(mapping)
    picks = ", ".join(_picked(table, name) for name in mapping.columns)
    sql = f"insert into {table.name} ({names}) select {picks} from {arrays} {on_conflict}"
    return RowStatement(
        mapping,
        codecs,
        sql.strip(),
        key=_key(mapping, once_by) if once_by else None,
        copy_sql=None if on_conflict else f"copy {table.name} ({names}) from stdin",
    )


def _picked(table: Table, name: str) -> str:
    return f"v.{name}::text[]" if isinstance(table.c[name].type, ARRAY) else f"v.{name}"


def _update(mapping: RowMapping, *, keyed: Sequence[str]) -> RowStatement:
    codecs, arrays = _arrays(mapping)
    changes = ", ".join(f"{name} = v.{name}" for name in mapping.columns if name not in keyed)
    sql = f"update {mapping.table.name} t set {changes} from {arrays} where {_matching(keyed)}"
    return RowStatement(mapping, codecs, sql, key=_key(mapping, keyed))


def _delete(mapping: RowMapping) -> RowStatement:
    """Delete all rows that have the mapping's values."""
    codecs, arrays = _arrays(mapping)
    return RowStatement(
        mapping, codecs, f"delete from {mapping.table.name} t using {arrays} where {_matching(mapping.columns)}"
    )


def _matching(names: Sequence[str]) -> str:
    return " and ".join(f"t.{name} = v.{name}" for name in names)


STATEMENTS: tuple[RowStatement, ...] = (
    # New rows precede their changes. Otherwise the order is free: the tables have no foreign keys.
    _insert(accounts.ACCOUNTS),
    _update(accounts.HEADS, keyed=["id"]),
    _update(accounts.ACCOUNT_ACCESS, keyed=["id"]),
    _insert(ledger.OPERATIONS),
    _insert(ledger.POSTINGS),
    _insert(ledger.OPENED_HOLDS),
    _update(ledger.SETTLED_HOLDS, keyed=["account_id", "hold_id"]),
    _insert(tasks.TASKS),
    _update(tasks.CHANGED_TASKS, keyed=["request_id"]),
    _update(tasks.CHANGED_REQUESTS, keyed=["request_id"]),
    _insert(tasks.TASK_EVENTS, on_conflict="on conflict do nothing"),
    _insert(orders.ORDERS),
    _update(orders.CHANGED_ORDERS, keyed=["account_id", "order_id"]),
    _insert(orders.ORDER_PAYMENTS),
    _insert(
        orders.PAYMENT_EVENTS,
        on_conflict="on conflict (provider, event_id) do update set account_id = excluded.account_id, "
        "order_id = excluded.order_id, verdict = excluded.verdict, received_at = excluded.received_at, "
        "body = excluded.body where payment_events.verdict not in ('applied', 'stale') "
        # Another order's event: the table's trigger rejects it, and the unit with it.
        "or payment_events.order_id is distinct from excluded.order_id",
        once_by=["provider", "event_id", "order_id"],
    ),
    _insert(orders.UNAPPLIED_PAYMENT_EVENTS, on_conflict="on conflict do nothing"),
    _insert(tasks.USAGE_ENTRIES),
    _update(tasks.CHANGED_USAGE_ENTRIES, keyed=["account_id", "ts", "request_id"]),
    _insert(tasks.ASSETS),
    _update(tasks.ASSET_EXPIRIES, keyed=["account_id", "request_id"]),
    _delete(tasks.DELETED_ASSETS),
    _insert(accounts.API_KEYS),
    _update(accounts.REVOKED_API_KEYS, keyed=["account_id", "key_id"]),
    _update(accounts.USED_API_KEYS, keyed=["account_id", "key_id"]),
    _insert(accounts.SESSIONS),
    _update(accounts.REVOKED_SESSIONS, keyed=["account_id", "session_id"]),
    _update(accounts.SIGN_INS, keyed=["key"]),
    _insert(
        accounts.IDEMPOTENCY_RECORDS,
        on_conflict="on conflict (account_id, route, key) do update set fingerprint = excluded.fingerprint, "
        "reply = excluded.reply, created_at = excluded.created_at",
    ),
    _insert(outbox.EVENTS),
    _update(outbox.DELIVERY_OUTCOMES, keyed=["account_id", "event_id", "attempts", "round_at"]),
    _update(outbox.RESENT_EVENTS, keyed=["account_id", "event_id"]),
    _insert(outbox.DELIVERY_ATTEMPTS, on_conflict="on conflict do nothing"),
    _insert(outbox.WEBHOOK_SECRETS, on_conflict="on conflict do nothing"),
)
"""Every statement of the write path, in the order a batch runs them."""

KINDS = frozenset(statement.mapping.kind for statement in STATEMENTS)
"""The kinds of value that some statement writes."""
