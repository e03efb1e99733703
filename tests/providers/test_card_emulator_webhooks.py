"""The emulator's webhooks: signed, retried, and delayed, doubled, reordered, dropped or forged when asked to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import stripe
import trio

from .conftest import CARD_WEBHOOK_SECRET, Letterbox, StartBank

PAID = ["payment_intent.created", "charge.succeeded", "payment_intent.succeeded", "charge.updated"]


async def test_a_payments_webhook_passes_both_verifiers(start_bank: StartBank, letterbox: Letterbox) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            intent_id, charge_id = await bank.paid("ord_1", 1000)
            posted = await letterbox.until(lambda all_: len(all_) == 4)
    assert sorted(letterbox.types()) == sorted(PAID)
    for each in posted:
        assert each.verdict == "valid"
        assert each.header is not None
        checked = stripe.WebhookSignature.verify_header(
            each.raw.decode(), each.header, CARD_WEBHOOK_SECRET, tolerance=300
        )
        assert checked
        assert set(each.event) >= {"id", "object", "type", "created", "data", "livemode", "api_version"}
    by_type = {each.type: each.object for each in posted}
    succeeded = by_type["payment_intent.succeeded"]
    assert (succeeded["id"], succeeded["latest_charge"], succeeded["amount_received"]) == (
        intent_id,
        charge_id,
        1000,
    )
    assert succeeded["metadata"]["order_id"] == "ord_1"
    assert by_type["charge.succeeded"]["balance_transaction"] is None
    assert by_type["charge.updated"]["balance_transaction"].startswith("txn_")
    assert len({each.event["id"] for each in posted}) == 4


@pytest.mark.parametrize(
    ("kind", "buttons", "sent"),
    [
        ("charges", [("refund", {"amount": 300})], ["refund.created", "charge.refunded"]),
        (
            "charges",
            [("dispute", {})],
            ["charge.dispute.created", "charge.dispute.funds_withdrawn"],
        ),
        ("charges", [("dispute", {"inquiry": True})], ["charge.dispute.created"]),
        ("charges", [("warn", {})], ["radar.early_fraud_warning.created"]),
    ],
)
async def test_each_action_sends_its_events(
    start_bank: StartBank,
    letterbox: Letterbox,
    kind: str,
    buttons: list[tuple[str, dict[str, Any]]],
    sent: list[str],
) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            _, charge_id = await bank.paid()
            await letterbox.until(lambda all_: len(all_) == 4)
            for action, body in buttons:
                await bank.press(kind, charge_id, action, **body)
            await letterbox.until(lambda all_: len(all_) == 4 + len(sent))
    assert letterbox.types()[4:] == sent


@pytest.mark.parametrize(
    ("action", "sent"),
    [
        ("win", ["charge.dispute.closed", "charge.dispute.funds_reinstated"]),
        ("lose", ["charge.dispute.closed"]),
        ("respond", ["charge.dispute.updated"]),
    ],
)
async def test_a_disputes_transitions_are_sent(
    start_bank: StartBank, letterbox: Letterbox, action: str, sent: list[str]
) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            _, charge_id = await bank.paid()
            dispute_id = await bank.press("charges", charge_id, "dispute")
            await letterbox.until(lambda all_: len(all_) == 6)
            await bank.press("disputes", dispute_id, action)
            await letterbox.until(lambda all_: len(all_) == 6 + len(sent))
    assert letterbox.types()[6:] == sent
    assert letterbox.posted[6].object["id"] == dispute_id


async def test_a_failing_refund_is_sent_in_every_event_family(start_bank: StartBank, letterbox: Letterbox) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            _, charge_id = await bank.paid()
            refund_id = await bank.press("charges", charge_id, "refund")
            await letterbox.of_type("charge.refunded")
            await bank.press("refunds", refund_id, "fail")
            (failed,) = await letterbox.of_type("refund.failed")
            await letterbox.of_type("charge.refund.updated")
    assert (failed.object["id"], failed.object["status"]) == (refund_id, "failed")


async def test_a_webhook_is_sent_again_until_it_is_taken(start_bank: StartBank, letterbox: Letterbox) -> None:
    letterbox.answers = [500, 404, 302]
    with trio.fail_after(60):
        async with start_bank() as bank:
            await bank.order()
            posted = await letterbox.until(lambda all_: len(all_) == 4)
            state = await _state_of(bank.http, posted[0].event["id"], _is_delivered)
    assert len({each.raw for each in posted}) == 1
    assert all(each.verdict == "valid" for each in posted)
    assert state["tries"] == 4


async def test_an_undeliverable_webhook_is_given_up_and_can_be_resent(
    start_bank: StartBank, letterbox: Letterbox
) -> None:
    letterbox.answers = [500] * 4
    with trio.fail_after(60):
        async with start_bank() as bank:
            await bank.order()
            event_id = (await letterbox.until(lambda all_: len(all_) == 4))[0].event["id"]
            await _state_of(bank.http, event_id, lambda state: state == "given_up")
            await bank.http.post(f"/control/events/{event_id}/resend", json={})
            await letterbox.until(lambda all_: len(all_) == 5)
            await _state_of(bank.http, event_id, _is_delivered)


async def test_dropped_webhooks_never_come(start_bank: StartBank, letterbox: Letterbox) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            await bank.faults(drop=True, types=["payment_intent.succeeded", "charge.succeeded"])
            await bank.paid()
            await letterbox.of_type("charge.updated")
            await bank.faults()
            await bank.order("ord_2")
            await letterbox.of_type("payment_intent.created", 2)
    assert sorted(letterbox.types()) == ["charge.updated", "payment_intent.created", "payment_intent.created"]


async def test_duplicates_are_the_same_event_again(start_bank: StartBank, letterbox: Letterbox) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            await bank.faults(duplicate=3)
            await bank.order()
            posted = await letterbox.until(lambda all_: len(all_) == 4)
    assert len({each.event["id"] for each in posted}) == 1


async def test_reordered_webhooks_come_last_first(start_bank: StartBank, letterbox: Letterbox) -> None:
    with trio.fail_after(60):
        async with start_bank(settle_delay_s=float("inf")) as bank:
            intent_id = await bank.order()
            await letterbox.of_type("payment_intent.created")
            await bank.faults(reorder=True)
            await bank.press("payment_intents", intent_id, "pay")
            await letterbox.until(lambda all_: len(all_) == 3)
    assert letterbox.types()[1:] == ["payment_intent.succeeded", "charge.succeeded"]


@pytest.mark.parametrize("order", ["as_is", "reversed", "shuffled"])
async def test_held_webhooks_wait_for_their_release(
    start_bank: StartBank, letterbox: Letterbox, order: str
) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            await bank.faults(hold=True)
            _, charge_id = await bank.paid()
            await bank.press("charges", charge_id, "settle")
            before = len(letterbox.posted)
            answer = await bank.http.post("/control/webhooks/release", json={"order": order, "seed": 3})
            await letterbox.until(lambda all_: len(all_) == 4)
    assert (before, answer.json()) == (0, {"released": 4})
    types = letterbox.types()
    assert sorted(types) == sorted(PAID)
    if order != "shuffled":
        assert types == (PAID if order == "as_is" else PAID[::-1])


async def test_delayed_webhooks_come_late(start_bank: StartBank, letterbox: Letterbox) -> None:
    with trio.fail_after(60):
        async with start_bank(settle_delay_s=float("inf")) as bank:
            await bank.faults(delay_s=0.4, types=["charge.succeeded"])
            begun = trio.current_time()
            await bank.paid()
            await letterbox.of_type("charge.succeeded")
            assert trio.current_time() - begun >= 0.4


async def test_a_forged_signature_fails_both_verifiers(start_bank: StartBank, letterbox: Letterbox) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            await bank.faults(wrong_signature=True)
            await bank.order()
            (posted,) = await letterbox.until(lambda all_: len(all_) == 1)
    assert posted.verdict == "invalid"


async def test_undelivered_webhooks_are_delivered_by_the_next_life(
    start_bank: StartBank, letterbox: Letterbox
) -> None:
    with trio.fail_after(60):
        async with start_bank(webhook_url=lambda: "", retry_delays_s=(0, 3600)) as bank:
            await bank.order()
            assert letterbox.posted == []
        async with start_bank():
            (posted,) = await letterbox.until(lambda all_: len(all_) == 1)
    assert posted.type == "payment_intent.created"


async def test_a_payment_may_differ_from_its_intent(start_bank: StartBank, letterbox: Letterbox) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            intent_id = await bank.order()
            await bank.press("payment_intents", intent_id, "pay", amount_received=900, currency="eur")
            (paid,) = await letterbox.of_type("payment_intent.succeeded")
    assert (paid.object["amount"], paid.object["amount_received"], paid.object["currency"]) == (1000, 900, "eur")


async def test_actions_require_json_and_refuse_invalid_changes(start_bank: StartBank) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            intent_id = await bank.order()
            path = f"/control/payment_intents/{intent_id}"
            form = await bank.http.post(f"{path}/pay", data={"a": "b"})
            odd = await bank.http.post(f"{path}/pay", content=b"{", headers={"Content-Type": "application/json"})
            nothing = await bank.http.post(f"{path}/fly", json={})
            unpaid = await bank.http.post("/control/refunds/re_none/fail", json={})
            wrong = await bank.http.put("/control/webhooks", json={"duplicate": -1})
    statuses = [each.status_code for each in (form, odd, nothing, unpaid, wrong)]
    assert statuses == [415, 400, 404, 404, 400]


async def test_the_page_is_self_contained_and_shows_no_client_secret(start_bank: StartBank) -> None:
    with trio.fail_after(60):
        async with start_bank() as bank:
            await bank.paid()
            page = await bank.http.get("/")
            state = await bank.http.get("/control/state")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "://" not in page.text
    assert "_secret_" not in state.text
    (payment,) = state.json()["payments"]
    assert payment["intent"]["status"] == "succeeded"
    assert len(payment["charges"]) == 1


def _is_delivered(state: str) -> bool:
    return state not in {"waiting", "held", "dropped", "given_up"}


async def _state_of(http: httpx2.AsyncClient, event_id: str, condition: Callable[[str], bool]) -> dict[str, Any]:
    """Wait until the state of an event's delivery satisfies ``condition``; returns the delivery."""
    while True:
        events = (await http.get("/control/state")).json()["events"]
        delivery = next(each["delivery"] for each in events if each["id"] == event_id)
        if condition(delivery["state"]):
            return dict(delivery)
        await trio.lowlevel.checkpoint()
