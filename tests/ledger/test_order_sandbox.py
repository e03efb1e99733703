"""Sandbox orders: one signed callback decides, and a repeated one changes nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.ledger.orders.decisions import on_expiry, on_sandbox_callback
from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.sandbox_signature import SandboxValues
from holdfast.ledger.refusals import Refusal

if TYPE_CHECKING:
    from tests.ledger.conftest import CardProvider, Step


def new_order(provider: CardProvider) -> Order:
    return provider.order(
        provider="sandbox",
        sandbox_event_id="evt_sandbox",
        signed_at=1_763_640_000,
        livemode=None,
        expires_at=provider.noon + timedelta(minutes=30),
    )


def values(status: str = "paid", **changes: Any) -> SandboxValues:
    base = {"order_id": "ord_1", "account_id": "acct_1", "amount": "10.00", "currency": "USD"}
    return SandboxValues(status=status, **(base | changes))


def call(provider: CardProvider, order: Order, given: SandboxValues, *, minutes: int = 0) -> Step:
    step = on_sandbox_callback(order, given, provider.noon + timedelta(minutes=minutes))
    assert not isinstance(step, Refusal)
    return provider.check(order, step)


def refusal(provider: CardProvider, order: Order, given: SandboxValues, *, minutes: int = 0) -> Refusal:
    refused = on_sandbox_callback(order, given, provider.noon + timedelta(minutes=minutes))
    assert isinstance(refused, Refusal)
    return refused


@pytest.mark.parametrize("event_id", [None, "evt_sandbox"])
def test_a_paid_callback_credits_the_order(provider: CardProvider, event_id: str | None) -> None:
    order = new_order(provider)
    assert order.provider_event_id == "evt_sandbox"
    step = call(provider, order, values(provider_event_id=event_id), minutes=5)
    after = step.order
    assert (after.status, after.statuses.processing_status) == ("credited", "succeeded")
    assert after.statuses.reconcile_status == "unreconciled"
    assert [(move.operation_id, move.signed_micro) for move in step.moves] == [("op_credit", 10_000_000)]
    assert after.state.credited_at == provider.noon + timedelta(minutes=5)
    assert (after.provider_event_id, after.state.event_ids) == ("evt_sandbox", ("evt_sandbox",))
    assert (after.state.payment_id, after.state.charge_id) == (None, None)
    assert (step.entries[-1].source, step.entries[-1].reason) == ("sandbox_callback", "payment_succeeded")
    assert after.wake_at is None


@pytest.mark.parametrize("minutes", [0, 5, 600])
def test_the_same_callback_again_is_a_duplicate_even_after_expiry(provider: CardProvider, minutes: int) -> None:
    order = call(provider, new_order(provider), values()).order
    step = call(provider, order, values(amount="10"), minutes=minutes)
    assert step.verdict == "duplicate"
    assert step.order is order


@pytest.mark.parametrize("status", ["failed", "canceled"])
def test_a_callback_may_report_a_failed_or_canceled_payment(provider: CardProvider, status: str) -> None:
    order = new_order(provider)
    step = call(provider, order, values(status))
    assert (step.order.status, step.order.statuses.processing_status) == (status, status)
    assert step.order.state.failed_at == provider.noon
    assert step.moves == ()
    assert call(provider, step.order, values(status), minutes=600).verdict == "duplicate"
    refused = refusal(provider, step.order, values("paid"))
    assert (refused.code, refused.final) == ("payment_order_not_payable", True)
    assert on_expiry(step.order, provider.noon + timedelta(days=1)).verdict == "ignored"


def test_an_order_expired_unpaid_cannot_be_paid(provider: CardProvider) -> None:
    order = new_order(provider)
    refused = refusal(provider, order, values(), minutes=30)
    assert (refused.code, refused.final) == ("payment_order_expired", True)
    swept = on_expiry(order, provider.noon + timedelta(minutes=30)).order
    assert swept.status == "expired"
    assert refusal(provider, swept, values(), minutes=31) == refused
    # The clock of another process may be slow; an expired order stays expired.
    assert refusal(provider, swept, values(), minutes=1) == refused


def test_another_event_is_refused_before_anything_else(provider: CardProvider) -> None:
    order = new_order(provider)
    given = values(provider_event_id="evt_other")
    refused = refusal(provider, order, given, minutes=600)
    assert (refused.code, refused.param) == ("provider_event_mismatch", "provider_event_id")
    credited = call(provider, order, values()).order
    assert refusal(provider, credited, given) == refused


@pytest.mark.parametrize(
    "changes", [{"amount": "10.01"}, {"amount": "ten"}, {"account_id": "acct_2"}, {"currency": "EUR"}]
)
def test_values_of_another_order_post_nothing_even_if_signed(
    provider: CardProvider, changes: dict[str, str]
) -> None:
    assert refusal(provider, new_order(provider), values(**changes)).code == "invalid_signature"


def test_an_unknown_status_is_refused(provider: CardProvider) -> None:
    assert refusal(provider, new_order(provider), values("credited")).code == "invalid_signature"


def test_a_sandbox_order_is_not_paid_by_a_card_event_that_names_it(provider: CardProvider) -> None:
    order = new_order(provider)
    step = provider.step(order, provider.paid())
    assert (step.verdict, step.order) == ("ignored", order)


def test_a_card_order_is_not_paid_by_a_sandbox_callback(provider: CardProvider) -> None:
    assert refusal(provider, provider.order(), values()).code == "invalid_signature"
