"""An account's lots of credit, and all coupons, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from holdfast.ledger.credit.operations import LotAmounts, LotKind, LotPart, LotSource, amounts_of
from holdfast.persistence.records.tables import accounts, credit_lots
from holdfast.persistence.records.unreadable import read_row

_COLUMNS = (
    "number", "kind", "source", "reference", "amount_micro", "created_at", "expires_at", "closed_number"
)  # fmt: skip
_LOTS = select(
    *(credit_lots.c[name] for name in _COLUMNS), accounts.c.lots, accounts.c.balance_micro, accounts.c.held_micro
).join(accounts, accounts.c.id == credit_lots.c.account_id)
_NOTHING = LotAmounts(0, 0)


class LotRecord(NamedTuple):
    """A lot, and what is left of it; ``closed_number`` is the operation that used the last of it."""

    number: int
    kind: LotKind
    source: LotSource
    reference: str
    amount_micro: int
    created_at: datetime
    expires_at: datetime | None
    closed_number: int | None
    remaining_micro: int
    reserved_micro: int


_lot_of = partial(msgspec.convert, type=LotRecord)


def read_lot_amounts(account_id: str, lots: Sequence[LotPart], row: Any) -> dict[int, LotAmounts]:
    """Return the amounts of an account's open lots from its row. Raises ``UnreadableRow``."""
    totals = {"balance_micro": row.balance_micro, "held_micro": row.held_micro}
    return read_row(lambda used: amounts_of(lots, used, **totals), row.lots, "accounts.lots", account_id)


def lots_of_account(
    rows: Connection,
    account_id: str,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    before_number: int | None = None,
    kind: str | None = None,
    is_open: bool | None = None,
) -> list[LotRecord]:
    """Return up to ``limit`` lots numbered below ``before_number``, newest first.

    ``since`` is inclusive, ``until`` exclusive. A lot is open while something is left of it. Raises
    ``UnreadableRow``.
    """
    query = _LOTS.where(credit_lots.c.account_id == account_id)
    if since is not None:
        query = query.where(credit_lots.c.created_at >= since)
    if until is not None:
        query = query.where(credit_lots.c.created_at < until)
    if before_number is not None:
        query = query.where(credit_lots.c.number < before_number)
    if kind is not None:
        query = query.where(credit_lots.c.kind == kind)
    if is_open is not None:
        closed = credit_lots.c.closed_number
        query = query.where(closed.is_(None) if is_open else closed.is_not(None))
    found = rows.execute(query.order_by(credit_lots.c.number.desc()).limit(limit)).all()
    if not found:
        return []
    opened = [LotPart(row.number, row.amount_micro) for row in found if row.closed_number is None]
    amounts = read_lot_amounts(account_id, opened, found[0])
    return [
        read_row(
            _lot_of,
            (*row[: len(_COLUMNS)], *amounts.get(row.number, _NOTHING)),
            "credit_lots",
            account_id,
            columns=_COLUMNS,
        )
        for row in found
    ]
