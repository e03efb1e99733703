"""The emulator's wire, spoken by the official client itself: intents, keys, declines, refunds, disputes, lists."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import stripe
from tests.running_bank import CARD_KEY, RunningBank

from holdfast.providers.card.stripe_adapter import TrioHttp
from holdfast_emulators.card.intents import CARDS, SAVED_CARDS
from holdfast_emulators.card.state import ApiError
from holdfast_emulators.card.wire import parse_form

from .conftest import StartBank

BEARER = {"Authorization": f"Bearer {CARD_KEY}"}
ORDER = {"amount": 1000, "currency": "usd", "metadata": {"order_id": "ord_1"}}


@pytest.fixture
async def bank(start_bank: StartBank) -> AsyncIterator[RunningBank]:
    """A running emulator that books payments only on request."""
    async with start_bank(settle_delay_s=float("inf")) as running:
        yield running


@pytest.fixture
async def v1(bank: RunningBank) -> AsyncIterator[Any]:
    """The official client's services, bare."""
    http = TrioHttp(timeout_s=60, connect_timeout_s=60)
    client = stripe.StripeClient(
        CARD_KEY, base_addresses={"api": bank.url}, http_client=http, max_network_retries=0
    )
    yield client.v1
    await http.close_async()


async def pay(v1: Any, **order: Any) -> Any:
    """A paid intent."""
    intent = await v1.payment_intents.create_async({**ORDER, **order})
    return await v1.payment_intents.confirm_async(intent.id, {"payment_method": "pm_card_visa"})


async def test_a_declined_card_is_a_card_error_that_names_the_reason(v1: Any) -> None:
    created = await v1.payment_intents.create_async(ORDER)
    with pytest.raises(stripe.CardError) as caught:
        await v1.payment_intents.confirm_async(
            created.id, {"payment_method": "pm_card_chargeDeclinedInsufficientFunds"}
        )
    read = await v1.payment_intents.retrieve_async(created.id)
    assert (caught.value.http_status, caught.value.code) == (402, "card_declined")
    assert caught.value.error is not None
    assert caught.value.error.decline_code == "insufficient_funds"
    assert (read.status, read.last_payment_error.decline_code) == ("requires_payment_method", "insufficient_funds")


async def test_a_card_that_needs_an_action_leaves_the_intent_unfinished(v1: Any) -> None:
    created = await v1.payment_intents.create_async(ORDER)
    method = {"payment_method": "pm_card_threeDSecure2Required"}
    seen = await v1.payment_intents.confirm_async(created.id, method)
    canceled = await v1.payment_intents.cancel_async(created.id, {"cancellation_reason": "abandoned"})
    assert seen.status == "requires_action"
    assert (canceled.status, canceled.cancellation_reason) == ("canceled", "abandoned")


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"currency": "usd"}, "parameter_missing"),
        ({"amount": 1000}, "parameter_missing"),
        ({"amount": "ten", "currency": "usd"}, "parameter_invalid_integer"),
        ({"amount": 49, "currency": "usd"}, "amount_too_small"),
        ({"amount": 100_000_000, "currency": "usd"}, "amount_too_large"),
        ({"amount": 1000, "currency": "dollars"}, "currency_invalid"),
        ({"amount": 1000, "currency": "usd", "amonut": 1}, "parameter_unknown"),
    ],
)
async def test_invalid_requests_are_refused_with_their_code(v1: Any, params: dict[str, Any], code: str) -> None:
    with pytest.raises(stripe.InvalidRequestError) as caught:
        await v1.payment_intents.create_async(params)
    assert (caught.value.http_status, caught.value.code) == (400, code)


@pytest.mark.parametrize("limit", [0, 101])
async def test_a_list_refuses_a_limit_outside_1_to_100(v1: Any, limit: int) -> None:
    with pytest.raises(stripe.InvalidRequestError) as caught:
        await v1.payment_intents.list_async({"limit": limit})
    assert (caught.value.http_status, caught.value.param) == (400, "limit")


