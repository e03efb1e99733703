"""The card adapter against the emulator, through the official client over real HTTP."""

from __future__ import annotations

import logging
import socket
import traceback
from typing import Any

import pytest
import trio
from quart import Response
from quart_trio import QuartTrio
from tests.running_bank import CARD_KEY, RunningBank

from holdfast.ledger.orders.facts import OrderFacts, PaymentAttempt, StatedPayment, join
from holdfast.ledger.orders.snapshots import ProviderSnapshot
from holdfast.providers.card.base import (
    CardFault,
    CardProvider,
    CardRateLimited,
    CardRejected,
    CardTimeout,
    CardUnavailable,
)
from holdfast.providers.card.stripe_adapter import StripeProvider
from holdfast_emulators.card import app
from holdfast_emulators.card.wire import render

from .conftest import ServeApp, StartBank

NO_RETRIES = {"retries_count": 0}
BEARER = {"Authorization": f"Bearer {CARD_KEY}"}
AS_OF = 1_790_000_000


def facts(seen: ProviderSnapshot) -> OrderFacts:
    """Return everything that a snapshot states."""
    return join(*(event.facts for event in seen.events))


async def test_an_order_gets_an_intent_with_its_names_on_it(bank: RunningBank) -> None:
    created = await bank.provider.create_intent("ord_1", "acct_7", 1234, "USD", env="development")
    seen = await bank.provider.retrieve(created.provider_payment_id, as_of=AS_OF)
    path = f"/v1/payment_intents/{created.provider_payment_id}"
    intent = (await bank.http.get(path, headers=BEARER)).json()
    assert created.provider_payment_id.startswith("pi_")
    assert created.client_secret.startswith(f"{created.provider_payment_id}_secret_")
    assert intent["status"] == "requires_payment_method"
    assert (intent["amount"], intent["amount_received"], intent["currency"]) == (1234, 0, "usd")
    assert intent["metadata"] == {"order_id": "ord_1", "account_id": "acct_7", "env": "development"}
    assert not intent["livemode"]
    assert seen.state == "open"
    assert [event.facts for event in seen.events] == [
        OrderFacts(attempt=PaymentAttempt(status="pending", at=AS_OF))
    ]


async def test_creating_twice_for_one_order_finds_the_first_intent(bank: RunningBank) -> None:
    first = await bank.provider.create_intent("ord_1", "acct_1", 1000, "USD", env="test")
    again = await bank.provider.create_intent("ord_1", "acct_1", 1000, "USD", env="test")
    other = await bank.provider.create_intent("ord_2", "acct_1", 1000, "USD", env="test")
    assert again == first
    assert other.provider_payment_id != first.provider_payment_id


async def test_another_amount_under_the_same_order_is_rejected(bank: RunningBank) -> None:
    await bank.order("ord_1", 1000)
    with pytest.raises(CardRejected) as caught:
        await bank.order("ord_1", 1001)
    assert caught.value.provider_code == "idempotency_error"


async def test_concurrent_creates_for_one_order_create_one_intent(start_bank: StartBank) -> None:
    found: set[str] = set()
    async with start_bank(adapter={"retries_count": 5}) as bank, trio.open_nursery() as nursery:

        async def create() -> None:
            found.add(await bank.order("ord_1"))

        for _ in range(20):
            nursery.start_soon(create)
    assert len(found) == 1


async def test_automatic_payment_methods_can_be_left_out(bank: RunningBank) -> None:
    narrow = StripeProvider(CARD_KEY, api_base=bank.url, automatic_payment_methods=False)
    await bank.order("ord_1")
    await narrow.create_intent("ord_2", "acct_1", 1000, "USD", env="test")
    await narrow.close()
    listed = (await bank.http.get("/v1/payment_intents", headers=BEARER)).json()
    assert [each["automatic_payment_methods"] for each in listed["data"]] == [
        None,
        {"enabled": True, "allow_redirects": "never"},
    ]


