"""Reconciling with the provider: the same result as by webhooks, nothing posted twice, totals compared."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.ledger.orders.decisions import attach_intent, on_expiry, on_reconciled, resolve_held
from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import Order, balance_readings_of, fee_micro_of
from holdfast.ledger.orders.snapshots import ProviderSnapshot, synthetic_event_id
from holdfast.ledger.refusals import Refusal
from holdfast.providers.card.objects import Malformed, snapshot_of

from .conftest import CardProvider, cents, four

AS_OF = 1_700_500_000


def snapshot_with(
    provider: CardProvider,
    *,
    booked: bool = True,
    refunds: Any = (),
    disputes: Any = (),
    charge: Any = None,
    **intent: Any,
) -> ProviderSnapshot:
    """Return a snapshot of the order's intent, its charge and its balance transaction."""
    line = provider.balance("txn_1", 1000, fee=59) if booked else None
    found = provider.charge(balance_transaction=line, **(charge or {}))
    return snapshot_of(
        provider.intent(**({"latest_charge": found} | intent)),
        as_of=AS_OF,
        refunds=refunds,
        disputes=disputes,
    )


def reconcile(
    provider: CardProvider, order: Order, snapshot: ProviderSnapshot | None, *, minutes: int = 10
) -> Order:
    """Return the order after a reconcile; the invariants of a step are checked."""
    now = provider.noon + timedelta(minutes=minutes)
    step = on_reconciled(order, snapshot, now, new_operation_id=provider.new_operation_id)
    after = step.order
    assert after.version == order.version + 1
    assert 0 <= after.net_micro <= after.request.amount_micro
    assert after.state.history[: len(order.state.history)] == order.state.history
    assert after.state.moves[: len(order.state.moves)] == order.state.moves
    assert after.state.history[-1].statuses == after.statuses
    assert all(entry.source == "reconcile" for entry in after.state.history[len(order.state.history) :])
    return after


def test_without_webhooks_a_reconcile_credits_the_order(provider: CardProvider) -> None:
    order = reconcile(
        provider, attach_intent(provider.order(), "pi_1", provider.noon).order, snapshot_with(provider)
    )
    assert four(order) == ("credited", "succeeded", "none", "none")
    assert order.statuses.reconcile_status == "reconciled"
    assert cents(order) == [1000]
    assert order.state.reconciled_at == provider.noon + timedelta(minutes=10)
    assert order.ledger_operation_refs == ("op_credit",)
    assert all(each.startswith("syn_") for each in order.state.event_ids)
    assert (order.state.real_event_id, order.state.real_event_type) == (None, None)
    assert order.state.synthetic_event_id == order.state.event_ids[-1]
    assert fee_micro_of(order) == 590_000
    ((transaction, reading),) = balance_readings_of(order)
    assert (transaction.source_id, transaction.source_type) == ("ch_1", "charge")
    assert (transaction.amount_micro, transaction.net_micro) == (10_000_000, 9_410_000)
    assert (transaction.type, transaction.reporting_category) == ("charge", "charge")
    assert transaction.available_on == 1_700_100_000
    assert reading.event_id in order.state.event_ids
    assert reading.scanned_at == provider.noon + timedelta(minutes=10)


def test_all_that_one_reconcile_finds_is_one_difference(provider: CardProvider) -> None:
    refunds = [provider.refund_object("re_1", "succeeded", 300), provider.refund_object("re_2", "pending", 200)]
    order = reconcile(provider, provider.order(), snapshot_with(provider, refunds=refunds))
    assert cents(order) == [1000, -500]
    paid = order.state.event_ids[-1]
    assert [(entry.reason, entry.event_id) for entry in order.state.history[1:]] == [
        ("payment_succeeded", paid),
        ("reversed_before_payment_was_reported", paid),
    ]
    refunds.append(provider.refund_object("re_3", "succeeded", 100))
    order = reconcile(provider, order, snapshot_with(provider, refunds=refunds))
    assert cents(order) == [1000, -500, -100]
    last = order.state.history[-1]
    assert (last.reason, last.event_id) == ("refund_succeeded", order.state.event_ids[-1])


