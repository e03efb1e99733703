"""Reversals: refunds reported by two kinds of events, disputes with all their results, late failures."""

from __future__ import annotations

import pytest

from holdfast.ledger.orders.decisions import resolve_held
from holdfast.ledger.orders.transitions import no_operation_id
from holdfast.ledger.refusals import Refusal

from .conftest import CardProvider, cents, four


def credited(reversal: str, risk: str = "none") -> tuple[str, str, str, str]:
    return ("credited", "succeeded", reversal, risk)


@pytest.mark.parametrize("status", ["pending", "requires_action", "succeeded"])
def test_a_refund_reverses_credit_from_its_request_on(provider: CardProvider, status: str) -> None:
    order = provider.apply(provider.order(), provider.paid())
    step = provider.step(order, provider.refund("re_1", status, 400))
    assert four(step.order) == credited("partially_refunded")
    assert cents(step.order) == [1000, -400]
    assert step.order.state.refunded_at == provider.noon
    assert step.order.state.reversal_refs == ("re_1",)
    assert step.order.reversal_operation_ids == (step.moves[0].operation_id,)
    assert step.entries[-1].reason == f"refund_{status}"
    assert step.entries[-1].operation_id == step.moves[0].operation_id


def test_the_running_total_is_not_taken_for_one_refund(provider: CardProvider) -> None:
    order = provider.apply(
        provider.order(), provider.paid(), provider.charge_refunded(300), provider.charge_refunded(1000)
    )
    assert cents(order) == [1000, -300, -700]
    assert four(order) == credited("refunded")


def test_refunds_listed_inside_the_charge_are_read(provider: CardProvider) -> None:
    inside = {"data": [{"id": "re_1", "amount": 250, "status": "succeeded"}, "re_2"]}
    order = provider.apply(provider.order(), provider.paid(), provider.charge_refunded(250, refunds=inside))
    assert cents(order) == [1000, -250]
    assert order.state.reversal_refs == ("re_1",)


@pytest.mark.parametrize("end", ["failed", "canceled"])
def test_a_refund_that_fails_later_is_credited_again(provider: CardProvider, end: str) -> None:
    order = provider.apply(
        provider.order(),
        provider.paid(),
        provider.refund("re_1", "succeeded", 1000),
        provider.charge_refunded(1000),
    )
    assert four(order) == credited("refunded")
    step = provider.step(order, provider.refund("re_1", end, 1000, event="failed"))
    assert four(step.order) == credited("none")
    assert cents(step.order) == [1000, -1000, 1000]
    assert step.moves[0].kind == "credit"
    assert step.entries[-1].reason == f"refund_{end}"
    assert step.order.state.reversal_refs == ("re_1",)
    assert step.order.state.refunded_at == provider.noon
    assert step.order.statuses.reconcile_status == "unreconciled"


def test_a_refund_known_before_the_payment_is_posted_with_it(provider: CardProvider) -> None:
    early = provider.step(provider.order(), provider.refund("re_1", "succeeded", 400))
    assert early.moves == ()
    assert four(early.order) == ("pending", "pending", "partially_refunded", "none")
    step = provider.step(early.order, provider.paid())
    assert [(move.kind, move.amount_micro) for move in step.moves] == [
        ("credit", 10_000_000),
        ("reversal", 4_000_000),
    ]
    assert four(step.order) == credited("partially_refunded")
    assert [entry.operation_id for entry in step.entries] == list(step.order.ledger_operation_refs)


def test_a_held_payment_that_is_returned_ends_without_credit(provider: CardProvider) -> None:
    held = provider.apply(provider.order(), provider.paid(amount_received=900))
    partly = provider.apply(held, provider.refund("re_1", "succeeded", 500))
    assert four(partly) == ("held", "succeeded", "partially_refunded", "mismatch")
    refunded = provider.apply(partly, provider.refund("re_2", "succeeded", 400))
    assert four(refunded) == ("canceled", "succeeded", "refunded", "none")
    answer = resolve_held(refunded, "credit", provider.noon, reason="late", new_operation_id=no_operation_id)
    assert isinstance(answer, Refusal)
    assert answer.code == "payment_order_not_payable"
    failed = provider.apply(refunded, provider.refund("re_2", "failed", 400, event="failed"))
    assert four(failed) == ("held", "succeeded", "partially_refunded", "mismatch")
    assert cents(refunded) == cents(failed) == []


def test_a_further_payment_takes_no_decided_credit_back(provider: CardProvider) -> None:
    earlier = provider.intent(id="pi_0", latest_charge="ch_0", amount_received=400)
    first = provider.event("payment_intent.succeeded", earlier, created=1_600_000_000)
    resolved = provider.resolve(provider.apply(provider.order(), provider.paid(amount_received=600)), "credit")
    assert not isinstance(resolved, Refusal)
    assert cents(provider.apply(resolved.order, first)) == [600]


def test_a_held_payment_in_dispute_waits_for_its_end(provider: CardProvider) -> None:
    held = provider.apply(provider.order(), provider.paid(amount_received=900))
    disputed = provider.apply(held, provider.dispute("created", "needs_response", 900))
    assert four(disputed) == ("held", "succeeded", "disputed", "mismatch")
    assert four(provider.apply(disputed, provider.dispute("closed", "won", 900)))[0] == "held"
    lost = provider.apply(disputed, provider.dispute("closed", "lost", 900))
    assert four(lost) == ("canceled", "succeeded", "chargeback", "disputed")


