"""Saved cards at the card emulator, through the adapter: saved by customers, charged without them, declined."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.running_bank import CARD_KEY, RunningBank, running_bank

from holdfast.providers.card.base import CardRejected, CardUnavailable
from holdfast.providers.card.events import SETUP_SUCCEEDED, SavedByCustomer, parse_card_event, parse_setup
from holdfast.providers.card.objects import Malformed, card_of

BEARER = {"Authorization": f"Bearer {CARD_KEY}"}
SINCE = datetime.now(UTC) - timedelta(minutes=1)


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[RunningBank]:
    adapter = {"retries_count": 0, "timeout_s": 60.0}
    async with running_bank(
        tmp_path / "card", adapter=adapter, webhook_secret="whsec_unused", webhook_url=lambda: ""
    ) as bank:
        yield bank


async def read(bank: RunningBank, path: str) -> Any:
    answer = await bank.http.get(f"/v1/{path}", headers=BEARER)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def saved(bank: RunningBank, test_card: str = "pm_card_visa") -> tuple[str, str]:
    """A customer and its saved card: their ids."""
    customer_id = await bank.provider.create_customer("acct_1", env="test")
    intent = await bank.provider.create_setup_intent(customer_id, "acct_1", env="test")
    await bank.press("setup_intents", intent.setup_intent_id, "confirm", payment_method=test_card)
    return customer_id, (await read(bank, f"setup_intents/{intent.setup_intent_id}"))["payment_method"]


async def charge(bank: RunningBank, customer_id: str, card_id: str, order_id: str = "ord_1") -> str:
    return await bank.provider.charge_saved_card(
        order_id, "acct_1", 1000, "USD", customer_id=customer_id, card_id=card_id, env="test"
    )


async def test_a_browser_saves_a_card_and_the_event_names_it(bank: RunningBank) -> None:
    customer_id = await bank.provider.create_customer("acct_1", env="test")
    assert await bank.provider.create_customer("acct_1", env="test") == customer_id
    intent = await bank.provider.create_setup_intent(customer_id, "acct_1", env="test")
    path = f"/v1/setup_intents/{intent.setup_intent_id}/confirm"
    public = {"Authorization": "Bearer pk_test_anything"}
    form = {"client_secret": intent.client_secret, "payment_method": "pm_card_mastercard"}
    forged = await bank.http.post(path, data={**form, "client_secret": "no"}, headers=public)
    done = await bank.http.post(path, data=form, headers=public)
    assert (forged.status_code, done.status_code) == (401, 200)
    card = await bank.provider.retrieve_card(done.json()["payment_method"])
    assert (card.customer_id, card.brand, card.last4, card.exp_year) == (customer_id, "mastercard", "4444", 2035)
    [event] = [each for each in (await read(bank, "events"))["data"] if each["type"] == SETUP_SUCCEEDED]
    sent = await bank.http.get(f"/v1/events/{event['id']}", headers=BEARER)
    known = parse_card_event(sent.content)
    assert not getattr(known, "is_handled", True)
    assert parse_setup(sent.content) == SavedByCustomer("acct_1", customer_id, card.card_id)


async def test_a_declined_card_is_not_saved(bank: RunningBank) -> None:
    customer_id = await bank.provider.create_customer("acct_1", env="test")
    intent = await bank.provider.create_setup_intent(customer_id, "acct_1", env="test")
    path = f"/control/setup_intents/{intent.setup_intent_id}/confirm"
    answer = await bank.http.post(path, json={"payment_method": "pm_card_chargeDeclined"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (402, "card_declined")
    assert (await read(bank, "payment_methods"))["data"] == []


async def test_a_charge_is_made_once_for_an_order(bank: RunningBank) -> None:
    customer_id, card_id = await saved(bank)
    first = await charge(bank, customer_id, card_id)
    assert await charge(bank, customer_id, card_id) == first
    assert (await bank.provider.retrieve(first, as_of=1)).state == "succeeded"
    assert len((await read(bank, "charges"))["data"]) == 1
    assert await charge(bank, customer_id, card_id, "ord_2") != first


@pytest.mark.parametrize(
    ("test_card", "reason"),
    [
        ("pm_card_chargeCustomerFail", "generic_decline"),
        ("pm_card_authenticationRequired", "authentication_required"),
    ],
)
async def test_a_decline_names_its_intent(bank: RunningBank, test_card: str, reason: str) -> None:
    customer_id, card_id = await saved(bank, test_card)
    intent_id = await charge(bank, customer_id, card_id)
    assert await charge(bank, customer_id, card_id) == intent_id
    intent = await read(bank, f"payment_intents/{intent_id}")
    assert intent["last_payment_error"]["decline_code"] == reason
    seen = await bank.provider.retrieve(intent_id, as_of=1)
    assert seen.state == "open"
    assert [event.facts.attempt.status for event in seen.events if event.facts.attempt] == ["failed"]


async def test_a_lost_charge_is_found_by_its_order(bank: RunningBank) -> None:
    customer_id, card_id = await saved(bank)
    assert await bank.provider.find_intent("ord_1", customer_id, since=SINCE) is None
    await bank.outage("lose_answer", call="payment_intents.create", times=1)
    with pytest.raises(CardUnavailable):
        await charge(bank, customer_id, card_id)
    await charge(bank, customer_id, card_id, "ord_2")
    found = await bank.provider.find_intent("ord_1", customer_id, since=SINCE)
    assert found is not None
    assert (await read(bank, f"payment_intents/{found}"))["metadata"]["order_id"] == "ord_1"
    other = await bank.provider.create_customer("acct_2", env="test")
    assert await bank.provider.find_intent("ord_1", other, since=SINCE) is None
    with pytest.raises(CardRejected, match="resource_missing"):
        await bank.provider.find_intent("ord_1", "cus_unknown", since=SINCE)
    assert await bank.provider.find_intent("ord_1", customer_id, since=SINCE + timedelta(days=1)) is None


async def test_a_detached_card_cannot_be_charged_and_is_detached_again_in_vain(bank: RunningBank) -> None:
    customer_id, card_id = await saved(bank)
    for _ in range(2):
        await bank.provider.detach_card(card_id)
    await bank.provider.detach_card("pm_unknown")
    assert (await bank.provider.retrieve_card(card_id)).customer_id is None
    with pytest.raises(CardRejected) as refused:
        await charge(bank, customer_id, card_id)
    assert refused.value.provider_code == "payment_method_unexpected_state"


async def test_a_provider_that_does_not_detach_a_card_is_a_fault(bank: RunningBank) -> None:
    _, card_id = await saved(bank)
    await bank.outage("error", call="payment_methods.detach", times=1)
    with pytest.raises(CardUnavailable):
        await bank.provider.detach_card(card_id)
    assert (await bank.provider.retrieve_card(card_id)).customer_id is not None


def test_what_is_shown_of_a_card_may_be_missing() -> None:
    card = card_of({"id": "pm_1", "card": {"last4": "12345", "exp_month": "x", "exp_year": -1}})
    assert (card.brand, card.last4, card.exp_month, card.exp_year, card.customer_id) == ("unknown", "", 0, 0, None)
    with pytest.raises(Malformed):
        card_of({"card": {}})


@pytest.mark.parametrize(
    "changed", [{"metadata": None}, {"metadata": {}}, {"customer": None}, {"payment_method": ""}, {"metadata": []}]
)
def test_a_setup_that_is_not_ours_is_none(changed: dict[str, Any]) -> None:
    intent = {"id": "seti_1", "customer": "cus_1", "payment_method": "pm_1", "metadata": {"account_id": "acct_1"}}
    body = {"id": "evt_1", "type": SETUP_SUCCEEDED, "created": 1, "data": {"object": {**intent, **changed}}}
    assert parse_setup(json.dumps(body).encode()) is None


@pytest.mark.parametrize(
    ("test_card", "status"),
    [
        ("pm_card_visa", "succeeded"),
        ("pm_card_authenticationRequired", "requires_action"),
        ("pm_card_slow", "processing"),
    ],
)
async def test_its_cardholder_pays_with_a_saved_card(bank: RunningBank, test_card: str, status: str) -> None:
    customer_id, card_id = await saved(bank, test_card)
    intent = await bank.provider.create_intent("ord_1", "acct_1", 1000, "USD", env="test", customer_id=customer_id)
    foreign = await bank.provider.create_intent("ord_2", "acct_2", 1000, "USD", env="test")
    public = {"Authorization": "Bearer pk_test_anything"}
    answers = []
    for each in (intent, foreign):
        form = {"client_secret": each.client_secret, "payment_method": card_id}
        path = f"/v1/payment_intents/{each.provider_payment_id}/confirm"
        answers.append(await bank.http.post(path, data=form, headers=public))
    assert answers[0].json()["status"] == status
    assert answers[1].json()["error"]["code"] == "payment_method_unexpected_state"
