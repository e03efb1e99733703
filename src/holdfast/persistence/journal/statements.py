"""The statements that write many rows of a kind at once, and how their values are encoded.

A batch of rows becomes one array for each column and one ``INSERT … SELECT`` or ``UPDATE … FROM`` for all of
them: one statement for each kind, not for each row. Where a batch has many new rows of a kind, or large ones, COPY
replaces the statement: it inserts them in two thirds of the server's time.

The arrays are unnested in a SELECT's list, which returns one row at a time. ``FROM unnest(…)`` stores the elements
of each array before it returns a row, which takes the server 4 µs for each column however few the rows are. For a
lone row the first element of each is taken instead: to set up the unnesting takes longer than to insert a row.

Values are encoded by columns, as one array or as cells in COPY's text format: a batch under load has
hundreds of rows, and a call for each value would cost more than the encoding.
"""

from __future__ import annotations

import functools
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

import msgspec
from psycopg.postgres import types
from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, SmallInteger, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSON, TIMESTAMP

from holdfast.ledger.alerts.account_events import ALL, ALL_OF_TASKS
from holdfast.ledger.credit.operations import SETTLING, Operation, OperationKind
from holdfast.ledger.orders.order import Order
from holdfast.ledger.tasks.events import public_snapshot
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.tasks.usage_totals import SPANS_S
from holdfast.ledger.values import new_id
from holdfast.persistence.journal.exchanges import Statement
from holdfast.persistence.journal.units import FenceKind, Unit
from holdfast.persistence.records import event_rows, key_rows, rows, tables
from holdfast.persistence.records.rows import APPLIED_VERDICTS, IdempotencyProbe, TaskChangedRow

_json = msgspec.json.Encoder()

_ARRAY_HEAD: Final = struct.Struct(">iiIii")
"""The head of an array in binary form: dimensions, whether it has nulls, type, length, first index."""
_NO_LENGTH: Final = b"\xff\xff\xff\xff"
"""Of a null, instead of a length, in binary form."""
_NULL = "\\N"
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class ColumnCodec(NamedTuple):
    """The encoding of a column's values: their type, and the text of each, or for an array its ``binary`` form.

    A text that ``is_free`` may have any characters, and is quoted or escaped. The others are numbers, booleans and
    times. None is a null where the column ``has_nulls``. JSON has a null of its own.
    """

    pg_type: str
    encode: Callable[[Any], str]
    is_free: bool = False
    binary: Callable[[Any], bytes] | None = None
    has_nulls: bool = True


def codec_of(column: Column[Any], *, is_renamed: bool = False) -> ColumnCodec:
    """Return the codec of ``column``. Of a value that ``is_renamed`` None is a null, too: it may be a condition."""
    found = next(codec for kind, codec in _BY_TYPE if isinstance(column.type, kind))
    return found._replace(has_nulls=(column.nullable or is_renamed) and not isinstance(column.type, JSON))


def array_parameters(codecs: Iterable[ColumnCodec], columns: Iterable[Sequence[Any]]) -> list[str | bytes]:
    """Encode each column as an array: a literal, or the binary form.

    JSON is the largest part of a batch, and in a literal each of its quotes would be escaped, sent and read again.
    """
    parameters: list[str | bytes] = []
    for codec, column in zip(codecs, columns, strict=True):
        parameters.append(_array_literal(codec, column) if codec.binary is None else _binary_array(codec, column))
    return parameters


def _array_literal(codec: ColumnCodec, column: Sequence[Any]) -> str:
    _, encode, _, _, has_nulls = codec
    if encode is not text_array:
        # An array of JSON is one with other brackets, if no text in it had to be escaped.
        joined = _json.encode(column)[1:-1].decode()
        if "\\" not in joined and (has_nulls or "null" not in joined):
            return "{" + joined + "}"
    quoted = ["NULL" if has_nulls and value is None else _quoted(encode(value)) for value in column]
    return "{" + ",".join(quoted) + "}"


