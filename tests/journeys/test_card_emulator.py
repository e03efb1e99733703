"""Development's card emulator: its webhooks, its port after a restart, and the reconcile command."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import Any

import trio

from .conftest import NewCustomer, NewService
from .service_process import Customer, Service, loopback_client, ok, until

ORDERS = "/v2/control/payments/cardprovider"


async def card_provider(service: Service, method: str, path: str, **said: object) -> Any:
    """Call a control endpoint of the service's card emulator."""
    port = (service.data_dir / "card.port").read_text().strip()
    async with loopback_client() as http:
        answer = await http.request(method, f"http://127.0.0.1:{port}/control/{path}", json=said)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def order(customer: Customer) -> dict[str, Any]:
    return ok(await customer.call("POST", ORDERS, {"amount": "10.00"}, as_session=True))


async def status_of(customer: Customer, order_id: str) -> str:
    return str(ok(await customer.call("GET", f"/v2/control/payments/{order_id}", as_session=True))["status"])


def by_hand(service: Service, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "reconcile", *words]
    return subprocess.run(command, env=service.environment, capture_output=True, text=True, timeout=60, check=False)


async def test_emulator_webhooks_credit_orders_also_after_a_restart(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        service = new_service()
        await trio.to_thread.run_sync(service.start)
        customer = await new_customer(service)
        before, after = await order(customer), await order(customer)
        await card_provider(service, "POST", f"payment_intents/{before['provider_payment_id']}/pay")

        async def credited() -> bool:
            return await status_of(customer, before["order_id"]) == "credited"

        await until(credited)
        await trio.to_thread.run_sync(service.kill)
        await trio.to_thread.run_sync(service.start)
        await card_provider(service, "POST", f"payment_intents/{after['provider_payment_id']}/pay")

        async def both() -> bool:
            return (await customer.totals()).balance == Decimal(20)

        await until(both)
        assert await trio.to_thread.run_sync(service.stop) == 0
        assert service.faults() == []


async def test_reconcile_credits_orders_whose_webhooks_were_lost(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        service = new_service()
        await trio.to_thread.run_sync(service.start)
        customer = await new_customer(service)
        orders = [await order(customer) for _ in range(3)]
        await card_provider(service, "PUT", "webhooks", drop=True)
        for each in orders[:2]:
            await card_provider(service, "POST", f"payment_intents/{each['provider_payment_id']}/pay")

        async def booked() -> bool:
            # The booking follows a moment after the money.
            payments = (await card_provider(service, "GET", "state"))["payments"]
            charges = [charge for payment in payments for charge in payment["charges"]]
            return [charge["balance_transaction"] is not None for charge in charges] == [True, True]

        await until(booked)
        looked = await trio.to_thread.run_sync(by_hand, service)
        found = [await status_of(customer, each["order_id"]) for each in orders]
        balance = (await customer.totals()).balance
        every = await trio.to_thread.run_sync(by_hand, service, "--all")
        assert service.audit() == []
    assert (looked.returncode, looked.stderr) == (0, "")
    assert looked.stdout.splitlines()[-1] == "card orders reconciled: 1 pending, 2 reconciled"
    assert "3/3" in looked.stdout
    assert found == ["credited", "credited", "pending"]
    assert balance == Decimal(20)
    assert every.returncode == 0
    assert "1 pending, 2 reconciled" in every.stdout


async def test_reconcile_fails_while_the_provider_is_away(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        service = new_service()
        await trio.to_thread.run_sync(service.start)
        await order(await new_customer(service))
        await card_provider(service, "POST", "outages", mode="error", call="payment_intents.retrieve", times=10)
        looked = await trio.to_thread.run_sync(by_hand, service)
    assert looked.returncode == 1
    assert "1 error" in looked.stdout
    assert "could not be compared" in looked.stderr
