"""Money in the ledger that has no receipt, and the receipts that are issued for it.

Operations are looked for in the order of their times, from a position on. Recent ones may be committed after others
that come later, so they are looked for again until they are settled. The number of the last receipt is the fence:
what was decided on it is stored by one statement, or not at all if another process has issued any since. So a
process that was frozen while it decided adds nothing, and holds no lock in the meantime.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import Connection, select, text, tuple_

from holdfast.ledger.orders.order import Order
from holdfast.ledger.receipts import FirstReceipt, MoneyOperation, Receipt
from holdfast.persistence.records.reading import ORDER, order_of
from holdfast.persistence.records.tables import orders, receipt_series, receipts
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows

_PAGE = text(
    """
    select o.at, o.account_id, o.number, r.order_id, exists (
        select from receipts d where d.operation_id = o.operation_id) as has_receipt
    from (
        select at, account_id, number, operation_id, reference from operations o
        where kind in ('credit', 'reversal') and starts_with(reference, 'ord_')
          and (at, account_id, number) > (:at, :account_id, :number)
          and (at < :settled_at or exists (
              select from orders r
              where (r.account_id, r.order_id, r.provider) = (o.account_id, o.reference, 'cardprovider')
          ) and not exists (select from receipts d where d.operation_id = o.operation_id))
        order by at, account_id, number limit :most
    ) o left join orders r
        on (r.account_id, r.order_id, r.provider) = (o.account_id, o.reference, 'cardprovider')
    order by o.at, o.account_id, o.number
    """
)
_WITHOUT = text(
    """
    select account_id, number, operation_id, kind, amount_micro, reference, reason, at from operations o
    where operation_id = any(:ids) and kind in ('credit', 'reversal')
      and not exists (select from receipts d where d.operation_id = o.operation_id)
    """
)
# An account that was closed has no address any more: later credit notes are made out to that of its receipts.
_EMAILS = text(
    """
    select id, coalesce(case when closed_at is not null then (
        select email from receipts r where r.account_id = a.id order by issued_at desc, sequence desc limit 1
    ) end, email) as email
    from accounts a where id = any(:ids)
    """
)
_STORE = text(
    """
    with fenced as (
        update receipt_series set last_number = last_number + :count
        where id = 1 and last_number = :last_number returning id
    )
    insert into receipts select r.*
    from fenced cross join json_populate_recordset(cast(null as receipts), cast(:receipts as json)) r
    """
)


class LedgerPosition(NamedTuple):
    """The position of an operation in the ledger, by its time."""

    at: datetime
    account_id: str = ""
    number: int = 0


BEGINNING: Final = LedgerPosition(datetime.min.replace(tzinfo=UTC))


class DueReceipts(NamedTuple):
    """Operations without receipts, in each order all before the last of them, and what their receipts need.

    ``last_number`` was read first. Orders that cannot be decoded are left out. ``next_after`` is where the next
    page starts, which is no later than what is settled; None if this was the last one.
    """

    last_number: int
    operations: Sequence[MoneyOperation]
    orders: Mapping[str, Order]
    firsts: Mapping[str, FirstReceipt]
    emails: Mapping[str, str]
    next_after: LedgerPosition | None


def read_due(rows: Connection, after: LedgerPosition, *, settled_at: datetime, most: int) -> DueReceipts:
    """Read up to ``most`` operations that follow a position, and return those that have no receipt.

    With them are earlier ones of their orders, which are in no later page. What was decided before ``settled_at``
    is committed. Of later operations one may be missing that comes before others of its account, so a page has only
    those of them that wait for a receipt, and the next begins there again.
    """
    last_number = rows.execute(select(receipt_series.c.last_number)).scalar_one()
    page = rows.execute(_PAGE, {**after._asdict(), "settled_at": settled_at, "most": most}).all()
    last = page[-1] if len(page) == most else None
    settled = LedgerPosition(settled_at)
    next_after = None if last is None else min(LedgerPosition(last.at, last.account_id, last.number), settled)
    # Rows are read later than the page, so they may have more operations. Those are left to their own pages: other
    # orders of the account may have some that come first.
    wanted = {
        (row.account_id, row.order_id): row.number
        for row in sorted(page, key=lambda row: row.number)
        if row.order_id is not None and not row.has_receipt
    }
    if not wanted:
        return DueReceipts(last_number, (), {}, {}, {}, next_after)
    found = read_rows(
        order_of,
        rows.execute(ORDER.where(tuple_(orders.c.account_id, orders.c.order_id).in_([*wanted]))).all(),
        "orders",
        lambda row: (row.created_at, row.order_id),
    )
    known = {each.order_id: each for each in found if not isinstance(each, UnreadableEntry)}
    ids = [operation_id for order in known.values() for operation_id in order.ledger_operation_refs]
    without = [MoneyOperation._make(row) for row in rows.execute(_WITHOUT, {"ids": ids})]
    emails = _emails(rows, {account_id for account_id, _ in wanted})
    # In a ledger that breaks no rule these are all of them.
    owned = [
        each
        for each in without
        if each.number <= wanted.get((each.account_id, each.order_id), 0) and each.account_id in emails
    ]
    return DueReceipts(last_number, owned, known, _firsts(rows, wanted), emails, next_after)


def store_receipts(rows: Connection, issued: Sequence[Receipt]) -> bool:
    """Store new receipts; return whether the first follows the last one stored. Otherwise nothing is stored."""
    parameters = {
        "count": len(issued),
        "last_number": issued[0].sequence - 1,
        "receipts": msgspec.json.encode(issued).decode(),
    }
    return bool(rows.execute(_STORE, parameters).rowcount)


def _firsts(rows: Connection, wanted: Collection[tuple[str, str]]) -> dict[str, FirstReceipt]:
    columns = [receipts.c.order_id, *(receipts.c[name] for name in FirstReceipt._fields)]
    query = select(*columns).where(
        tuple_(receipts.c.account_id, receipts.c.order_id).in_([*wanted]), receipts.c.receipt_number.is_(None)
    )
    return {order_id: FirstReceipt(*first) for order_id, *first in rows.execute(query)}


def _emails(rows: Connection, wanted: set[str]) -> dict[str, str]:
    return {row.id: row.email for row in rows.execute(_EMAILS, {"ids": [*wanted]})}