def test_a_second_reconcile_changes_nothing(provider: CardProvider) -> None:
    first = reconcile(provider, provider.order(), snapshot_with(provider))
    second = reconcile(provider, first, snapshot_with(provider), minutes=70)
    assert second.state.event_ids == first.state.event_ids
    assert second.state.history == first.state.history
    assert second.state.reconciled_at == provider.noon + timedelta(minutes=70)
    assert second.statuses.reconcile_status == "reconciled"


def test_a_webhook_after_the_reconcile_changes_nothing(provider: CardProvider) -> None:
    refund = provider.refund_object("re_1", "succeeded", 300)
    order = reconcile(provider, provider.order(), snapshot_with(provider, refunds=[refund]))
    assert cents(order) == [1000, -300]
    for event in (
        provider.paid(),
        provider.charged(),
        provider.refund("re_1", "succeeded", 300),
        provider.charge_refunded(300),
    ):
        step = provider.step(order, event)
        assert (step.moves, step.entries) == ((), ())
        order = step.order
    assert order.statuses.reconcile_status == "reconciled"
    assert order.state.real_event_type == "charge.refunded"


def test_a_reconcile_after_the_webhooks_records_only_new_facts(provider: CardProvider) -> None:
    paid = provider.paid()
    order = reconcile(
        provider, provider.apply(provider.order(), paid, provider.charged()), snapshot_with(provider, booked=False)
    )
    assert order.statuses.reconcile_status == "pending"
    assert not [each for each in order.state.event_ids if each.startswith("syn_")]
    order = reconcile(provider, order, snapshot_with(provider))
    assert order.statuses.reconcile_status == "reconciled"
    assert order.state.real_event_id != order.state.synthetic_event_id
    assert cents(order) == [1000]


def scenarios(provider: CardProvider) -> list[tuple[str, list[PaymentEvent], ProviderSnapshot]]:
    """Return scenarios as webhooks, and as a snapshot read afterwards."""
    part = provider.refund_object("re_1", "succeeded", 300)
    rest = provider.refund_object("re_2", "pending", 200)
    failed = provider.refund_object("re_1", "failed", 1000)
    error = {"decline_code": "insufficient_funds"}
    unpaid: dict[str, Any] = {"amount_received": 0, "latest_charge": None}
    return [
        (
            "two refunds",
            [provider.paid(), provider.refund("re_1", "succeeded", 300), provider.refund("re_2", "pending", 200)],
            snapshot_with(provider, refunds=[part, rest], charge={"amount_refunded": 500}),
        ),
        (
            "failed refund",
            [provider.paid(), provider.refund("re_1", "succeeded", 1000), provider.refund("re_1", "failed", 1000)],
            snapshot_with(provider, refunds=[failed]),
        ),
        (
            "lost",
            [provider.paid(), provider.dispute("created", "needs_response"), provider.dispute("closed", "lost")],
            snapshot_with(provider, disputes=[provider.dispute_object("lost", moves=(-1000,))]),
        ),
        (
            "won in part",
            [provider.paid(), provider.dispute("closed", "won", moves=(-1000, 600))],
            snapshot_with(provider, disputes=[provider.dispute_object("won", moves=(-1000, 600))]),
        ),
        (
            "inquiry",
            [provider.paid(), provider.dispute("created", "warning_needs_response")],
            snapshot_with(provider, disputes=[provider.dispute_object("warning_needs_response")]),
        ),
        (
            "wrong amount",
            [provider.paid(amount_received=900)],
            snapshot_with(provider, amount_received=900, charge={"amount_captured": 900}),
        ),
        ("canceled", [provider.attempt("canceled")], snapshot_with(provider, status="canceled", **unpaid)),
        (
            "declined",
            [provider.attempt("payment_failed", last_payment_error=error)],
            snapshot_with(provider, status="requires_payment_method", last_payment_error=error, **unpaid),
        ),
        ("under way", [provider.attempt("processing")], snapshot_with(provider, status="processing", **unpaid)),
    ]


