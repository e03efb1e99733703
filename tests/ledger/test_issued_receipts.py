"""What is recorded of each payment: numbers, order, amounts in the currency that was paid, and the seller."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.orders.order import Order
from holdfast.ledger.receipts import (
    FirstReceipt,
    MoneyOperation,
    Receipt,
    ReceiptSeller,
    ReceiptTerms,
    in_ledger_order,
    issue_receipts,
    month_of,
)
from holdfast.ledger.refusals import Refusal
from holdfast.providers.card.base import micro_per_minor

from .conftest import NOON, CardProvider

SELLER = ReceiptSeller("Ada's Pictures Ltd", ("1 Main Street",), "GB123")
TERMS = ReceiptTerms("R-", SELLER, micro_per_minor)


def operations_of(order: Order) -> list[MoneyOperation]:
    """The order's operations, a minute after each other."""
    return [
        MoneyOperation(
            order.account_id,
            number,
            move.operation_id,
            move.kind,
            move.amount_micro,
            order.order_id,
            move.reason,
            NOON + timedelta(minutes=number),
        )
        for number, move in enumerate(order.state.moves, 1)
    ]


def issue(
    order: Order,
    operations: Iterable[MoneyOperation] | None = None,
    *,
    firsts: dict[str, FirstReceipt] | None = None,
    last: int = 0,
    terms: ReceiptTerms = TERMS,
) -> list[Receipt]:
    return issue_receipts(
        operations_of(order) if operations is None else operations,
        {order.order_id: order},
        firsts or {},
        {order.account_id: "ada@example.com"},
        terms,
        last_number=last,
        now=NOON + timedelta(hours=1),
    )


def shown(receipts: Iterable[Receipt]) -> list[tuple[str, str, str | None, int]]:
    return [(each.number, each.kind, each.receipt_number, each.amount_micro // 10_000) for each in receipts]


def test_a_payment_with_two_refunds_has_a_receipt_and_two_credit_notes(provider: CardProvider) -> None:
    order = provider.apply(
        provider.order(),
        provider.paid(),
        provider.refund("re_1", "succeeded", 300),
        provider.refund("re_2", "succeeded", 200),
    )
    assert shown(issue(order, last=41)) == [
        ("R-000042", "receipt", None, 1000),
        ("R-000043", "credit_note", "R-000042", 300),
        ("R-000044", "credit_note", "R-000042", 200),
    ]


def test_a_dispute_that_was_won_has_a_receipt_again(provider: CardProvider) -> None:
    order = provider.apply(
        provider.order(),
        provider.paid(),
        provider.dispute("created", "needs_response"),
        provider.dispute("closed", "won"),
    )
    assert shown(issue(order)) == [
        ("R-000001", "receipt", None, 1000),
        ("R-000002", "credit_note", "R-000001", 1000),
        ("R-000003", "receipt", "R-000001", 1000),
    ]


def test_a_later_receipt_names_the_first_that_is_stored(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.paid(), provider.refund("re_1", "succeeded", 300))
    first = FirstReceipt("OLD-000007", 10_000_000, 10_000_000, "USD")
    [note] = issue(order, operations_of(order)[1:], firsts={order.order_id: first}, last=99)
    assert (note.number, note.receipt_number) == ("R-000100", "OLD-000007")


def test_all_is_frozen_at_issue(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.paid())
    [receipt] = issue(order)
    assert receipt == Receipt(
        sequence=1,
        number="R-000001",
        kind="receipt",
        account_id=order.account_id,
        email="ada@example.com",
        order_id=order.order_id,
        operation_id=order.request.operation_id,
        operation_number=1,
        receipt_number=None,
        reason="payment_succeeded",
        credit_micro=10_000_000,
        amount_micro=10_000_000,
        currency="USD",
        moved_at=NOON + timedelta(minutes=1),
        month="2026-11",
        issued_at=NOON + timedelta(hours=1),
        seller=SELLER,
    )


def test_a_seller_without_a_name_is_the_merchant_of_the_order(provider: CardProvider) -> None:
    order = provider.apply(provider.order(merchant_of_record="Their Shop"), provider.paid())
    [receipt] = issue(order, terms=TERMS._replace(seller=ReceiptSeller("", ("A street",))))
    assert receipt.seller == ReceiptSeller("Their Shop", ("A street",))


@pytest.mark.parametrize(("currency", "decimals"), [("eur", 2), ("jpy", 0)])
def test_what_was_paid_in_another_currency_is_shared_by_its_refunds(
    provider: CardProvider, currency: str, decimals: int
) -> None:
    """Credit that an operator gave for another currency: the credit notes sum to what was paid, in whole units."""
    held = provider.apply(provider.order(), provider.paid(currency=currency, amount_received=901))
    resolved = provider.resolve(held, "credit", 10_000_000)
    assert not isinstance(resolved, Refusal)
    refunds = [("re_1", 300), ("re_2", 601)]
    found = [provider.refund_object(name, "succeeded", minor, currency=currency) for name, minor in refunds]
    order = provider.apply(resolved.order, *(provider.event("refund.created", each) for each in found))
    receipts = issue(order)
    unit = 10 ** (6 - decimals)
    assert [each.amount_micro for each in receipts] == [901 * unit, 300 * unit, 601 * unit]
    assert [each.currency for each in receipts] == [currency.upper()] * 3
    assert [each.kind for each in receipts] == ["receipt", "credit_note", "credit_note"]
    assert receipts[0].credit_micro == 10_000_000 == sum(each.credit_micro for each in receipts[1:])


def test_what_was_paid_in_excess_is_not_on_the_receipt(provider: CardProvider) -> None:
    held = provider.apply(provider.order(), provider.paid(amount_received=1200))
    resolved = provider.resolve(held, "credit", 10_000_000)
    assert not isinstance(resolved, Refusal)
    assert shown(issue(resolved.order)) == [("R-000001", "receipt", None, 1000)]


def test_a_month_is_that_of_utc() -> None:
    ahead = timezone(timedelta(hours=5))
    assert month_of(datetime(2026, 12, 1, 3, tzinfo=ahead)) == "2026-11"
    assert month_of(datetime(2026, 12, 1, 0, tzinfo=UTC)) == "2026-12"


@st.composite
def ledgers(draw: st.DrawFn) -> list[MoneyOperation]:
    """Operations of a few accounts; an account's clocks may be ten seconds apart."""
    found = []
    for account in range(draw(st.integers(1, 3))):
        at = NOON
        for number in range(1, draw(st.integers(1, 6)) + 1):
            at += timedelta(seconds=draw(st.integers(-10, 40)))
            fields = (f"acct_{account}", number, f"op_{account}_{number}", "credit", 1, "ord_1", "paid", at)
            found.append(MoneyOperation._make(fields))
    return draw(st.permutations(found))


@given(ledgers())
def test_the_order_is_that_of_the_ledger(operations: list[MoneyOperation]) -> None:
    found = in_ledger_order(operations)
    assert sorted(found) == sorted(operations)
    numbers = defaultdict(list)
    for each in found:
        numbers[each.account_id].append(each.number)
    assert all(each == sorted(each) for each in numbers.values())
    # No operation is placed before one that is older than all its account had until then.
    reached: dict[str, datetime] = {}
    times = []
    for each in found:
        reached[each.account_id] = max(each.at, reached.get(each.account_id, each.at))
        times.append(reached[each.account_id])
    assert times == sorted(times)
