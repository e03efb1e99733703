"""Receipts and their sums as the API shows them, and as columns of a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.listing import Position, StoredListBody, columns_of, filter_by, number_of
from holdfast.http.kit.routes import Parameter
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.schemas.common import render
from holdfast.http.schemas.payments import in_units
from holdfast.ledger.public_types import AccountId, Amount, OrderId, Time
from holdfast.ledger.receipts import Receipt, ReceiptKind
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.receipts import MonthOfReceipts
from holdfast.persistence.records.unreadable import UnreadableEntry

R = TypeVar("R", bound="ReceiptBody")

_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])", re.ASCII)
KIND: Final = filter_by("kind", "Only receipts of this kind.", get_args(ReceiptKind))
MONTH: Final = Parameter(
    "month",
    "query",
    "Only receipts of money that moved in this month of UTC, `YYYY-MM`.",
    schema={"type": "string", "pattern": f"^{_MONTH.pattern}$", "examples": ["2026-11"]},
)


class SellerBody(msgspec.Struct, frozen=True):
    """Who sold the credit."""

    name: str
    """The seller's name."""
    address: list[str]
    """The lines of the seller's address; empty if none was configured."""
    tax_id: str | None
    """The seller's number for taxes; null if none was configured."""


class BuyerBody(msgspec.Struct, frozen=True):
    """Who bought the credit."""

    email: str
    """The account's e-mail address when the receipt was issued."""


class ReceiptBody(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt for a payment, or a credit note for money that was returned. Once issued it never changes."""

    number: str
    """Its number, which is in one series of the service with all others, without gaps."""
    kind: ReceiptKind
    """`receipt` for a payment, `credit_note` for a refund or a lost dispute."""
    order_id: OrderId
    operation_id: str
    """The operation of the account's ledger that it records, `op_…`."""
    receipt_number: str | None
    """The first receipt of its order, which a credit note corrects; null on that receipt."""
    reason: str
    """The operation's reason."""
    amount: str
    """What was paid, or returned: a decimal string in units of `currency`."""
    currency: str
    """The currency of the payment, ISO 4217."""
    credit: Amount
    """The credit that was given, or taken."""
    moved_at: Time
    """When the ledger booked the money."""
    issued_at: Time
    """When it was issued."""
    seller: SellerBody
    """Who sold the credit, as it was configured then."""
    buyer: BuyerBody
    """Who bought the credit."""


class ReceiptList(StoredListBody[ReceiptBody], frozen=True):
    """A page of the account's receipts, newest first."""


class MonthBody(msgspec.Struct, frozen=True):
    """The receipts of one month in one currency."""

    month: str
    """The month in UTC in which money moved, `YYYY-MM`."""
    currency: str
    """The currency of the payments, ISO 4217."""
    receipts: int
    """How many receipts there are."""
    received: str
    """What was paid: a decimal string in units of `currency`."""
    credit_notes: int
    """How many credit notes there are."""
    returned: str
    """What was returned."""
    net: str
    """What was paid less what was returned, which may be below zero."""
    credit: Amount
    """The credit that was given less what was taken."""


class ReceiptTotals(msgspec.Struct, frozen=True):
    """Receipts by month and currency."""

    data: list[MonthBody]
    """The months with any, newest first."""


def receipt_body(receipt: Receipt) -> ReceiptBody:
    """Render a receipt."""
    return render_receipt(ReceiptBody, receipt)


def render_receipt(shape: type[R], receipt: Receipt) -> R:
    """Return a receipt as ``shape``."""
    seller = receipt.seller
    return render(
        shape,
        receipt,
        amount=in_units(receipt.amount_micro, receipt.currency),
        seller=SellerBody(seller.name, [*seller.address], seller.tax_id or None),
        buyer=BuyerBody(receipt.email),
    )


def totals_body(months: list[MonthOfReceipts]) -> ReceiptTotals:
    """Render the sums by month."""
    return ReceiptTotals(
        [
            render(
                MonthBody,
                month,
                received=in_units(month.received_micro, month.currency),
                returned=in_units(month.returned_micro, month.currency),
                net=in_units(month.received_micro - month.returned_micro, month.currency),
            )
            for month in months
        ]
    )


def position_of_receipt(receipt: Receipt) -> Position:
    """Return a receipt's position in a list of receipts; its id is its number in the series."""
    return Position(receipt.issued_at, str(receipt.sequence))


def read_page(
    read: Callable[..., list[Receipt | UnreadableEntry]],
    rows: Connection,
    *account_id: str,
    after: Position | None,
    filters: Mapping[str, str],
    **options: Any,
) -> list[Receipt | UnreadableEntry] | Refusal:
    """Read a page of receipts. Refuses with ``invalid_parameter`` and ``invalid_cursor``."""
    month, sequence = filters.get(MONTH.name), number_of(after)
    if month is not None and not _MONTH.fullmatch(month):
        return invalid_parameter(MONTH.name, "must be a month YYYY-MM", month)
    if isinstance(sequence, Refusal):
        return sequence
    position = None if after is None else (after.created_at, sequence)
    return read(rows, *account_id, after=position, filters=filters, **options)


Cell: TypeAlias = Callable[[Receipt], str | int | None]

COLUMNS: Final[Mapping[str, Cell]] = {
    **columns_of("number", "kind", "issued_at", "moved_at", "receipt_number", "order_id", "operation_id", "reason"),
    "amount": lambda receipt: in_units(receipt.amount_micro, receipt.currency),
    **columns_of("currency", "credit_micro"),
}
COLUMNS_OF_ALL: Final[Mapping[str, Cell]] = {
    **COLUMNS,
    **columns_of("account_id", "email"),
    "seller": lambda receipt: receipt.seller.name,
    "tax_id": lambda receipt: receipt.seller.tax_id,
}


class AccountReceipt(ReceiptBody, frozen=True, kw_only=True):
    """A receipt, with the account it belongs to."""

    account_id: AccountId


class AccountReceiptList(StoredListBody[AccountReceipt], frozen=True):
    """A page of all accounts' receipts, newest first."""
