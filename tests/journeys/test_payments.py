"""Buying and refunding credit over real HTTP: sandbox orders, and card orders at the emulator."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx2
import psycopg
import pytest
import trio
from tests.clients import Customer, Totals, code_of, loopback_client, ok, until

from .card_provider import WEBHOOK, CardProviderProcess, Payer, signed, unique, written
from .conftest import NewCustomer, NewService
from .service_process import Service

CALLBACK = "/v2/control/payments/sandbox/callback"


async def sandbox_order(customer: Customer, amount: str = "10.00") -> dict[str, Any]:
    path = "/v2/control/payments/sandbox"
    return ok(await customer.as_session("POST", path, {"amount": amount}))


async def call_back(http: httpx2.AsyncClient, created: dict[str, Any], **changed: str) -> httpx2.Response:
    callback = created["callback"]
    headers = {callback["signature_header"]: callback["signature"]}
    return await http.post(CALLBACK, json={**callback["payload"], **changed}, headers=headers)


async def test_a_webhook_before_the_create_call_returns_is_credited(payer: Payer) -> None:
    with trio.fail_after(240):
        answers: list[dict[str, Any]] = []
        await payer.card_provider.fail("payment_intents.create", "slow", times=1)

        async def create() -> None:
            answers.append(await payer.order())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)

            async def pending() -> str | None:
                found = ok(await payer.customer.as_session("GET", "/v2/control/payments"))["data"]
                return found[0]["order_id"] if found else None

            order_id = await until(pending)
            intent = await until(lambda: payer.card_provider.intent_of(order_id))
            await payer.card_provider.act("payment_intents", intent["id"], "pay")
            await payer.wait_for(order_id, status="credited")
            assert answers == []
            await payer.card_provider.recover()
        assert answers[0]["order_id"] == order_id
        assert answers[0]["provider_payment_id"] == intent["id"]
        found = await payer.read(order_id)
        assert (found["status"], found["ledger_operation_refs"]) == ("credited", [answers[0]["operation_id"]])


async def test_provider_trouble_leaves_no_order_undecided_and_keys_usable(
    payer: Payer, card_service: Service
) -> None:
    with trio.fail_after(240):
        key = unique("lost")
        await payer.card_provider.fail("payment_intents.create", "lose_answer", times=3)
        refused = await payer.try_order(key=key)
        # Where the attempts take longer than the call may, the call's own deadline answers first.
        assert (refused.status_code, code_of(refused)) in {(502, "provider_unavailable"), (504, "provider_timeout")}
        await payer.card_provider.recover()
        order = await payer.order(key=key)
        assert (await payer.order(key=key)) == order
        await payer.card_provider.act("payment_intents", order["provider_payment_id"], "pay")
        await payer.wait_for(order["order_id"], status="credited")
        [listed] = ok(await payer.customer.as_session("GET", "/v2/control/payments"))["data"]
        assert (listed["order_id"], listed["status"]) == (order["order_id"], "credited")
        assert (await payer.customer.totals()).balance == 10
    assert card_service.faults() == []


@pytest.mark.slow
async def test_100_copies_of_a_webhook_over_two_processes_credit_once(
    new_service: NewService, new_customer: NewCustomer, shared_url: str, card_provider: CardProviderProcess
) -> None:
    secret = unique("sandbox_secret_of_both_processes")
    services = [
        new_service(DATABASE_URL=shared_url, SANDBOX_SECRET=secret, **card_provider.settings()) for _ in range(2)
    ]
    for service in services:
        await trio.to_thread.run_sync(service.start)
    card_provider.webhook_url = ""
    ada = await new_customer(services[0])
    payer = Payer(ada, card_provider)
    async with loopback_client(base_url=services[1].url, timeout=60) as other:
        order = await payer.order("10.00")
        await card_provider.act("payment_intents", order["provider_payment_id"], "pay")
        events = await card_provider.events_of(order["provider_payment_id"])
        [event_sent] = [event for event in events if event["type"] == "payment_intent.succeeded"]
        sandbox = await sandbox_order(ada, "5.00")
        answers: list[tuple[str, httpx2.Response]] = []
        doors = (ada.http, other)

        async def send(number: int) -> None:
            http = doors[number % 2]
            body = written(event_sent)
            if number % 4 < 2:
                answers.append(("card", await http.post(WEBHOOK, content=body, headers=signed(body))))
            else:
                answers.append(("sandbox", await call_back(http, sandbox)))

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for number in range(200):
                    nursery.start_soon(send, number)
            codes = Counter((what, answer.status_code) for what, answer in answers)
            assert codes == {("card", 200): 100, ("sandbox", 200): 100}
            assert {answer.json()["status"] for _, answer in answers} == {"credited"}
            for customer in (ada, replace(ada, http=other)):
                assert await customer.totals() == Totals(Decimal(15), Decimal(0), Decimal(15))
            statement = await payer.statement()
            assert {each["operation_id"] for each in statement} == {order["operation_id"], sandbox["operation_id"]}
            assert len(statement) == 2
    assert services[0].audit() == []
    for service in services:
        assert service.faults() == []
        assert await trio.to_thread.run_sync(service.stop) == 0


async def test_client_secrets_are_neither_stored_nor_logged(payer: Payer, card_service: Service) -> None:
    with trio.fail_after(240):
        order = await payer.order(key=unique("key"))
        with psycopg.connect(card_service.database_url) as connection:
            tables = [row[0] for row in connection.execute(
                "select tablename from pg_tables where schemaname = 'public'"
            )]  # fmt: skip
            for table in tables:
                for (row,) in connection.execute(f"select row_to_json(t)::text from {table} t"):
                    assert order["client_secret"] not in row, table
                    assert order["client_secret"].encode().hex() not in row, table
    assert order["client_secret"] not in card_service.log_path.read_text("utf-8", "replace")
    assert json.dumps(order).count(order["client_secret"]) == 1
