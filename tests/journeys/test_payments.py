"""Credit bought and given back over real HTTP: sandbox orders, and card orders at a provider outside."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import httpx
import psycopg
import pytest
import trio

from .card_bank import WEBHOOK, CardBank, Payer, card_bank, signed, unique, written
from .conftest import NewCustomer, NewService, new_folder
from .house import Customer, Service, Totals, code_of, ok, until

CALLBACK = "/v2/control/payments/sandbox/callback"
Story = Callable[["Tale"], Awaitable[None]]


@pytest.fixture(scope="session")
def bank() -> Iterator[CardBank]:
    """A card provider for all tests; whoever has its webhooks or calls go wrong sets them right again."""
    with card_bank() as found:
        yield found


@pytest.fixture(scope="session")
def paid_house(bank: CardBank) -> Iterator[Service]:
    """A running service that takes cards at the bank; nobody may break it."""
    folder = new_folder()
    service = Service(folder, **bank.settings())
    try:
        service.start()
        yield service
        assert service.stop() == 0, service.log_tail()
    finally:
        if service.is_alive():
            service.kill()
        shutil.rmtree(folder)


@pytest.fixture
async def sound_bank(bank: CardBank, paid_house: Service) -> AsyncIterator[CardBank]:
    """The bank in good order, speaking to the shared service."""
    bank.serve(paid_house)
    yield bank
    await bank.webhooks()
    await bank.recover()


@pytest.fixture
async def payer(sound_bank: CardBank, paid_house: Service, new_customer: NewCustomer) -> Payer:
    """Somebody with an empty account at the shared service."""
    return Payer(await new_customer(paid_house), sound_bank)


async def sandbox_order(customer: Customer, amount: str = "10.00") -> dict[str, Any]:
    path = "/v2/control/payments/sandbox"
    return ok(await customer.call("POST", path, {"amount": amount}, as_session=True))


async def call_back(http: httpx.AsyncClient, created: dict[str, Any], **changed: str) -> httpx.Response:
    callback = created["callback"]
    headers = {callback["signature_header"]: callback["signature"]}
    return await http.post(CALLBACK, json={**callback["payload"], **changed}, headers=headers)


def look_now(service: Service, order_id: str) -> None:
    """Have the workers look at an order at once, which they would do by themselves in a minute."""
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        connection.execute("update orders set wake_at = now() where order_id = %s", (order_id,))


def kept_events(service: Service) -> set[str]:
    """The ids of all events that the service has written down."""
    with psycopg.connect(service.database_url) as connection:
        return {row[0] for row in connection.execute("select event_id from payment_events")}


async def begin_post(service: Service, header: bytes) -> int:
    """Begin to send a large body to the webhook; the status that is answered before its end."""
    host, port = service.url.removeprefix("http://").split(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        head = b"POST " + WEBHOOK.encode() + b" HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n"
        await stream.send_all(head + b"x" * 10_000)
        answer = await stream.receive_some()
    return int(answer.split()[1])


def agrees(order: dict[str, Any], statement: list[dict[str, Any]]) -> None:
    """An order's own account of itself holds together, and with the ledger."""
    last = order["state_history"][-1]
    for name in ("status", "processing_status", "reversal_status", "risk_status", "reconcile_status"):
        assert last[name] == order[name], name
    moves = [each for each in statement if each["reference"] == order["order_id"]]
    assert [each["operation_id"] for each in moves] == order["ledger_operation_refs"]
    net = sum(Decimal(each["balance_change"]) for each in moves)
    assert 0 <= net <= Decimal(order["amount"])
    assert len(set(order["provider_event_ids"])) == len(order["provider_event_ids"])


# ------------------------------------------------------------------------------------------------------- sandbox