@pytest.mark.parametrize(
    ("params", "code"),
    [({}, "payment_intent_unexpected_state"), ({"payment_method": "pm_nothing"}, "resource_missing")],
)
async def test_an_intent_is_confirmed_only_with_a_test_card(v1: Any, params: dict[str, str], code: str) -> None:
    created = await v1.payment_intents.create_async(ORDER)
    with pytest.raises(stripe.InvalidRequestError) as caught:
        await v1.payment_intents.confirm_async(created.id, params)
    assert caught.value.code == code


async def test_a_key_stores_declines_and_server_errors_but_no_invalid_request(bank: RunningBank, v1: Any) -> None:
    created = await v1.payment_intents.create_async(ORDER)
    for _ in range(2):
        with pytest.raises(stripe.CardError):
            await v1.payment_intents.confirm_async(
                created.id, {"payment_method": "pm_card_chargeDeclined"}, {"idempotency_key": "k-decline"}
            )
    attempts = await v1.charges.list_async({"payment_intent": created.id})
    await bank.outage("error_kept", call="payment_intents.create", times=1)
    for _ in range(2):
        with pytest.raises(stripe.APIError) as broken:
            await v1.payment_intents.create_async(ORDER, {"idempotency_key": "k-broken"})
        assert broken.value.http_status == 500
    with pytest.raises(stripe.InvalidRequestError):
        await v1.payment_intents.create_async({"amount": 1}, {"idempotency_key": "k-wrong"})
    mended = await v1.payment_intents.create_async(ORDER, {"idempotency_key": "k-wrong"})
    assert len(attempts.data) == 1
    assert mended.status == "requires_payment_method"


async def test_wrong_keys_are_unauthorized_and_unknown_paths_return_json(bank: RunningBank) -> None:
    anonymous = await bank.http.get("/v1/payment_intents")
    wrong = await bank.http.get("/v1/refunds", headers={"Authorization": "Bearer sk_test_other"})
    nowhere = await bank.http.get("/v1/nowhere", headers=BEARER)
    assert (anonymous.status_code, wrong.status_code) == (401, 401)
    assert wrong.json()["error"]["type"] == "invalid_request_error"
    assert nowhere.status_code == 404
    assert nowhere.json()["error"]["type"] == "invalid_request_error"


async def test_a_browser_pays_with_the_publishable_key_and_the_client_secret(bank: RunningBank) -> None:
    public = {"Authorization": "Bearer pk_test_anything"}
    created = await bank.provider.create_intent("ord_1", "acct_1", 1000, "USD", env="test")
    path = f"/v1/payment_intents/{created.provider_payment_id}"
    form = {"client_secret": created.client_secret, "payment_method": "pm_card_visa"}
    forged = await bank.http.post(f"{path}/confirm", data={**form, "client_secret": "no"}, headers=public)
    paid = await bank.http.post(f"{path}/confirm", data=form, headers=public)
    seen = await bank.http.get(path, params={"client_secret": created.client_secret}, headers=public)
    more = await bank.http.post(f"{path}/cancel", data={"client_secret": created.client_secret}, headers=public)
    assert (forged.status_code, more.status_code) == (401, 401)
    assert paid.json()["status"] == seen.json()["status"] == "succeeded"


@pytest.mark.parametrize("path", ["amount", "latest_charge.nothing", "nothing"])
async def test_an_unknown_expansion_is_refused(bank: RunningBank, v1: Any, path: str) -> None:
    paid = await pay(v1)
    await bank.press("charges", paid.latest_charge, "refund", amount=1)
    with pytest.raises(stripe.InvalidRequestError):
        await v1.payment_intents.retrieve_async(paid.id, {"expand": [path]})


async def test_an_unreadable_state_file_is_set_aside(start_bank: StartBank, tmp_path: Path) -> None:
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "card-emulator.json").write_bytes(b'{"intents": {')
    async with start_bank() as bank:
        await bank.order()
    assert (folder / "card-emulator.unreadable").read_bytes() == b'{"intents": {'
    assert (folder / "card-emulator.json").stat().st_mode & 0o077 == 0


def test_forms_nest_by_their_brackets() -> None:
    raw = b"amount=5&metadata[a]=1&metadata[b]=%C3%A9&expand[]=x&expand[]=y.z&list[0]=1&list[1]=2&blank="
    assert parse_form(raw) == {
        "amount": "5",
        "metadata": {"a": "1", "b": "é"},
        "expand": {"0": "x", "1": "y.z"},
        "list": {"0": "1", "1": "2"},
        "blank": "",
    }


