"""Automatic top-ups as values: when an attempt is due, what counts towards the limits, and what switches it off."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.made_requests import make_order_request

from holdfast.ledger.orders.decisions import create_order, on_create_refused, on_event
from holdfast.ledger.orders.facts import (
    DisputeFacts,
    OrderFacts,
    PaymentAttempt,
    PaymentEvent,
    PaymentFacts,
    StatedPayment,
)
from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.top_ups import (
    CARDS_MAX,
    FAILED_PER_DAY_MAX,
    AutoTopUp,
    SavedCard,
    TopUpAttempts,
    TopUpSettings,
    after_order,
    attempt_time,
    is_due,
    next_attempt_at,
    status_of,
    switched_off,
    utc_day,
    with_attempt,
    with_card,
    with_customer,
    with_settings,
    without_card,
)
from holdfast.ledger.refusals import Refusal

CREDIT = 1_000_000
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
SETTINGS = TopUpSettings(below_micro=5 * CREDIT, amount_micro=10 * CREDIT, max_per_day=2, max_per_month=3)


def card(number: int = 1) -> SavedCard:
    return SavedCard(card_id=f"pm_{number}", brand="visa", last4="4242", exp_month=12, exp_year=2035, saved_at=NOON)


def switched_on(**settings: int) -> AutoTopUp:
    known = with_card(with_customer(AutoTopUp(account_id="acct_1"), "cus_1", livemode=False, at=NOON), card())
    assert isinstance(known, AutoTopUp)
    on = with_settings(known, replace(SETTINGS, **settings), enabled=True, now=NOON)
    assert isinstance(on, AutoTopUp)
    return on


def attempt(number: int = 1, at: datetime = NOON) -> Order:
    saved = {"origin": "top_up", "customer_id": "cus_1", "card_id": "pm_1"}
    return create_order(make_order_request(f"ord_{number}", "acct_1", at, **saved))


def stated(order: Order, **facts: Any) -> Order:
    event = PaymentEvent(
        event_id=f"evt_{order.order_id}_{order.version}", type="t", at=1, reason="r", facts=OrderFacts(**facts)
    )
    ids = iter(range(100))
    return on_event(
        order, event, order.request.created_at, new_operation_id=lambda: f"op_{order.order_id}_{next(ids)}"
    ).order


def paid(order: Order, amount_micro: int = 10 * CREDIT) -> Order:
    captured = StatedPayment(amount_micro=amount_micro, currency="USD")
    return stated(order, payments={f"pi_{order.order_id}": PaymentFacts(at=1, stated=(captured,))})


def declined(order: Order, reason: str = "insufficient_funds") -> Order:
    return stated(order, attempt=PaymentAttempt(status="failed", at=2, reason=reason))


def test_it_is_off_until_a_card_is_saved_and_it_is_set() -> None:
    new = AutoTopUp(account_id="acct_1")
    refused = with_settings(new, SETTINGS, enabled=True, now=NOON)
    assert isinstance(refused, Refusal)
    assert refused.code == "card_required"
    assert with_settings(new, SETTINGS, enabled=False, now=NOON) == replace(new, settings=SETTINGS)
    assert not is_due(new, -1)
    assert status_of(new) == "off"


@pytest.mark.parametrize(("available_micro", "due"), [(5 * CREDIT, False), (5 * CREDIT - 1, True), (-1, True)])
def test_an_attempt_is_due_below_the_limit_and_not_at_it(available_micro: int, due: bool) -> None:
    assert is_due(switched_on(), available_micro) is due


def test_there_is_one_open_attempt_until_its_order_is_decided() -> None:
    order = attempt()
    opened = with_attempt(switched_on(), order)
    assert not is_due(opened, 0)
    assert status_of(opened) == "open"
    processing = stated(order, attempt=PaymentAttempt(status="processing", at=1))
    assert not is_due(after_order(opened, order, processing), 0)
    held = paid(order, 9 * CREDIT)
    assert held.status == "held"
    assert not is_due(after_order(opened, order, held), 0)
    credited = after_order(opened, order, paid(order))
    assert is_due(credited, 0)
    assert credited.attempts == TopUpAttempts(on=utc_day(NOON), today=1, this_month=1)


def test_a_decline_switches_it_off_with_the_reason_and_does_not_count() -> None:
    order = attempt()
    after = after_order(with_attempt(switched_on(), order), order, declined(order))
    assert (after.enabled, after.off_reason, after.open_order_id) == (False, "insufficient_funds", None)
    assert (after.attempts.today, after.attempts.this_month) == (0, 0)
    again = with_settings(after, SETTINGS, enabled=True, now=NOON)
    assert isinstance(again, AutoTopUp)
    assert (again.enabled, again.off_reason, again.off_at) == (True, None, None)


def test_after_so_many_failures_of_a_day_it_stays_off_until_the_next() -> None:
    """Each is a call to the provider and an order, and counts towards no limit."""
    state = switched_on()
    for number in range(FAILED_PER_DAY_MAX):
        on = with_settings(state, SETTINGS, enabled=True, now=NOON)
        assert isinstance(on, AutoTopUp)
        order = attempt(number)
        state = after_order(with_attempt(on, order), order, declined(order))
    refused = with_settings(state, SETTINGS, enabled=True, now=NOON)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.retry_after_s) == ("rate_limit_exceeded", 12 * 3600)
    # What the owner sets of one that is off is taken, and the next day is another one.
    assert isinstance(with_settings(state, SETTINGS, enabled=False, now=NOON), AutoTopUp)
    tomorrow = NOON + timedelta(hours=12)
    on = with_settings(state, SETTINGS, enabled=True, now=tomorrow)
    assert isinstance(on, AutoTopUp)
    order = attempt(FAILED_PER_DAY_MAX, tomorrow)
    state = after_order(with_attempt(on, order), order, declined(order))
    assert (state.failed_on, state.failed_today) == (utc_day(tomorrow), 1)


def test_a_charge_that_was_never_made_switches_it_off() -> None:
    order = attempt()
    refused = on_create_refused(order, "resource_missing", NOON).order
    after = after_order(with_attempt(switched_on(), order), order, refused)
    assert (after.enabled, after.off_reason, after.attempts.today) == (False, "resource_missing", 0)


def test_a_declined_attempt_that_is_paid_later_counts_after_all() -> None:
    order = attempt()
    failed = declined(order)
    after = after_order(with_attempt(switched_on(), order), order, failed)
    late = paid(failed)
    assert late.status == "credited"
    assert after_order(after, failed, late).attempts == TopUpAttempts(on=utc_day(NOON), today=1, this_month=1)


def test_a_dispute_switches_it_off_and_a_refund_does_not() -> None:
    order = attempt()
    credited = paid(order)
    after = after_order(with_attempt(switched_on(), order), order, credited)
    dispute = DisputeFacts(
        status="needs_response", seen=("needs_response",), amount_micro=10 * CREDIT, currency="USD",
        payment_id="pi_ord_1",
    )  # fmt: skip
    disputed = stated(credited, disputes={"dp_1": dispute})
    off = after_order(after, credited, disputed)
    assert (off.enabled, off.off_reason) == (False, "disputed")
    assert off.attempts.today == 1
    on = with_settings(off, SETTINGS, enabled=True, now=NOON)
    assert isinstance(on, AutoTopUp)
    lost = stated(disputed, disputes={"dp_1": replace(dispute, status="lost", seen=("lost",))})
    assert after_order(on, disputed, lost).enabled


def test_what_is_off_keeps_its_reason() -> None:
    off = switched_off(switched_on(), "card_declined", NOON)
    assert switched_off(off, "operator", NOON + timedelta(hours=1)) == off


def test_the_limits_of_a_day_and_a_month_are_those_of_utc() -> None:
    state = switched_on()
    evening = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
    for number in range(2):
        assert next_attempt_at(state, evening) == evening
        order = attempt(number, evening)
        state = after_order(with_attempt(state, order), order, paid(order))
    assert next_attempt_at(state, evening) == datetime(2026, 12, 1, tzinfo=UTC)
    next_day = evening + timedelta(minutes=1)
    assert next_attempt_at(state, next_day) == next_day
    assert state.attempts.at(utc_day(next_day)) == TopUpAttempts(on=date(2026, 12, 1), today=0, this_month=0)


def test_a_month_s_limit_lasts_until_the_next_month() -> None:
    state = switched_on(max_per_day=100)
    december = datetime(2026, 12, 5, tzinfo=UTC)
    for number in range(3):
        order = attempt(number, december + timedelta(days=number))
        state = after_order(with_attempt(state, order), order, paid(order))
    assert next_attempt_at(state, december + timedelta(days=9)) == datetime(2027, 1, 1, tzinfo=UTC)


def test_a_clock_that_is_behind_opens_nothing_in_a_day_that_is_over() -> None:
    midnight = datetime(2026, 11, 24, tzinfo=UTC)
    order = attempt(1, midnight)
    state = after_order(with_attempt(switched_on(), order), order, paid(order))
    assert attempt_time(state, midnight - timedelta(seconds=1)) == midnight
    assert attempt_time(state, midnight + timedelta(seconds=1)) == midnight + timedelta(seconds=1)


def test_cards_are_the_newest_first_and_the_last_one_switches_off() -> None:
    state = with_card(switched_on(), card(2))
    assert isinstance(state, AutoTopUp)
    assert [each.card_id for each in state.cards] == ["pm_2", "pm_1"]
    assert with_card(state, card(1)) is state
    one = without_card(state, "pm_2", NOON)
    assert isinstance(one, AutoTopUp)
    assert one.enabled
    none = without_card(one, "pm_1", NOON)
    assert isinstance(none, AutoTopUp)
    assert (none.cards, none.enabled, none.off_reason) == ((), False, "card_removed")
    missing = without_card(none, "pm_1", NOON)
    assert isinstance(missing, Refusal)
    assert missing.code == "card_not_found"


def test_there_are_so_many_cards() -> None:
    state = AutoTopUp(account_id="acct_1")
    for number in range(CARDS_MAX):
        known = with_card(state, card(number))
        assert isinstance(known, AutoTopUp)
        state = known
    refused = with_card(state, card(CARDS_MAX))
    assert isinstance(refused, Refusal)
    assert refused.code == "card_limit_reached"


def test_another_mode_has_another_customer_without_the_cards_of_the_first() -> None:
    state = switched_on()
    assert with_customer(state, "cus_2", livemode=False, at=NOON) is state
    live = with_customer(state, "cus_2", livemode=True, at=NOON)
    assert (live.customer_id, live.cards, live.enabled) == ("cus_2", (), False)


@pytest.mark.parametrize("seed", range(30))
def test_no_history_has_more_counted_attempts_than_the_limits(seed: int) -> None:
    """Against a model that looks at all orders: those charged or open, by the UTC day they were opened on."""
    chance = random.Random(seed)
    state = switched_on(max_per_day=chance.randint(1, 3), max_per_month=chance.randint(1, 8))
    now, number = datetime(2026, 11, 20, tzinfo=UTC), 0
    orders: dict[str, Order] = {}

    def change(order: Order, after: Order) -> None:
        nonlocal state
        orders[order.order_id] = after
        state = after_order(state, order, after)

    for _ in range(400):
        now += timedelta(minutes=chance.choice([-1, 1, 5, 60, 600]))
        kind = chance.random()
        if kind < 0.5:
            at = attempt_time(state, now)
            if is_due(state, 0) and next_attempt_at(state, at) == at:
                number += 1
                order = orders[f"ord_{number}"] = attempt(number, at)
                state = with_attempt(state, order)
        elif kind < 0.7 and state.open_order_id is not None:
            order = orders[state.open_order_id]
            change(order, paid(order) if chance.random() < 0.8 else declined(order))
        elif kind < 0.8 and orders:
            order = chance.choice([*orders.values()])
            if order.status == "failed" and order.order_id == f"ord_{number}":
                change(order, paid(order))
        elif not state.enabled:
            on = with_settings(state, state.settings or SETTINGS, enabled=True, now=now)
            if isinstance(on, AutoTopUp):
                state = on
            else:
                assert state.failed_today >= FAILED_PER_DAY_MAX
        counted = [each for each in orders.values() if each.status in ("pending", "credited")]
        assert sum(each.status == "pending" for each in counted) == (state.open_order_id is not None)
        by_day = [utc_day(each.request.created_at) for each in counted]
        settings = state.settings
        assert settings is not None
        # A declined attempt that was paid after all can be one too many, but then it stops the next.
        late = sum(each.status == "credited" and each.state.facts.attempt is not None for each in counted)
        for day in set(by_day):
            assert by_day.count(day) <= settings.max_per_day + late
        today = state.attempts.on
        assert state.attempts.today == by_day.count(today)
        assert state.attempts.this_month == sum((d.year, d.month) == (today.year, today.month) for d in by_day)
    assert number >= 2
