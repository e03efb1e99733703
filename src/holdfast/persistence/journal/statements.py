"""The statements that write many rows of a kind at once.

A batch of rows becomes one array for each column and one ``INSERT … SELECT FROM unnest(…)`` or
``UPDATE … FROM unnest(…)`` for all of them: one statement for each kind, not for each row. Where a batch has many
new rows of a kind, or large ones, COPY replaces the statement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias, get_type_hints

import msgspec
from sqlalchemy import Table
from sqlalchemy.dialects.postgresql import ARRAY

from holdfast.ledger.alerts.account_events import ALL, ALL_OF_TASKS
from holdfast.ledger.credit.operations import SETTLING, Operation, OperationKind
from holdfast.ledger.ids import new_id
from holdfast.ledger.orders.order import Order
from holdfast.ledger.tasks.events import public_snapshot
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.tasks.usage_totals import SPANS_S
from holdfast.persistence.journal.literals import ColumnCodec, array_literals, codec_of, copy_cells, text_array
from holdfast.persistence.journal.units import FenceKind, Unit
from holdfast.persistence.records import event_rows, rows, tables
from holdfast.persistence.records.rows import APPLIED_VERDICTS, IdempotencyProbe, TaskChangedRow

BULK_ROWS = 64
"""From this number of new rows of a kind, one COPY is cheaper than a statement in the pipeline."""

BULK_BYTES = 16 * 1024 * 1024
"""From this size too. The driver moves the unsent rest of a statement with every send, so its time grows with the
square of its size, and is twice that of COPY, which is sent in parts, at 64 MiB. Below, COPY costs more."""

Cells: TypeAlias = tuple[Any, ...]
"""A row: the value of each column."""


class RowStatement(msgspec.Struct, frozen=True, kw_only=True):
    """How values of one kind are written: SQL for arrays of columns, and COPY for many new rows.

    ``rows_of`` returns the rows that values become; a value of a JSON column is encoded when it is written. Of
    several changes to one row, which ``key`` finds, only the last is written: it includes the others.
    """

    kind: type[Any]
    table: Table
    columns: tuple[str, ...]
    rows_of: Callable[[Sequence[Any]], Sequence[Cells]]
    codecs: tuple[ColumnCodec, ...]
    sql: str
    key: Callable[[Cells], Any] | None = None
    copy_sql: str | None = None

    def parameters(self, rows: Sequence[Cells]) -> list[str]:
        """Return one array literal for each column."""
        if self.key is not None and len(rows) > 1:
            rows = list({self.key(row): row for row in rows}.values())
        return array_literals(self.codecs, zip(*rows, strict=True))

    def copy_text(self, rows: Sequence[Cells]) -> str:
        """Return the input of ``copy_sql``: one line for each row."""
        cells = [
            copy_cells(codec, column) for codec, column in zip(self.codecs, zip(*rows, strict=True), strict=True)
        ]
        return "\n".join(map("\t".join, zip(*cells, strict=True))) + "\n"


class _Source:
    """The rows of ``table`` that values of ``kind`` become, and the table ``v`` that the arrays of a batch make.

    A column is read from the attribute of its name, or from one of ``paths``, which may be dotted, or ``renamed``.
    Without any of these, the columns are the kind's fields, with those of the values in them. Values for which
    ``where`` is False have no row. ``rows_of`` is given where a value has several rows; ``paths`` are then columns.
    """

    def __init__(
        self,
        table: Table,
        kind: type[Any],
        paths: Iterable[str] = (),
        *,
        where: Callable[[Any], bool] | None = None,
        rows_of: Callable[[Sequence[Any]], Sequence[Cells]] | None = None,
        **renamed: str,
    ) -> None:
        columns = {path.rpartition(".")[2]: path for path in (paths or _fields(table, kind))} | renamed
        self.table, self.kind, self.columns = table, kind, tuple(columns)
        self.rows_of = rows_of or _reader(attrgetter(*columns.values()), where)
        self.codecs = tuple(codec_of(table.c[name]) for name in columns)
        casts = ", ".join(f"%s::{codec.pg_type}[]" for codec in self.codecs)
        self.arrays = f"unnest({casts}) as v({', '.join(columns)})"

    def insert(self, on_conflict: str = "", *, once_by: Sequence[str] = ()) -> RowStatement:
        """Return the statement for new rows."""
        name, columns = self.table.name, ", ".join(self.columns)
        picks = ", ".join(map(self._cell, self.columns))
        sql = f"insert into {name} ({columns}) select {picks} from {self.arrays} {on_conflict}".strip()
        return self._statement(sql, once_by, None if on_conflict else f"copy {name} ({columns}) from stdin")

    def upsert(self, **more: str) -> RowStatement:
        """Return the statement for rows that are new or replace the one with their primary key.

        ``more`` are expressions for further columns of a row that is replaced.
        """
        by = [column.name for column in self.table.primary_key]
        changes = {name: f"excluded.{name}" for name in self.columns if name not in by} | more
        replaced = ", ".join(f"{name} = {value}" for name, value in changes.items())
        return self.insert(f"on conflict ({', '.join(by)}) do update set {replaced}", once_by=by)

    def update(self, by: Sequence[str] = ()) -> RowStatement:
        """Return the statement for changes of the rows that the columns ``by`` find, else the primary key's."""
        by = by or [column.name for column in self.table.primary_key]
        changes = ", ".join(f"{name} = {self._cell(name)}" for name in self.columns if name not in by)
        return self._statement(f"update {self.table.name} t set {changes} from {self.arrays} where {_same(by)}", by)

    def count(self) -> RowStatement:
        """Return the statement that adds usage to its totals."""
        return self._statement(_COUNT.format(arrays=self.arrays))

    def delete(self) -> RowStatement:
        """Return the statement that deletes all rows with these values."""
        return self._statement(f"delete from {self.table.name} t using {self.arrays} where {_same(self.columns)}")

    def _cell(self, name: str) -> str:
        """Return the expression for a column of ``v``; an array in it is text."""
        return f"v.{name}::text[]" if isinstance(self.table.c[name].type, ARRAY) else f"v.{name}"

    def insert_for_webhooks(self) -> RowStatement:
        """Return the statement that inserts these events once for each webhook of the account that receives them.

        Each gets an id of its own, with the same time in it.
        """
        columns = ", ".join(self.columns)
        own_id = "left(v.event_id, 16) || left(md5(v.event_id || w.webhook_id), 20)"
        picks = ", ".join(own_id if each == "event_id" else f"v.{each}" for each in self.columns)
        return self._statement(
            f"insert into {self.table.name} ({columns}, due_at, round_at, webhook_id, receiver, url, "
            "status, attempts, tries) "
            f"select {picks}, v.created_at, v.created_at, w.webhook_id, w.webhook_id, w.url, 'pending', 0, 0 "
            f"from {self.arrays} join webhooks w on w.account_id = v.account_id "
            f"where w.enabled and w.events && array[v.kind, '{ALL_OF_TASKS}', '{ALL}']"
        )

    def _statement(self, sql: str, key: Sequence[str] = (), copy_sql: str | None = None) -> RowStatement:
        return RowStatement(
            kind=self.kind,
            table=self.table,
            columns=self.columns,
            rows_of=self.rows_of,
            codecs=self.codecs,
            sql=sql,
            key=itemgetter(*(self.columns.index(name) for name in key)) if key else None,
            copy_sql=copy_sql,
        )