def _binary_array(codec: ColumnCodec, column: Sequence[Any]) -> bytes:
    pg_type, _, _, binary, has_nulls = codec
    assert binary is not None
    parts = [_ARRAY_HEAD.pack(1, 0, types[pg_type].oid, len(column), 1)]
    for value in column:
        if has_nulls and value is None:
            parts.append(_NO_LENGTH)
        else:
            encoded = binary(value)
            parts += len(encoded).to_bytes(4), encoded
    return b"".join(parts)


def text_array(values: Iterable[str]) -> str:
    """Encode texts as an array literal."""
    return _array_literal(_TEXT, list(values))


def copy_cells(codec: ColumnCodec, column: Sequence[Any]) -> list[str]:
    """Encode each value of a column as a cell of COPY."""
    _, encode, is_free, _, has_nulls = codec
    if has_nulls and None in column:
        escapes = _COPY_ESCAPES if is_free else {}
        return [_NULL if v is None else encode(v).translate(escapes) for v in column]
    texts = list(map(encode, column))
    if is_free and _needs_escapes("".join(texts)):
        return [text.translate(_COPY_ESCAPES) for text in texts]
    return texts


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _needs_escapes(text: str) -> bool:
    return "\\" in text or "\n" in text or "\r" in text or "\t" in text


def _json_text(value: Any) -> str:
    return _json.encode(value).decode()


def _time(at: datetime) -> str:
    return _json_text(at)[1:-1]


def _hex(value: bytes) -> str:
    return "\\x" + value.hex()


_TEXT: Final = ColumnCodec("text", str.__str__, is_free=True, has_nulls=False)
"""A text is taken as it is. Unlike ``str``, its encoder raises for a None."""
_BY_TYPE: tuple[tuple[type[Any], ColumnCodec], ...] = (
    # A row's array is a literal, cast back by the statement: rows may differ in length.
    (ARRAY, ColumnCodec("text", text_array, is_free=True)),
    (JSON, ColumnCodec("json", _json_text, is_free=True, binary=_json.encode)),
    (TIMESTAMP, ColumnCodec("timestamptz", _time)),
    (Text, _TEXT),
    (BigInteger, ColumnCodec("bigint", format)),
    (SmallInteger, ColumnCodec("smallint", format)),
    (Integer, ColumnCodec("integer", format)),
    (Boolean, ColumnCodec("boolean", {True: "t", False: "f"}.__getitem__)),
    (LargeBinary, ColumnCodec("bytea", _hex, is_free=True, binary=bytes)),
)


BULK_ROWS = 300
"""From this number of new rows of a kind, one COPY is cheaper than a statement: 500 holds in a batch took the
service 0.87 times the CPU with COPY, and 128 holds 1.04 to 1.27 times (2026-11-29, load 4-8)."""

BULK_BYTES = 16 * 1024 * 1024
"""From this size too. The driver moves the unsent rest of a statement with every send, so its time grows with the
square of its size, and is twice that of COPY, which is sent in parts, at 64 MiB. Below, COPY costs more."""

Cells: TypeAlias = tuple[Any, ...]
"""A row: the value of each column."""


