"""Buying and refunding credit over real HTTP: sandbox orders, and card orders at the emulator."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx2
import psycopg
import trio

from .card_provider import WEBHOOK, CardProviderProcess, Payer, signed, unique, written
from .conftest import NewCustomer, NewService
from .payment_scenarios import check_consistency, make_order_due
from .service_process import Customer, Service, Totals, code_of, loopback_client, ok, until

CALLBACK = "/v2/control/payments/sandbox/callback"


async def sandbox_order(customer: Customer, amount: str = "10.00") -> dict[str, Any]:
    path = "/v2/control/payments/sandbox"
    return ok(await customer.call("POST", path, {"amount": amount}, as_session=True))


async def call_back(http: httpx2.AsyncClient, created: dict[str, Any], **changed: str) -> httpx2.Response:
    callback = created["callback"]
    headers = {callback["signature_header"]: callback["signature"]}
    return await http.post(CALLBACK, json={**callback["payload"], **changed}, headers=headers)


async def begin_post(service: Service, header: bytes) -> int:
    """Start sending a large body to the webhook; returns the status sent before its end."""
    host, port = service.url.removeprefix("http://").split(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        head = b"POST " + WEBHOOK.encode() + b" HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n"
        await stream.send_all(head + b"x" * 10_000)
        answer = await stream.receive_some()
    return int(answer.split()[1])


# ------------------------------------------------------------------------------------------------------- sandbox


async def test_a_sandbox_order_is_credited_once(card_service: Service, new_customer: NewCustomer) -> None:
    with trio.fail_after(60):
        ada = await new_customer(card_service)
        created = await sandbox_order(ada)
        assert created["status"] == "pending"
        assert await ada.totals() == Totals(Decimal(0), Decimal(0), Decimal(0))
        for altered in ({"amount": "1000.00"}, {"currency": "EUR"}, {"status": "failed"}, {"order_id": "ord_1"}):
            refused = await call_back(ada.http, created, **altered)
            assert (refused.status_code, code_of(refused)) == (401, "invalid_signature")
        assert await ada.totals() == Totals(Decimal(0), Decimal(0), Decimal(0))
        answers: list[httpx2.Response] = []

        async def pay() -> None:
            answers.append(await call_back(ada.http, created))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(pay)
        assert Counter(answer.status_code for answer in answers) == {200: 20}
        assert {answer.json()["status"] for answer in answers} == {"credited"}
        assert await ada.totals() == Totals(Decimal(10), Decimal(0), Decimal(10))
        read = ok(await ada.call("GET", f"/v2/control/payments/{created['order_id']}", as_session=True))
        statement = ok(await ada.call("GET", "/v2/control/ledger", as_session=True))["data"]
        assert [(each["operation_id"], each["balance"]) for each in statement] == [
            (created["operation_id"], "10.00")
        ]
        check_consistency(read, statement)


async def test_expired_orders_end_and_late_payments_are_credited(
    new_service: NewService, new_customer: NewCustomer, card_provider: CardProviderProcess
) -> None:
    service = new_service(**card_provider.settings(SANDBOX_ORDER_TTL_S="1", CARD_ORDER_TTL_S="3"))
    await trio.to_thread.run_sync(service.start)
    card_provider.serve(service)
    try:
        with trio.fail_after(120):
            payer = Payer(await new_customer(service), card_provider)
            sandbox = await sandbox_order(payer.customer)
            unpaid, late, held_back = [await payer.order() for _ in range(3)]
            # Paid in time, but the callback comes after it expired.
            await card_provider.webhooks(hold=True)
            await card_provider.act("payment_intents", held_back["provider_payment_id"], "pay")
            # Not to be canceled: it will be paid later.
            await card_provider.fail("payment_intents.cancel", "error")
            await payer.wait_for(sandbox["order_id"], status="expired")
            refused = await call_back(payer.customer.http, sandbox)
            assert (refused.status_code, code_of(refused)) == (409, "payment_order_expired")
            assert refused.headers["X-Should-Retry"] == "false"
            found = await payer.wait_for(held_back["order_id"], status="credited")
            assert found["ledger_operation_refs"] == [held_back["operation_id"]]
            # Past its time, the intent could not be canceled, so the order is not called expired.
            looked_at = await payer.wait_for(late["order_id"], reconcile_status="error")
            assert looked_at["status"] == "pending"
            await card_provider.webhooks()
            await card_provider.act("payment_intents", late["provider_payment_id"], "pay")
            found = await payer.wait_for(late["order_id"], status="credited")
            reasons = [each["reason"] for each in found["state_history"] if each["operation_id"] is not None]
            assert reasons == ["late_payment"]
            await card_provider.recover()
            make_order_due(service, unpaid["order_id"])
            found = await payer.wait_for(unpaid["order_id"], status="expired")
            intent = await card_provider.intent_of(unpaid["order_id"])
            assert intent is not None
            assert intent["status"] == "canceled"
            assert await payer.customer.totals() == Totals(Decimal(20), Decimal(0), Decimal(20))
            statement = await payer.statement()
            for order in (unpaid, late, held_back):
                check_consistency(await payer.read(order["order_id"]), statement)
    finally:
        await card_provider.webhooks()
        await card_provider.recover()
    assert service.audit() == []
    assert service.stop() == 0


# --------------------------------------------------------------------------------------------------------- by card


async def test_a_card_order_is_credited_by_the_providers_webhook(payer: Payer) -> None:
    with trio.fail_after(60):
        order = await payer.order("12.34")
        assert order["client_secret"].startswith(order["provider_payment_id"])
        assert order["publishable_key"] == "pk_test_journeys"
        await payer.card_provider.act("payment_intents", order["provider_payment_id"], "pay")
        paid = await payer.wait_for(order["order_id"], status="credited")
        assert paid["processing_status"] == "succeeded"
        assert paid["provider_charge_id"] == await payer.card_provider.charge_of(order["provider_payment_id"])
        total = Decimal("12.34")
        assert await payer.customer.totals() == Totals(total, Decimal(0), total)
        check_consistency(paid, await payer.statement())
        listed = ok(await payer.customer.call("GET", "/v2/control/payments?status=credited", as_session=True))
        assert [each["order_id"] for each in listed["data"]] == [order["order_id"]]


async def test_a_webhook_before_the_create_call_returns_is_credited(payer: Payer) -> None:
    with trio.fail_after(60):
        answers: list[dict[str, Any]] = []
        await payer.card_provider.fail("payment_intents.create", "slow", times=1)

        async def create() -> None:
            answers.append(await payer.order())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)

            async def pending() -> str | None:
                found = ok(await payer.customer.call("GET", "/v2/control/payments", as_session=True))["data"]
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


async def test_contradicting_events_credit_a_charge_once(payer: Payer, card_service: Service) -> None:
    with trio.fail_after(60):
        one, other = await payer.order("10.00"), await payer.order("10.00")
        charge_id = f"ch_{one['order_id']}"

        async def send(name: str, order: dict[str, Any], **fields: object) -> httpx2.Response:
            found = {
                "object": "charge", "id": charge_id, "status": "succeeded", "paid": True, "captured": True,
                "amount": 1000, "currency": "usd", "metadata": {"order_id": order["order_id"]}, **fields,
            }  # fmt: skip
            event = {"id": f"evt_{name}_{charge_id}", "type": "charge.succeeded", "created": 1_795_608_000}
            body = written({**event, "data": {"object": found}})
            return await payer.customer.http.post(WEBHOOK, content=body, headers=signed(body))

        unpaid = await send("failed", one, status="failed")
        assert (unpaid.status_code, unpaid.json()["status"]) == (200, "pending")
        paid = await send("bare", one)
        assert (paid.status_code, paid.json()["status"]) == (200, "credited")
        refused = await send("linked", other, payment_intent=other["provider_payment_id"])
        assert (refused.status_code, code_of(refused)) == (400, "provider_event_mismatch")
        assert (await payer.customer.totals()).balance == 10
        with psycopg.connect(card_service.database_url) as connection:
            stored = connection.execute(
                "select verdict from payment_events where order_id = %s", (other["order_id"],)
            ).fetchall()
        assert stored == [("refused",)]
    assert card_service.audit() == []


async def test_a_reused_event_id_is_stored_and_credits_nothing(payer: Payer, card_service: Service) -> None:
    with trio.fail_after(60):
        paid = await payer.paid_order("10.00")
        [event_sent] = [
            event
            for event in await payer.card_provider.events_of(paid["provider_payment_id"])
            if event["type"] == "payment_intent.succeeded"
        ]
        other = await payer.order("10.00")
        forged = json.loads(json.dumps(event_sent))
        forged["data"]["object"] |= {
            "id": other["provider_payment_id"],
            "metadata": {"order_id": other["order_id"]},
        }
        body = written(forged)
        for _ in range(2):
            answer = await payer.customer.http.post(WEBHOOK, content=body, headers=signed(body))
            # Sending it again would not help, so it is answered like any event known before.
            assert (answer.status_code, answer.json()["order_id"]) == (200, other["order_id"])
            assert answer.json()["status"] == "pending"
        assert (await payer.customer.totals()).balance == 10
        with psycopg.connect(card_service.database_url) as connection:
            stored = connection.execute(
                "select verdict, body from payment_events where order_id = %s", (other["order_id"],)
            ).fetchall()
        assert [(verdict, json.loads(bytes(body))["id"]) for verdict, body in stored] == [
            ("refused", event_sent["id"])
        ]
        # Money that really comes for the other order is credited by its own event.
        await payer.card_provider.act("payment_intents", other["provider_payment_id"], "pay")
        await payer.wait_for(other["order_id"], status="credited")
        assert (await payer.customer.totals()).balance == 20
    assert card_service.audit() == []
    assert card_service.faults() == []


async def test_a_reversal_may_make_the_balance_negative_and_blocks_holds(payer: Payer) -> None:
    with trio.fail_after(60):
        order = await payer.paid_order("0.50")
        ok(await payer.customer.create())
        tasks = await payer.customer.all_ended()
        assert {task["status"] for task in tasks.values()} == {"succeeded"}
        spent = Decimal("0.50") - (await payer.customer.totals()).balance
        assert spent > 0
        await payer.card_provider.act("charges", order["provider_charge_id"], "dispute", reason="fraudulent")
        await payer.wait_for(order["order_id"], reversal_status="disputed")
        assert (await payer.customer.totals()).available == -spent
        refused = await payer.customer.create()
        assert (refused.status_code, code_of(refused)) == (402, "insufficient_credit")
        assert Decimal(refused.json()["error"]["available"]) == -spent


async def test_invalid_webhooks_get_4xx(payer: Payer, card_service: Service) -> None:
    http = payer.customer.http
    with trio.fail_after(60):
        for body, status in (
            (b"", 400), (b"\xff\xfe", 400), (b"{", 400), (b"[]", 400), (b'{"id": 1}', 400), (b"[" * 100_000, 400),
        ):  # fmt: skip
            answer = await http.post(WEBHOOK, content=body, headers=signed(body))
            assert answer.status_code == status, body[:20]
            assert answer.headers["Content-Type"] == "application/json"
        assert await begin_post(card_service, b"Content-Length: 10000000") == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(13):
                yield b"x" * 100_000

        answer = await http.post(WEBHOOK, content=chunks(), headers=signed(b""))
        assert answer.status_code == 413
        for header in ("x", "t=1,v1=0", "t=99999999999,v1=" + "0" * 64, "=" * 2000, "t=,v1=,,"):
            answer = await http.post(WEBHOOK, content=b"{}", headers={"Cardprovider-Signature": header})
            assert (answer.status_code, code_of(answer)) == (401, "invalid_signature")
        body = b"{}"
        assert (
            code_of(await http.post(WEBHOOK, content=body, headers=signed(body, shift_s=-400)))
            == "signature_expired"
        )
        assert code_of(await http.post(WEBHOOK, content=body)) == "missing_signature"
    assert card_service.faults() == []


async def test_provider_trouble_leaves_no_order_undecided_and_keys_usable(
    payer: Payer, card_service: Service
) -> None:
    with trio.fail_after(240):
        for mode, times, status, code in (
            ("refuse", 3, 502, "provider_unavailable"),
            ("lose_answer", 3, 502, "provider_unavailable"),
            ("error", 3, 502, "provider_unavailable"),
            ("rate_limit", 3, 503, "provider_rate_limited"),
        ):
            key = unique(mode)
            await payer.card_provider.fail("payment_intents.create", mode, times=times)
            refused = await payer.try_order(key=key)
            # Where the attempts take longer than the call may, the call's own deadline answers first.
            assert (refused.status_code, code_of(refused)) in {(status, code), (504, "provider_timeout")}, mode
            await payer.card_provider.recover()
            order = await payer.order(key=key)
            assert (await payer.order(key=key)) == order
            await payer.card_provider.act("payment_intents", order["provider_payment_id"], "pay")
            await payer.wait_for(order["order_id"], status="credited")
        orders = ok(await payer.customer.call("GET", "/v2/control/payments", as_session=True))["data"]
        assert [each["status"] for each in orders] == ["credited"] * 4
        assert (await payer.customer.totals()).balance == 40
    assert card_service.faults() == []


async def test_the_workers_resume_an_interrupted_create_call(payer: Payer, card_service: Service) -> None:
    with trio.fail_after(120):
        await payer.card_provider.fail("payment_intents.create", "lose_answer", times=3)
        refused = await payer.try_order()
        assert refused.status_code == 502
        await payer.card_provider.recover()
        [order] = ok(await payer.customer.call("GET", "/v2/control/payments", as_session=True))["data"]
        assert (order["status"], order["provider_payment_id"]) == ("pending", None)
        intent = await payer.card_provider.intent_of(order["order_id"])
        assert intent is not None
        make_order_due(card_service, order["order_id"])
        await payer.wait_for(order["order_id"], provider_payment_id=intent["id"])
        await payer.card_provider.act("payment_intents", intent["id"], "pay")
        await payer.wait_for(order["order_id"], status="credited")


# ------------------------------------------------------------------------------------ many at once, and broken off


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
    async with loopback_client(base_url=services[1].url, timeout=30) as other:
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
    with trio.fail_after(60):
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
