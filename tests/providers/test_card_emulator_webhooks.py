"""The emulator's webhooks: signed, retried, and delayed, doubled, reordered, dropped or forged when asked to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import stripe
import trio
from tests.running_bank import RunningBank

from .conftest import CARD_WEBHOOK_SECRET, Letterbox, StartBank

PAID = ["payment_intent.created", "charge.succeeded", "payment_intent.succeeded", "charge.updated"]


async def test_a_payments_webhook_passes_both_verifiers(bank: RunningBank, letterbox: Letterbox) -> None:
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


async def test_a_webhook_is_sent_again_until_it_is_taken(bank: RunningBank, letterbox: Letterbox) -> None:
    letterbox.answers = [500, 404, 302]
    await bank.order()
    posted = await letterbox.until(lambda all_: len(all_) == 4)
    state = await _state_of(bank.http, posted[0].event["id"], _is_delivered)
    assert len({each.raw for each in posted}) == 1
    assert all(each.verdict == "valid" for each in posted)
    assert state["tries"] == 4


async def test_an_undeliverable_webhook_is_given_up_and_can_be_resent(
    bank: RunningBank, letterbox: Letterbox
) -> None:
    letterbox.answers = [500] * 4
    await bank.order()
    event_id = (await letterbox.until(lambda all_: len(all_) == 4))[0].event["id"]
    await _state_of(bank.http, event_id, lambda state: state == "given_up")
    await bank.http.post(f"/control/events/{event_id}/resend", json={})
    await letterbox.until(lambda all_: len(all_) == 5)
    await _state_of(bank.http, event_id, _is_delivered)


async def test_reordered_webhooks_come_last_first(start_bank: StartBank, letterbox: Letterbox) -> None:
    async with start_bank(settle_delay_s=float("inf")) as bank:
        intent_id = await bank.order()
        await letterbox.of_type("payment_intent.created")
        await bank.faults(reorder=True)
        await bank.press("payment_intents", intent_id, "pay")
        await letterbox.until(lambda all_: len(all_) == 3)
    assert letterbox.types()[1:] == ["payment_intent.succeeded", "charge.succeeded"]


async def test_delayed_webhooks_come_late(start_bank: StartBank, letterbox: Letterbox) -> None:
    async with start_bank(settle_delay_s=float("inf")) as bank:
        await bank.faults(delay_s=0.4, types=["charge.succeeded"])
        begun = trio.current_time()
        await bank.paid()
        await letterbox.of_type("charge.succeeded")
        assert trio.current_time() - begun >= 0.4


async def test_a_forged_signature_fails_both_verifiers(bank: RunningBank, letterbox: Letterbox) -> None:
    await bank.faults(wrong_signature=True)
    await bank.order()
    (posted,) = await letterbox.until(lambda all_: len(all_) == 1)
    assert posted.verdict == "invalid"


async def test_undelivered_webhooks_are_delivered_by_the_next_life(
    start_bank: StartBank, letterbox: Letterbox
) -> None:
    async with start_bank(webhook_url=lambda: "", retry_delays_s=(0, 3600)) as bank:
        await bank.order()
        assert letterbox.posted == []
    async with start_bank():
        (posted,) = await letterbox.until(lambda all_: len(all_) == 1)
    assert posted.type == "payment_intent.created"


async def test_actions_require_json_and_refuse_invalid_changes(bank: RunningBank) -> None:
    intent_id = await bank.order()
    path = f"/control/payment_intents/{intent_id}"
    form = await bank.http.post(f"{path}/pay", data={"a": "b"})
    odd = await bank.http.post(f"{path}/pay", content=b"{", headers={"Content-Type": "application/json"})
    nothing = await bank.http.post(f"{path}/fly", json={})
    unpaid = await bank.http.post("/control/refunds/re_none/fail", json={})
    wrong = await bank.http.put("/control/webhooks", json={"duplicate": -1})
    statuses = [each.status_code for each in (form, odd, nothing, unpaid, wrong)]
    assert statuses == [415, 400, 404, 404, 400]


async def test_the_page_is_self_contained_and_shows_no_client_secret(bank: RunningBank) -> None:
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