@pytest.mark.parametrize("number", range(9))
def test_reconciles_and_webhooks_give_the_same_result(provider: CardProvider, number: int) -> None:
    name, events, snapshot = scenarios(provider)[number]
    by_webhooks = provider.apply(provider.order(), *events)
    found = reconcile(provider, provider.order(), snapshot)
    both = reconcile(provider, by_webhooks, snapshot)
    assert four(found) == four(by_webhooks) == four(both), name
    assert found.net_micro == by_webhooks.net_micro == both.net_micro, name
    after = provider.apply(found, *events)
    assert four(after) == four(by_webhooks), name
    assert after.state.moves == found.state.moves, name
    # A refund that had failed before the first reconcile never reversed anything.
    assert set(found.state.reversal_refs) <= set(by_webhooks.state.reversal_refs), name
    assert set(after.state.reversal_refs) == set(by_webhooks.state.reversal_refs), name


def test_sums_that_differ_are_a_mismatch(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.paid(), provider.refund("re_1", "succeeded", 300))
    # The refund of the webhook does not exist at the provider.
    order = reconcile(provider, order, snapshot_with(provider))
    assert order.statuses.reconcile_status == "mismatch"
    assert order.state.history[-1].reason == "compared_mismatch"
    assert order.state.reconciled_at is None


def test_a_held_payment_is_a_mismatch_until_it_is_decided(provider: CardProvider) -> None:
    short: dict[str, Any] = {"amount_received": 900, "charge": {"amount_captured": 900}}
    held = reconcile(provider, provider.order(), snapshot_with(provider, **short))
    assert (held.status, held.statuses.reconcile_status) == ("held", "mismatch")
    step = resolve_held(held, "credit", provider.noon, reason="ok", new_operation_id=provider.new_operation_id)
    assert not isinstance(step, Refusal)
    assert step.order.statuses.reconcile_status == "unreconciled"
    order = reconcile(provider, step.order, snapshot_with(provider, **short))
    assert order.statuses.reconcile_status == "reconciled"


def test_a_held_payment_without_credit_reconciles_once_refunded(provider: CardProvider) -> None:
    short: dict[str, Any] = {"amount_received": 900, "charge": {"amount_captured": 900}}
    held = provider.apply(provider.order(), provider.paid(amount_received=900))
    step = resolve_held(held, "cancel", provider.noon, reason="no", new_operation_id=provider.new_operation_id)
    assert not isinstance(step, Refusal)
    order = reconcile(provider, step.order, snapshot_with(provider, **short))
    assert order.statuses.reconcile_status == "mismatch"
    refund = provider.refund_object("re_1", "succeeded", 900)
    order = reconcile(provider, order, snapshot_with(provider, refunds=[refund], **short))
    assert order.statuses.reconcile_status == "reconciled"


def test_a_second_payment_is_a_mismatch_although_the_first_matches(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.paid(), provider.paid(id="pi_2", latest_charge="ch_2"))
    order = reconcile(provider, order, snapshot_with(provider))
    assert (order.net_micro, order.statuses.reconcile_status) == (10_000_000, "mismatch")


def test_a_processing_order_wakes_for_its_reconcile_not_for_its_expiry(provider: CardProvider) -> None:
    order = provider.apply(
        attach_intent(provider.order(), "pi_1", provider.noon).order, provider.attempt("processing")
    )
    late = 60 * 24 + 5
    under_way = snapshot_with(provider, status="processing", amount_received=0, latest_charge="ch_1")
    order = reconcile(provider, order, under_way, minutes=late)
    assert order.state.reconcile_due_at is not None
    assert order.wake_at == order.state.reconcile_due_at > provider.noon + timedelta(minutes=late)
    failed = provider.attempt("payment_failed", created=AS_OF + 10)
    order = provider.step(order, failed, provider.noon + timedelta(minutes=late + 1)).order
    assert order.wake_at is not None
    assert order.request.expires_at < provider.noon + timedelta(minutes=late + 1) < order.wake_at


