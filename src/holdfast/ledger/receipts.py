"""Receipts: a numbered record of each payment, and a credit note of each refund and dispute.

The ledger decides what there is to record: each operation that moves money for a card order is recorded once, a
credit by a receipt and a reversal by a credit note. So the sum of receipts less that of credit notes is the money
that the books have received, and a dispute that was won, or a refund that failed, gets a receipt again. Numbers run
from 1 without gaps, in one series for both kinds. What was issued never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

import msgspec

from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.targets import received_micro

ReceiptKind = Literal["receipt", "credit_note"]

NUMBER_DIGITS: Final = 6
"""A number has at least so many digits after its prefix."""


class ReceiptSeller(msgspec.Struct, frozen=True):
    """Who sold the credit, as receipts state it. ``tax_id`` may be empty, and the lines of the address none."""

    name: str
    address: tuple[str, ...] = ()
    tax_id: str = ""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt or a credit note as it was issued.

    ``number`` is a prefix and ``sequence``. ``receipt_number`` is the first receipt of its order, which
    has None. ``credit_micro`` is what the operation gave or took, above zero; ``amount_micro`` what was paid
    or returned for that in ``currency``. ``moved_at`` is the operation's time, and ``month`` its month in UTC.
    """

    sequence: int
    number: str
    kind: ReceiptKind
    account_id: str
    email: str
    order_id: str
    operation_id: str
    operation_number: int
    receipt_number: str | None
    reason: str
    credit_micro: int
    amount_micro: int
    currency: str
    moved_at: datetime
    month: str
    issued_at: datetime
    seller: ReceiptSeller


class MoneyOperation(NamedTuple):
    """An operation that moved money for an order. ``amount_micro`` is above zero for both kinds."""

    account_id: str
    number: int
    operation_id: str
    kind: Literal["credit", "reversal"]
    amount_micro: int
    order_id: str
    reason: str
    at: datetime


class FirstReceipt(NamedTuple):
    """What later receipts of an order take from its first one."""

    number: str
    credit_micro: int
    amount_micro: int
    currency: str


class ReceiptTerms(NamedTuple):
    """What the settings decide of new receipts. A seller without a name is the order's merchant of record.

    ``micro_per_minor`` returns how many micro-units a minor unit of a currency has.
    """

    prefix: str
    seller: ReceiptSeller
    micro_per_minor: Callable[[str], int]


def month_of(at: datetime) -> str:
    """Return the month of a time in UTC, ``YYYY-MM``."""
    return f"{at.astimezone(UTC):%Y-%m}"


def issue_receipts(
    operations: Iterable[MoneyOperation],
    orders: Mapping[str, Order],
    firsts: Mapping[str, FirstReceipt],
    emails: Mapping[str, str],
    terms: ReceiptTerms,
    *,
    last_number: int,
    now: datetime,
) -> list[Receipt]:
    """Return the receipts of operations that have none, numbered from ``last_number`` + 1 in the ledger's order.

    ``orders`` and ``firsts`` are by the orders' ids, ``emails`` by the accounts'. Of an order all earlier
    operations without a receipt must be there, since the others name its first one.
    """
    known, receipts = dict(firsts), list[Receipt]()
    for sequence, operation in enumerate(in_ledger_order(operations), last_number + 1):
        order = orders[operation.order_id]
        number = f"{terms.prefix}{sequence:0{NUMBER_DIGITS}d}"
        first = known.get(operation.order_id)
        if first is None:
            paid_micro, currency = _paid(order, operation.amount_micro)
            known[operation.order_id] = FirstReceipt(number, operation.amount_micro, paid_micro, currency)
        else:
            paid_micro, currency = _share(order, operation, first, terms.micro_per_minor), first.currency
        seller = terms.seller
        if not seller.name:
            seller = msgspec.structs.replace(seller, name=order.request.merchant_of_record)
        receipts.append(
            Receipt(
                sequence=sequence,
                number=number,
                kind="receipt" if operation.kind == "credit" else "credit_note",
                account_id=operation.account_id,
                email=emails[operation.account_id],
                order_id=operation.order_id,
                operation_id=operation.operation_id,
                operation_number=operation.number,
                receipt_number=None if first is None else first.number,
                reason=operation.reason,
                credit_micro=operation.amount_micro,
                amount_micro=paid_micro,
                currency=currency,
                moved_at=operation.at,
                month=month_of(operation.at),
                issued_at=now,
                seller=seller,
            )
        )
    return receipts


def in_ledger_order(operations: Iterable[MoneyOperation]) -> Sequence[MoneyOperation]:
    """Sort operations by their times, and those of one account by their numbers.

    Processes take turns in serving an account, and each has its own view of service time, so that an account's
    operation may be a little older than the one before it.
    """
    times: dict[str, datetime] = {}
    dated = []
    for each in sorted(operations, key=lambda operation: operation.number):
        at = times[each.account_id] = max(each.at, times.get(each.account_id, each.at))
        dated.append((at, each.account_id, each.number, each))
    return [each for *_, each in sorted(dated, key=lambda each: each[:3])]


def _paid(order: Order, credit_micro: int) -> tuple[int, str]:
    """Return what was paid for the order's credit, and in which currency.

    An operator may have given credit for a payment in another currency. What was paid in excess gave no credit, and
    is not in the books.
    """
    request, facts = order.request, order.state.facts
    stated = [each for payment in facts.payments.values() for each in payment.stated]
    if not stated or received_micro(request, facts) is not None:
        return credit_micro, request.currency
    largest = max(stated, key=lambda each: (each.amount_micro, each.currency))
    return largest.amount_micro, largest.currency


def _share(
    order: Order, operation: MoneyOperation, first: FirstReceipt, micro_per_minor: Callable[[str], int]
) -> int:
    """Return the amount of an operation in the currency that was paid, in whole minor units.

    The shares of what was paid sum to it, however it was returned.
    """
    if first.currency == order.request.currency:
        return operation.amount_micro
    unit_micro = micro_per_minor(first.currency)

    def units(net_micro: int) -> int:
        return (2 * first.amount_micro * net_micro + first.credit_micro * unit_micro) // (
            2 * first.credit_micro * unit_micro
        )

    before_micro = 0
    for move in order.state.moves:
        if move.operation_id == operation.operation_id:
            after_micro = before_micro + move.signed_micro
            return abs(units(after_micro) - units(before_micro)) * unit_micro
        before_micro += move.signed_micro
    raise AssertionError(f"order {order.order_id} does not list {operation.operation_id}")
