"""The emulator's wire, spoken by the official client itself: intents, keys, declines, refunds, disputes, lists."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import stripe
import trio

from holdfast.providers.card.stripe_adapter import TrioHttp
from holdfast_emulators.card.state import ApiError
from holdfast_emulators.card.wire import parse_form

from .conftest import CARD_KEY, RunningBank, StartBank

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


async def test_create_confirm_and_read_back(v1: Any) -> None:
    with trio.fail_after(60):
        created = await v1.payment_intents.create_async(ORDER)
        paid = await v1.payment_intents.confirm_async(
            created.id, {"payment_method": "pm_card_visa", "expand": ["latest_charge"]}
        )
        read = await v1.payment_intents.retrieve_async(created.id)
    assert (created.status, created.amount_received, created.latest_charge) == ("requires_payment_method", 0, None)
    assert (paid.status, paid.amount_received) == ("succeeded", 1000)
    assert paid.latest_charge.paid
    assert paid.latest_charge.balance_transaction is None
    assert paid.latest_charge.metadata.to_dict() == {"order_id": "ord_1"}
    assert read.latest_charge == paid.latest_charge.id
    assert created.client_secret == read.client_secret


async def test_a_declined_card_is_a_card_error_that_names_the_reason(v1: Any) -> None:
    with trio.fail_after(60):
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
    with trio.fail_after(60):
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
    with trio.fail_after(60), pytest.raises(stripe.InvalidRequestError) as caught:
        await v1.payment_intents.create_async(params)
    assert (caught.value.http_status, caught.value.code) == (400, code)


@pytest.mark.parametrize("limit", [0, 101])
async def test_a_list_refuses_a_limit_outside_1_to_100(v1: Any, limit: int) -> None:
    with trio.fail_after(60), pytest.raises(stripe.InvalidRequestError) as caught:
        await v1.payment_intents.list_async({"limit": limit})
    assert (caught.value.http_status, caught.value.param) == (400, "limit")


async def test_a_final_intent_can_neither_be_confirmed_nor_canceled(v1: Any) -> None:
    with trio.fail_after(60):
        paid = await pay(v1)
        for call in (v1.payment_intents.cancel_async, v1.payment_intents.confirm_async):
            with pytest.raises(stripe.InvalidRequestError) as caught:
                await call(paid.id)
            assert caught.value.code == "payment_intent_unexpected_state"


@pytest.mark.parametrize(
    ("params", "code"),
    [({}, "payment_intent_unexpected_state"), ({"payment_method": "pm_nothing"}, "resource_missing")],
)
async def test_an_intent_is_confirmed_only_with_a_test_card(v1: Any, params: dict[str, str], code: str) -> None:
    with trio.fail_after(60):
        created = await v1.payment_intents.create_async(ORDER)
        with pytest.raises(stripe.InvalidRequestError) as caught:
            await v1.payment_intents.confirm_async(created.id, params)
    assert caught.value.code == code


async def test_a_key_replays_its_response_and_refuses_other_parameters(bank: RunningBank, v1: Any) -> None:
    key = {**BEARER, "Idempotency-Key": "k1"}
    with trio.fail_after(60):
        first = await bank.http.post("/v1/payment_intents", data={"amount": "1000", "currency": "usd"}, headers=key)
        await bank.press("payment_intents", first.json()["id"], "pay")
        again = await bank.http.post("/v1/payment_intents", data={"currency": "usd", "amount": "1000"}, headers=key)
        other = await bank.http.post("/v1/payment_intents", data={"amount": "2000", "currency": "usd"}, headers=key)
    assert again.content == first.content
    assert (other.status_code, other.json()["error"]["type"]) == (400, "idempotency_error")


async def test_a_key_stores_declines_and_server_errors_but_no_invalid_request(bank: RunningBank, v1: Any) -> None:
    with trio.fail_after(60):
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


async def test_a_key_at_work_conflicts_until_its_answer_is_out(bank: RunningBank) -> None:
    key = {**BEARER, "Idempotency-Key": "k1"}
    order = {"amount": "1000", "currency": "usd"}
    statuses: list[int] = []
    with trio.fail_after(60):
        await bank.outage("slow", call="payment_intents.create", times=1)
        async with trio.open_nursery() as nursery:

            async def create() -> None:
                statuses.append((await bank.http.post("/v1/payment_intents", data=order, headers=key)).status_code)

            nursery.start_soon(create)
            nursery.start_soon(create)
            while statuses != [409]:
                await trio.lowlevel.checkpoint()
            await bank.recover()
        assert (await bank.http.post("/v1/payment_intents", data=order, headers=key)).status_code == 200
    assert statuses == [409, 200]


async def test_wrong_keys_are_unauthorized_and_unknown_paths_return_json(bank: RunningBank) -> None:
    with trio.fail_after(60):
        anonymous = await bank.http.get("/v1/payment_intents")
        wrong = await bank.http.get("/v1/refunds", headers={"Authorization": "Bearer sk_test_other"})
        nowhere = await bank.http.get("/v1/nowhere", headers=BEARER)
    assert (anonymous.status_code, wrong.status_code) == (401, 401)
    assert wrong.json()["error"]["type"] == "invalid_request_error"
    assert nowhere.status_code == 404
    assert nowhere.json()["error"]["type"] == "invalid_request_error"


async def test_a_browser_pays_with_the_publishable_key_and_the_client_secret(bank: RunningBank) -> None:
    public = {"Authorization": "Bearer pk_test_anything"}
    with trio.fail_after(60):
        created = await bank.provider.create_intent("ord_1", "acct_1", 1000, "USD", env="test")
        path = f"/v1/payment_intents/{created.provider_payment_id}"
        form = {"client_secret": created.client_secret, "payment_method": "pm_card_visa"}
        forged = await bank.http.post(f"{path}/confirm", data={**form, "client_secret": "no"}, headers=public)
        paid = await bank.http.post(f"{path}/confirm", data=form, headers=public)
        seen = await bank.http.get(path, params={"client_secret": created.client_secret}, headers=public)
        more = await bank.http.post(f"{path}/cancel", data={"client_secret": created.client_secret}, headers=public)
    assert (forged.status_code, more.status_code) == (401, 401)
    assert paid.json()["status"] == seen.json()["status"] == "succeeded"


async def test_refunds_in_parts_up_to_the_whole_and_no_further(v1: Any) -> None:
    with trio.fail_after(60):
        paid = await pay(v1)
        first = await v1.refunds.create_async({"payment_intent": paid.id, "amount": 400})
        with pytest.raises(stripe.InvalidRequestError):
            await v1.refunds.create_async({"payment_intent": paid.id, "amount": 601})
        rest = await v1.refunds.create_async({"payment_intent": paid.id})
        with pytest.raises(stripe.InvalidRequestError) as caught:
            await v1.refunds.create_async({"payment_intent": paid.id})
        charge = await v1.charges.retrieve_async(paid.latest_charge)
        listed = await v1.refunds.list_async({"payment_intent": paid.id, "expand": ["data.balance_transaction"]})
        read = await v1.refunds.retrieve_async(first.id)
    assert caught.value.code == "charge_already_refunded"
    assert (first.amount, rest.amount, charge.amount_refunded, charge.refunded) == (400, 600, 1000, True)
    assert [each.id for each in listed.data] == [rest.id, first.id]
    assert [each.balance_transaction.amount for each in listed.data] == [-600, -400]
    assert read.status == "succeeded"


async def test_a_refund_that_fails_later_gives_the_charge_its_amount_back(bank: RunningBank, v1: Any) -> None:
    with trio.fail_after(60):
        paid = await pay(v1)
        refund_id = await bank.press("charges", paid.latest_charge, "refund", amount=400, pending=True)
        pending = await v1.refunds.retrieve_async(refund_id)
        await bank.press("refunds", refund_id, "succeed")
        await bank.press("refunds", refund_id, "fail")
        failed = await v1.refunds.retrieve_async(
            refund_id, {"expand": ["balance_transaction", "failure_balance_transaction"]}
        )
        charge = await v1.charges.retrieve_async(paid.latest_charge)
    assert (pending.status, pending.balance_transaction) == ("pending", None)
    assert failed.status == "failed"
    assert failed.balance_transaction.amount + failed.failure_balance_transaction.amount == 0
    assert failed.failure_balance_transaction.reporting_category == "refund_failure"
    assert (charge.amount_refunded, charge.refunded) == (0, False)


async def test_a_lost_dispute_costs_the_amount_and_the_fee(bank: RunningBank, v1: Any) -> None:
    with trio.fail_after(60):
        paid = await pay(v1)
        dispute_id = await bank.press("charges", paid.latest_charge, "dispute")
        with pytest.raises(stripe.InvalidRequestError) as refused:
            await v1.refunds.create_async({"payment_intent": paid.id})
        await bank.press("disputes", dispute_id, "respond")
        await bank.press("disputes", dispute_id, "lose")
        dispute = await v1.disputes.retrieve_async(dispute_id)
        listed = await v1.disputes.list_async({"payment_intent": paid.id})
        charge = await v1.charges.retrieve_async(paid.latest_charge)
    assert refused.value.code == "charge_disputed"
    assert (dispute.status, charge.disputed) == ("lost", True)
    (movement,) = dispute.balance_transactions
    assert (movement.amount, movement.fee, movement.net) == (-1000, 1500, -2500)
    assert (movement.type, movement.reporting_category) == ("adjustment", "dispute")
    assert [each.id for each in listed.data] == [dispute_id]


async def test_an_inquiry_moves_no_money_until_it_becomes_a_dispute(bank: RunningBank, v1: Any) -> None:
    with trio.fail_after(60):
        paid = await pay(v1)
        dispute_id = await bank.press("charges", paid.latest_charge, "dispute", inquiry=True)
        inquiry = await v1.disputes.retrieve_async(dispute_id)
        await bank.press("disputes", dispute_id, "escalate")
        dispute = await v1.disputes.retrieve_async(dispute_id)
    assert (inquiry.status, list(inquiry.balance_transactions)) == ("warning_needs_response", [])
    assert dispute.status == "needs_response"
    assert [each.amount for each in dispute.balance_transactions] == [-1000]


async def test_lists_are_newest_first_and_paged_by_the_official_client(v1: Any) -> None:
    with trio.fail_after(60):
        created = [(await v1.payment_intents.create_async(ORDER)).id for _ in range(5)]
        page = await v1.payment_intents.list_async({"limit": 2})
        walked = [each.id async for each in page.auto_paging_iter()]
    assert walked == created[::-1]
    assert page.has_more


@pytest.mark.parametrize("path", ["amount", "latest_charge.nothing", "nothing"])
async def test_an_unknown_expansion_is_refused(bank: RunningBank, v1: Any, path: str) -> None:
    with trio.fail_after(60):
        paid = await pay(v1)
        await bank.press("charges", paid.latest_charge, "refund", amount=1)
        with pytest.raises(stripe.InvalidRequestError):
            await v1.payment_intents.retrieve_async(paid.id, {"expand": [path]})


async def test_state_survives_the_process_and_pending_settlements_resume(start_bank: StartBank) -> None:
    key = {**BEARER, "Idempotency-Key": "k1"}
    order = {"amount": "1000", "currency": "usd"}
    with trio.fail_after(60):
        async with start_bank(settle_delay_s=float("inf")) as bank:
            first = await bank.http.post("/v1/payment_intents", data=order, headers=key)
            intent_id = first.json()["id"]
            charge_id = await bank.press("payment_intents", intent_id, "pay")
        async with start_bank() as bank:
            again = await bank.http.post("/v1/payment_intents", data=order, headers=key)
            while not (await _charge(bank.http, charge_id))["balance_transaction"]:
                await trio.lowlevel.checkpoint()
            seen = await bank.provider.retrieve(intent_id, as_of=0)
    assert again.content == first.content
    assert seen.state == "succeeded"


KILLED = """
import sys, trio
from pathlib import Path
from holdfast_emulators.card.app import serve_card_emulator

