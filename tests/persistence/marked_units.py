"""Units that are identified by an API key each, and checks of the rows that a batch wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg

from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.journal.units import Committed, Fence, Unit, UnitResult
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRow
from holdfast.persistence.records.rows import AccountHead, IdempotencyRow, Row
from holdfast.persistence.server.connections import connected

from .written_units import AT, BEYOND_ASCII, AccountUnits

R = TypeVar("R")


@dataclass
class MarkedUnits(AccountUnits):
    """Units that each write an API key, which identifies them."""

    marks: list[str] = field(default_factory=list)

    def mark(self) -> ApiKeyRow:
        mark = f"key_{self.account_id}_{len(self.marks)}"
        self.marks.append(mark)
        key = ApiKeyRecord(self.account_id, mark, "p", KeyTerms(BEYOND_ASCII, ("a", 'b"')), AT)
        return ApiKeyRow(key, mark.encode())

    def check(self) -> Unit:
        """Return the unit of a refusal: it only checks its fence."""
        return Unit(fences=(Fence("account", self.account_id, self.state.version),), advances=False)

    def unit(
        self, operation: Operation | Refusal | None = None, *, extra: tuple[Row, ...] = (), **more: Any
    ) -> Unit:
        return super().unit(operation, extra=(self.mark(), *extra), **more)


def opened(writer: BatchWriter, how_many: int = 1) -> list[MarkedUnits]:
    accounts = [MarkedUnits() for _ in range(how_many)]
    assert set(writer.write([account.opening() for account in accounts])) == {Committed()}
    return accounts


def marks_of(units: Sequence[Unit]) -> set[str]:
    return {row.key.key_id for row in rows_of(units, ApiKeyRow)}


def rows_of(units: Sequence[Unit], kind: type[R]) -> list[R]:
    return [row for unit in units for row in unit.rows if isinstance(row, kind)]


def committed(units: Sequence[Unit], verdicts: Sequence[UnitResult]) -> list[Unit]:
    return [unit for unit, verdict in zip(units, verdicts, strict=True) if isinstance(verdict, Committed)]


def found(rows: psycopg.Connection[Any], query: str) -> list[Any]:
    """Return the first column."""
    return [row[0] for row in rows.execute(query).fetchall()]


def assert_only_these_rows(rows: psycopg.Connection[Any], expected: Sequence[Unit]) -> None:
    """Check that the rows are those of ``expected``, and the heads their last ones."""
    assert set(found(rows, "select key_id from api_keys")) == marks_of(expected)
    operations = rows_of(expected, Operation)
    ids = {operation.operation_id for operation in operations}
    assert set(found(rows, "select operation_id from operations")) == ids
    postings = sum(len(operation.postings) for operation in operations)
    assert found(rows, "select count(*) from postings") == [postings]
    keys = {row.probe.key for row in rows_of(expected, IdempotencyRow)}
    assert set(found(rows, "select key from idempotency_records")) == keys
    heads = {head.id: head for head in rows_of(expected, AccountHead)}
    query = "select id, version, operation_count, balance_micro, held_micro, chain_head, lots from accounts"
    for row in rows.execute(query).fetchall():
        if row[1] > 0:
            assert AccountHead(*row) == heads.pop(row[0])
    assert heads == {}


def assert_sound(url: str) -> None:
    with connected(url) as connection:
        found = run_audit(connection)
    # These holds have no tasks, and their captures no usage.
    unrelated = ("task", "usage")
    assert [broken for broken in found if not any(word in broken.rule for word in unrelated)] == []