class RowStatement:
    """How values of ``kind`` are written to ``table``: SQL for arrays of columns, and COPY for many new rows.

    A column is read from the attribute of its name, or from one of ``paths``, which may be dotted, or ``renamed``.
    Without any of these, the columns are the kind's fields, with those of the values in them. Values for which
    ``where`` is False have no row. ``rows_of`` returns the rows that values become; it is given where a value has
    several, and ``paths`` are columns then. A value of a JSON column is encoded when it is written.

    One of the methods that return the statement has to be called: it sets the SQL.
    """

    def __init__(
        self,
        table: Table,
        kind: type[Any],
        paths: Iterable[str] = (),
        *,
        where: Callable[[Any], bool] | None = None,
        rows_of: Callable[[Iterable[Any]], Iterable[Cells]] | None = None,
        **renamed: str,
    ) -> None:
        columns = {path.rpartition(".")[2]: path for path in (paths or _fields(table, kind))} | renamed
        read = attrgetter(*columns.values())
        self.table, self.kind, self.columns = table, kind, tuple(columns)
        self.rows_of = rows_of or partial(map, read)
        if where is not None:
            self.rows_of = lambda values: map(read, filter(where, values))
        self._codecs = tuple(codec_of(table.c[name], is_renamed=name in renamed) for name in columns)
        named = zip(columns, self._codecs, strict=True)
        arrays = [(f"%s::{codec.pg_type}[]", name) for name, codec in named]
        self._rows = ", ".join(f"unnest({array}) as {name}" for array, name in arrays)
        self._lone_row = ", ".join(f"({array})[1] as {name}" for array, name in arrays)
        self._primary = [column.name for column in table.primary_key]
        self._key: Callable[[Cells], Any] | None = None
        self.sql = self.lone_sql = ""
        self.copy_sql: str | None = None

    def statement(self, rows: Sequence[Cells]) -> Statement:
        """Return the SQL that writes these rows, and its parameters: one array for each column."""
        if self._key is not None and len(rows) > 1:
            rows = list({self._key(row): row for row in rows}.values())
        sql = self.sql if len(rows) > 1 else self.lone_sql
        return sql, array_parameters(self._codecs, zip(*rows, strict=True))

    def copy_text(self, rows: Sequence[Cells]) -> str:
        """Return the input of ``copy_sql``: one line for each row."""
        cells = map(copy_cells, self._codecs, zip(*rows, strict=True))
        return "\n".join(map("\t".join, zip(*cells, strict=True))) + "\n"

    def insert(self, on_conflict: str = "", *, once_by: Sequence[str] = ()) -> RowStatement:
        """Return the statement for new rows."""
        name, columns = self.table.name, ", ".join(self.columns)
        picks = ", ".join(map(self._cell, self.columns))
        if not on_conflict:
            self.copy_sql = f"copy {name} ({columns}) from stdin"
        return self.using(f"insert into {name} ({columns}) select {picks} from {{arrays}} {on_conflict}", once_by)

    def upsert(self, **more: str) -> RowStatement:
        """Return the statement for rows that are new or replace the one with their primary key.

        ``more`` are expressions for further columns of a row that is replaced.
        """
        changes = {name: f"excluded.{name}" for name in self.columns if name not in self._primary} | more
        replaced = ", ".join(f"{name} = {value}" for name, value in changes.items())
        on_conflict = f"on conflict ({', '.join(self._primary)}) do update set {replaced}"
        return self.insert(on_conflict, once_by=self._primary)

    def update(self, by: Sequence[str] = ()) -> RowStatement:
        """Return the statement for changes of the rows that the columns ``by`` find, else the primary key's.

        Of several changes to one row the last includes the others.
        """
        by = by or self._primary
        changes = ", ".join(f"{name} = {self._cell(name)}" for name in self.columns if name not in by)
        return self.using(f"update {self.table.name} t set {changes} from {{arrays}} where {_same(by)}", by)

    def delete(self) -> RowStatement:
        """Return the statement that deletes all rows with these values."""
        return self.using(f"delete from {self.table.name} t using {{arrays}} where {_same(self.columns)}")

    def using(self, sql: str, key: Sequence[str] = ()) -> RowStatement:
        """Set the SQL of several rows and of one, in which ``{arrays}`` stands for their table ``v``.

        Of several rows with the same ``key`` only the last is written.
        """
        self.sql, self.lone_sql = (
            sql.strip().format(arrays=f"(select {cells}) v") for cells in (self._rows, self._lone_row)
        )
        self._key = itemgetter(*map(self.columns.index, key)) if key else None
        return self

    def _cell(self, name: str) -> str:
        """Return the expression for a column of ``v``; an array in it is text."""
        return f"v.{name}::text[]" if isinstance(self.table.c[name].type, ARRAY) else f"v.{name}"


