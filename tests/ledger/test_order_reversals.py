"""Money that goes back: refunds told by two families of events, disputes with all their ends, late failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.ledger.orders.order import Order

if TYPE_CHECKING:
    from tests.ledger.conftest import TellTarget


def four(order: Order) -> tuple[str, str, str, str]:
    """All statuses but the reconcile status."""
    now = order.statuses
    return (now.status, now.processing_status, now.reversal_status, now.risk_status)


def cents(order: Order) -> list[int]:
    """The order's operations, in cents."""
    return [move.signed_micro // 10_000 for move in order.state.moves]


def credited(reversal: str, risk: str = "none") -> tuple[str, str, str, str]:
    return ("credited", "succeeded", reversal, risk)


@pytest.mark.parametrize("status", ["pending", "requires_action", "succeeded"])
def test_a_refund_is_taken_back_as_soon_as_it_is_asked_for(teller: TellTarget, status: str) -> None:
    order = teller.tell(teller.order(), teller.paid())
    step = teller.step(order, teller.refund("re_1", status, 400))
    assert four(step.order) == credited("partially_refunded")
    assert cents(step.order) == [1000, -400]
    assert step.order.state.refunded_at == teller.noon
    assert step.order.state.reversal_refs == ("re_1",)
    assert step.order.reversal_operation_ids == (step.postings[0].operation_id,)
    assert step.entries[-1].reason == f"refund_{status}"
    assert step.entries[-1].operation_id == step.postings[0].operation_id


def test_a_refund_that_goes_from_pending_to_succeeded_is_one_refund(teller: TellTarget) -> None:
    order = teller.tell(
        teller.order(),
        teller.paid(),
        teller.refund("re_1", "pending", 400),
        teller.refund("re_1", "succeeded", 400, told_by="updated"),
    )
    assert cents(order) == [1000, -400]


def test_two_partial_refunds_in_both_event_families_count_as_two(teller: TellTarget) -> None:
    order = teller.tell(
        teller.order(),
        teller.paid(),
        teller.refund("re_1", "succeeded", 300),
        teller.charge_refunded(300),
        teller.charge_refunded(500),
        teller.refund("re_2", "pending", 200),
        teller.refund("re_2", "succeeded", 200, told_by="updated"),
    )
    assert four(order) == credited("partially_refunded")
    assert cents(order) == [1000, -300, -200]
    assert order.state.reversal_refs == ("re_1", "re_2")


def test_the_running_total_is_not_taken_for_one_refund(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.charge_refunded(300), teller.charge_refunded(1000))
    assert cents(order) == [1000, -300, -700]
    assert four(order) == credited("refunded")


def test_an_older_running_total_gives_nothing_back(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.charge_refunded(500), teller.charge_refunded(300))
    assert cents(order) == [1000, -500]


def test_refunds_listed_inside_the_charge_are_read(teller: TellTarget) -> None:
    inside = {"data": [{"id": "re_1", "amount": 250, "status": "succeeded"}, "re_2"]}
    order = teller.tell(teller.order(), teller.paid(), teller.charge_refunded(250, refunds=inside))
    assert cents(order) == [1000, -250]
    assert order.state.reversal_refs == ("re_1",)


def test_the_older_name_of_the_refund_event_means_the_same(teller: TellTarget) -> None:
    event = teller.event("charge.refund.updated", teller.refund_object("re_1", "succeeded", 100))
    assert cents(teller.tell(teller.order(), teller.paid(), event)) == [1000, -100]


@pytest.mark.parametrize("end", ["failed", "canceled"])
def test_a_refund_that_fails_later_is_given_back(teller: TellTarget, end: str) -> None:
    order = teller.tell(
        teller.order(), teller.paid(), teller.refund("re_1", "succeeded", 1000), teller.charge_refunded(1000)
    )
    assert four(order) == credited("refunded")
    step = teller.step(order, teller.refund("re_1", end, 1000, told_by="failed"))
    assert four(step.order) == credited("none")
    assert cents(step.order) == [1000, -1000, 1000]
    assert step.postings[0].kind == "credit"
    assert step.entries[-1].reason == f"refund_{end}"
    assert step.order.state.reversal_refs == ("re_1",)
    assert step.order.state.refunded_at == teller.noon
    assert step.order.statuses.reconcile_status == "unreconciled"


def test_a_refund_known_before_the_payment_is_posted_with_it(teller: TellTarget) -> None:
    early = teller.step(teller.order(), teller.refund("re_1", "succeeded", 400))
    assert early.postings == ()
    assert four(early.order) == ("pending", "pending", "partially_refunded", "none")
    step = teller.step(early.order, teller.paid())
    assert [(move.kind, move.amount_micro) for move in step.postings] == [
        ("credit", 10_000_000),
        ("reversal", 4_000_000),
    ]
    assert four(step.order) == credited("partially_refunded")
    assert [entry.operation_id for entry in step.entries] == list(step.order.ledger_operation_refs)


def test_more_refunded_than_paid_takes_no_more_than_was_given(teller: TellTarget) -> None:
    order = teller.tell(
        teller.order(),
        teller.paid(),
        teller.refund("re_1", "succeeded", 800),
        teller.refund("re_2", "pending", 800),
    )
    assert cents(order) == [1000, -800, -200]
    assert four(order) == credited("refunded")


def test_a_held_payment_sent_back_moves_no_credit(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(amount_received=900), teller.refund("re_1", "succeeded", 900))
    assert four(order) == ("held", "succeeded", "refunded", "mismatch")
    assert cents(order) == []


def test_a_dispute_takes_the_money_at_once(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid())
    step = teller.step(order, teller.dispute("created", "needs_response"))
    assert four(step.order) == credited("disputed", "disputed")
    assert cents(step.order) == [1000, -1000]
    assert step.order.state.disputed_at == teller.noon
    assert step.order.state.chargeback_at is None
    assert step.order.state.reversal_refs == ("dp_1",)
    again = teller.tell(
        step.order, teller.dispute("funds_withdrawn", "needs_response"), teller.dispute("updated", "under_review")
    )
    assert cents(again) == [1000, -1000]


def test_a_lost_dispute_is_a_chargeback(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.dispute("created", "needs_response"))
    step = teller.step(order, teller.dispute("closed", "lost", reason="fraudulent"))
    assert four(step.order) == credited("chargeback", "fraud")
    assert step.postings == ()
    assert step.order.state.chargeback_at == teller.noon


def test_a_dispute_lost_for_another_reason_is_no_fraud(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.dispute("closed", "lost", reason="duplicate"))
    assert four(order) == credited("chargeback", "disputed")
    assert cents(order) == [1000, -1000]


def test_a_won_dispute_gives_back_exactly_what_was_taken(teller: TellTarget) -> None:
    order = teller.tell(
        teller.order(),
        teller.paid(),
        teller.refund("re_1", "succeeded", 400),
        teller.dispute("created", "needs_response"),
    )
    assert cents(order) == [1000, -400, -600]
    order = teller.tell(order, teller.dispute("closed", "won"), teller.dispute("funds_reinstated", "won"))
    assert cents(order) == [1000, -400, -600, 600]
    assert four(order) == credited("partially_refunded", "cleared")
    assert order.state.chargeback_at is None


def test_a_won_dispute_without_refunds_is_reinstated(teller: TellTarget) -> None:
    order = teller.tell(
        teller.order(), teller.paid(), teller.dispute("created", "needs_response"), teller.dispute("closed", "won")
    )
    assert four(order) == credited("reinstated", "cleared")
    assert cents(order) == [1000, -1000, 1000]


@pytest.mark.parametrize("status", ["warning_needs_response", "warning_under_review"])
def test_an_inquiry_moves_no_money(teller: TellTarget, status: str) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.dispute("created", status))
    assert four(order) == credited("none", "inquiry")
    assert order.state.disputed_at is None
    assert order.state.reversal_refs == ()
    order = teller.tell(order, teller.dispute("closed", "warning_closed"))
    assert four(order) == credited("none", "cleared")
    assert cents(order) == [1000]