async def main():
    async with trio.open_nursery() as nursery:
        async def run(*, task_status):
            await serve_card_emulator(
                api_key=sys.argv[2], webhook_secret="s", webhook_url=lambda: "", files_dir=Path(sys.argv[1]),
                task_status=task_status,
            )
        print(await nursery.start(run), flush=True)

trio.run(main)
"""


async def test_nothing_answered_is_lost_when_the_process_is_killed(start_bank: StartBank, tmp_path: Path) -> None:
    answered: set[str] = set()
    order, form = b"amount=1000&currency=usd", {**BEARER, "Content-Type": "application/x-www-form-urlencoded"}
    with trio.fail_after(60):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "card"), CARD_KEY]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        async with process.stdout as output:
            url = f"http://127.0.0.1:{int(await output.receive_some(64))}/v1/payment_intents"
            async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=60) as http:

                async def create() -> None:
                    with contextlib.suppress(httpx2.HTTPError):
                        while True:
                            # The client's own posting would leave a generator behind when the connection breaks.
                            async with http.stream("POST", url, content=order, headers=form) as created:
                                answered.add(json.loads(await created.aread())["id"])
                            if len(answered) >= 40:
                                process.kill()

                try:
                    async with trio.open_nursery() as nursery:
                        for _ in range(8):
                            nursery.start_soon(create)
                finally:
                    process.kill()
            await process.wait()
        async with start_bank() as bank:
            listed = await bank.http.get("/v1/payment_intents", params={"limit": 100}, headers=BEARER)
    assert len(answered) >= 40
    assert answered <= {each["id"] for each in listed.json()["data"]}


async def test_an_unreadable_state_file_is_set_aside(start_bank: StartBank, tmp_path: Path) -> None:
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "card-emulator.json").write_bytes(b'{"intents": {')
    with trio.fail_after(60):
        async with start_bank() as bank:
            await bank.order()
    assert (folder / "card-emulator.unreadable").read_bytes() == b'{"intents": {'
    assert (folder / "card-emulator.json").stat().st_mode & 0o077 == 0


async def _charge(http: httpx2.AsyncClient, charge_id: str) -> dict[str, Any]:
    return dict((await http.get(f"/v1/charges/{charge_id}", headers=BEARER)).json())


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
