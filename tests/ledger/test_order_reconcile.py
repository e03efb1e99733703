"""Looks at the provider: the same end as by webhooks, nothing posted twice, and the sums compared."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.ledger.orders.decisions import attach_intent, on_expiry, on_reconciled, resolve_held
from holdfast.ledger.orders.order import Order, balance_refs_of, breakdown_of, cursor_of
from holdfast.ledger.orders.payment_facts import PaymentEvent
from holdfast.ledger.orders.snapshots import ProviderSnapshot, synthetic_event_id
from holdfast.ledger.refusals import Refusal
from holdfast.providers.card.objects import Malformed, snapshot_of

if TYPE_CHECKING:
    from tests.ledger.conftest import TellTarget

AS_OF = 1_700_500_000


def four(order: Order) -> tuple[str, str, str, str]:
    """All statuses but the reconcile status."""
    now = order.statuses
    return (now.status, now.processing_status, now.reversal_status, now.risk_status)


def cents(order: Order) -> list[int]:
    """The order's operations, in cents."""
    return [move.signed_micro // 10_000 for move in order.state.moves]


def look(
    teller: TellTarget,
    *,
    booked: bool = True,
    refunds: Any = (),
    disputes: Any = (),
    charge: Any = None,
    **intent: Any,
) -> ProviderSnapshot:
    """What the provider answers when asked for the order's intent, its charge and books opened out."""
    line = teller.balance("txn_1", 1000, fee=59) if booked else None
    found = teller.charge(balance_transaction=line, **(charge or {}))
    return snapshot_of(
        teller.intent(**({"latest_charge": found} | intent)),
        as_of=AS_OF,
        refunds=refunds,
        disputes=disputes,
    )


def reconcile(teller: TellTarget, order: Order, snapshot: ProviderSnapshot, *, minutes: int = 10) -> Order:
    """The order after a look, with what holds after every step checked."""
    now = teller.noon + timedelta(minutes=minutes)
    step = on_reconciled(order, snapshot, now, new_operation_id=teller.new_operation_id)
    after = step.order
    assert after.version == order.version + 1
    assert 0 <= after.net_micro <= after.request.amount_micro
    assert after.state.history == (*order.state.history, *step.entries)
    assert after.state.moves == (*order.state.moves, *step.postings)
    assert after.state.history[-1].statuses == after.statuses
    assert all(entry.source == "reconcile" for entry in step.entries)
    return after


def test_without_webhooks_a_reconcile_credits_the_order(teller: TellTarget) -> None:
    order = reconcile(teller, attach_intent(teller.order(), "pi_1", teller.noon).order, look(teller))
    assert four(order) == ("credited", "succeeded", "none", "none")
    assert order.statuses.reconcile_status == "reconciled"
    assert cents(order) == [1000]
    assert order.state.reconciled_at == teller.noon + timedelta(minutes=10)
    assert order.ledger_operation_refs == ("op_credit",)
    assert all(each.startswith("syn_") for each in order.state.event_ids)
    cursor = cursor_of(order)
    assert (cursor.event_id, cursor.event_type) == (None, None)
    assert cursor.synthetic_event_id == order.state.event_ids[-1]
    assert cursor.reconciled_at == order.state.reconciled_at
    assert breakdown_of(order).net_micro == 9_410_000
    (ref,) = balance_refs_of(order)
    assert (ref.transaction.source_id, ref.transaction.source_type) == ("ch_1", "charge")
    assert (ref.transaction.amount_micro, ref.transaction.net_micro) == (10_000_000, 9_410_000)
    assert (ref.transaction.type, ref.transaction.reporting_category) == ("charge", "charge")
    assert ref.transaction.available_on == 1_700_100_000
    assert ref.event_id in order.state.event_ids
    assert ref.scanned_at == teller.noon + timedelta(minutes=10)


def test_a_second_reconcile_changes_nothing(teller: TellTarget) -> None:
    first = reconcile(teller, teller.order(), look(teller))
    second = reconcile(teller, first, look(teller), minutes=70)
    assert second.state.event_ids == first.state.event_ids
    assert second.state.history == first.state.history
    assert second.state.reconciled_at == teller.noon + timedelta(minutes=70)
    assert second.statuses.reconcile_status == "reconciled"


def test_a_webhook_after_the_reconcile_changes_nothing(teller: TellTarget) -> None:
    refund = teller.refund_object("re_1", "succeeded", 300)
    order = reconcile(teller, teller.order(), look(teller, refunds=[refund]))
    assert cents(order) == [1000, -300]
    for event in (
        teller.paid(),
        teller.charged(),
        teller.refund("re_1", "succeeded", 300),
        teller.charge_refunded(300),
    ):
        step = teller.step(order, event)
        assert (step.postings, step.entries) == ((), ())
        order = step.order
    assert order.statuses.reconcile_status == "reconciled"
    assert cursor_of(order).event_type == "charge.refunded"


def test_a_reconcile_after_the_webhooks_records_only_new_facts(teller: TellTarget) -> None:
    paid = teller.paid()
    order = reconcile(teller, teller.tell(teller.order(), paid, teller.charged()), look(teller, booked=False))
    assert order.statuses.reconcile_status == "pending"
    assert not [each for each in order.state.event_ids if each.startswith("syn_")]
    order = reconcile(teller, order, look(teller))
    assert order.statuses.reconcile_status == "reconciled"
    assert cursor_of(order).event_id != cursor_of(order).synthetic_event_id
    assert cents(order) == [1000]


def story_ends(teller: TellTarget) -> list[tuple[str, list[PaymentEvent], ProviderSnapshot]]:
    """Stories as webhooks tell them, and as a look finds them afterwards."""
    part = teller.refund_object("re_1", "succeeded", 300)
    rest = teller.refund_object("re_2", "pending", 200)
    failed = teller.refund_object("re_1", "failed", 1000)
    error = {"decline_code": "insufficient_funds"}
    unpaid: dict[str, Any] = {"amount_received": 0, "latest_charge": None}
    return [
        (
            "two refunds",
            [teller.paid(), teller.refund("re_1", "succeeded", 300), teller.refund("re_2", "pending", 200)],
            look(teller, refunds=[part, rest], charge={"amount_refunded": 500}),
        ),
        (
            "failed refund",
            [teller.paid(), teller.refund("re_1", "succeeded", 1000), teller.refund("re_1", "failed", 1000)],
            look(teller, refunds=[failed]),
        ),
        (
            "lost",
            [teller.paid(), teller.dispute("created", "needs_response"), teller.dispute("closed", "lost")],
            look(teller, disputes=[teller.dispute_object("lost", moves=(-1000,))]),
        ),
        (
            "won in part",
            [teller.paid(), teller.dispute("closed", "won", moves=(-1000, 600))],
            look(teller, disputes=[teller.dispute_object("won", moves=(-1000, 600))]),
        ),
        (
            "inquiry",
            [teller.paid(), teller.dispute("created", "warning_needs_response")],
            look(teller, disputes=[teller.dispute_object("warning_needs_response")]),
        ),
        (
            "wrong amount",
            [teller.paid(amount_received=900)],
            look(teller, amount_received=900, charge={"amount_captured": 900}),
        ),
        ("canceled", [teller.attempt("canceled")], look(teller, status="canceled", **unpaid)),
        (
            "declined",
            [teller.attempt("payment_failed", last_payment_error=error)],
            look(teller, status="requires_payment_method", last_payment_error=error, **unpaid),
        ),
        ("under way", [teller.attempt("processing")], look(teller, status="processing", **unpaid)),
    ]


@pytest.mark.parametrize("number", range(9))
def test_reconciles_and_webhooks_give_the_same_result(teller: TellTarget, number: int) -> None:
    name, events, snapshot = story_ends(teller)[number]
    told = teller.tell(teller.order(), *events)
    found = reconcile(teller, teller.order(), snapshot)
    both = reconcile(teller, told, snapshot)
    assert four(found) == four(told) == four(both), name
    assert found.net_micro == told.net_micro == both.net_micro, name
    after = teller.tell(found, *events)
    assert four(after) == four(told), name
    assert after.state.moves == found.state.moves, name
    # A refund found failed at the first look never took anything back.
    assert set(found.state.reversal_refs) <= set(told.state.reversal_refs), name
    assert set(after.state.reversal_refs) == set(told.state.reversal_refs), name


def test_sums_that_differ_are_a_mismatch(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.refund("re_1", "succeeded", 300))
    # The provider knows nothing of the refund that was told.
    order = reconcile(teller, order, look(teller))
    assert order.statuses.reconcile_status == "mismatch"
    assert order.state.history[-1].reason == "compared_mismatch"
    assert order.state.reconciled_at is None


def test_a_held_payment_is_a_mismatch_until_it_is_decided(teller: TellTarget) -> None:
    short: dict[str, Any] = {"amount_received": 900, "charge": {"amount_captured": 900}}
    held = reconcile(teller, teller.order(), look(teller, **short))
    assert (held.status, held.statuses.reconcile_status) == ("held", "mismatch")
    step = resolve_held(held, "credit", teller.noon, reason="ok", new_operation_id=teller.new_operation_id)
    assert not isinstance(step, Refusal)
    assert step.order.statuses.reconcile_status == "unreconciled"
    order = reconcile(teller, step.order, look(teller, **short))
    assert order.statuses.reconcile_status == "reconciled"


def test_a_held_payment_without_credit_reconciles_once_refunded(teller: TellTarget) -> None:
    short: dict[str, Any] = {"amount_received": 900, "charge": {"amount_captured": 900}}
    held = teller.tell(teller.order(), teller.paid(amount_received=900))
    step = resolve_held(held, "cancel", teller.noon, reason="no", new_operation_id=teller.new_operation_id)
    assert not isinstance(step, Refusal)
    order = reconcile(teller, step.order, look(teller, **short))
    assert order.statuses.reconcile_status == "mismatch"
    refund = teller.refund_object("re_1", "succeeded", 900)
    order = reconcile(teller, order, look(teller, refunds=[refund], **short))
    assert order.statuses.reconcile_status == "reconciled"


def test_a_second_payment_is_a_mismatch_although_the_first_matches(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid(), teller.paid(id="pi_2", latest_charge="ch_2"))
    order = reconcile(teller, order, look(teller))
    assert (order.net_micro, order.statuses.reconcile_status) == (10_000_000, "mismatch")


def test_a_processing_order_wakes_for_its_reconcile_not_for_its_expiry(teller: TellTarget) -> None:
    order = teller.tell(attach_intent(teller.order(), "pi_1", teller.noon).order, teller.attempt("processing"))
    late = 60 * 24 + 5
    under_way = look(teller, status="processing", amount_received=0, latest_charge="ch_1")
    order = reconcile(teller, order, under_way, minutes=late)
    assert order.state.reconcile_due_at is not None
    assert order.wake_at == order.state.reconcile_due_at > teller.noon + timedelta(minutes=late)
    failed = teller.attempt("payment_failed", created=AS_OF + 10)
    order = teller.step(order, failed, teller.noon + timedelta(minutes=late + 1)).order
    assert order.wake_at == order.request.expires_at


def test_a_provider_out_of_reach_is_an_error_and_leaves_the_rest(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid())
    unreachable = ProviderSnapshot(unavailable="timed out")
    after = reconcile(teller, order, unreachable)
    assert after.statuses.reconcile_status == "error"
    assert (after.net_micro, after.state.event_ids) == (order.net_micro, order.state.event_ids)
    again = reconcile(teller, after, unreachable)
    assert again.state.history == after.state.history


def test_an_unpaid_intent_stays_pending_and_a_canceled_one_reconciles(teller: TellTarget) -> None:
    open_intent = look(teller, status="requires_payment_method", amount_received=0, latest_charge=None)
    order = reconcile(teller, teller.order(), open_intent)
    assert (order.status, order.statuses.reconcile_status) == ("pending", "pending")
    order = on_expiry(order, order.request.expires_at).order
    dead = look(teller, status="canceled", amount_received=0, latest_charge=None)
    order = reconcile(teller, order, dead)
    assert (order.status, order.statuses.reconcile_status) == ("expired", "reconciled")


def test_a_second_attempt_in_the_same_state_is_seen(teller: TellTarget) -> None:
    def under_way(charge: str) -> ProviderSnapshot:
        return look(teller, status="processing", amount_received=0, latest_charge=charge)

    order = reconcile(teller, teller.order(), under_way("ch_1"))
    order = teller.tell(order, teller.attempt("payment_failed", created=AS_OF + 10))
    assert order.status == "failed"
    later = snapshot_of(
        teller.intent(status="processing", amount_received=0, latest_charge="ch_2"),
        as_of=AS_OF + 20,
    )
    assert reconcile(teller, order, later).status == "pending"


def test_unchanged_reconciles_back_off_and_end_after_thirty_days(teller: TellTarget) -> None:
    order = teller.tell(teller.order(), teller.paid())
    assert order.state.reconcile_due_at == teller.noon + timedelta(seconds=60)
    waits = []
    for _ in range(12):
        order = reconcile(teller, order, look(teller, booked=False), minutes=0)
        assert order.state.reconcile_due_at is not None
        waits.append((order.state.reconcile_due_at - teller.noon).total_seconds())
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (60, 6 * 3600)
    order = reconcile(teller, order, look(teller), minutes=60 * 24 * 30)
    assert order.state.reconcile_due_at is None
    assert order.wake_at is None


def test_money_that_moves_after_a_reconcile_requires_another(teller: TellTarget) -> None:
    order = reconcile(teller, teller.order(), look(teller))
    order = teller.tell(order, teller.refund("re_1", "succeeded", 300))
    assert order.statuses.reconcile_status == "unreconciled"
    assert order.state.reconcile_due_at == teller.noon + timedelta(seconds=60)
    refund = teller.refund_object("re_1", "succeeded", 300)
    assert reconcile(teller, order, look(teller, refunds=[refund])).statuses.reconcile_status == "reconciled"


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


def test_a_response_that_is_no_intent_is_malformed(teller: TellTarget) -> None:
    with pytest.raises(Malformed):
        snapshot_of({"id": "pi_1", "status": "succeeded"}, as_of=AS_OF)
    with pytest.raises(Malformed):
        snapshot_of(teller.intent(id=None), as_of=AS_OF)