async def test_a_sandbox_order_is_paid_once_however_often_its_callback_comes(
    paid_house: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(60):
        ada = await new_customer(paid_house)
        created = await sandbox_order(ada)
        assert created["status"] == "pending"
        assert await ada.totals() == Totals(Decimal(0), Decimal(0), Decimal(0))
        for altered in ({"amount": "1000.00"}, {"currency": "EUR"}, {"status": "failed"}, {"order_id": "ord_1"}):
            refused = await call_back(ada.http, created, **altered)
            assert (refused.status_code, code_of(refused)) == (401, "invalid_signature")
        assert await ada.totals() == Totals(Decimal(0), Decimal(0), Decimal(0))
        answers: list[httpx.Response] = []

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
        agrees(read, statement)


async def test_expired_orders_end_and_late_money_counts_all_the_same(
    new_service: NewService, new_customer: NewCustomer, bank: CardBank
) -> None:
    service = new_service(**bank.settings(SANDBOX_ORDER_TTL_S="1", CARD_ORDER_TTL_S="3"))
    await trio.to_thread.run_sync(service.start)
    bank.serve(service)
    try:
        with trio.fail_after(120):
            payer = Payer(await new_customer(service), bank)
            sandbox = await sandbox_order(payer.customer)
            unpaid, late, held_back = [await payer.order() for _ in range(3)]
            # Paid in time, but nobody tells of it until its time is over.
            await bank.webhooks(hold=True)
            await bank.press("payment_intents", held_back["provider_payment_id"], "pay")
            # Not to be canceled: it will be paid later.
            await bank.fail("payment_intents.cancel", "error")
            await payer.becomes(sandbox["order_id"], status="expired")
            refused = await call_back(payer.customer.http, sandbox)
            assert (refused.status_code, code_of(refused)) == (409, "payment_order_expired")
            assert refused.headers["X-Should-Retry"] == "false"
            found = await payer.becomes(held_back["order_id"], status="credited")
            assert found["ledger_operation_refs"] == [held_back["operation_id"]]
            # Past its time, the intent could not be canceled, so the order is not called expired.
            await trio.sleep(4)
            assert (await payer.read(late["order_id"]))["status"] == "pending"
            await bank.webhooks()
            await bank.press("payment_intents", late["provider_payment_id"], "pay")
            found = await payer.becomes(late["order_id"], status="credited")
            reasons = [each["reason"] for each in found["state_history"] if each["operation_id"] is not None]
            assert reasons == ["late_payment"]
            await bank.recover()
            look_now(service, unpaid["order_id"])
            found = await payer.becomes(unpaid["order_id"], status="expired")
            intent = await bank.intent_of(unpaid["order_id"])
            assert intent is not None
            assert intent["status"] == "canceled"
            assert await payer.customer.totals() == Totals(Decimal(20), Decimal(0), Decimal(20))
            statement = await payer.statement()
            for order in (unpaid, late, held_back):
                agrees(await payer.read(order["order_id"]), statement)
    finally:
        await bank.webhooks()
        await bank.recover()
    assert service.audit() == []
    assert service.stop() == 0


# --------------------------------------------------------------------------------------------------------- by card


async def test_a_card_order_is_credited_by_the_providers_webhook(payer: Payer) -> None:
    with trio.fail_after(60):
        order = await payer.order("12.34")
        assert order["client_secret"].startswith(order["provider_payment_id"])
        assert order["publishable_key"] == "pk_test_journeys"
        await payer.bank.press("payment_intents", order["provider_payment_id"], "pay")
        paid = await payer.becomes(order["order_id"], status="credited")
        assert paid["processing_status"] == "succeeded"
        assert paid["provider_charge_id"] == await payer.bank.charge_of(order["provider_payment_id"])
        total = Decimal("12.34")
        assert await payer.customer.totals() == Totals(total, Decimal(0), total)
        agrees(paid, await payer.statement())
        listed = ok(await payer.customer.call("GET", "/v2/control/payments?status=credited", as_session=True))
        assert [each["order_id"] for each in listed["data"]] == [order["order_id"]]


async def test_a_payment_told_before_the_create_call_has_returned_is_credited(payer: Payer) -> None:
    with trio.fail_after(60):
        answers: list[dict[str, Any]] = []
        await payer.bank.fail("payment_intents.create", "slow", times=1, delay_s=3)

        async def create() -> None:
            answers.append(await payer.order())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)

            async def pending() -> str | None:
                found = ok(await payer.customer.call("GET", "/v2/control/payments", as_session=True))["data"]
                return found[0]["order_id"] if found else None

            order_id = await until(pending)
            intent = await until(lambda: payer.bank.intent_of(order_id))
            await payer.bank.press("payment_intents", intent["id"], "pay")
            await payer.becomes(order_id, status="credited")
            assert answers == []
        assert answers[0]["order_id"] == order_id
        assert answers[0]["provider_payment_id"] == intent["id"]
        found = await payer.read(order_id)
        assert (found["status"], found["ledger_operation_refs"]) == ("credited", [answers[0]["operation_id"]])