def test_an_inquiry_may_become_a_dispute(teller: TellTarget) -> None:
    order = teller.tell(
        teller.order(),
        teller.paid(),
        teller.dispute("created", "warning_needs_response"),
        teller.dispute("updated", "needs_response"),
    )
    assert four(order) == credited("disputed", "disputed")
    assert cents(order) == [1000, -1000]


def test_a_prevented_dispute_is_reversed_and_its_refund_stays(teller: TellTarget) -> None:
    order = teller.tell(
        teller.order(),
        teller.paid(),
        teller.dispute("created", "needs_response"),
        teller.refund("re_1", "succeeded", 1000),
        teller.dispute("closed", "prevented"),
    )
    assert four(order) == credited("refunded")
    assert order.net_micro == 0


def test_a_partial_dispute_takes_a_part(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.dispute("created", "needs_response", 250))
    assert cents(order) == [1000, -250]


@pytest.mark.parametrize("stage", ["appeal_needs_response", "appeal_under_review"])
def test_an_appeal_leaves_the_money_withdrawn(teller: TellTarget, stage: str) -> None:
    order = teller.tell(
        teller.order(), teller.paid(), teller.dispute("updated", stage), teller.dispute("closed", "won")
    )
    assert cents(order) == [1000, -1000, 1000]