def test_a_second_payment_is_no_mismatch_once_it_is_returned(provider: CardProvider) -> None:
    second = provider.paid(id="pi_2", latest_charge="ch_2", amount_received=700)
    both = provider.apply(provider.order(), provider.paid(), second)
    assert four(both) == credited("none", "mismatch")
    again = provider.refund_object("re_1", "succeeded", 700, charge="ch_2", payment_intent="pi_2")
    assert four(provider.apply(both, provider.event("refund.created", again))) == credited("none")


def test_a_dispute_reverses_the_credit_at_once(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.paid())
    step = provider.step(order, provider.dispute("created", "needs_response"))
    assert four(step.order) == credited("disputed", "disputed")
    assert cents(step.order) == [1000, -1000]
    assert step.order.state.disputed_at == provider.noon
    assert step.order.state.chargeback_at is None
    assert step.order.state.reversal_refs == ("dp_1",)
    again = provider.apply(
        step.order,
        provider.dispute("funds_withdrawn", "needs_response"),
        provider.dispute("updated", "under_review"),
    )
    assert cents(again) == [1000, -1000]


def test_a_lost_dispute_is_a_chargeback(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.paid(), provider.dispute("created", "needs_response"))
    step = provider.step(order, provider.dispute("closed", "lost", reason="fraudulent"))
    assert four(step.order) == credited("chargeback", "fraud")
    assert step.moves == ()
    assert step.order.state.chargeback_at == provider.noon


@pytest.mark.parametrize("status", ["warning_needs_response", "warning_under_review"])
def test_an_inquiry_moves_no_money(provider: CardProvider, status: str) -> None:
    order = provider.apply(provider.order(), provider.paid(), provider.dispute("created", status))
    assert four(order) == credited("none", "inquiry")
    assert order.state.disputed_at is None
    assert order.state.reversal_refs == ()
    order = provider.apply(order, provider.dispute("closed", "warning_closed"))
    assert four(order) == credited("none", "cleared")
    assert cents(order) == [1000]


@pytest.mark.parametrize("stage", ["appeal_needs_response", "appeal_under_review"])
def test_an_appeal_leaves_the_money_withdrawn(provider: CardProvider, stage: str) -> None:
    order = provider.apply(
        provider.order(), provider.paid(), provider.dispute("updated", stage), provider.dispute("closed", "won")
    )
    assert cents(order) == [1000, -1000, 1000]


def test_reinstated_funds_do_not_turn_a_lost_case_into_a_won_one(provider: CardProvider) -> None:
    order = provider.apply(
        provider.order(),
        provider.paid(),
        provider.dispute("closed", "lost"),
        provider.dispute("funds_reinstated", "lost", moves=(-1000, 1000)),
    )
    assert four(order) == credited("chargeback", "disputed")
    assert cents(order) == [1000, -1000, 1000]


def test_an_event_moves_no_money_that_its_dispute_does_not_list(provider: CardProvider) -> None:
    paid = provider.apply(provider.order(), provider.paid())
    inquiry = provider.dispute("funds_withdrawn", "warning_needs_response")
    assert cents(provider.apply(paid, inquiry)) == [1000]
    disputed = provider.apply(paid, provider.dispute("created", "needs_response", moves=(-1000,)))
    for kept in ({"moves": (-1000,)}, {"balance_transactions": None}):
        named = provider.dispute("funds_reinstated", "under_review", **kept)
        assert cents(provider.apply(disputed, named)) == [1000, -1000]


def test_balance_transactions_decide_what_was_withdrawn_and_returned(provider: CardProvider) -> None:
    order = provider.apply(
        provider.order(), provider.paid(), provider.dispute("created", "needs_response", moves=(-1000,))
    )
    assert cents(order) == [1000, -1000]
    order = provider.apply(
        order,
        provider.dispute("funds_reinstated", "won", moves=(-1000, 600)),
        provider.dispute("closed", "won", moves=(-1000, 600)),
    )
    assert cents(order) == [1000, -1000, 600]
    assert four(order) == credited("reinstated", "cleared")
    assert order.balance_transaction_ids == ("txn_dp_1", "txn_dp_2")


def test_the_fee_of_a_dispute_costs_no_credit(provider: CardProvider) -> None:
    lines = [
        provider.balance("txn_1", -1000, fee=1500, kind="dispute"),
        provider.balance("txn_2", -1500) | {"reporting_category": "fee"},
    ]
    order = provider.apply(
        provider.order(),
        provider.paid(),
        provider.dispute("funds_withdrawn", "needs_response", balance_transactions=lines),
    )
    assert cents(order) == [1000, -1000]


def test_a_dispute_settled_in_another_currency_counts_in_shares(provider: CardProvider) -> None:
    lines = [
        provider.balance(name, amount, kind="dispute") | {"currency": "eur"}
        for name, amount in (("a", -920), ("b", 230))
    ]
    order = provider.apply(
        provider.order(), provider.paid(), provider.dispute("closed", "won", balance_transactions=lines)
    )
    assert order.net_micro == 2_500_000


def test_a_dispute_that_names_only_the_charge_finds_its_payment(provider: CardProvider) -> None:
    event = provider.dispute("created", "needs_response", payment_intent=None)
    assert cents(provider.apply(provider.order(), provider.paid(), event)) == [1000, -1000]
    second = {"id": "pi_2", "latest_charge": "ch_2"}
    other = provider.dispute("created", "needs_response", payment_intent=None, charge="ch_2")
    assert cents(provider.apply(provider.order(), provider.paid(), provider.paid(**second), other)) == [1000]