async def test_a_reversal_beyond_what_is_left_goes_below_zero_and_stops_new_work(payer: Payer) -> None:
    with trio.fail_after(60):
        order = await payer.paid_order("0.50")
        ok(await payer.customer.create())
        tasks = await payer.customer.all_ended()
        assert {task["status"] for task in tasks.values()} == {"succeeded"}
        spent = Decimal("0.50") - (await payer.customer.totals()).balance
        assert spent > 0
        await payer.bank.press("charges", order["provider_charge_id"], "dispute", reason="fraudulent")
        await payer.becomes(order["order_id"], reversal_status="disputed")
        assert (await payer.customer.totals()).available == -spent
        refused = await payer.customer.create()
        assert (refused.status_code, code_of(refused)) == (402, "insufficient_credit")
        assert Decimal(refused.json()["error"]["available"]) == -spent


# ------------------------------------------------------------------------------------------------ what may happen


@dataclass
class Tale:
    """One payment under way, with the buttons that move it."""

    bank: CardBank
    intent_id: str
    charge_id: str = ""

    async def pay(self, **how: object) -> None:
        await self.bank.press("payment_intents", self.intent_id, "pay", **how)
        self.charge_id = await self.bank.charge_of(self.intent_id)

    async def intent(self, action: str, **how: object) -> None:
        await self.bank.press("payment_intents", self.intent_id, action, **how)

    async def charge(self, action: str, **how: object) -> str:
        return await self.bank.press("charges", self.charge_id, action, **how)


async def paid(tale: Tale) -> None:
    await tale.pay()


async def declined(tale: Tale) -> None:
    await tale.intent("decline", decline_code="insufficient_funds")


async def declined_then_paid(tale: Tale) -> None:
    await tale.intent("decline")
    await tale.pay()


async def canceled(tale: Tale) -> None:
    await tale.intent("cancel")


