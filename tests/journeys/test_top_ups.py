"""Automatic top-ups over real HTTP: a saved card is charged once for each crossing, whatever its provider does."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import trio
from tests.clients import Customer, code_of, loopback_client, ok, until

from .card_provider import API_KEY, CARDS, CardProviderProcess, Payer, cards, save_card
from .conftest import NewCustomer, NewService
from .operator_client import Operator
from .payment_scenarios import make_order_due
from .service_process import Service

TOP_UP = "/v2/control/auto-top-up"
SETTINGS = {"below": "5.00", "amount": "10.00", "max_per_day": 2, "max_per_month": 3, "enabled": True}


async def top_up(customer: Customer) -> dict[str, Any]:
    return dict(ok(await customer.as_session("GET", TOP_UP)))


async def top_ups(customer: Customer) -> list[dict[str, Any]]:
    """The account's top-up orders, oldest first."""
    found = ok(await customer.as_session("GET", "/v2/control/payments?limit=100"))["data"]
    return [each for each in found if each["origin"] == "top_up"][::-1]


async def charges_of(card_provider: CardProviderProcess, customer: Customer) -> list[dict[str, Any]]:
    """The charges that succeeded at the provider for the account."""
    async with loopback_client(headers={"Authorization": f"Bearer {API_KEY}"}) as http:
        found = ok(await http.get(f"{card_provider.url}/v1/charges?limit=100"))["data"]
    return [each for each in found if each["paid"] and each["metadata"].get("account_id") == customer.account_id]


async def spend_down_to(customer: Customer, below: Decimal) -> None:
    """Create tasks until the available credit is below an amount."""
    while (await customer.totals()).available >= below:
        ok(await customer.create())


@pytest.fixture
async def ada(
    shared_card_provider: CardProviderProcess, card_service: Service, new_customer: NewCustomer
) -> Customer:
    """A customer with a little credit, at a service that gets the card provider's webhooks."""
    assert shared_card_provider.webhook_url
    customer = await new_customer(card_service)
    await customer.recharge("5.05")
    return customer


@pytest.mark.usefixtures("one_day")
async def test_a_saved_card_is_charged_when_credit_runs_low_and_shown_everywhere(
    ada: Customer, card_provider: CardProviderProcess, card_service: Service
) -> None:
    with trio.fail_after(120):
        off = await top_up(ada)
        assert (off["enabled"], off["status"], off["below"], off["card"]) == (False, "off", None, None)
        refused = await ada.as_session("PUT", TOP_UP, SETTINGS)
        assert (refused.status_code, code_of(refused)) == (409, "card_required")
        card_id = await save_card(ada, card_provider)
        [card] = await cards(ada)
        assert (card["card_id"], card["brand"], card["last4"]) == (card_id, "visa", "4242")
        on = ok(await ada.as_session("PUT", TOP_UP, SETTINGS))
        assert (on["enabled"], on["below"], on["amount"], on["today"]) == (True, "5.00", "10.00", 0)
        assert await top_ups(ada) == []
        await spend_down_to(ada, Decimal(5))
        [order] = await top_ups(ada)
        await Payer(ada, card_provider).wait_for(order["order_id"], status="credited")
        [charge] = await charges_of(card_provider, ada)
        assert (charge["amount"], charge["metadata"]["order_id"]) == (1000, order["order_id"])
        [entry] = [each for each in await ada.statement() if each["reference"] == order["order_id"]]
        assert (entry["kind"], entry["amount"], entry["reason"]) == ("credit", "10.00", "top_up_succeeded")
        now = await top_up(ada)
        assert (now["status"], now["today"], now["this_month"], now["open_order_id"]) == ("on", 1, 1, None)
        # A second webhook, and more spending above the limit, charge nothing.
        for event in await card_provider.events_of(charge["payment_intent"]):
            await card_provider.act("events", event["id"], "resend")
        ok(await ada.create())
        assert len(await charges_of(card_provider, ada)) == 1
        removed = ok(await ada.as_session("DELETE", f"{CARDS}/{card_id}"))
        assert removed == {"card_id": card_id, "deleted": True}
        again = await ada.as_session("DELETE", f"{CARDS}/{card_id}")
        assert (again.status_code, code_of(again)) == (404, "card_not_found")
        now = await top_up(ada)
        assert (now["enabled"], now["disabled_reason"], now["card"]) == (False, "card_removed", None)
    assert card_service.faults() == []


