"""Receipts as they were issued: one by its number, pages of an account's or of all, and their sums by month."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Unpack

import msgspec
from sqlalchemy import Connection, text

from holdfast.ledger.receipts import Receipt, ReceiptSeller
from holdfast.persistence.queries.paging import AccountPageOptions, PageOptions, page, page_of_account
from holdfast.persistence.records.table_base import selected
from holdfast.persistence.records.tables import receipts
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows

_RECEIPT: Final = selected(receipts, Receipt.__struct_fields__)
_ORDERING: Final = (receipts.c.issued_at, receipts.c.sequence)
_SELLER: Final = msgspec.json.Decoder(ReceiptSeller)
_BY_MONTH: Final = """
    select month, currency,
           count(*) filter (where kind = 'receipt') as receipts,
           coalesce(sum(amount_micro) filter (where kind = 'receipt'), 0)::bigint as received_micro,
           count(*) filter (where kind = 'credit_note') as credit_notes,
           coalesce(sum(amount_micro) filter (where kind = 'credit_note'), 0)::bigint as returned_micro,
           sum(case kind when 'receipt' then credit_micro else -credit_micro end)::bigint as credit_micro
    from receipts {where} group by month, currency order by month desc, currency
"""
_BY_MONTH_OF_ACCOUNT = text(_BY_MONTH.format(where="where account_id = :account_id"))
_BY_MONTH_OF_ALL = text(_BY_MONTH.format(where=""))


class MonthOfReceipts(NamedTuple):
    """The sums of one month (``YYYY-MM``, UTC, by when money moved) in one currency.

    ``credit_micro`` is the credit given less that taken.
    """

    month: str
    currency: str
    receipts: int
    received_micro: int
    credit_notes: int
    returned_micro: int
    credit_micro: int


def receipt_of_account(rows: Connection, account_id: str, number: str) -> Receipt | None:
    """Return the account's receipt with this number; None for another account's and for an unknown number."""
    query = _RECEIPT.where(receipts.c.number == number, receipts.c.account_id == account_id)
    found = rows.execute(query).one_or_none()
    return None if found is None else _receipt_of(found)


def receipts_of_account(
    rows: Connection, account_id: str, **options: Unpack[AccountPageOptions]
) -> list[Receipt | UnreadableEntry]:
    """Return a page of the account's receipts, the newest first by (issued_at, sequence)."""
    return _listed(page_of_account(rows, _RECEIPT, _ORDERING, account_id, **options))


def receipts_of_all(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[Receipt | UnreadableEntry]:
    """Return a page of all accounts' receipts, the newest first. ``filters`` are exact matches by column name."""
    matches = [receipts.c[name] == value for name, value in filters.items()]
    return _listed(page(rows, _RECEIPT.where(*matches), _ORDERING, **options))


def sum_receipts(rows: Connection, account_id: str | None = None) -> list[MonthOfReceipts]:
    """Return the sums of an account's receipts, or of all, by month and currency, the newest month first."""
    if account_id is None:
        return [MonthOfReceipts._make(row) for row in rows.execute(_BY_MONTH_OF_ALL)]
    return [MonthOfReceipts._make(row) for row in rows.execute(_BY_MONTH_OF_ACCOUNT, {"account_id": account_id})]


def _listed(found: Iterable[Any]) -> list[Receipt | UnreadableEntry]:
    return read_rows(_receipt_of, found, "receipts", lambda row: (row.issued_at, str(row.sequence)))


def _receipt_of(row: Any) -> Receipt:
    columns = row._asdict()
    return Receipt(**{**columns, "seller": _SELLER.decode(columns["seller"])})
