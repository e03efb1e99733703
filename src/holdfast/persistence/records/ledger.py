"""Operations as rows: each with its postings, and with the hold that it opens or settles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.ledger.credit.operations import SETTLING, Operation, OperationKind, Posting
from holdfast.persistence.records import tables
from holdfast.persistence.records.mapping import RowMapping, attributes_of

OPERATION_COLUMNS = tuple(name for name in Operation.__struct_fields__ if name != "postings")

_KINDS: dict[str, OperationKind] = {kind.value: kind for kind in OperationKind}


def _postings(operations: Sequence[Operation]) -> list[tuple[Any, ...]]:
    return [
        (operation.account_id, operation.number, line, *posting)
        for operation in operations
        for line, posting in enumerate(operation.postings, start=1)
    ]


def _opened_holds(operations: Sequence[Operation]) -> list[tuple[Any, ...]]:
    return [
        (operation.account_id, operation.hold_id, operation.amount_micro, operation.reference, operation.number)
        for operation in operations
        if operation.kind is OperationKind.HOLD
    ]


def _settled_holds(operations: Sequence[Operation]) -> list[tuple[Any, ...]]:
    return [
        (operation.account_id, operation.hold_id, operation.number)
        for operation in operations
        if operation.kind in SETTLING
    ]


OPERATIONS = attributes_of(tables.operations, Operation, OPERATION_COLUMNS)
POSTINGS = RowMapping(
    tables.postings, Operation, ("account_id", "number", "line", "ledger_account", "amount_micro"), _postings
)
OPENED_HOLDS = RowMapping(
    tables.holds,
    Operation,
    ("account_id", "hold_id", "amount_micro", "reference", "opened_number"),
    _opened_holds,
)
SETTLED_HOLDS = RowMapping(tables.holds, Operation, ("account_id", "hold_id", "settled_number"), _settled_holds)


def operation_of(row: Any, postings: Iterable[tuple[str, int]]) -> Operation:
    """Return the operation of a row with :data:`OPERATION_COLUMNS`; a kind unknown to this release stays text."""
    columns = {name: getattr(row, name) for name in OPERATION_COLUMNS}
    columns |= {"kind": _KINDS.get(row.kind, row.kind), "chain_hash": bytes(row.chain_hash)}
    return Operation(**columns, postings=tuple(Posting(*posting) for posting in postings))
