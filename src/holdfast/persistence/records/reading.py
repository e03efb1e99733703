"""Rows read back as values: the queries that select them, and the functions that decode what these return."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Text, cast

from holdfast.ledger.credit.operations import NewLot, Operation, OperationKind, Posting
from holdfast.ledger.orders.order import Order, OrderRequest, OrderState
from holdfast.ledger.orders.top_ups import AutoTopUp
from holdfast.ledger.tasks.task import StatusEntry, Task, TaskRequest, TaskState
from holdfast.persistence.records import tables
from holdfast.persistence.records.rows import AssetRow, FileRow, UsageEntry
from holdfast.persistence.records.table_base import selected
from holdfast.persistence.records.unreadable import read_row

OCCUPIES = "t.status <> 'review' and coalesce(t.state -> 'hosting' ->> 'status', 'pending') = 'pending'"
"""SQL: whether the job of a dispatched task ``t`` may still be running at its provider."""

_OPERATION_COLUMNS = tuple(tables.operations.c.keys())

OPERATION = selected(tables.operations, _OPERATION_COLUMNS)
ORDER = selected(tables.orders, tables.orders.c.keys())
TASK = selected(tables.tasks, Task.__struct_fields__)
"""Without the input, which may be large."""
TASK_WITH_INPUT = selected(tables.tasks, (*Task.__struct_fields__, "input"))
USAGE_ENTRY = selected(tables.usage_entries, UsageEntry.__struct_fields__)
ASSET = selected(tables.assets, AssetRow.__struct_fields__)
FILE = selected(tables.files, FileRow._fields)

TOP_UP_STATE = cast(tables.auto_top_ups.c.state, Text).label("top_up")

_KINDS: dict[str, OperationKind] = {kind.value: kind for kind in OperationKind}
_ORDER_REQUEST = msgspec.json.Decoder(OrderRequest)
_ORDER_STATE = msgspec.json.Decoder(OrderState)
decode_top_up = msgspec.json.Decoder(AutoTopUp).decode
"""Decodes what :data:`TOP_UP_STATE` selects."""
_OF_TASK_ALONE = Task.__struct_fields__.index("request")
"""The columns before this one are values of a task as they are."""
_TASK_REQUEST = msgspec.json.Decoder(TaskRequest)
_INPUT = msgspec.json.Decoder(dict[str, object])
_TASK_STATE = msgspec.json.Decoder(TaskState)
_HISTORY = msgspec.json.Decoder(tuple[StatusEntry, ...])


def operation_of(row: Any, postings: Iterable[tuple[str, int, int | None]], lot: NewLot | None = None) -> Operation:
    """Return the operation of a row of :data:`OPERATION`; a kind unknown to this release stays text."""
    columns = {name: getattr(row, name) for name in _OPERATION_COLUMNS}
    columns |= {"kind": _KINDS.get(row.kind, row.kind), "chain_hash": bytes(row.chain_hash)}
    return Operation(**columns, postings=tuple(Posting(*posting) for posting in postings), lot=lot)


def order_of(row: Any) -> Order:
    """Return the order of a row of :data:`ORDER`."""
    return Order(
        version=row.version,
        updated_at=row.updated_at,
        wake_at=row.wake_at,
        request=_ORDER_REQUEST.decode(row.request),
        state=_ORDER_STATE.decode(row.state),
    )


def top_up_of(state: str, account_id: str) -> AutoTopUp:
    """Return an account's automatic top-up, whose :data:`TOP_UP_STATE` is ``state``. Raises ``UnreadableRow``."""
    return read_row(decode_top_up, state, "auto_top_ups.state", account_id)


def task_of(row: Any) -> Task:
    """Return the task of a row of :data:`TASK` or :data:`TASK_WITH_INPUT`."""
    request = _TASK_REQUEST.decode(row.request)
    if "input" in row._fields:
        request = msgspec.structs.replace(request, input=_INPUT.decode(row.input))
    columns = (*row[:_OF_TASK_ALONE], request, _TASK_STATE.decode(row.state))
    return Task(*columns)


def usage_entry_of(row: Any) -> UsageEntry:
    """Return the usage entry of a row of :data:`USAGE_ENTRY`."""
    columns = row._asdict()
    columns["status_history"] = _HISTORY.decode(columns["status_history"])
    return UsageEntry(**columns)
