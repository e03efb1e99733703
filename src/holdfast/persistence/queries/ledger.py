"""An account's statement: its operations with their postings, newest first."""

from __future__ import annotations

from datetime import datetime
from itertools import groupby

from sqlalchemy import Connection, select

from holdfast.ledger.credit.operations import Operation
from holdfast.persistence.queries.operation_numbers import numbers_between
from holdfast.persistence.records.reading import OPERATION, operation_of
from holdfast.persistence.records.tables import operations, postings


def statement_of_account(
    rows: Connection,
    account_id: str,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    before_number: int | None = None,
    kind: str | None = None,
) -> list[Operation]:
    """Return up to ``limit`` operations numbered below ``before_number``, newest first.

    ``since`` is inclusive, ``until`` exclusive.
    """
    query = OPERATION.where(operations.c.account_id == account_id)
    if since is not None or until is not None:
        above, up_to = numbers_between(rows, account_id, since, until)
        query = query.where(operations.c.number > above, operations.c.number <= up_to)
    if since is not None:
        query = query.where(operations.c.at >= since)
    if until is not None:
        query = query.where(operations.c.at < until)
    if before_number is not None:
        query = query.where(operations.c.number < before_number)
    if kind is not None:
        query = query.where(operations.c.kind == kind)
    found = rows.execute(query.order_by(operations.c.number.desc()).limit(limit)).all()
    found_postings = _postings(rows, account_id, [row.number for row in found])
    return [operation_of(row, found_postings.get(row.number, ())) for row in found]


def _postings(rows: Connection, account_id: str, numbers: list[int]) -> dict[int, tuple[tuple[str, int], ...]]:
    """Return the postings of these operations by number, in posting order."""
    if not numbers:
        return {}
    found = rows.execute(
        select(postings.c.number, postings.c.ledger_account, postings.c.amount_micro)
        .where(postings.c.account_id == account_id, postings.c.number.in_(numbers))
        .order_by(postings.c.number, postings.c.line)
    )
    return {
        number: tuple((posting.ledger_account, posting.amount_micro) for posting in group)
        for number, group in groupby(found, key=lambda posting: int(posting.number))
    }