def test_reinstated_funds_do_not_turn_a_lost_case_into_a_won_one(teller: TellTarget) -> None:
    order = teller.tell(
        teller.order(), teller.paid(), teller.dispute("closed", "lost"), teller.dispute("funds_reinstated", "lost")
    )
    assert four(order) == credited("chargeback", "disputed")
    assert cents(order) == [1000, -1000, 1000]


def test_balance_transactions_decide_what_was_withdrawn_and_returned(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.dispute("created", "needs_response", moves=(-1000,)))
    assert cents(order) == [1000, -1000]
    order = teller.tell(
        order,
        teller.dispute("funds_reinstated", "won", moves=(-1000, 600)),
        teller.dispute("closed", "won", moves=(-1000, 600)),
    )
    assert cents(order) == [1000, -1000, 600]
    assert four(order) == credited("reinstated", "cleared")
    assert order.balance_transaction_ids == ("txn_dp_1", "txn_dp_2")


def test_the_fee_of_a_dispute_is_not_the_customers(teller: TellTarget) -> None:
    lines = [
        teller.balance("txn_1", -1000, fee=1500, kind="dispute"),
        teller.balance("txn_2", -1500) | {"reporting_category": "fee"},
    ]
    order = teller.tell(
        teller.order(),
        teller.paid(),
        teller.dispute("funds_withdrawn", "needs_response", balance_transactions=lines),
    )
    assert cents(order) == [1000, -1000]


def test_a_dispute_settled_in_another_currency_counts_in_shares(teller: TellTarget) -> None:
    lines = [
        teller.balance(name, amount, kind="dispute") | {"currency": "eur"}
        for name, amount in (("a", -920), ("b", 230))
    ]
    order = teller.tell(teller.order(), teller.paid(), teller.dispute("closed", "won", balance_transactions=lines))
    assert order.net_micro == 2_500_000


def test_two_disputes_take_no_more_than_was_given(teller: TellTarget) -> None:
    order = teller.tell(
        teller.order(),
        teller.paid(),
        teller.dispute("created", "needs_response", 700),
        teller.dispute("created", "needs_response", 700, id="dp_2"),
        teller.dispute("closed", "won", 700),
    )
    assert cents(order) == [1000, -700, -300, 300]
    assert four(order) == credited("disputed", "disputed")


def test_a_dispute_that_names_only_the_charge_finds_its_payment(teller: TellTarget) -> None:
    event = teller.dispute("created", "needs_response", payment_intent=None)
    assert cents(teller.tell(teller.order(), teller.paid(), event)) == [1000, -1000]
    second = {"id": "pi_2", "latest_charge": "ch_2"}
    other = teller.dispute("created", "needs_response", payment_intent=None, charge="ch_2")
    assert cents(teller.tell(teller.order(), teller.paid(), teller.paid(**second), other)) == [1000]


def test_a_reversal_after_a_reconcile_asks_for_a_new_one(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.refund("re_1", "succeeded", 100))
    assert order.statuses.reconcile_status == "unreconciled"
    assert order.state.reconcile_due_at is not None
    assert order.wake_at == order.state.reconcile_due_at