def _fields(table: Table, kind: type[Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of a kind's fields, which are columns, and of those of the values in its other fields."""
    for name, hint in get_type_hints(kind).items():
        if name in table.c:
            yield prefix + name
        else:
            assert getattr(hint, "__annotations__", None), f"{prefix}{name} is no column of {table.name}"
            yield from _fields(table, hint, f"{prefix}{name}.")


def _same(names: Sequence[str]) -> str:
    return " and ".join(f"t.{name} = v.{name}" for name in names)


def _task_events(changes: Iterable[rows.TaskChangedRow]) -> list[Cells]:
    return [
        (task.account_id, new_id("evt"), task.request_id, kind, task.updated_at, public_snapshot(task))
        for task, kinds in ((change.task, change.kinds) for change in changes)
        for kind in kinds
    ]


def _postings(operations: Iterable[Operation]) -> list[Cells]:
    return [
        (operation.account_id, operation.number, line, *posting)
        for operation in operations
        for line, posting in enumerate(operation.postings, start=1)
    ]


def _emptied_lots(operations: Iterable[Operation]) -> list[Cells]:
    return [
        (operation.account_id, number, operation.number) for operation in operations for number in operation.emptied
    ]


_RESEND = """
update outbox t set due_at = v.due_at, round_at = v.due_at, status = v.status, tries = v.tries, done_at = v.done_at,
    reason = v.reason
from {arrays}
where t.account_id = v.account_id and t.event_id = v.event_id and (v.round_at is null or t.round_at < v.round_at)
"""

_ORDER = (
    "account_id", "order_id", "version", "status", "statuses.reconcile_status", "updated_at", "wake_at", "state",
)  # fmt: skip
_NEW_ORDER = (*_ORDER, "request.provider", "request.origin", "request.created_at", "request.expires_at", "request")
_NEW_TASK = (
    *[f"task.{name}" for name in Task.__struct_fields__], "task.request.input", "task.overall_deadline_at",
    "task.request.terms.deadlines.dispatch_s", "task.request.terms.deadlines.run_s", "owner",
)  # fmt: skip
_CHANGED_TASK = (
    "task.request_id", "task.version", "task.status", "task.updated_at", "task.wake_at", "task.dispatched",
    "task.state", "owner", "input_until",
)  # fmt: skip
_USAGE = (
    "task.account_id", "task.request_id", "task.status", "task.latency_ms", "task.state.billable_units",
    "task.state.tokens_in", "task.state.tokens_out", "task.state.cost_micro", "task.state.error",
    "task.state.operation_id", "task.state.status_history",
)  # fmt: skip
_NEW_USAGE = (
    *_USAGE, "task.model", "task.request.terms.modality", "task.request.api_key_id", "task.request.end_user",
)  # fmt: skip
_COUNT = f"""
insert into usage_totals as t
    (account_id, end_user_by, span_s, start_at, model, api_key_id, status, end_user, count, cost_micro)
select v.account_id, e.end_user_by, s.span_s,
    date_bin(make_interval(secs => s.span_s), v.ts, timestamptz '1970-01-01 00:00:00+00'),
    case when e.end_user_by in ('', 'model') then v.model else '' end,
    case when e.end_user_by in ('', 'api_key_id') then coalesce(v.api_key_id, '') else '' end,
    case when e.end_user_by in ('', 'status') then v.status else '' end,
    case when e.end_user_by = '' then '' else v.end_user end,
    count(*), sum(v.cost_micro)
from {{arrays}}
cross join unnest(array{list(SPANS_S)}) s(span_s)
cross join lateral unnest(
    case when v.end_user is null then array[''] else array['', 'model', 'api_key_id', 'status'] end
) e(end_user_by)
group by 1, 2, 3, 4, 5, 6, 7, 8 order by 1, 2, 3, 4, 5, 6, 7, 8
on conflict on constraint pk_usage_totals do update
    set count = t.count + excluded.count, cost_micro = t.cost_micro + excluded.cost_micro
"""
# Each webhook that receives an event gets one with an id of its own, with the same time in it.
_FOR_WEBHOOKS = f"""
insert into outbox (account_id, event_id, request_id, kind, created_at, snapshot, due_at, round_at,
    webhook_id, receiver, url, status, attempts, tries)
select v.account_id, left(v.event_id, 16) || left(md5(v.event_id || w.webhook_id), 20), v.request_id, v.kind,
    v.created_at, v.snapshot, v.created_at, v.created_at, w.webhook_id, w.webhook_id, w.url, 'pending', 0, 0
from {{arrays}} join webhooks w on w.account_id = v.account_id
where w.enabled and w.events && array[v.kind, '{ALL_OF_TASKS}', '{ALL}']
"""

_ATTEMPT = ", ".join(_fields(tables.outbox_attempts, rows.OutboxAttemptRow))
STATEMENTS: tuple[RowStatement, ...] = (
    # New rows precede their changes. Otherwise the order is free: the tables have no foreign keys.
    RowStatement(tables.accounts, rows.AccountRow).insert(),
    RowStatement(tables.accounts, rows.AccountHead).update(),
    RowStatement(tables.accounts, rows.AccountAccessRow).update(),
    RowStatement(tables.accounts, rows.AccountEmailRow).update(),
    RowStatement(tables.accounts, rows.AccountClosingRow).update(),
    RowStatement(tables.accounts, rows.AccountKeptRow).update(),
    RowStatement(tables.accounts, rows.AccountClosedRow).update(),
    RowStatement(tables.account_changes, rows.AccountChangeRow).insert(),
    RowStatement(tables.operations, Operation, tables.operations.c.keys()).insert(),
    RowStatement(tables.postings, Operation, tables.postings.c.keys(), rows_of=_postings).insert(),
    RowStatement(
        tables.credit_lots,
        Operation,
        ("account_id", "number", "lot.kind", "lot.source", "reference", "amount_micro", "lot.expires_at"),
        where=lambda operation: operation.lot is not None,
        created_at="at",
    ).insert(),
    RowStatement(
        tables.credit_lots, Operation, ("account_id", "number", "closed_number"), rows_of=_emptied_lots
    ).update(),
    RowStatement(tables.credit_lots, rows.LotAnnouncedRow).update(),
    RowStatement(
        tables.holds,
        Operation,
        ("account_id", "hold_id", "amount_micro", "reference"),
        where=lambda operation: operation.kind is OperationKind.HOLD,
        opened_number="number",
    ).insert(),
    RowStatement(
        tables.holds,
        Operation,
        ("account_id", "hold_id"),
        where=lambda operation: operation.kind in SETTLING,
        settled_number="number",
    ).update(),
    RowStatement(tables.tasks, rows.NewTaskRow, _NEW_TASK, request="task.request.without_input").insert(),
    # Found by its id alone: with the account, the plan might read all of its tasks.
    RowStatement(tables.tasks, rows.TaskChangedRow, _CHANGED_TASK).update(["request_id"]),
    RowStatement(
        tables.tasks,
        rows.TaskChangedRow,
        ("task.request_id", "task.request.input"),
        where=attrgetter("has_new_request"),
        request="task.request.without_input",
    ).update(["request_id"]),
    RowStatement(tables.task_events, rows.TaskEventRow).insert("on conflict do nothing"),
    RowStatement(tables.orders, Order, _NEW_ORDER, where=lambda order: order.version == 1).insert(),
    RowStatement(tables.orders, Order, _ORDER, where=lambda order: order.version > 1).update(),
    RowStatement(tables.auto_top_ups, rows.AutoTopUpRow).upsert(),
    RowStatement(tables.order_payments, rows.OrderPaymentRow).insert(),
    RowStatement(
        tables.payment_events, rows.PaymentEventRow, where=lambda event: event.verdict in APPLIED_VERDICTS
    ).insert(
        "on conflict (provider, event_id) do update set account_id = excluded.account_id, "
        "order_id = excluded.order_id, verdict = excluded.verdict, received_at = excluded.received_at, "
        f"body = excluded.body where payment_events.verdict not in {APPLIED_VERDICTS} "
        # Another order's event: the table's trigger rejects it, and the unit with it.
        "or payment_events.order_id is distinct from excluded.order_id",
        once_by=["provider", "event_id", "order_id"],
    ),
    RowStatement(
        tables.payment_events, rows.PaymentEventRow, where=lambda event: event.verdict not in APPLIED_VERDICTS
    ).insert("on conflict do nothing"),
    RowStatement(tables.usage_entries, rows.NewTaskRow, _NEW_USAGE, ts="task.created_at").insert(),
    RowStatement(
        tables.usage_entries,
        rows.TaskChangedRow,
        _USAGE,
        where=attrgetter("has_new_usage"),
        ts="task.created_at",
    ).update(),
    RowStatement(tables.usage_entries, rows.UsageCountedRow).using(_COUNT),
    RowStatement(tables.assets, rows.AssetRow).insert(),
    RowStatement(tables.assets, rows.AssetsExpiryRow).update(["account_id", "request_id"]),
    RowStatement(tables.assets, rows.AssetsDeletedRow).delete(),
    RowStatement(tables.api_keys, key_rows.ApiKeyRow).insert(),
    RowStatement(tables.api_keys, key_rows.ApiKeyTermsRow).update(),
    RowStatement(tables.api_keys, key_rows.ApiKeyLimitRow).update(),
    RowStatement(tables.api_keys, key_rows.ApiKeyMoreLimitsRow).update(),
    RowStatement(tables.api_keys, key_rows.ApiKeyRevokedRow).update(),
    RowStatement(tables.api_keys, key_rows.ApiKeyUsedRow).update(),
    RowStatement(tables.key_groups, key_rows.KeyGroupRow).upsert(),
    RowStatement(tables.key_groups, key_rows.KeyGroupDeletedRow).delete(),
    RowStatement(tables.group_keys, key_rows.GroupKeyRow).upsert(),
    RowStatement(tables.group_keys, key_rows.KeyGroupDeletedRow).delete(),
    RowStatement(tables.account_limits, rows.AccountLimitRow).upsert(),
    RowStatement(tables.coupon_uses, rows.CouponGrantedRow).update(),
    RowStatement(tables.sessions, rows.SessionRow).insert(),
    RowStatement(tables.sessions, rows.SessionRevokedRow).update(),
    RowStatement(
        tables.sessions, rows.SessionsRevokedRow, ("account_id", "revoked_at"), session_id="kept_session_id"
    ).using(
        "update sessions t set revoked_at = v.revoked_at from {arrays} "
        "where t.account_id = v.account_id and t.session_id <> v.session_id and t.revoked_at is null",
    ),
    RowStatement(tables.sign_ins, rows.SignInRow).update(),
    RowStatement(tables.sign_ins, rows.SignInDeletedRow).delete(),
    RowStatement(tables.given_emails, rows.GivenEmailRow).upsert(),
    RowStatement(tables.idempotency_records, rows.IdempotencyRow).upsert(),
    RowStatement(tables.outbox, rows.OutboxRow).insert(),
    RowStatement(tables.outbox, rows.OutboxOutcomeRow).update(["account_id", "event_id", "attempts", "round_at"]),
    RowStatement(
        tables.outbox,
        rows.OutboxResendRow,
        ("account_id", "event_id", "due_at", "status", "tries", "done_at", "reason"),
        round_at="unless_since",
    ).using(_RESEND, ("account_id", "event_id")),
    # An outcome that comes after its account was moved to another cell finds no event, and leaves nothing.
    RowStatement(tables.outbox_attempts, rows.OutboxAttemptRow).using(
        f"insert into outbox_attempts ({_ATTEMPT}) select {_ATTEMPT} from {{arrays}} where exists (select from "
        "outbox o where o.account_id = v.account_id and o.event_id = v.event_id) on conflict do nothing"
    ),
    RowStatement(tables.webhook_secrets, rows.WebhookSecretRow).insert("on conflict do nothing"),
    RowStatement(tables.webhooks, event_rows.WebhookRow).upsert(
        is_silent="webhooks.is_silent or webhooks.url <> excluded.url"
    ),
    RowStatement(tables.webhooks, event_rows.WebhookDeletedRow).delete(),
    RowStatement(tables.alerts, event_rows.AlertsRow).upsert(),
)
"""Every statement of the write path, in the order a batch runs them."""

EVENTS_FOR_WEBHOOKS = RowStatement(
    tables.outbox,
    rows.TaskChangedRow,
    ("account_id", "event_id", "request_id", "kind", "created_at", "snapshot"),
    rows_of=_task_events,
).using(_FOR_WEBHOOKS)
"""The events of tasks for the webhooks of their accounts: run only if some account of the batch has webhooks."""

WRITTEN_KINDS = frozenset(statement.kind for statement in STATEMENTS)
"""The kinds of value that some statement writes."""

# What a batch sends: the rows to lock, to look up and to write.


class Preconditions(NamedTuple):
    """The rows to lock and the keys to look up before anything is written, as array literals.

    ``locks`` are the keys of the fenced rows, ``first_sign_ins`` those of sign-ins that may have no row yet,
    ``probes`` the columns of the idempotency keys.
    """

    locks: dict[FenceKind, str]
    first_sign_ins: str | None
    probes: tuple[str, ...]


class Draft(NamedTuple):
    """SQL and text of each COPY, then SQL and parameters of each statement, in the order they run."""

    copies: list[tuple[str, str]]
    statements: list[Statement]


def preconditions_of(units: Iterable[Unit]) -> Preconditions:
    """Return the rows that ``units`` need locked, and the idempotency keys whose replies decide about them."""
    keys: dict[FenceKind, dict[str, int]] = {}
    probes: dict[IdempotencyProbe, None] = {}
    for unit in units:
        for fence in unit.fences:
            keys.setdefault(fence.kind, {}).setdefault(fence.key, fence.expected)
        if unit.probe is not None:
            probes[unit.probe] = None
        if unit.unless is not None:
            probes[unit.unless.probe] = None
    sign_ins = keys.get("sign_in")
    first = [key for key, expected in sign_ins.items() if expected == 0] if sign_ins else None
    return Preconditions(
        {kind: text_array(found) for kind, found in keys.items()},
        text_array(first) if first else None,
        tuple(map(text_array, zip(*probes, strict=True))),
    )


@functools.lru_cache(maxsize=1024)
def _statements_of(kinds: frozenset[type[Any]]) -> tuple[RowStatement, ...]:
    """Return the statements that write values of these kinds. Cached: batches have few combinations of them."""
    assert kinds <= WRITTEN_KINDS, "a value of a kind without a statement"
    return tuple(statement for statement in STATEMENTS if statement.kind in kinds)


def draft_of(units: Iterable[Unit], watched: Collection[str] = ()) -> Draft:
    """Return what writes ``units``. Many or large new rows of a kind are copied, before all changes.

    ``watched`` are the tasks of accounts that have webhooks.
    """
    values: defaultdict[type[Any], list[Any]] = defaultdict(list)
    for unit in units:
        for value in unit.rows:
            values[type(value)].append(value)
    copies, statements = [], []
    for statement in _statements_of(frozenset(values)):
        rows = list(statement.rows_of(values[statement.kind]))
        if not rows:
            continue
        written = None
        if statement.copy_sql is None or len(rows) < BULK_ROWS:
            written = statement.statement(rows)
        if statement.copy_sql is not None and (written is None or sum(map(len, written[1])) >= BULK_BYTES):
            copies.append((statement.copy_sql, statement.copy_text(rows)))
        elif written is not None:
            statements.append(written)
    if watched:
        changes = [each for each in values.get(TaskChangedRow, ()) if each.task.request_id in watched]
        if events := list(EVENTS_FOR_WEBHOOKS.rows_of(changes)):
            statements.append(EVENTS_FOR_WEBHOOKS.statement(events))
    return Draft(copies, statements)