async def test_a_declining_card_is_tried_once(ada: Customer, card_provider: CardProviderProcess) -> None:
    with trio.fail_after(120):
        await save_card(ada, card_provider, "pm_card_chargeCustomerFail")
        ok(await ada.as_session("PUT", TOP_UP, SETTINGS))
        await spend_down_to(ada, Decimal(5))
        [order] = await top_ups(ada)
        await Payer(ada, card_provider).wait_for(order["order_id"], status="failed")
        now = await top_up(ada)
        assert (now["enabled"], now["disabled_reason"], now["today"]) == (False, "generic_decline", 0)
        ok(await ada.create())
        assert len(await top_ups(ada)) == 1
        assert await charges_of(card_provider, ada) == []


@pytest.mark.parametrize("fault", ["lost answers", "silence"])
@pytest.mark.slow
@pytest.mark.usefixtures("one_day")
async def test_a_card_company_in_trouble_charges_once_for_a_crossing(
    ada: Customer, card_provider: CardProviderProcess, card_service: Service, fault: str
) -> None:
    with trio.fail_after(240):
        await save_card(ada, card_provider)
        ok(await ada.as_session("PUT", TOP_UP, SETTINGS))
        if fault == "lost answers":
            await card_provider.fail("payment_intents.create", "lose_answer", times=2)
        else:
            await card_provider.fail("*", "refuse")
        await spend_down_to(ada, Decimal(5))
        [order] = await top_ups(ada)
        if fault == "silence":
            for _ in range(3):
                ok(await ada.create())
                await trio.sleep(0.5)
            now = await top_up(ada)
            assert (now["status"], now["open_order_id"]) == ("open", order["order_id"])
            await card_provider.recover()
            make_order_due(card_service, order["order_id"])
        await Payer(ada, card_provider).wait_for(order["order_id"], within_s=120, status="credited")
        assert len(await charges_of(card_provider, ada)) == 1
        assert len(await top_ups(ada)) == 1
        assert (await top_up(ada))["today"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("one_day")
async def test_a_service_killed_between_charge_and_credit_charges_once(
    card_provider: CardProviderProcess, new_service: NewService, new_customer: NewCustomer
) -> None:
    with trio.fail_after(240):
        service = new_service(**card_provider.settings())
        await trio.to_thread.run_sync(service.start)
        card_provider.serve(service)
        ada = await new_customer(service)
        await ada.recharge("5.05")
        await save_card(ada, card_provider)
        ok(await ada.as_session("PUT", TOP_UP, SETTINGS))
        await card_provider.webhooks(drop=True)
        # The charge is made, and its response comes when the service is not there any more.
        await card_provider.fail("payment_intents.create", "slow")
        await spend_down_to(ada, Decimal(5))
        await until(lambda: charged(card_provider, ada))
        await trio.to_thread.run_sync(service.kill)
        await card_provider.recover()
        await trio.to_thread.run_sync(service.start)
        [order] = await top_ups(ada)
        assert order["status"] == "pending"
        make_order_due(service, order["order_id"])
        await Payer(ada, card_provider).wait_for(order["order_id"], status="credited")
        await card_provider.webhooks()
        assert len(await charges_of(card_provider, ada)) == 1
        assert (await top_up(ada))["today"] == 1


async def test_an_operator_sees_it_and_switches_it_off(
    ada: Customer, card_provider: CardProviderProcess, card_service: Service
) -> None:
    with trio.fail_after(120):
        await save_card(ada, card_provider)
        ok(await ada.as_session("PUT", TOP_UP, SETTINGS))
        operator = Operator(card_service)
        async with operator.http:
            seen = ok(await operator.http.get(f"/ops/api/accounts/{ada.account_id}"))["auto_top_up"]
            assert (seen["enabled"], seen["amount"], seen["card"]["last4"]) == (True, "10.00", "4242")
            ok(await operator.act(f"accounts/{ada.account_id}/auto-top-up/disable"))
            [action] = ok(await operator.http.get(f"/ops/api/actions?account_id={ada.account_id}"))["data"]
            assert (action["action"], action["result"]) == ("disable_auto_top_up", "done")
        now = await top_up(ada)
        assert (now["enabled"], now["disabled_reason"]) == (False, "operator")
        await spend_down_to(ada, Decimal(5))
        assert await top_ups(ada) == []


async def charged(card_provider: CardProviderProcess, customer: Customer) -> bool:
    return bool(await charges_of(card_provider, customer))
