"""Events repeated and in every order: each scenario has one result, however its webhooks arrive."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ledger.orders.decisions import on_expiry
from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import Order

if TYPE_CHECKING:
    from tests.ledger.conftest import CardProvider

Scenario = Callable[["CardProvider"], list[PaymentEvent]]

SCENARIOS: dict[str, tuple[Scenario, int, str]] = {
    "paid": (lambda t: [t.attempt("processing"), t.paid(), t.charged()], 1000, "credited succeeded none none"),
    "failed, then paid": (
        lambda t: [t.attempt("payment_failed"), t.attempt("requires_action"), t.paid(), t.charged()],
        1000,
        "credited succeeded none none",
    ),
    "canceled": (
        lambda t: [t.attempt("processing"), t.attempt("payment_failed"), t.attempt("canceled")],
        0,
        "canceled canceled none none",
    ),
    "two refunds, both families": (
        lambda t: [
            t.paid(),
            t.refund("re_1", "succeeded", 300),
            t.charge_refunded(300),
            t.refund("re_2", "pending", 200),
            t.charge_refunded(500),
            t.refund("re_2", "succeeded", 200, event="updated"),
        ],
        500,
        "credited succeeded partially_refunded none",
    ),
    "refund that fails": (
        lambda t: [
            t.paid(),
            t.refund("re_1", "succeeded", 1000),
            t.charge_refunded(1000),
            t.refund("re_1", "failed", 1000, event="failed"),
        ],
        1000,
        "credited succeeded none none",
    ),
    "one refund fails, another holds": (
        lambda t: [
            t.paid(),
            t.refund("re_1", "succeeded", 300),
            t.refund("re_1", "failed", 300, event="updated"),
            t.refund("re_2", "succeeded", 1000),
            t.charge_refunded(1000),
        ],
        0,
        "credited succeeded refunded none",
    ),
    "dispute lost": (
        lambda t: [
            t.paid(),
            t.warning(),
            t.dispute("created", "needs_response"),
            t.dispute("funds_withdrawn", "needs_response"),
            t.dispute("updated", "under_review"),
            t.dispute("closed", "lost", reason="fraudulent"),
        ],
        0,
        "credited succeeded chargeback fraud",
    ),
    "dispute won": (
        lambda t: [
            t.paid(),
            t.dispute("created", "needs_response", moves=(-1000,)),
            t.dispute("funds_withdrawn", "needs_response", moves=(-1000,)),
            t.dispute("updated", "under_review", moves=(-1000,)),
            t.dispute("closed", "won", moves=(-1000,)),
            t.dispute("funds_reinstated", "won", moves=(-1000, 1000)),
        ],
        1000,
        "credited succeeded reinstated cleared",
    ),
    "dispute won in part": (
        lambda t: [
            t.paid(),
            t.dispute("created", "needs_response", moves=(-1000,)),
            t.dispute("closed", "won"),
            t.dispute("funds_reinstated", "won", moves=(-1000, 350)),
        ],
        350,
        "credited succeeded reinstated cleared",
    ),
    "inquiry": (
        lambda t: [t.paid(), t.dispute("created", "warning_needs_response"), t.dispute("closed", "warning_closed")],
        1000,
        "credited succeeded none cleared",
    ),
    "refund and dispute of the whole": (
        lambda t: [
            t.paid(),
            t.refund("re_1", "succeeded", 400),
            t.charge_refunded(400),
            t.dispute("created", "needs_response"),
            t.dispute("closed", "lost"),
        ],
        0,
        "credited succeeded chargeback disputed",
    ),
    "wrong amount, sent back": (
        lambda t: [
            t.paid(amount_received=900),
            t.charged(amount_captured=900),
            t.refund("re_1", "succeeded", 900),
        ],
        0,
        "canceled succeeded refunded none",
    ),
    "wrong currency": (
        lambda t: [t.attempt("processing"), t.paid(currency="eur")],
        0,
        "held succeeded none mismatch",
    ),
    "paid twice, one sent back": (
        lambda t: [
            t.paid(),
            t.charged(),
            t.paid(id="pi_2", latest_charge="ch_2"),
            t.charge_refunded(1000, id="ch_2", payment_intent="pi_2"),
        ],
        1000,
        "credited succeeded none none",
    ),
    "charge without its intent": (
        lambda t: [t.charged(payment_intent=None), t.paid(), t.charge_refunded(100), t.warning()],
        900,
        "credited succeeded partially_refunded fraud_warning",
    ),
    "review approved": (
        lambda t: [t.review("opened", "rule"), t.paid(), t.review("closed", "approved"), t.charged()],
        1000,
        "credited succeeded none cleared",
    ),
    "books opened later": (
        lambda t: [
            t.paid(),
            t.event("charge.updated", t.charge(balance_transaction="txn_1")),
            t.event("charge.updated", t.charge(balance_transaction=t.balance("txn_1", 1000, fee=59))),
        ],
        1000,
        "credited succeeded none none",
    ),
    "refund known before the payment": (
        lambda t: [t.refund("re_1", "succeeded", 400), t.paid()],
        600,
        "credited succeeded partially_refunded none",
    ),
    "refunds of more than was paid": (
        lambda t: [t.paid(), t.refund("re_1", "succeeded", 800), t.refund("re_2", "pending", 800)],
        0,
        "credited succeeded refunded none",
    ),
    "refund of another payment, which failed": (
        lambda t: [
            t.paid(),
            t.event(
                "refund.created", t.refund_object("re_9", "succeeded", 500, charge="ch_9", payment_intent="pi_9")
            ),
        ],
        1000,
        "credited succeeded none none",
    ),
    "refund by its older name": (
        lambda t: [t.paid(), t.event("charge.refund.updated", t.refund_object("re_1", "succeeded", 100))],
        900,
        "credited succeeded partially_refunded none",
    ),
    "dispute won after a refund": (
        lambda t: [
            t.paid(),
            t.refund("re_1", "succeeded", 400),
            t.dispute("created", "needs_response"),
            t.dispute("closed", "won"),
            t.dispute("funds_reinstated", "won"),
        ],
        600,
        "credited succeeded partially_refunded cleared",
    ),
    "dispute lost for another reason": (
        lambda t: [t.paid(), t.dispute("closed", "lost", reason="duplicate")],
        0,
        "credited succeeded chargeback disputed",
    ),
    "dispute prevented by a refund": (
        lambda t: [
            t.paid(),
            t.dispute("created", "needs_response"),
            t.refund("re_1", "succeeded", 1000),
            t.dispute("closed", "prevented"),
        ],
        0,
        "credited succeeded refunded none",
    ),
    "inquiry that becomes a dispute": (
        lambda t: [
            t.paid(),
            t.dispute("created", "warning_needs_response"),
            t.dispute("updated", "needs_response"),
        ],
        0,
        "credited succeeded disputed disputed",
    ),
    "dispute of a part": (
        lambda t: [t.paid(), t.dispute("created", "needs_response", 250)],
        750,
        "credited succeeded disputed disputed",
    ),
    "two disputes, one won": (
        lambda t: [
            t.paid(),
            t.dispute("created", "needs_response", 700),
            t.dispute("created", "needs_response", 700, id="dp_2"),
            t.dispute("closed", "won", 700),
        ],
        300,
        "credited succeeded disputed disputed",
    ),
    "fraud warning": (lambda t: [t.paid(), t.warning()], 1000, "credited succeeded none fraud_warning"),
}
"""The events of each scenario in order, the cents that are left, and the statuses in the end."""


def end_of(order: Order) -> object:
    """Return everything that must not depend on the order of events.

    ``failed_at`` may: an overtaken failure was never shown. So may ``refunded_at`` of an order paid twice: whether
    the refund took the order's only payment or its second one is decided by which of the two was applied first.
    """
    state = order.state
    happened = [state.credited_at, state.disputed_at, state.chargeback_at]
    if len(set(state.facts.charges.values())) == 1:
        happened.append(state.refunded_at)
    return (
        order.statuses,
        order.net_micro,
        [at is not None for at in happened],
        state.facts,
        set(state.event_ids),
        set(state.reversal_refs),
        set(order.balance_transaction_ids),
        (state.payment_id, state.charge_id),
    )


def run(provider: CardProvider, events: list[PaymentEvent], *, expires_after: int | None = None) -> Order:
    """Apply the events a second apart; every step is checked."""
    order, now = provider.order(), provider.noon
    for number, event in enumerate(events):
        if number == expires_after:
            order = expire(provider, order)
        now += timedelta(seconds=1)
        order = provider.step(order, event, now).order
    return order


def expire(provider: CardProvider, order: Order) -> Order:
    late: datetime = order.request.expires_at
    step = on_expiry(order, late)
    provider.check(order, step)
    return step.order


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_order_of_the_same_events_gives_the_same_result(provider: CardProvider, name: str) -> None:
    scenario, left_cents, statuses = SCENARIOS[name]
    events = scenario(provider)
    usual = run(provider, events)
    assert usual.net_micro == left_cents * 10_000
    now = usual.statuses
    shown = (now.status, now.processing_status, now.reversal_status, now.risk_status)
    assert " ".join(shown) == statuses
    for shuffled in itertools.islice(itertools.permutations(events), 720):
        assert end_of(run(provider, list(shuffled))) == end_of(usual)


@pytest.mark.parametrize("name", SCENARIOS)
def test_repetition_changes_nothing(provider: CardProvider, name: str) -> None:
    events = SCENARIOS[name][0](provider)
    usual = run(provider, events)
    chance = random.Random(7)
    for _ in range(40):
        shuffled = [*events, *events, *events]
        chance.shuffle(shuffled)
        assert end_of(run(provider, shuffled)) == end_of(usual)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_mixed_and_truncated_event_sequences_stay_within_bounds(
    provider: CardProvider, data: st.DataObject
) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(SCENARIOS)), min_size=1, max_size=3))
    events = [event for name in names for event in SCENARIOS[name][0](provider)]
    shuffled = data.draw(st.lists(st.sampled_from(range(len(events))), max_size=2 * len(events)))
    other = data.draw(st.permutations(sorted(set(shuffled))))
    first = run(provider, [events[n] for n in shuffled])
    second = run(provider, [events[n] for n in other])
    assert end_of(first) == end_of(second)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_expiry_between_any_two_events_costs_no_money(provider: CardProvider, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(SCENARIOS)))
    scenario, left_cents, _ = SCENARIOS[name]
    events = data.draw(st.permutations(scenario(provider)))
    at = data.draw(st.integers(0, len(events) - 1))
    assert run(provider, list(events), expires_after=at).net_micro == left_cents * 10_000