@pytest.mark.parametrize("raw", [b"a[b=1", b"a[b]c=1", b"a=1&a[b]=1", b"a[b][c]=1", b"\xff=1"])
def test_malformed_forms_are_refused(raw: bytes) -> None:
    with pytest.raises(ApiError):
        parse_form(raw)


PUBLIC = {"Authorization": "Bearer pk_test_anything"}
BACK = "https://shop.example/account/buy/ord_1"


async def confirm(bank: RunningBank, secret: str, test_card: str, **more: str) -> Any:
    """What the frame of the provider's script posts; the response."""
    form = {"client_secret": secret, "payment_method": test_card, **more}
    path = f"/v1/payment_intents/{secret.partition('_secret_')[0]}/confirm"
    return await bank.http.post(path, data=form, headers=PUBLIC)


@pytest.mark.parametrize(
    ("action", "status", "error"),
    [
        ("pay", "succeeded", None),
        ("fail_authentication", "requires_payment_method", "payment_intent_authentication_failure"),
    ],
)
async def test_a_cardholder_is_sent_to_the_page_that_asks_for_approval(
    bank: RunningBank, action: str, status: str, error: str | None
) -> None:
    created = await bank.provider.create_intent("ord_1", "acct_1", 1000, "USD", env="test")
    for _ in range(2):
        # One who leaves that page may begin again.
        asked = await confirm(bank, created.client_secret, "pm_card_threeDSecure2Required", return_url=BACK)
    redirect = asked.json()["next_action"]["redirect_to_url"]
    address, _, named = redirect["url"].partition("#")
    assert (asked.json()["status"], redirect["return_url"]) == ("requires_action", BACK)
    assert address == f"{bank.url}/v3/challenge"
    assert parse_form(named) == {
        "payment_intent": created.provider_payment_id,
        "client_secret": created.client_secret,
    }
    await bank.press("payment_intents", created.provider_payment_id, action)
    path = f"/v1/payment_intents/{created.provider_payment_id}"
    seen = (await bank.http.get(path, headers=BEARER)).json()
    found = seen["last_payment_error"]
    assert (seen["status"], seen["next_action"], found and found["code"]) == (status, None, error)
    again = await confirm(bank, created.client_secret, "pm_card_visa")
    assert again.status_code == (200 if error else 400)


async def test_a_decline_tells_the_cardholder_what_a_bank_does(bank: RunningBank) -> None:
    created = await bank.provider.create_intent("ord_1", "acct_1", 1000, "USD", env="test")
    poor = await confirm(bank, created.client_secret, "pm_card_chargeDeclinedInsufficientFunds")
    declined = await confirm(bank, created.client_secret, "pm_card_chargeDeclined")
    assert poor.json()["error"]["message"] == "Your card has insufficient funds."
    assert declined.json()["error"]["message"] == "Your card was declined."


@pytest.mark.parametrize(("path", "framed_by"), [("/v3/frame", "*"), ("/v3/challenge", "'none'")])
async def test_the_pages_of_the_script_run_their_own_code_only(
    bank: RunningBank, path: str, framed_by: str
) -> None:
    page = await bank.http.get(path)
    policy = dict(each.split(" ", 1) for each in page.headers["Content-Security-Policy"].split("; "))
    script = page.text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy["script-src"] == f"'sha256-{digest}'"
    assert (policy["default-src"], policy["connect-src"]) == ("'none'", "'self'")
    assert policy["frame-ancestors"] == framed_by


async def test_the_script_and_every_card_that_its_frame_offers_are_known(bank: RunningBank) -> None:
    script, frame = await bank.http.get("/v3/"), await bank.http.get("/v3/frame")
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert "confirmPayment" in script.text
    to_pay, to_save = frame.text.partition("setup_intent: {")[::2]
    assert set(re.findall(r"(pm_card_\w+):", to_pay)) == CARDS.keys()
    assert set(re.findall(r"(pm_card_\w+):", to_save)) == {*SAVED_CARDS, "pm_card_chargeDeclined"}