async def refunded(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("refund")


async def refunded_in_two_parts(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("refund", amount=300)
    await tale.charge("refund", amount=400)


async def refund_fails_later(tale: Tale) -> None:
    await tale.pay()
    refund_id = await tale.charge("refund")
    await tale.bank.press("refunds", refund_id, "fail")


async def refund_of_two_fails(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("refund", amount=300)
    refund_id = await tale.charge("refund", amount=200, pending=True)
    await tale.bank.press("refunds", refund_id, "fail")


async def disputed(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("dispute", reason="product_not_received")


async def refunded_and_then_disputed(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("refund", amount=300)
    await tale.charge("dispute", amount=700)


async def dispute_lost(tale: Tale) -> None:
    await tale.pay()
    dispute_id = await tale.charge("dispute", reason="fraudulent")
    await tale.bank.press("disputes", dispute_id, "lose")


async def dispute_won(tale: Tale) -> None:
    await tale.pay()
    dispute_id = await tale.charge("dispute")
    await tale.bank.press("disputes", dispute_id, "respond")
    await tale.bank.press("disputes", dispute_id, "win")


async def dispute_won_in_part(tale: Tale) -> None:
    await tale.pay()
    dispute_id = await tale.charge("dispute")
    await tale.bank.press("disputes", dispute_id, "win", amount=600)


async def inquiry(tale: Tale) -> None:
    await tale.pay()
    await tale.charge("dispute", inquiry=True)


async def inquiry_closed(tale: Tale) -> None:
    await tale.pay()
    dispute_id = await tale.charge("dispute", inquiry=True)
    await tale.bank.press("disputes", dispute_id, "close")


async def inquiry_grows_and_is_lost(tale: Tale) -> None:
    await tale.pay()
    dispute_id = await tale.charge("dispute", inquiry=True, reason="duplicate")
    await tale.bank.press("disputes", dispute_id, "escalate")
    await tale.bank.press("disputes", dispute_id, "lose")


async def too_little(tale: Tale) -> None:
    await tale.pay(amount_received=900)


async def too_much(tale: Tale) -> None:
    await tale.pay(amount_received=1100)


async def other_currency(tale: Tale) -> None:
    await tale.pay(currency="eur")


# Each with the end it must come to: status, processing, reversal, risk, and what is left of 10.00.
STORIES: dict[Story, tuple[str, str, str, str, str]] = {
    paid: ("credited", "succeeded", "none", "none", "10.00"),
    declined: ("failed", "failed", "none", "none", "0.00"),
    declined_then_paid: ("credited", "succeeded", "none", "none", "10.00"),
    canceled: ("canceled", "canceled", "none", "none", "0.00"),
    refunded: ("credited", "succeeded", "refunded", "none", "0.00"),
    refunded_in_two_parts: ("credited", "succeeded", "partially_refunded", "none", "3.00"),
    refund_fails_later: ("credited", "succeeded", "none", "none", "10.00"),
    refund_of_two_fails: ("credited", "succeeded", "partially_refunded", "none", "7.00"),
    disputed: ("credited", "succeeded", "disputed", "disputed", "0.00"),
    refunded_and_then_disputed: ("credited", "succeeded", "disputed", "disputed", "0.00"),
    dispute_lost: ("credited", "succeeded", "chargeback", "fraud", "0.00"),
    dispute_won: ("credited", "succeeded", "reinstated", "cleared", "10.00"),
    dispute_won_in_part: ("credited", "succeeded", "reinstated", "cleared", "6.00"),
    inquiry: ("credited", "succeeded", "none", "inquiry", "10.00"),
    inquiry_closed: ("credited", "succeeded", "none", "cleared", "10.00"),
    inquiry_grows_and_is_lost: ("credited", "succeeded", "chargeback", "disputed", "0.00"),
    too_little: ("held", "succeeded", "none", "mismatch", "0.00"),
    too_much: ("held", "succeeded", "none", "mismatch", "0.00"),
    other_currency: ("held", "succeeded", "none", "mismatch", "0.00"),
}


def end_of(story: Story) -> dict[str, Any]:
    names = ("status", "processing_status", "reversal_status", "risk_status")
    return dict(zip(names, STORIES[story], strict=False))


async def tell_tales(payer: Payer) -> dict[Story, dict[str, Any]]:
    """Have each story happen to an order of its own; the orders as they were created."""
    orders: dict[Story, dict[str, Any]] = {}
    for story in STORIES:
        order = await payer.order()
        await story(Tale(payer.bank, order["provider_payment_id"]))
        orders[story] = order
    return orders


async def ends_well(payer: Payer, orders: dict[Story, dict[str, Any]]) -> dict[Story, dict[str, Any]]:
    """Every story comes to its end, and the ledger agrees; the orders as they stand then."""
    found = {}
    for story, order in orders.items():
        found[story] = await payer.becomes(order["order_id"], **end_of(story))
    for order in found.values():
        await payer.bank.quiet(order["provider_payment_id"])
    statement = await payer.statement()
    for story, order in list(found.items()):
        now = found[story] = await payer.read(order["order_id"])
        agrees(now, statement)
        moves = [each for each in statement if each["reference"] == order["order_id"]]
        left = sum((Decimal(each["balance_change"]) for each in moves), Decimal(0))
        assert left == Decimal(STORIES[story][-1]), story.__name__
        assert {name: now[name] for name in end_of(story)} == end_of(story), story.__name__
    balance = sum(Decimal(STORIES[story][-1]) for story in orders)
    assert (await payer.customer.totals()).balance == balance
    return found


@pytest.mark.parametrize("order", ["as_is", "reversed", "shuffled"])
async def test_every_story_comes_to_its_end_in_whatever_order_it_is_told(
    payer: Payer, paid_house: Service, order: str
) -> None:
    with trio.fail_after(240):
        await payer.bank.webhooks(hold=True)
        orders = await tell_tales(payer)
        assert await payer.statement() == []
        await payer.bank.webhooks(duplicate=1)
        await payer.bank.release(order, seed=7)
        found = await ends_well(payer, orders)
    lost = found[dispute_lost]
    assert lost["chargeback_at"] is not None
    assert [lost["provider_charge_id"]] == [await payer.bank.charge_of(lost["provider_payment_id"])]
    two = found[refunded_in_two_parts]
    refunds = {each["id"] for each in await payer.bank.refunds_of(two["provider_payment_id"])}
    assert set(two["reversal_refs"]) == refunds
    assert two["refunded_at"] is not None
    assert found[refund_fails_later]["refunded_at"] is not None
    assert found[inquiry]["disputed_at"] is None
    assert found[dispute_won]["disputed_at"] is not None
    assert found[dispute_won]["chargeback_at"] is None
    assert paid_house.audit() == []


async def test_with_webhooks_dropped_the_reconciler_alone_brings_every_order_to_its_end(
    payer: Payer, paid_house: Service
) -> None:
    with trio.fail_after(240):
        await payer.bank.webhooks(drop=True)
        orders = await tell_tales(payer)
        reconciled = {}
        for story, order in orders.items():
            wanted = "mismatch" if end_of(story)["status"] == "held" else "reconciled"
            if story is declined:
                wanted = "pending"  # it may still be paid

            async def compared(order_id: str = order["order_id"], wanted: str = wanted) -> dict[str, Any] | None:
                look_now(paid_house, order_id)
                await trio.sleep(0.5)
                seen = await payer.read(order_id)
                return seen if seen["reconcile_status"] == wanted else None

            seen = reconciled[story] = await until(compared)
            cursor = seen["reconcile_cursor"]
            assert (cursor["provider_object_id"], cursor["scan_strategy"]) == (
                order["provider_payment_id"], "order_retrieve"
            )  # fmt: skip
            assert cursor["synthetic_event_id"].startswith("syn_")
            assert cursor["event_id"] is None
            assert (seen["reconciled_at"] is not None) == (wanted == "reconciled")
        fee = Decimal(reconciled[paid]["amount_breakdown"]["fee"])
        assert fee > 0
        assert Decimal(reconciled[paid]["amount_breakdown"]["net"]) == 10 - fee
        [line] = reconciled[paid]["provider_balance_transaction_refs"]
        assert (line["source_type"], line["amount"]) == ("charge", "10.00")
        assert reconciled[paid]["provider_balance_transaction_ids"] == [line["id"]]
        # And webhooks that come after all change nothing.
        await payer.bank.webhooks()
        http = payer.customer.http
        for order in orders.values():
            for event in await payer.bank.events_of(order["provider_payment_id"]):
                body = written(event)
                ok(await http.post(WEBHOOK, content=body, headers=signed(body)))
        found = await ends_well(payer, orders)
    same = ["ledger_operation_refs", "credited_at", "reconcile_status"]
    # What went by between the looks (a decline, a refund that had counted), only its webhook tells.
    unseen = (declined, declined_then_paid, refund_fails_later, refund_of_two_fails)
    for story, order in found.items():
        shown = [] if story in unseen else ["reversal_refs", "state_history", "failed_at", "refunded_at"]
        now = await payer.read(order["order_id"])
        for name in same + shown:
            assert now[name] == reconciled[story][name], (story.__name__, name)
    assert paid_house.audit() == []


async def test_rubbish_at_the_webhook_is_a_4xx(payer: Payer, paid_house: Service) -> None:
    http = payer.customer.http
    with trio.fail_after(60):
        for body, status in (
            (b"", 400), (b"\xff\xfe", 400), (b"{", 400), (b"[]", 400), (b'{"id": 1}', 400), (b"[" * 100_000, 400),
        ):  # fmt: skip
            answer = await http.post(WEBHOOK, content=body, headers=signed(body))
            assert answer.status_code == status, body[:20]
            assert answer.headers["Content-Type"] == "application/json"
        assert await begin_post(paid_house, b"Content-Length: 10000000") == 413

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
    assert paid_house.faults() == []


async def test_a_provider_away_slow_or_refusing_leaves_no_order_unknown_and_the_key_good(
    payer: Payer, paid_house: Service
) -> None:
    with trio.fail_after(240):
        for mode, times, status, code in (
            ("refuse", 3, 502, "provider_unavailable"),
            ("lose_answer", 3, 502, "provider_unavailable"),
            ("error", 3, 502, "provider_unavailable"),
            ("rate_limit", 3, 503, "provider_rate_limited"),
        ):
            key = unique(mode)
            await payer.bank.fail("payment_intents.create", mode, times=times)
            refused = await payer.try_order(key=key)
            assert (refused.status_code, code_of(refused)) == (status, code), mode
            await payer.bank.recover()
            order = await payer.order(key=key)
            assert (await payer.order(key=key)) == order
            await payer.bank.press("payment_intents", order["provider_payment_id"], "pay")
            await payer.becomes(order["order_id"], status="credited")
        orders = ok(await payer.customer.call("GET", "/v2/control/payments", as_session=True))["data"]
        assert [each["status"] for each in orders] == ["credited"] * 4
        assert (await payer.customer.totals()).balance == 40
    assert paid_house.faults() == []


async def test_a_create_call_that_was_cut_off_is_taken_up_again_by_the_workers(
    payer: Payer, paid_house: Service
) -> None:
    with trio.fail_after(120):
        await payer.bank.fail("payment_intents.create", "lose_answer", times=3)
        refused = await payer.try_order()
        assert refused.status_code == 502
        await payer.bank.recover()
        [order] = ok(await payer.customer.call("GET", "/v2/control/payments", as_session=True))["data"]
        assert (order["status"], order["provider_payment_id"]) == ("pending", None)
        intent = await payer.bank.intent_of(order["order_id"])
        assert intent is not None
        look_now(paid_house, order["order_id"])
        await payer.becomes(order["order_id"], provider_payment_id=intent["id"])
        await payer.bank.press("payment_intents", intent["id"], "pay")
        await payer.becomes(order["order_id"], status="credited")


# ------------------------------------------------------------------------------------ many at once, and broken off


async def test_a_hundred_copies_of_one_notification_over_two_processes_are_one_credit(
    new_service: NewService, new_customer: NewCustomer, shared_url: str, bank: CardBank
) -> None:
    secret = unique("sandbox_secret_of_both_processes")
    services = [new_service(DATABASE_URL=shared_url, SANDBOX_SECRET=secret, **bank.settings()) for _ in range(2)]
    for service in services:
        await trio.to_thread.run_sync(service.start)
    bank.webhook_url = ""
    ada = await new_customer(services[0])
    payer = Payer(ada, bank)
    async with httpx.AsyncClient(base_url=services[1].url, timeout=30) as other:
        order = await payer.order("10.00")
        await bank.press("payment_intents", order["provider_payment_id"], "pay")
        events = await bank.events_of(order["provider_payment_id"])
        [told] = [event for event in events if event["type"] == "payment_intent.succeeded"]
        sandbox = await sandbox_order(ada, "5.00")
        answers: list[tuple[str, httpx.Response]] = []
        doors = (ada.http, other)

        async def send(number: int) -> None:
            http = doors[number % 2]
            body = written(told)
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


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_in_a_storm_of_webhooks_every_order_is_right_after_they_are_sent_again(
    new_service: NewService, new_customer: NewCustomer, bank: CardBank, seed: int
) -> None:
    service = new_service(**bank.settings())
    await trio.to_thread.run_sync(service.start)
    bank.webhook_url = ""
    rng = random.Random(seed)
    payers = [Payer(await new_customer(service), bank) for _ in range(3)]
    with trio.fail_after(240):
        orders = [await tell_tales(payer) for payer in payers]
        storm: list[dict[str, Any]] = []
        for told in orders:
            for order in told.values():
                events = await bank.events_of(order["provider_payment_id"])
                storm += events + rng.sample(events, len(events) // 2)
        rng.shuffle(storm)
        answered: list[dict[str, Any]] = []
        enough = len(storm) * seed // 4

        async def deliver(http: httpx.AsyncClient, events: list[dict[str, Any]]) -> None:
            for event in events:
                body = written(event)
                answer = await http.post(WEBHOOK, content=body, headers=signed(body))
                assert answer.status_code == 200, answer.text
                answered.append(event)

        async def until_cut(http: httpx.AsyncClient, events: list[dict[str, Any]]) -> None:
            with suppress(httpx.TransportError):
                await deliver(http, events)

        async def is_enough() -> bool:
            return len(answered) >= enough

        http = payers[0].customer.http
        async with trio.open_nursery() as nursery:
            for lane in range(8):
                nursery.start_soon(until_cut, http, storm[lane::8])
            await until(is_enough)
            await trio.to_thread.run_sync(service.kill)
        assert len(answered) < len(storm)
        await trio.to_thread.run_sync(service.start)
        assert {event["id"] for event in answered} <= kept_events(service)
        rng.shuffle(storm)
        async with trio.open_nursery() as nursery:
            for lane in range(8):
                nursery.start_soon(deliver, http, storm[lane::8])
        for payer, told in zip(payers, orders, strict=True):
            statement = await payer.statement()
            for story, order in told.items():
                now = await payer.read(order["order_id"])
                assert {name: now[name] for name in end_of(story)} == end_of(story), story.__name__
                agrees(now, statement)
            balance = sum(Decimal(each[-1]) for each in STORIES.values())
            assert (await payer.customer.totals()).balance == balance
    assert service.audit() == []
    assert service.faults() == []
    assert service.stop() == 0


async def test_a_secret_that_the_customer_was_given_is_in_no_row_and_no_log(
    payer: Payer, paid_house: Service
) -> None:
    with trio.fail_after(60):
        order = await payer.order(key=unique("key"))
        with psycopg.connect(paid_house.database_url) as connection:
            tables = [row[0] for row in connection.execute(
                "select tablename from pg_tables where schemaname = 'public'"
            )]  # fmt: skip
            for table in tables:
                for (row,) in connection.execute(f"select row_to_json(t)::text from {table} t"):
                    assert order["client_secret"] not in row, table
                    assert order["client_secret"].encode().hex() not in row, table
    assert order["client_secret"] not in paid_house.log_path.read_text("utf-8", "replace")
    assert json.dumps(order).count(order["client_secret"]) == 1