async def test_a_payment_is_seen_with_its_charge_and_later_its_booking(start_bank: StartBank) -> None:
    async with start_bank(settle_delay_s=float("inf")) as bank:
        intent_id, charge_id = await bank.paid("ord_1", 1000)
        before = await bank.provider.retrieve(intent_id, as_of=AS_OF)
        await bank.press("charges", charge_id, "settle")
        after = await bank.provider.retrieve(intent_id, as_of=AS_OF)
    assert before.state == "succeeded"
    ((payment_id, paid),) = facts(before).payments.items()
    assert (payment_id, paid.charge_ids, paid.at) == (intent_id, (charge_id,), AS_OF)
    assert paid.stated == (StatedPayment(amount_micro=10_000_000, currency="USD", livemode=False),)
    assert (facts(before).charges, facts(before).charge_balances) == ({charge_id: intent_id}, {})
    assert facts(before).balance == {}
    (booked,) = facts(after).balance.values()
    assert (booked.source_id, booked.source_type, booked.reporting_category) == (charge_id, "charge", "charge")
    assert (booked.amount_micro, booked.fee_micro, booked.net_micro) == (10_000_000, 590_000, 9_410_000)
    assert booked.currency == "USD"
    assert booked.available_on is not None


async def test_an_intent_without_amount_received_is_not_read_as_zero(
    bank: RunningBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*args: Any) -> dict[str, Any]:
        return {name: value for name, value in render(*args).items() if name != "amount_received"}

    monkeypatch.setattr(app, "render", without)
    intent_id, _ = await bank.paid("ord_1", 1000)
    seen = await bank.provider.retrieve(intent_id, as_of=AS_OF)
    assert seen.state == "succeeded"
    (paid,) = facts(seen).payments.values()
    assert [claim.amount_micro for claim in paid.stated] == [10_000_000]


async def test_a_declined_attempt_has_a_code_and_may_be_paid_later(bank: RunningBank) -> None:
    intent_id = await bank.order()
    await bank.press("payment_intents", intent_id, "decline", decline_code="insufficient_funds")
    declined = await bank.provider.retrieve(intent_id, as_of=AS_OF)
    await bank.press("payment_intents", intent_id, "pay")
    paid = await bank.provider.retrieve(intent_id, as_of=AS_OF)
    assert declined.state == "open"
    assert facts(declined).attempt == PaymentAttempt(status="failed", at=AS_OF, reason="insufficient_funds")
    assert facts(declined).payments == {}
    assert (paid.state, facts(paid).attempt) == ("succeeded", None)
    assert len(facts(paid).payments) == 1