def _fields(table: Table, kind: type[Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of a kind's fields, which are columns, and of those of the values in its other fields."""
    for name, hint in get_type_hints(kind).items():
        if name in table.c:
            yield prefix + name
        else:
            assert getattr(hint, "__annotations__", None), f"{prefix}{name} is no column of {table.name}"
            yield from _fields(table, hint, f"{prefix}{name}.")


def _reader(
    read: Callable[[Any], Cells], where: Callable[[Any], bool] | None
) -> Callable[[Sequence[Any]], Sequence[Cells]]:
    if where is None:
        return lambda values: list(map(read, values))
    return lambda values: list(map(read, filter(where, values)))


def _same(names: Sequence[str]) -> str:
    return " and ".join(f"t.{name} = v.{name}" for name in names)


def _task_events(changes: Sequence[rows.TaskChangedRow]) -> list[Cells]:
    return [
        (task.account_id, new_id("evt"), task.request_id, kind, task.updated_at, public_snapshot(task))
        for task, kinds in ((change.task, change.kinds) for change in changes)
        for kind in kinds
    ]


def _postings(operations: Sequence[Operation]) -> list[Cells]:
    return [
        (operation.account_id, operation.number, line, *posting)
        for operation in operations
        for line, posting in enumerate(operation.postings, start=1)
    ]


def _emptied_lots(operations: Sequence[Operation]) -> list[Cells]:
    return [
        (operation.account_id, number, operation.number) for operation in operations for number in operation.emptied
    ]


_ORDER = (
    "account_id", "order_id", "version", "status", "statuses.reconcile_status", "updated_at", "wake_at", "state",
)  # fmt: skip
_NEW_ORDER = (*_ORDER, "request.provider", "request.origin", "request.created_at", "request.expires_at", "request")
_NEW_TASK = (
    *Task.__struct_fields__, "request.input", "overall_deadline_at", "request.terms.deadlines.dispatch_s",
    "request.terms.deadlines.run_s",
)  # fmt: skip
_CHANGED_TASK = (
    "task.request_id", "task.version", "task.status", "task.updated_at", "task.wake_at", "task.dispatched",
    "task.state", "owner", "input_until",
)  # fmt: skip
_USAGE = (
    "account_id", "request_id", "status", "latency_ms", "state.billable_units", "state.tokens_in",
    "state.tokens_out", "state.cost_micro", "state.error", "state.operation_id", "state.status_history",
)  # fmt: skip
_NEW_USAGE = (*_USAGE, "model", "request.terms.modality", "request.api_key_id", "request.end_user")
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

STATEMENTS: tuple[RowStatement, ...] = (
    # New rows precede their changes. Otherwise the order is free: the tables have no foreign keys.
    _Source(tables.accounts, rows.AccountRow).insert(),
    _Source(tables.accounts, rows.AccountHead).update(),
    _Source(tables.accounts, rows.AccountAccessRow).update(),
    _Source(tables.operations, Operation, tables.operations.c.keys()).insert(),
    _Source(
        tables.postings,
        Operation,
        ("account_id", "number", "line", "ledger_account", "amount_micro", "lot"),
        rows_of=_postings,
    ).insert(),
    _Source(
        tables.credit_lots,
        Operation,
        ("account_id", "number", "lot.kind", "lot.source", "reference", "amount_micro", "lot.expires_at"),
        where=lambda operation: operation.lot is not None,
        created_at="at",
    ).insert(),
    _Source(
        tables.credit_lots,
        Operation,
        ("account_id", "number", "closed_number"),
        rows_of=_emptied_lots,
    ).update(),
    _Source(tables.credit_lots, rows.LotAnnouncedRow).update(),
    _Source(
        tables.holds,
        Operation,
        ("account_id", "hold_id", "amount_micro", "reference"),
        where=lambda operation: operation.kind is OperationKind.HOLD,
        opened_number="number",
    ).insert(),
    _Source(
        tables.holds,
        Operation,
        ("account_id", "hold_id"),
        where=lambda operation: operation.kind in SETTLING,
        settled_number="number",
    ).update(),
    _Source(tables.tasks, Task, _NEW_TASK, request="request.without_input").insert(),
    # Found by its id alone: with the account, the plan might read all of its tasks.
    _Source(tables.tasks, rows.TaskChangedRow, _CHANGED_TASK).update(["request_id"]),
    _Source(
        tables.tasks,
        rows.TaskChangedRow,
        ("task.request_id", "task.request.input"),
        where=attrgetter("has_new_request"),
        request="task.request.without_input",
    ).update(["request_id"]),
    _Source(tables.task_events, rows.TaskEventRow).insert("on conflict do nothing"),
    _Source(tables.orders, Order, _NEW_ORDER, where=lambda order: order.version == 1).insert(),
    _Source(tables.orders, Order, _ORDER, where=lambda order: order.version > 1).update(),
    _Source(tables.auto_top_ups, rows.AutoTopUpRow).upsert(),
    _Source(tables.order_payments, rows.OrderPaymentRow).insert(),
    _Source(
        tables.payment_events, rows.PaymentEventRow, where=lambda event: event.verdict in APPLIED_VERDICTS
    ).insert(
        "on conflict (provider, event_id) do update set account_id = excluded.account_id, "
        "order_id = excluded.order_id, verdict = excluded.verdict, received_at = excluded.received_at, "
        f"body = excluded.body where payment_events.verdict not in {APPLIED_VERDICTS} "
        # Another order's event: the table's trigger rejects it, and the unit with it.
        "or payment_events.order_id is distinct from excluded.order_id",
        once_by=["provider", "event_id", "order_id"],
    ),
    _Source(
        tables.payment_events, rows.PaymentEventRow, where=lambda event: event.verdict not in APPLIED_VERDICTS
    ).insert("on conflict do nothing"),
    _Source(tables.usage_entries, Task, _NEW_USAGE, ts="created_at").insert(),
    _Source(
        tables.usage_entries,
        rows.TaskChangedRow,
        [f"task.{path}" for path in _USAGE],
        where=attrgetter("has_new_usage"),
        ts="task.created_at",
    ).update(),
    _Source(tables.usage_entries, rows.UsageCountedRow).count(),
    _Source(tables.assets, rows.AssetRow).insert(),
    _Source(tables.assets, rows.AssetsExpiryRow).update(["account_id", "request_id"]),
    _Source(tables.assets, rows.AssetsDeletedRow).delete(),
    _Source(tables.api_keys, rows.ApiKeyRow).insert(),
    _Source(tables.api_keys, rows.ApiKeyTermsRow).update(),
    _Source(tables.api_keys, rows.ApiKeyLimitRow).update(),
    _Source(tables.api_keys, rows.ApiKeyRevokedRow).update(),
    _Source(tables.api_keys, rows.ApiKeyUsedRow).update(),
    _Source(tables.account_limits, rows.AccountLimitRow).upsert(),
    _Source(tables.coupon_uses, rows.CouponGrantedRow).update(),
    _Source(tables.sessions, rows.SessionRow).insert(),
    _Source(tables.sessions, rows.SessionRevokedRow).update(),
    _Source(tables.sign_ins, rows.SignInRow).update(),
    _Source(tables.idempotency_records, rows.IdempotencyRow).upsert(),
    # A task's own webhook_url has the account's turn.
    _Source(tables.outbox, rows.OutboxRow, receiver="account_id").insert(),
    _Source(tables.outbox, event_rows.AccountEventRow).insert(),
    _Source(tables.outbox, rows.OutboxOutcomeRow).update(["account_id", "event_id", "attempts", "round_at"]),
    _Source(tables.outbox, rows.OutboxResendRow).update(),
    _Source(tables.outbox_attempts, rows.OutboxAttemptRow).insert("on conflict do nothing"),
    _Source(tables.webhook_secrets, rows.WebhookSecretRow).insert("on conflict do nothing"),
    _Source(tables.webhooks, event_rows.WebhookRow).upsert(
        is_silent="webhooks.is_silent or webhooks.url <> excluded.url"
    ),
    _Source(tables.webhooks, event_rows.WebhookDeletedRow).delete(),
    _Source(tables.alerts, event_rows.AlertsRow).upsert(),
)
"""Every statement of the write path, in the order a batch runs them."""

EVENTS_FOR_WEBHOOKS = _Source(
    tables.outbox,
    rows.TaskChangedRow,
    ("account_id", "event_id", "request_id", "kind", "created_at", "snapshot"),
    rows_of=_task_events,
).insert_for_webhooks()
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

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to lock or look up."""
        return not self.locks and not self.probes


class Draft(NamedTuple):
    """SQL and text of each COPY, then SQL and parameters of each statement, in the order they run."""

    copies: list[tuple[str, str]]
    statements: list[tuple[str, list[str]]]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.copies and not self.statements


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
    first = [key for key, expected in keys.get("sign_in", {}).items() if expected == 0]
    return Preconditions(
        {kind: text_array(found) for kind, found in keys.items()},
        text_array(first) if first else None,
        tuple(text_array(column) for column in zip(*probes, strict=True)),
    )


def draft_of(units: Iterable[Unit], watched: Collection[str] = ()) -> Draft:
    """Return what writes ``units``. Many or large new rows of a kind are copied, before all changes.

    ``watched`` are the tasks of accounts that have webhooks.
    """
    values: defaultdict[type[Any], list[Any]] = defaultdict(list)
    for unit in units:
        for value in unit.rows:
            values[type(value)].append(value)
    assert values.keys() <= WRITTEN_KINDS, "a value of a kind without a statement"
    copies, statements = [], []
    for statement in STATEMENTS:
        found = values.get(statement.kind)
        rows = statement.rows_of(found) if found else ()
        if not rows:
            continue
        parameters = None
        if statement.copy_sql is None or len(rows) < BULK_ROWS:
            parameters = statement.parameters(rows)
        if statement.copy_sql is not None and (parameters is None or sum(map(len, parameters)) >= BULK_BYTES):
            copies.append((statement.copy_sql, statement.copy_text(rows)))
        elif parameters is not None:
            statements.append((statement.sql, parameters))
    if watched:
        changes = [each for each in values.get(TaskChangedRow, ()) if each.task.request_id in watched]
        if events := EVENTS_FOR_WEBHOOKS.rows_of(changes):
            statements.append((EVENTS_FOR_WEBHOOKS.sql, EVENTS_FOR_WEBHOOKS.parameters(events)))
    return Draft(copies, statements)
