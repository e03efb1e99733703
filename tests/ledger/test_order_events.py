"""Payment orders told about by a card provider: what each kind of event does to statuses, ledger and lists."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import pytest

from holdfast.ledger.orders.decisions import OrderStep, attach_intent, on_create_refused, on_expiry, resolve_held
from holdfast.ledger.orders.order import LedgerMove, Order, breakdown_of, cursor_of, fx_of
from holdfast.ledger.refusals import Refusal

if TYPE_CHECKING:
    from tests.ledger.conftest import TellTarget

CREDIT = LedgerMove(kind="credit", amount_micro=10_000_000, operation_id="op_credit", reason="payment_succeeded")


def four(order: Order) -> tuple[str, str, str, str]:
    """All statuses but the reconcile status."""
    now = order.statuses
    return (now.status, now.processing_status, now.reversal_status, now.risk_status)


def cents(order: Order) -> list[int]:
    """The order's operations, in cents."""
    return [move.signed_micro // 10_000 for move in order.state.moves]


def test_a_new_order_is_pending_with_its_operation_reserved(teller: TellTarget) -> None:
    order = teller.order()
    assert four(order) == ("pending", "pending", "none", "none")
    assert order.statuses.reconcile_status == "unreconciled"
    assert order.request.operation_id == "op_credit"
    assert order.ledger_operation_refs == ()
    (entry,) = order.state.history
    assert (entry.source, entry.reason, entry.at) == ("api", "order_created", teller.noon)
    assert order.wake_at == order.request.expires_at
    breakdown = breakdown_of(order)
    assert (breakdown.gross_micro, breakdown.fee_micro, breakdown.net_micro) == (10_000_000, 0, 10_000_000)
    assert fx_of(order).rate == "1"


@pytest.mark.parametrize("what", ["processing", "requires_action"])
def test_progress_is_shown_and_moves_no_money(teller: TellTarget, what: str) -> None:
    step = teller.step(teller.order(), teller.attempt(what))
    assert four(step.order) == ("pending", what, "none", "none")
    assert step.postings == ()
    assert step.order.state.history[-1].source == "provider_webhook"
    assert step.order.state.history[-1].event_id == step.order.provider_event_id


def test_repeated_progress_adds_no_history_entry(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.attempt("processing"))
    step = teller.step(order, teller.attempt("processing"))
    assert (step.verdict, step.entries) == ("applied", ())


def test_a_declined_attempt_fails_the_order_with_its_code(teller: TellTarget) -> None:
    error = {"code": "card_declined", "decline_code": "insufficient_funds", "message": "Your card was declined."}
    order = teller.tell(teller.order(), teller.attempt("payment_failed", last_payment_error=error))
    assert four(order) == ("failed", "failed", "none", "none")
    assert order.state.failed_at == teller.noon
    assert order.state.history[-1].reason == "payment_failed: insufficient_funds"


def test_a_new_attempt_after_a_failed_one_is_pending_again(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.attempt("payment_failed"), teller.attempt("requires_action"))
    assert four(order) == ("pending", "requires_action", "none", "none")
    assert order.state.failed_at == teller.noon


def test_the_failure_of_an_older_attempt_does_not_overwrite_a_newer_one(teller: TellTarget) -> None:
    older = teller.attempt("payment_failed")
    order = teller.tell(teller.order(), teller.attempt("processing"))
    step = teller.step(order, older)
    assert step.verdict == "stale"
    assert four(step.order) == ("pending", "processing", "none", "none")
    assert older.event_id in step.order.state.event_ids
    assert step.order.provider_event_id != older.event_id


def test_a_canceled_intent_ends_the_order(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.attempt("canceled", cancellation_reason="abandoned"))
    assert four(order) == ("canceled", "canceled", "none", "none")
    assert order.state.failed_at == teller.noon
    assert order.state.history[-1].reason == "payment_canceled: abandoned"
    assert order.wake_at is None or order.wake_at == order.state.reconcile_due_at


@pytest.mark.parametrize("first", ["payment_intent", "charge"])
def test_success_credits_once_whichever_event_reports_it_first(teller: TellTarget, first: str) -> None:
    events = [teller.paid(), teller.charged()]
    if first == "charge":
        events.reverse()
    step = teller.step(teller.order(), events[0])
    assert step.postings == (CREDIT,)
    assert four(step.order) == ("credited", "succeeded", "none", "none")
    assert step.order.statuses.reconcile_status == "unreconciled"
    assert step.order.state.credited_at == teller.noon
    assert (step.order.state.payment_id, step.order.state.charge_id) == ("pi_1", "ch_1")
    assert step.order.ledger_operation_refs == ("op_credit",)
    assert step.order.reversal_operation_ids == ()
    assert step.entries[-1].operation_id == "op_credit"
    again = teller.step(step.order, events[1])
    assert (again.postings, again.entries) == ((), ())
    assert again.order.state.event_ids == (events[0].event_id, events[1].event_id)


def test_a_charge_that_is_only_authorised_is_no_money(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.charged(captured=False), teller.charged(paid=False))
    assert four(order) == ("pending", "pending", "none", "none")


def test_an_event_seen_before_changes_nothing(teller: TellTarget) -> None:
    event = teller.paid()
    order = teller.tell(teller.order(), event)
    step = teller.step(order, event)
    assert step.verdict == "duplicate"
    assert step.order is order


@pytest.mark.parametrize("what", ["payment_failed", "processing", "canceled", "requires_action"])
def test_no_attempt_downgrades_a_paid_order(teller: TellTarget, what: str) -> None:
    order = teller.tell(teller.order(), teller.paid())
    event = teller.attempt(what)
    step = teller.step(order, event)
    assert (step.verdict, step.entries) == ("stale", ())
    assert four(step.order) == ("credited", "succeeded", "none", "none")
    assert step.order.state.failed_at is None
    assert step.order.state.event_ids[-1] == event.event_id


@pytest.mark.parametrize(
    "wrong",
    [{"amount_received": 900}, {"amount_received": 1001}, {"currency": "eur"}, {"livemode": True}],
)
def test_a_payment_that_does_not_fit_is_held_and_credits_nothing(
    teller: TellTarget, wrong: dict[str, object]
) -> None:
    step = teller.step(teller.order(), teller.paid(**wrong))
    assert four(step.order) == ("held", "succeeded", "none", "mismatch")
    assert step.order.statuses.reconcile_status == "mismatch"
    assert step.postings == ()
    assert step.entries[-1].reason == "payment_mismatch"
    assert step.order.state.credited_at is None


def test_a_payment_to_another_account_is_held(teller: TellTarget) -> None:
    event = teller.event("payment_intent.succeeded", teller.intent(), account="acct_else")
    assert teller.tell(teller.order(), event).status == "held"
    fits = teller.event("payment_intent.succeeded", teller.intent(), account="acct_card")
    assert teller.tell(teller.order(), fits).status == "credited"


@pytest.mark.parametrize(("ordered", "told"), [(None, True), (None, None), (False, None)])
def test_an_unknown_livemode_is_no_mismatch(teller: TellTarget, ordered: bool | None, told: bool | None) -> None:
    assert teller.tell(teller.order(livemode=ordered), teller.paid(livemode=told)).status == "credited"


def test_a_second_payment_that_does_not_fit_leaves_the_first_as_it_is(teller: TellTarget) -> None:
    odd = teller.paid(id="pi_2", latest_charge="ch_2", amount_received=2500)
    order = teller.tell(teller.order(), teller.paid(), odd, teller.charge_refunded(1000))
    assert four(order) == ("credited", "succeeded", "refunded", "mismatch")
    assert cents(order) == [1000, -1000]


def test_yen_are_whole(teller: TellTarget) -> None:
    order = teller.order(amount_micro=1_000_000_000, currency="JPY")
    assert teller.tell(order, teller.paid(currency="jpy")).status == "credited"
    assert teller.tell(order, teller.paid(currency="jpy", amount_received=100_000)).status == "held"


@pytest.mark.parametrize("ended", ["expired", "canceled", "failed", "late"])
def test_money_that_comes_late_is_credited_all_the_same(teller: TellTarget, ended: str) -> None:
    order, later = teller.order(), teller.noon + timedelta(days=2)
    if ended == "expired":
        order = on_expiry(order, later).order
    elif ended != "late":
        order = teller.tell(order, teller.attempt("canceled" if ended == "canceled" else "payment_failed"))
    assert order.status == ("pending" if ended == "late" else ended)
    step = teller.step(order, teller.paid(), later)
    assert four(step.order) == ("credited", "succeeded", "none", "none")
    assert [(move.signed_micro, move.reason) for move in step.postings] == [(10_000_000, "late_payment")]
    assert step.entries[-1].reason == "late_payment"


def test_an_unpaid_order_expires(teller: TellTarget) -> None:
    order = teller.order()
    assert on_expiry(order, order.request.expires_at - timedelta(seconds=1)).verdict == "ignored"
    step = on_expiry(order, order.request.expires_at)
    teller.check(order, step)
    assert four(step.order) == ("expired", "pending", "none", "none")
    assert step.entries[-1].source == "expiry"
    assert step.order.wake_at is None
    assert on_expiry(step.order, order.request.expires_at).verdict == "ignored"


def test_expiry_ignores_paid_held_canceled_and_processing_orders(teller: TellTarget) -> None:
    late = teller.noon + timedelta(days=3)
    for event in (
        teller.paid(),
        teller.paid(amount_received=1),
        teller.attempt("canceled"),
        teller.attempt("processing"),
    ):
        assert on_expiry(teller.tell(teller.order(), event), late).verdict == "ignored"
    failed = teller.tell(teller.order(), teller.attempt("payment_failed"))
    assert on_expiry(failed, late).order.status == "expired"


def test_the_cancel_that_goes_with_an_expiry_keeps_it_expired(teller: TellTarget) -> None:
    order = on_expiry(teller.order(), teller.noon + timedelta(days=2)).order
    order = teller.tell(order, teller.attempt("canceled"))
    assert four(order) == ("expired", "canceled", "none", "none")


def test_an_intent_is_attached_whenever_the_create_call_returns(teller: TellTarget) -> None:
    before = attach_intent(teller.order(), "pi_1", teller.noon).order
    assert before.state.payment_id == "pi_1"
    assert before.wake_at == teller.noon + timedelta(seconds=60)
    assert attach_intent(before, "pi_1", teller.noon).verdict == "duplicate"
    early = teller.tell(teller.order(), teller.paid())
    after = attach_intent(early, "pi_1", teller.noon).order
    assert after.status == "credited"
    assert after.net_micro == 10_000_000
    assert after.state.history == early.state.history


def test_an_intent_that_the_provider_refuses_to_make_fails_the_order(teller: TellTarget) -> None:
    step = on_create_refused(teller.order(), "amount_too_small", teller.noon)
    teller.check(teller.order(), step)
    assert four(step.order) == ("failed", "failed", "none", "none")
    assert (step.entries[-1].source, step.entries[-1].reason) == ("api", "create_refused: amount_too_small")
    for order in (
        attach_intent(teller.order(), "pi_1", teller.noon).order,
        teller.tell(teller.order(), teller.paid()),
        step.order,
    ):
        assert on_create_refused(order, "amount_too_small", teller.noon).verdict == "ignored"


def test_the_charge_id_is_the_charge_that_paid(teller: TellTarget) -> None:
    declined = teller.charged(id="ch_0", paid=False, captured=False, status="failed")
    order = teller.tell(teller.order(), declined)
    assert (order.state.payment_id, order.state.charge_id) == ("pi_1", "ch_0")
    order = teller.tell(order, teller.paid())
    assert (order.state.payment_id, order.state.charge_id) == ("pi_1", "ch_1")


def test_of_two_payments_the_earlier_stands_for_the_order(teller: TellTarget) -> None:
    first, second = teller.paid(id="pi_9", latest_charge="ch_9"), teller.paid()
    for events in ((first, second), (second, first)):
        assert teller.tell(teller.order(), *events).state.payment_id == "pi_9"


def test_a_reversal_of_a_charge_that_was_not_paid_takes_nothing(teller: TellTarget) -> None:
    other = teller.charged(id="ch_2", payment_intent="pi_2", paid=False, captured=False, status="failed")
    refund = teller.refund_object("re_1", "succeeded", 500, charge="ch_2", payment_intent=None)
    order = teller.tell(teller.order(), teller.paid(), other, teller.event("refund.created", refund))
    assert cents(order) == [1000]


def test_a_reversal_of_an_unknown_charge_counts_against_the_payment(teller: TellTarget) -> None:
    refund = teller.refund_object("re_1", "succeeded", 500, charge="ch_5", payment_intent=None)
    order = teller.tell(teller.order(), teller.paid(latest_charge=None), teller.event("refund.created", refund))
    assert cents(order) == [1000, -500]


def test_a_double_payment_is_credited_once_and_its_refund_reverses_nothing(teller: TellTarget) -> None:
    second = {"id": "pi_2", "latest_charge": "ch_2"}
    order = teller.tell(teller.order(), teller.paid(), teller.paid(**second))
    assert cents(order) == [1000]
    assert four(order) == ("credited", "succeeded", "none", "mismatch")
    assert order.statuses.reconcile_status == "mismatch"
    refund = teller.refund_object("re_1", "succeeded", 1000, charge="ch_2", payment_intent="pi_2")
    order = teller.tell(order, teller.event("refund.created", refund))
    assert cents(order) == [1000]
    assert four(order) == ("credited", "succeeded", "none", "none")
    assert order.statuses.reconcile_status == "unreconciled"


def test_a_charge_reported_without_its_intent_is_not_a_second_payment(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.charged(payment_intent=None), teller.paid())
    assert cents(order) == [1000]
    assert four(order) == ("credited", "succeeded", "none", "none")
    order = teller.tell(order, teller.charge_refunded(400))
    assert cents(order) == [1000, -400]


def test_a_refund_of_a_payment_that_never_succeeded_takes_nothing(teller: TellTarget) -> None:
    refund = teller.refund_object("re_9", "succeeded", 500, charge="ch_9", payment_intent="pi_9")
    order = teller.tell(teller.order(), teller.paid(), teller.event("refund.created", refund))
    assert cents(order) == [1000]


def test_charge_updated_brings_the_balance_transaction_and_the_fee(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid())
    by_id = teller.event("charge.updated", teller.charge(balance_transaction="txn_1"))
    order = teller.tell(order, by_id)
    assert order.balance_transaction_ids == ("txn_1",)
    line = teller.balance("txn_1", 1000, fee=59)
    whole = teller.event("charge.updated", teller.charge(balance_transaction=line))
    order = teller.tell(order, whole)
    assert cents(order) == [1000]
    assert (breakdown_of(order).fee_micro, breakdown_of(order).net_micro) == (590_000, 9_410_000)
    assert order.balance_transaction_ids == ("txn_1",)


def test_a_fee_taken_in_another_currency_is_shown_in_the_orders_own(teller: TellTarget) -> None:
    line = teller.balance("txn_1", 920, fee=46) | {"currency": "eur", "exchange_rate": 0.92}
    order = teller.tell(teller.order(), teller.charged(balance_transaction=line))
    assert breakdown_of(order).fee_micro == 500_000
    assert (fx_of(order).base, fx_of(order).quote, fx_of(order).rate) == ("USD", "EUR", "0.92")
    assert fx_of(order).credits_per_unit == "1"


def test_a_fraud_warning_is_a_risk_and_no_money(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.warning())
    assert four(order) == ("credited", "succeeded", "none", "fraud_warning")
    assert cents(order) == [1000]


@pytest.mark.parametrize(
    ("reason", "risk"), [("approved", "cleared"), ("refunded_as_fraud", "fraud"), ("redacted", "none")]
)
def test_a_review_is_shown_until_it_is_closed(teller: TellTarget, reason: str, risk: str) -> None:
    order = teller.tell(teller.order(), teller.review("opened", "rule"), teller.paid())
    assert four(order) == ("credited", "succeeded", "none", "manual_review")
    assert teller.tell(order, teller.review("closed", reason)).statuses.risk_status == risk


def test_an_operator_gives_credit_for_what_was_received(teller: TellTarget) -> None:
    held = teller.tell(teller.order(), teller.paid(amount_received=900))
    step = resolve_held(held, "credit", teller.noon, reason="paid short", new_operation_id=teller.new_operation_id)
    assert not isinstance(step, Refusal)
    teller.check(held, step)
    assert four(step.order) == ("credited", "succeeded", "none", "none")
    assert cents(step.order) == [900]
    assert step.order.ledger_operation_refs == ("op_credit",)
    assert (step.entries[-1].source, step.entries[-1].reason) == ("operator", "paid short")
    assert cents(teller.tell(step.order, teller.refund("re_1", "succeeded", 900))) == [900, -900]


def test_an_operator_gives_no_more_than_was_ordered(teller: TellTarget) -> None:
    held = teller.tell(teller.order(), teller.paid(amount_received=1100))
    step = resolve_held(held, "credit", teller.noon, reason="ok", new_operation_id=teller.new_operation_id)
    assert not isinstance(step, Refusal)
    assert cents(step.order) == [1000]
    # Sending back what was paid too much costs the customer nothing.
    assert cents(teller.tell(step.order, teller.refund("re_1", "succeeded", 100))) == [1000]
    assert cents(teller.tell(step.order, teller.refund("re_1", "succeeded", 300))) == [1000, -200]


def test_an_operator_may_give_no_credit(teller: TellTarget) -> None:
    held = teller.tell(teller.order(), teller.paid(currency="eur"))
    step = resolve_held(held, "cancel", teller.noon, reason="sent back", new_operation_id=teller.new_operation_id)
    assert not isinstance(step, Refusal)
    teller.check(held, step)
    assert four(step.order) == ("canceled", "succeeded", "none", "none")
    assert step.postings == ()


def test_an_operators_decision_counts_once(teller: TellTarget) -> None:
    held = teller.tell(teller.order(), teller.paid(amount_received=900))

    def resolve(order: Order, decision: Literal["credit", "cancel"], amount_micro: int | None = None) -> object:
        return resolve_held(
            order,
            decision,
            teller.noon,
            reason="ok",
            amount_micro=amount_micro,
            new_operation_id=teller.new_operation_id,
        )

    step = resolve(held, "credit")
    assert isinstance(step, OrderStep)
    for amount_micro in (None, 9_000_000):
        assert resolve(step.order, "credit", amount_micro) == OrderStep(order=step.order, verdict="duplicate")
    for refused in (resolve(step.order, "cancel"), resolve(step.order, "credit", 8_000_000)):
        assert isinstance(refused, Refusal)
        assert refused.code == "payment_order_not_payable"


def test_an_operator_must_name_the_credit_for_another_currency(teller: TellTarget) -> None:
    def resolve(order: Order, amount_micro: int | None) -> object:
        return resolve_held(
            order,
            "credit",
            teller.noon,
            reason="agreed",
            amount_micro=amount_micro,
            new_operation_id=teller.new_operation_id,
        )

    foreign = teller.tell(teller.order(), teller.paid(currency="eur"))
    short = teller.tell(teller.order(), teller.paid(amount_received=900))
    for held, amount_micro in ((foreign, None), (foreign, 0), (short, 0), (short, -1), (short, 10_000_001)):
        refused = resolve(held, amount_micro)
        assert isinstance(refused, Refusal)
        assert refused.code == "invalid_amount"
    refused = resolve(teller.order(), 1)
    assert isinstance(refused, Refusal)
    assert refused.code == "payment_order_not_payable"


def test_half_of_a_foreign_payment_sent_back_takes_half_of_the_credit(teller: TellTarget) -> None:
    held = teller.tell(teller.order(), teller.paid(currency="eur"))
    step = resolve_held(
        held, "credit", teller.noon, reason="ok", amount_micro=8_000_000, new_operation_id=teller.new_operation_id
    )
    assert not isinstance(step, Refusal)
    refund = teller.refund_object("re_1", "succeeded", 500, currency="eur")
    assert cents(teller.tell(step.order, teller.event("refund.created", refund))) == [800, -400]


def test_the_cursor_names_the_last_real_event(teller: TellTarget) -> None:
    event = teller.paid()
    cursor = cursor_of(teller.tell(teller.order(), event))
    assert (cursor.provider_object_type, cursor.provider_object_id) == ("payment_intent", "pi_1")
    assert (cursor.event_id, cursor.event_type) == (event.event_id, "payment_intent.succeeded")
    assert cursor.synthetic_event_id is None
    assert cursor.scan_strategy == "order_retrieve"