async def test_refunds_and_disputes_are_seen_with_their_movements(bank: RunningBank) -> None:
    intent_id, charge_id = await bank.paid("ord_1", 1000)
    await bank.press("charges", charge_id, "settle")
    partial = await bank.press("charges", charge_id, "refund", amount=300)
    failing = await bank.press("charges", charge_id, "refund", amount=200)
    await bank.press("refunds", failing, "fail")
    dispute = await bank.press("charges", charge_id, "dispute", amount=700, reason="product_not_received")
    await bank.press("disputes", dispute, "win", amount=500)
    seen = await bank.provider.retrieve(intent_id, as_of=AS_OF)
    assert {(name, each.amount_micro, each.status) for name, each in facts(seen).refunds.items()} == {
        (partial, 3_000_000, "succeeded"),
        (failing, 2_000_000, "failed"),
    }
    assert [each.amount_micro for each in facts(seen).totals.values()] == [3_000_000]
    ((dispute_id, disputed),) = facts(seen).disputes.items()
    assert (dispute_id, disputed.amount_micro, disputed.status) == (dispute, 7_000_000, "won")
    assert disputed.reason == "product_not_received"
    assert len(disputed.money) == 2
    moved = {
        (each.reporting_category, each.source_id, each.net_micro // 10_000) for each in facts(seen).balance.values()
    }
    assert moved == {
        ("charge", charge_id, 941),
        ("refund", partial, -300),
        ("refund", failing, -200),
        ("refund_failure", failing, 200),
        ("dispute", dispute, -2200),
        ("dispute_reversal", dispute, 500),
    }


async def test_refunds_of_several_pages_are_all_read(bank: RunningBank) -> None:
    intent_id, charge_id = await bank.paid("ord_1", 1000)
    created = {await bank.press("charges", charge_id, "refund", amount=1) for _ in range(12)}
    seen = await bank.provider.retrieve(intent_id, as_of=AS_OF)
    assert set(facts(seen).refunds) == created
    assert sum(each.reporting_category == "refund" for each in facts(seen).balance.values()) == 12


async def test_canceling_an_open_or_canceled_intent_returns_it_canceled(bank: RunningBank) -> None:
    intent_id = await bank.order()
    first = await bank.provider.cancel_intent(intent_id, as_of=AS_OF)
    again = await bank.provider.cancel_intent(intent_id, as_of=AS_OF)
    assert (first.state, again.state) == ("canceled", "canceled")


async def test_canceling_a_paid_intent_returns_the_payment(bank: RunningBank) -> None:
    intent_id, charge_id = await bank.paid()
    result = await bank.provider.cancel_intent(intent_id, as_of=AS_OF)
    assert result.state == "succeeded"
    assert list(facts(result).charges) == [charge_id]


async def test_unknown_intent_and_wrong_key_are_rejections(bank: RunningBank) -> None:
    with pytest.raises(CardRejected) as unknown:
        await bank.provider.retrieve("pi_unknown", as_of=AS_OF)
    stranger = StripeProvider("sk_test_wrong", api_base=bank.url)
    with pytest.raises(CardRejected) as wrong:
        await stranger.retrieve("pi_unknown", as_of=AS_OF)
    with pytest.raises(CardRejected) as small:
        await bank.order("ord_small", 10)
    await stranger.close()
    assert unknown.value.provider_code == "resource_missing"
    assert wrong.value.provider_code == "invalid_request_error"
    assert small.value.provider_code == "amount_too_small"
    assert small.value.param == "amount"
    assert small.value.reason == "Amount is below the minimum."


@pytest.mark.parametrize("mode", ["refuse", "lose_answer", "error", "error_kept"])
async def test_broken_calls_are_unavailability(start_bank: StartBank, mode: str) -> None:
    async with start_bank(adapter=NO_RETRIES) as bank:
        await bank.outage(mode, call="payment_intents.create", times=1)
        with pytest.raises(CardUnavailable):
            await bank.order()


async def test_a_lost_answer_is_found_again_under_the_same_order(start_bank: StartBank) -> None:
    async with start_bank(adapter=NO_RETRIES) as bank:
        await bank.outage("lose_answer", call="payment_intents.create", times=1)
        with pytest.raises(CardUnavailable):
            await bank.order()
        await bank.order()
        listed = (await bank.http.get("/v1/payment_intents", headers=BEARER)).json()
    assert len(listed["data"]) == 1


async def test_passing_faults_are_tried_again_by_themselves(bank: RunningBank) -> None:
    await bank.outage("refuse", call="payment_intents.create", times=1)
    assert (await bank.order()).startswith("pi_")


async def test_a_refused_connection_is_unavailability() -> None:
    provider: CardProvider
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        provider = StripeProvider(CARD_KEY, api_base=url, retries_count=0)
        with pytest.raises(CardUnavailable):
            await provider.retrieve("pi_1", as_of=AS_OF)
        await provider.close()


async def test_a_slow_answer_is_a_timeout_and_the_order_can_be_tried_again(start_bank: StartBank) -> None:
    async with start_bank(adapter={"timeout_s": 0.3, **NO_RETRIES}) as bank:
        await bank.outage("slow", call="payment_intents.create")
        with pytest.raises(CardTimeout):
            await bank.order()
        await bank.recover()
        # The emulator frees the key once it sees that the first caller is gone.
        patient = StripeProvider(CARD_KEY, api_base=bank.url, retries_count=5)
        await patient.create_intent("ord_1", "acct_1", 1000, "USD", env="test")
        await patient.close()


async def test_the_whole_call_has_a_time_limit_too(start_bank: StartBank) -> None:
    async with start_bank(adapter={"timeout_s": 15.0, "total_timeout_s": 0.3}) as bank:
        await bank.outage("slow", call="payment_intents.retrieve")
        with pytest.raises(CardTimeout):
            await bank.provider.retrieve("pi_1", as_of=AS_OF)


@pytest.mark.parametrize(("sent_s", "read_s"), [(7, 7), (0, 1), (3600, 3600)])
async def test_a_rate_limit_has_a_retry_after(bank: RunningBank, sent_s: int, read_s: int) -> None:
    await bank.outage("rate_limit", retry_after_s=sent_s)
    with pytest.raises(CardRateLimited) as caught:
        await bank.order()
    assert caught.value.retry_after_s == read_s


async def test_a_cancelled_call_ends_at_once_and_cleanly(bank: RunningBank) -> None:
    await bank.outage("slow", call="payment_intents.create", times=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bank.order)
        while not (await bank.http.get("/v1/payment_intents", headers=BEARER)).json()["data"]:
            pass
        nursery.cancel_scope.cancel()
    assert (await bank.order("ord_2")).startswith("pi_")


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (200, b"<html>proxy</html>", CardUnavailable),
        (200, b"[]", CardUnavailable),
        (200, b"{}", CardUnavailable),
        (200, b'{"id": "pi_1", "status": "succeeded", "amount": "12", "currency": "usd"}', CardUnavailable),
        (200, b"\xff\xfe", CardUnavailable),
        (302, b"", CardUnavailable),
        (404, b"not here", CardUnavailable),
        (400, b'{"error": "no"}', CardUnavailable),
        (400, b'{"error": null}', CardUnavailable),
        (400, b'{"error": {}}', CardRejected),
        (400, b'{"error": {"code": 7, "type": ["x"]}}', CardRejected),
        (403, b'{"error": {"type": "invalid_request_error"}}', CardRejected),
        (409, b'{"error": {"code": "idempotency_key_in_use"}}', CardUnavailable),
        (429, b"<html>slow down</html>", CardRateLimited),
        (502, b"<html>bad gateway</html>", CardUnavailable),
        (500, b'{"error": {"message": "oops"}}', CardUnavailable),
    ],
)
async def test_every_bad_response_becomes_a_typed_fault(
    serve_app: ServeApp, status: int, body: bytes, fault: type[CardFault]
) -> None:
    app = QuartTrio("odd", static_folder=None)

    @app.get("/v1/payment_intents/<intent_id>")
    async def answer(intent_id: str) -> Response:
        return Response(body, status=status, content_type="application/json")

    async with serve_app(app) as url:
        provider = StripeProvider(CARD_KEY, api_base=url, retries_count=0)
        with pytest.raises(fault):
            await provider.retrieve("pi_1", as_of=AS_OF)
        await provider.close()


