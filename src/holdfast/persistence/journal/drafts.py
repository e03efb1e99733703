"""What a batch sends, prepared before the database is asked: the rows to lock, to look up and to write.

It is prepared on the event loop's thread, as if every unit passed its fences. The writer's thread then mostly waits
for the database, and the two threads do not compete for the interpreter lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.ledger.credit.operations import SETTLING, OperationKind
from holdfast.persistence.journal.literals import text_array
from holdfast.persistence.journal.statements import BULK_ROWS, STATEMENTS
from holdfast.persistence.journal.units import FenceKind, IdempotencyProbe, Unit
from holdfast.persistence.records.rows import AccountHead, HoldRow, HoldSettledRow, OperationRow, PostingRow


class Question(NamedTuple):
    """What has to be read before anything is written, as array literals.

    ``locks`` are the keys of the fenced rows, ``first_sign_ins`` those of sign-ins that may have no row yet,
    ``probes`` the columns of the idempotency keys.
    """

    locks: dict[FenceKind, str]
    first_sign_ins: str | None
    probes: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.locks and not self.probes


class Draft(NamedTuple):
    """SQL and text of each COPY, then SQL and parameters of each statement, in the order they run."""

    copies: list[tuple[str, str]]
    statements: list[tuple[str, list[str]]]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.copies and not self.statements


class Prepared(NamedTuple):
    """What a batch reads first, and what it writes if every unit passes."""

    question: Question
    draft: Draft


def prepare(units: Sequence[Unit]) -> Prepared | None:
    """Prepare a batch. None if some unit cannot be prepared: the writer finds out which."""
    try:
        return Prepared(question_of(units), draft_of(units))
    except Exception:
        return None


def question_of(units: Iterable[Unit]) -> Question:
    """Return the rows that ``units`` need locked, and the idempotency keys that they expect to be unused."""
    keys: dict[FenceKind, dict[str, int]] = {}
    probes: dict[IdempotencyProbe, None] = {}
    for unit in units:
        for fence in unit.fences:
            keys.setdefault(fence.kind, {}).setdefault(fence.key, fence.expected)
        if unit.probe is not None:
            probes[unit.probe] = None
    first = [key for key, expected in keys.get("sign_in", {}).items() if expected == 0]
    return Question(
        {kind: text_array(found) for kind, found in keys.items()},
        text_array(first) if first else None,
        tuple(text_array(column) for column in zip(*probes, strict=True)),
    )


def draft_of(units: Iterable[Unit]) -> Draft:
    """Return what writes ``units``. Many new rows of a kind are copied, ahead of their changes."""
    rows = rows_of(units)
    assert rows.keys() <= STATEMENTS.keys(), "a row of a kind without a statement"
    copies, statements = [], []
    for kind, statement in STATEMENTS.items():
        if kind not in rows:
            continue
        if statement.copy_sql is not None and len(rows[kind]) >= BULK_ROWS:
            copies.append((statement.copy_sql, statement.copy_text(rows[kind])))
        else:
            statements.append((statement.sql, statement.parameters(rows[kind])))
    return Draft(copies, statements)


def rows_of(units: Iterable[Unit]) -> dict[type[Any], list[Any]]:
    """Return the rows of ``units`` by kind; of each account only its newest head."""
    rows: defaultdict[type[Any], list[Any]] = defaultdict(list)
    heads: dict[str, AccountHead] = {}
    for unit in units:
        if unit.account is not None:
            heads[unit.account.id] = unit.account
        for operation in unit.operations:
            account_id, number, hold_id = operation.account_id, operation.number, operation.hold_id
            rows[OperationRow].append(
                OperationRow(
                    account_id,
                    number,
                    operation.operation_id,
                    operation.kind,
                    operation.amount_micro,
                    operation.balance_after_micro,
                    operation.held_after_micro,
                    hold_id,
                    operation.reference,
                    operation.reason,
                    operation.at,
                    operation.chain_hash,
                )
            )
            rows[PostingRow].extend(
                PostingRow(account_id, number, line, posting.ledger_account, posting.amount_micro)
                for line, posting in enumerate(operation.postings, start=1)
            )
            if hold_id is not None and operation.kind is OperationKind.HOLD:
                rows[HoldRow].append(
                    HoldRow(account_id, hold_id, operation.amount_micro, operation.reference, number)
                )
            elif hold_id is not None and operation.kind in SETTLING:
                rows[HoldSettledRow].append(HoldSettledRow(account_id, hold_id, number))
        for row in unit.rows:
            rows[type(row)].append(row)
    if heads:
        rows[AccountHead] = list(heads.values())
    return rows
