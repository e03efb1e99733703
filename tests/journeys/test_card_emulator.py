"""Development's card emulator: its webhooks, its port after a restart, and the reconcile command."""

from __future__ import annotations

import subprocess
from decimal import Decimal
from typing import Any

import pytest
import trio
from tests.clients import Customer, loopback_client, ok, until
from tests.forked_processes import run_holdfast

from .card_provider import CardProviderProcess
from .conftest import NewCustomer, NewService
from .service_process import Service

ORDERS = "/v2/control/payments/cardprovider"


async def call_emulator(service: Service, method: str, path: str, **body: object) -> Any:
    """Call a control endpoint of the service's card emulator."""
    port = (service.data_dir / "card.port").read_text().strip()
    async with loopback_client() as http:
        answer = await http.request(method, f"http://127.0.0.1:{port}/control/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def order(customer: Customer) -> dict[str, Any]:
    return ok(await customer.as_session("POST", ORDERS, {"amount": "10.00"}))


async def status_of(customer: Customer, order_id: str) -> str:
    return str(ok(await customer.as_session("GET", f"/v2/control/payments/{order_id}"))["status"])


def run_reconcile(service: Service, *words: str) -> subprocess.CompletedProcess[str]:
    return run_holdfast("reconcile", *words, environment=service.environment)


@pytest.mark.slow
async def test_emulator_webhooks_credit_orders_also_after_a_restart(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        service = new_service()
        await trio.to_thread.run_sync(service.start)
        customer = await new_customer(service)
        before, after = await order(customer), await order(customer)
        reconciled = await trio.to_thread.run_sync(run_reconcile, service)
        assert reconciled.stdout.splitlines()[-1] == "card orders reconciled: 2 pending"
        await call_emulator(service, "POST", f"payment_intents/{before['provider_payment_id']}/pay")

        async def credited() -> bool:
            return await status_of(customer, before["order_id"]) == "credited"

        await until(credited)
        await trio.to_thread.run_sync(service.kill)
        await trio.to_thread.run_sync(service.start)
        await call_emulator(service, "POST", f"payment_intents/{after['provider_payment_id']}/pay")

        async def both() -> bool:
            return (await customer.totals()).balance == Decimal(20)

        await until(both)
        assert await trio.to_thread.run_sync(service.stop) == 0
        assert service.faults() == []


@pytest.mark.slow
async def test_reconcile_credits_orders_whose_webhooks_were_lost(
    card_provider: CardProviderProcess, new_service: NewService, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        service = new_service(**card_provider.settings())
        await trio.to_thread.run_sync(service.start)
        customer = await new_customer(service)
        orders = [await order(customer) for _ in range(3)]
        intents = [each["provider_payment_id"] for each in orders]
        await card_provider.webhooks(drop=True)
        for intent_id in intents[:2]:
            await card_provider.act("payment_intents", intent_id, "pay")

        async def booked() -> bool:
            # The balance transaction follows a moment after the payment.
            charges = [await card_provider.charge_of(intent_id) for intent_id in intents[:2]]
            return all([await card_provider.is_booked(charge_id) for charge_id in charges])

        await until(booked)
        looked = await trio.to_thread.run_sync(run_reconcile, service)
        found = [await status_of(customer, each["order_id"]) for each in orders]
        balance = (await customer.totals()).balance
        every = await trio.to_thread.run_sync(run_reconcile, service, "--all")
        await card_provider.webhooks()
        assert service.audit() == []
    assert (looked.returncode, looked.stderr) == (0, "")
    assert looked.stdout.splitlines()[-1] == "card orders reconciled: 1 pending, 2 reconciled"
    assert "3/3" in looked.stdout
    assert found == ["credited", "credited", "pending"]
    assert balance == Decimal(20)
    assert every.returncode == 0
    assert "1 pending, 2 reconciled" in every.stdout


@pytest.mark.slow
async def test_reconcile_fails_while_the_provider_is_away(
    card_provider: CardProviderProcess, new_service: NewService, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        service = new_service(**card_provider.settings())
        await trio.to_thread.run_sync(service.start)
        await order(await new_customer(service))
        await card_provider.fail("payment_intents.retrieve", "error", times=10)
        looked = await trio.to_thread.run_sync(run_reconcile, service)
        await card_provider.recover()
    assert looked.returncode == 1
    assert "1 error" in looked.stdout
    assert "could not be compared" in looked.stderr