async def test_an_answer_without_end_is_given_up(serve_app: ServeApp) -> None:
    app = QuartTrio("endless", static_folder=None)

    @app.get("/v1/payment_intents/<intent_id>")
    async def answer(intent_id: str) -> Response:
        return Response(b" " * (9 * 1024 * 1024), content_type="application/json")

    async with serve_app(app) as url:
        provider = StripeProvider(CARD_KEY, api_base=url, retries_count=0)
        with pytest.raises(CardUnavailable):
            await provider.retrieve("pi_1", as_of=AS_OF)
        await provider.close()


async def test_no_secret_reaches_logs_reprs_or_faults(
    bank: RunningBank, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    faults: list[BaseException] = []
    created = await bank.provider.create_intent("ord_1", "acct_1", 1000, "USD", env="test")
    await bank.press("payment_intents", created.provider_payment_id, "pay")
    await bank.provider.cancel_intent(created.provider_payment_id, as_of=AS_OF)
    for amount_minor in (999, 1):
        with pytest.raises(CardRejected) as caught:
            await bank.order("ord_1", amount_minor)
        faults.append(caught.value)
    await bank.outage("refuse", times=3)
    with pytest.raises(CardUnavailable) as broken:
        await bank.order("ord_1")
    faults.append(broken.value)
    provider = repr(vars(bank.provider))
    texts = [caplog.text, *capfd.readouterr(), repr(created), str(created), provider]
    texts += ["".join(traceback.format_exception(fault)) + repr(fault.__context__) for fault in faults]
    secret = created.client_secret.partition("_secret_")[2]
    for text in texts:
        assert secret not in text
        assert CARD_KEY not in text


async def test_the_clients_own_debug_switch_prints_nothing(
    start_bank: StartBank, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stripe._util.STRIPE_LOG", "debug")
    monkeypatch.setattr("stripe.log", "debug")
    async with start_bank() as bank:
        await bank.order()
    assert "_secret_" not in "".join(capfd.readouterr())


def test_an_empty_key_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="API key"):
        StripeProvider(" ")
