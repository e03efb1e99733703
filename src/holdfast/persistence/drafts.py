"""What a batch sends, made ready before the database is asked: whom to lock, what to look up, what to write.

It is made on the event loop's thread, as if every unit fitted. The writer's thread then has little to do in the
interpreter but wait for the database, and the two do not stand in each other's way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.ledger.operations import SETTLING, OperationKind
from holdfast.persistence.literals import text_array
from holdfast.persistence.rows import AccountHead, HoldRow, HoldSettledRow, OperationRow, PostingRow
from holdfast.persistence.statements import BULK_ROWS, STATEMENTS
from holdfast.persistence.units import FenceKind, IdempotencyProbe, Unit


class Question(NamedTuple):
    """What has to be known before anything is written, as array literals.

    ``locks`` are the keys of the fenced rows, ``first_sign_ins`` those of sign-ins that may have no row yet,
    ``probes`` the columns of the idempotency keys.
    """

    locks: dict[FenceKind, str]
    first_sign_ins: str | None
    probes: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """There is nothing to ask."""
        return not self.locks and not self.probes


class Draft(NamedTuple):
    """SQL and text of each COPY, then SQL and parameters of each statement, in the order they run."""

    copies: list[tuple[str, str]]
    statements: list[tuple[str, list[str]]]

    @property
    def is_empty(self) -> bool:
        """Nothing is to be written."""
        return not self.copies and not self.statements


class Prepared(NamedTuple):
    """A batch's question, and what is written if the answer lets every unit pass."""

    question: Question
    draft: Draft


def prepare(units: Sequence[Unit]) -> Prepared | None:
    """Make a batch ready. None where some unit cannot be: the writer finds out which."""
    try:
        return Prepared(question_of(units), draft_of(units))
    except Exception:
        return None


def question_of(units: Iterable[Unit]) -> Question:
    """Whom ``units`` need locked, and which idempotency keys they believe unused."""
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
    """What writes ``units``. Many new rows of a kind go in by COPY, ahead of whatever changes them."""
    rows = rows_of(units)
    assert rows.keys() <= STATEMENTS.keys(), "a row of a kind that nothing writes"
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
    """The rows of ``units`` by kind; of each account only its newest head."""
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