def test_an_unreachable_provider_is_an_error_and_changes_nothing_else(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.paid())
    after = reconcile(provider, order, None)
    assert after.statuses.reconcile_status == "error"
    assert (after.net_micro, after.state.event_ids) == (order.net_micro, order.state.event_ids)
    again = reconcile(provider, after, None)
    assert again.state.history == after.state.history


def test_an_unpaid_intent_stays_pending_and_a_canceled_one_reconciles(provider: CardProvider) -> None:
    open_intent = snapshot_with(provider, status="requires_payment_method", amount_received=0, latest_charge=None)
    order = reconcile(provider, provider.order(), open_intent)
    assert (order.status, order.statuses.reconcile_status) == ("pending", "pending")
    order = on_expiry(order, order.request.expires_at).order
    dead = snapshot_with(provider, status="canceled", amount_received=0, latest_charge=None)
    order = reconcile(provider, order, dead)
    assert (order.status, order.statuses.reconcile_status) == ("expired", "reconciled")


def test_a_second_attempt_with_the_same_status_is_recorded(provider: CardProvider) -> None:
    def under_way(charge: str) -> ProviderSnapshot:
        return snapshot_with(provider, status="processing", amount_received=0, latest_charge=charge)

    order = reconcile(provider, provider.order(), under_way("ch_1"))
    order = provider.apply(order, provider.attempt("payment_failed", created=AS_OF + 10))
    assert order.status == "failed"
    later = snapshot_of(
        provider.intent(status="processing", amount_received=0, latest_charge="ch_2"),
        as_of=AS_OF + 20,
    )
    assert reconcile(provider, order, later).status == "pending"


def test_unchanged_reconciles_back_off_and_end_after_thirty_days(provider: CardProvider) -> None:
    order = provider.apply(provider.order(), provider.paid())
    assert order.state.reconcile_due_at == provider.noon + timedelta(seconds=60)
    waits = []
    for _ in range(12):
        order = reconcile(provider, order, snapshot_with(provider, booked=False), minutes=0)
        assert order.state.reconcile_due_at is not None
        waits.append((order.state.reconcile_due_at - provider.noon).total_seconds())
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (60, 6 * 3600)
    order = reconcile(provider, order, snapshot_with(provider), minutes=60 * 24 * 30)
    assert order.state.reconcile_due_at is None
    assert order.wake_at is None


def test_money_that_moves_after_a_reconcile_requires_another(provider: CardProvider) -> None:
    order = reconcile(provider, provider.order(), snapshot_with(provider))
    order = provider.apply(order, provider.refund("re_1", "succeeded", 300))
    assert order.statuses.reconcile_status == "unreconciled"
    assert order.state.reconcile_due_at == provider.noon + timedelta(seconds=60)
    refund = provider.refund_object("re_1", "succeeded", 300)
    assert (
        reconcile(provider, order, snapshot_with(provider, refunds=[refund])).statuses.reconcile_status
        == "reconciled"
    )


def test_a_synthetic_id_is_derived_from_its_fact() -> None:
    given = synthetic_event_id("cardprovider", "re_1", "refund", "succeeded", 1)
    assert given == synthetic_event_id("cardprovider", "re_1", "refund", "succeeded", 1)
    assert given.startswith("syn_")
    assert len(given) == 30
    others = {
        synthetic_event_id("other", "re_1", "refund", "succeeded", 1),
        synthetic_event_id("cardprovider", "re_2", "refund", "succeeded", 1),
        synthetic_event_id("cardprovider", "re_1", "paid", "succeeded", 1),
        synthetic_event_id("cardprovider", "re_1", "refund", "failed", 1),
        synthetic_event_id("cardprovider", "re_1", "refund", "succeeded", 2),
    }
    assert len(others | {given}) == 6


def test_a_response_that_is_no_intent_is_malformed(provider: CardProvider) -> None:
    with pytest.raises(Malformed):
        snapshot_of({"id": "pi_1", "status": "succeeded"}, as_of=AS_OF)
    with pytest.raises(Malformed):
        snapshot_of(provider.intent(id=None), as_of=AS_OF)
