"""The effect of each kind of card event on an order's statuses, operations and history."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.ledger.orders.decisions import attach_intent, on_create_refused, on_expiry
from holdfast.ledger.orders.order import LedgerMove, OrderResult, fee_micro_of, fx_of
from holdfast.ledger.refusals import Refusal

from .conftest import CardProvider, cents, four

CREDIT = LedgerMove(kind="credit", amount_micro=10_000_000, operation_id="op_credit", reason="payment_succeeded")


def test_a_new_order_is_pending_with_its_operation_reserved(provider: CardProvider) -> None:
    order = provider.order()
    assert four(order) == ("pending", "pending", "none", "none")
    assert order.statuses.reconcile_status == "unreconciled"
    assert order.request.operation_id == "op_credit"
    assert order.ledger_operation_refs == ()
    (entry,) = order.state.history
    assert (entry.source, entry.reason, entry.at) == ("api", "order_created", provider.noon)
    assert order.wake_at == provider.noon + timedelta(minutes=2)
    assert fee_micro_of(order) == 0
    assert fx_of(order).rate == "1"


@pytest.mark.parametrize("what", ["processing", "requires_action"])
def test_progress_changes_the_status_and_moves_no_money(provider: CardProvider, what: str) -> None:
    step = provider.step(provider.order(), provider.attempt(what))
    assert four(step.order) == ("pending", what, "none", "none")
    assert step.moves == ()
    assert step.order.state.history[-1].source == "provider_webhook"
    assert step.order.state.history[-1].event_id == step.order.provider_event_id


def test_repeated_progress_adds_no_history_entry(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.attempt("processing"))
    step = provider.step(order, provider.attempt("processing"))
    assert (step.verdict, step.entries) == ("applied", ())


def test_a_declined_attempt_fails_the_order_with_its_code(provider: CardProvider) -> None:
    error = {"code": "card_declined", "decline_code": "insufficient_funds", "message": "Your card was declined."}
    order = provider.apply(provider.order(), provider.attempt("payment_failed", last_payment_error=error))
    assert four(order) == ("failed", "failed", "none", "none")
    assert order.state.failed_at == provider.noon
    assert order.state.history[-1].reason == "payment_failed: insufficient_funds"
    assert order.failure_code == "insufficient_funds"
    assert provider.apply(order, provider.attempt("requires_action")).failure_code is None
    assert provider.apply(order, provider.paid()).failure_code is None


def test_a_new_attempt_after_a_failed_one_is_pending_again(provider: CardProvider) -> None:
    order = provider.apply(
        provider.order(), provider.attempt("payment_failed"), provider.attempt("requires_action")
    )
    assert four(order) == ("pending", "requires_action", "none", "none")
    assert order.state.failed_at == provider.noon


def test_the_failure_of_an_older_attempt_does_not_overwrite_a_newer_one(provider: CardProvider) -> None:
    older = provider.attempt("payment_failed")
    order = provider.apply(provider.order(), provider.attempt("processing"))
    step = provider.step(order, older)
    assert step.verdict == "stale"
    assert four(step.order) == ("pending", "processing", "none", "none")
    assert older.event_id in step.order.state.event_ids
    assert step.order.provider_event_id != older.event_id


def test_a_canceled_intent_ends_the_order(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.attempt("canceled", cancellation_reason="abandoned"))
    assert four(order) == ("canceled", "canceled", "none", "none")
    assert order.state.failed_at == provider.noon
    assert order.state.history[-1].reason == "payment_canceled: abandoned"
    assert order.failure_code == "abandoned"
    assert order.wake_at is None or order.wake_at == order.state.reconcile_due_at


@pytest.mark.parametrize("first", ["payment_intent", "charge"])
def test_success_credits_once_whichever_event_reports_it_first(provider: CardProvider, first: str) -> None:
    events = [provider.paid(), provider.charged()]
    if first == "charge":
        events.reverse()
    step = provider.step(provider.order(), events[0])
    assert step.moves == (CREDIT,)
    assert four(step.order) == ("credited", "succeeded", "none", "none")
    assert step.order.statuses.reconcile_status == "unreconciled"
    assert step.order.state.credited_at == provider.noon
    assert (step.order.state.payment_id, step.order.state.charge_id) == ("pi_1", "ch_1")
    assert step.order.ledger_operation_refs == ("op_credit",)
    assert step.order.reversal_operation_ids == ()
    assert step.entries[-1].operation_id == "op_credit"
    again = provider.step(step.order, events[1])
    assert (again.moves, again.entries) == ((), ())
    assert again.order.state.event_ids == (events[0].event_id, events[1].event_id)


def test_a_charge_that_is_only_authorised_credits_nothing(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.charged(captured=False), provider.charged(paid=False))
    assert four(order) == ("pending", "pending", "none", "none")


def test_an_event_seen_before_changes_nothing(provider: CardProvider) -> None:
    event = provider.paid()
    order = provider.apply(provider.order(), event)
    step = provider.step(order, event)
    assert step.verdict == "duplicate"
    assert step.order is order


@pytest.mark.parametrize("what", ["payment_failed", "processing", "canceled", "requires_action"])
def test_no_attempt_downgrades_a_paid_order(provider: CardProvider, what: str) -> None:
    order = provider.apply(provider.order(), provider.paid())
    event = provider.attempt(what)
    step = provider.step(order, event)
    assert (step.verdict, step.entries) == ("stale", ())
    assert four(step.order) == ("credited", "succeeded", "none", "none")
    assert step.order.state.failed_at is None
    assert step.order.state.event_ids[-1] == event.event_id


@pytest.mark.parametrize(
    "wrong",
    [{"amount_received": 900}, {"amount_received": 1001}, {"currency": "eur"}, {"livemode": True}],
)
def test_a_payment_that_does_not_match_is_held_and_credits_nothing(
    provider: CardProvider, wrong: dict[str, object]
) -> None:
    step = provider.step(provider.order(), provider.paid(**wrong))
    assert four(step.order) == ("held", "succeeded", "none", "mismatch")
    assert step.order.statuses.reconcile_status == "mismatch"
    assert step.moves == ()
    assert step.entries[-1].reason == "payment_mismatch"
    assert step.order.state.credited_at is None


def test_a_payment_to_another_account_is_held(provider: CardProvider) -> None:
    event = provider.event("payment_intent.succeeded", provider.intent(), account="acct_else")
    assert provider.apply(provider.order(), event).status == "held"
    fits = provider.event("payment_intent.succeeded", provider.intent(), account="acct_card")
    assert provider.apply(provider.order(), fits).status == "credited"


@pytest.mark.parametrize(("ordered", "reported"), [(None, True), (None, None), (False, None)])
def test_an_unknown_livemode_is_no_mismatch(
    provider: CardProvider, ordered: bool | None, reported: bool | None
) -> None:
    assert provider.apply(provider.order(livemode=ordered), provider.paid(livemode=reported)).status == "credited"


def test_a_second_payment_that_does_not_match_leaves_the_first_unchanged(provider: CardProvider) -> None:
    other = provider.paid(id="pi_2", latest_charge="ch_2", amount_received=2500)
    order = provider.apply(provider.order(), provider.paid(), other, provider.charge_refunded(1000))
    assert four(order) == ("credited", "succeeded", "refunded", "mismatch")
    assert cents(order) == [1000, -1000]


def test_yen_have_no_minor_unit(provider: CardProvider) -> None:
    order = provider.order(amount_micro=1_000_000_000, currency="JPY")
    assert provider.apply(order, provider.paid(currency="jpy")).status == "credited"
    assert provider.apply(order, provider.paid(currency="jpy", amount_received=100_000)).status == "held"


@pytest.mark.parametrize("ended", ["expired", "canceled", "failed", "late"])
def test_a_late_payment_is_credited(provider: CardProvider, ended: str) -> None:
    order, later = provider.order(), provider.noon + timedelta(days=2)
    if ended == "expired":
        order = on_expiry(order, later).order
    elif ended != "late":
        order = provider.apply(order, provider.attempt("canceled" if ended == "canceled" else "payment_failed"))
    assert order.status == ("pending" if ended == "late" else ended)
    step = provider.step(order, provider.paid(), later)
    assert four(step.order) == ("credited", "succeeded", "none", "none")
    assert [(move.signed_micro, move.reason) for move in step.moves] == [(10_000_000, "late_payment")]
    assert step.entries[-1].reason == "late_payment"


def test_an_unpaid_order_expires(provider: CardProvider) -> None:
    order = provider.order()
    assert on_expiry(order, order.request.expires_at - timedelta(seconds=1)).verdict == "ignored"
    step = provider.check(order, on_expiry(order, order.request.expires_at))
    assert four(step.order) == ("expired", "pending", "none", "none")
    assert step.entries[-1].source == "expiry"
    assert step.order.wake_at is None
    assert on_expiry(step.order, order.request.expires_at).verdict == "ignored"


def test_expiry_ignores_paid_held_canceled_and_processing_orders(provider: CardProvider) -> None:
    late = provider.noon + timedelta(days=3)
    for event in (
        provider.paid(),
        provider.paid(amount_received=1),
        provider.attempt("canceled"),
        provider.attempt("processing"),
    ):
        assert on_expiry(provider.apply(provider.order(), event), late).verdict == "ignored"
    failed = provider.apply(provider.order(), provider.attempt("payment_failed"))
    assert on_expiry(failed, late).order.status == "expired"


def test_the_cancel_of_an_expired_order_leaves_it_expired(provider: CardProvider) -> None:
    order = on_expiry(provider.order(), provider.noon + timedelta(days=2)).order
    order = provider.apply(order, provider.attempt("canceled"))
    assert four(order) == ("expired", "canceled", "none", "none")


def test_an_intent_is_attached_whenever_the_create_call_returns(provider: CardProvider) -> None:
    before = attach_intent(provider.order(), "pi_1", provider.noon).order
    assert before.state.payment_id == "pi_1"
    assert before.wake_at == provider.noon + timedelta(seconds=60)
    assert attach_intent(before, "pi_1", provider.noon).verdict == "duplicate"
    early = provider.apply(provider.order(), provider.paid())
    after = attach_intent(early, "pi_1", provider.noon).order
    assert after.status == "credited"
    assert after.net_micro == 10_000_000
    assert after.state.history == early.state.history


def test_an_intent_refused_by_the_provider_fails_the_order(provider: CardProvider) -> None:
    step = provider.check(provider.order(), on_create_refused(provider.order(), "amount_too_small", provider.noon))
    assert four(step.order) == ("failed", "failed", "none", "none")
    assert (step.entries[-1].source, step.entries[-1].reason) == ("api", "create_refused: amount_too_small")
    for order in (
        attach_intent(provider.order(), "pi_1", provider.noon).order,
        provider.apply(provider.order(), provider.paid()),
        step.order,
    ):
        assert on_create_refused(order, "amount_too_small", provider.noon).verdict == "ignored"


def test_the_charge_id_is_the_charge_that_paid(provider: CardProvider) -> None:
    declined = provider.charged(id="ch_0", paid=False, captured=False, status="failed")
    order = provider.apply(provider.order(), declined)
    assert (order.state.payment_id, order.state.charge_id) == ("pi_1", "ch_0")
    order = provider.apply(order, provider.paid())
    assert (order.state.payment_id, order.state.charge_id) == ("pi_1", "ch_1")


def test_the_earlier_of_two_payments_represents_the_order(provider: CardProvider) -> None:
    first, second = provider.paid(id="pi_9", latest_charge="ch_9"), provider.paid()
    for events in ((first, second), (second, first)):
        assert provider.apply(provider.order(), *events).state.payment_id == "pi_9"


def test_a_reversal_of_a_charge_that_was_not_paid_reverses_nothing(provider: CardProvider) -> None:
    other = provider.charged(id="ch_2", payment_intent="pi_2", paid=False, captured=False, status="failed")
    refund = provider.refund_object("re_1", "succeeded", 500, charge="ch_2", payment_intent=None)
    order = provider.apply(provider.order(), provider.paid(), other, provider.event("refund.created", refund))
    assert cents(order) == [1000]


def test_a_reversal_of_an_unknown_charge_counts_against_the_payment(provider: CardProvider) -> None:
    refund = provider.refund_object("re_1", "succeeded", 500, charge="ch_5", payment_intent=None)
    order = provider.apply(
        provider.order(), provider.paid(latest_charge=None), provider.event("refund.created", refund)
    )
    assert cents(order) == [1000, -500]


def test_a_double_payment_is_credited_once_and_its_refund_reverses_nothing(provider: CardProvider) -> None:
    second = {"id": "pi_2", "latest_charge": "ch_2"}
    order = provider.apply(provider.order(), provider.paid(), provider.paid(**second))
    assert cents(order) == [1000]
    assert four(order) == ("credited", "succeeded", "none", "mismatch")
    assert order.statuses.reconcile_status == "mismatch"
    refund = provider.refund_object("re_1", "succeeded", 1000, charge="ch_2", payment_intent="pi_2")
    order = provider.apply(order, provider.event("refund.created", refund))
    assert cents(order) == [1000]
    assert four(order) == ("credited", "succeeded", "none", "none")
    assert order.statuses.reconcile_status == "unreconciled"


def test_charge_updated_adds_the_balance_transaction_and_the_fee(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.paid())
    by_id = provider.event("charge.updated", provider.charge(balance_transaction="txn_1"))
    order = provider.apply(order, by_id)
    assert order.balance_transaction_ids == ("txn_1",)
    line = provider.balance("txn_1", 1000, fee=59)
    whole = provider.event("charge.updated", provider.charge(balance_transaction=line))
    order = provider.apply(order, whole)
    assert cents(order) == [1000]
    assert fee_micro_of(order) == 590_000
    assert order.balance_transaction_ids == ("txn_1",)


def test_a_fee_taken_in_another_currency_is_shown_in_the_orders_own(provider: CardProvider) -> None:
    line = provider.balance("txn_1", 920, fee=46) | {"currency": "eur", "exchange_rate": 0.92}
    order = provider.apply(provider.order(), provider.charged(balance_transaction=line))
    assert fee_micro_of(order) == 500_000
    assert (fx_of(order).base, fx_of(order).quote, fx_of(order).rate) == ("USD", "EUR", "0.92")
    assert fx_of(order).credits_per_unit == "1"


@pytest.mark.parametrize(
    ("reason", "risk"), [("approved", "cleared"), ("refunded_as_fraud", "fraud"), ("redacted", "none")]
)
def test_a_review_is_shown_until_it_is_closed(provider: CardProvider, reason: str, risk: str) -> None:
    order = provider.apply(provider.order(), provider.review("opened", "rule"), provider.paid())
    assert four(order) == ("credited", "succeeded", "none", "manual_review")
    assert provider.apply(order, provider.review("closed", reason)).statuses.risk_status == risk


def test_an_operator_credits_what_was_received(provider: CardProvider) -> None:
    held = provider.apply(provider.order(), provider.paid(amount_received=900))
    resolved = provider.resolve(held, "credit", reason="paid short")
    assert not isinstance(resolved, Refusal)
    step = provider.check(held, resolved)
    assert four(step.order) == ("credited", "succeeded", "none", "none")
    assert cents(step.order) == [900]
    assert step.order.ledger_operation_refs == ("op_credit",)
    assert (step.entries[-1].source, step.entries[-1].reason) == ("operator", "paid short")
    assert cents(provider.apply(step.order, provider.refund("re_1", "succeeded", 900))) == [900, -900]


def test_an_operator_credits_at_most_what_was_ordered(provider: CardProvider) -> None:
    held = provider.apply(provider.order(), provider.paid(amount_received=1100))
    step = provider.resolve(held, "credit", reason="ok")
    assert not isinstance(step, Refusal)
    assert cents(step.order) == [1000]
    # Refunding the excess costs the customer nothing.
    assert cents(provider.apply(step.order, provider.refund("re_1", "succeeded", 100))) == [1000]
    assert cents(provider.apply(step.order, provider.refund("re_1", "succeeded", 300))) == [1000, -200]


def test_an_operator_may_refuse_credit(provider: CardProvider) -> None:
    held = provider.apply(provider.order(), provider.paid(currency="eur"))
    resolved = provider.resolve(held, "cancel", reason="sent back")
    assert not isinstance(resolved, Refusal)
    step = provider.check(held, resolved)
    assert four(step.order) == ("canceled", "succeeded", "none", "none")
    assert step.moves == ()


def test_an_operators_decision_counts_once(provider: CardProvider) -> None:
    held = provider.apply(provider.order(), provider.paid(amount_received=900))
    step = provider.resolve(held, "credit")
    assert isinstance(step, OrderResult)
    for amount_micro in (None, 9_000_000):
        assert provider.resolve(step.order, "credit", amount_micro) == OrderResult(step.order, "duplicate")
    for refused in (provider.resolve(step.order, "cancel"), provider.resolve(step.order, "credit", 8_000_000)):
        assert isinstance(refused, Refusal)
        assert refused.code == "payment_order_not_payable"


def test_an_operator_must_name_the_credit_for_another_currency(provider: CardProvider) -> None:
    foreign = provider.apply(provider.order(), provider.paid(currency="eur"))
    short = provider.apply(provider.order(), provider.paid(amount_received=900))
    for held, amount_micro in ((foreign, None), (foreign, 0), (short, 0), (short, -1), (short, 10_000_001)):
        refused = provider.resolve(held, "credit", amount_micro)
        assert isinstance(refused, Refusal)
        assert refused.code == "invalid_amount"
    refused = provider.resolve(provider.order(), "credit", 1)
    assert isinstance(refused, Refusal)
    assert refused.code == "payment_order_not_payable"


def test_a_half_refund_in_another_currency_takes_half_of_the_credit(provider: CardProvider) -> None:
    held = provider.apply(provider.order(), provider.paid(currency="eur"))
    step = provider.resolve(held, "credit", 8_000_000)
    assert not isinstance(step, Refusal)
    refund = provider.refund_object("re_1", "succeeded", 500, currency="eur")
    assert cents(provider.apply(step.order, provider.event("refund.created", refund))) == [800, -400]


def test_the_cursor_names_the_last_real_event(provider: CardProvider) -> None:
    event = provider.paid()
    state = provider.apply(provider.order(), event).state
    assert state.payment_id == "pi_1"
    assert (state.real_event_id, state.real_event_type) == (event.event_id, "payment_intent.succeeded")
    assert state.synthetic_event_id is None
