"""Every card payment scenario ends correctly: with reordered, lost and repeated webhooks, and under kills."""

from __future__ import annotations

import random
from contextlib import suppress
from decimal import Decimal
from typing import Any

import httpx2
import psycopg
import pytest
import trio
from tests.clients import ok, until

from .card_provider import WEBHOOK, CardProviderProcess, Payer, signed, written
from .conftest import NewCustomer, NewService
from .payment_scenarios import (
    SCENARIOS,
    Scenario,
    check_consistency,
    declined,
    declined_then_paid,
    dispute_lost,
    end_of,
    ends_well,
    make_order_due,
    paid,
    refund_fails_later,
    refund_of_two_fails,
    refunded_in_two_parts,
    tell_tales,
)
from .service_process import Service


def kept_events(service: Service) -> set[str]:
    """Return the ids of all events stored by the service."""
    with psycopg.connect(service.database_url) as connection:
        return {row[0] for row in connection.execute("select event_id from payment_events")}


@pytest.mark.slow
async def test_the_reconciler_alone_completes_every_order(payer: Payer, card_service: Service) -> None:
    with trio.fail_after(240):
        await payer.card_provider.webhooks(drop=True)
        orders = await tell_tales(payer)
        reconciled: dict[Scenario, dict[str, Any]] = {}

        async def look(scenario: Scenario, order: dict[str, Any]) -> None:
            wanted = "mismatch" if end_of(scenario)["status"] == "held" else "reconciled"
            if scenario is declined:
                wanted = "pending"  # it may still be paid

            async def compared() -> dict[str, Any] | None:
                make_order_due(card_service, order["order_id"])
                await trio.sleep(0.5)
                seen = await payer.read(order["order_id"])
                return seen if seen["reconcile_status"] == wanted else None

            seen = reconciled[scenario] = await until(compared, within_s=60)
            cursor = seen["reconcile_cursor"]
            assert (cursor["provider_object_id"], cursor["scan_strategy"]) == (
                order["provider_payment_id"], "order_retrieve"
            )  # fmt: skip
            assert cursor["synthetic_event_id"].startswith("syn_")
            assert cursor["event_id"] is None
            assert (seen["reconciled_at"] is not None) == (wanted == "reconciled")

        async with trio.open_nursery() as nursery:
            for scenario, order in orders.items():
                nursery.start_soon(look, scenario, order)
        fee = Decimal(reconciled[paid]["amount_breakdown"]["fee"])
        assert fee > 0
        assert Decimal(reconciled[paid]["amount_breakdown"]["net"]) == 10 - fee
        [line] = reconciled[paid]["provider_balance_transaction_refs"]
        assert (line["source_type"], line["amount"]) == ("charge", "10.00")
        assert reconciled[paid]["provider_balance_transaction_ids"] == [line["id"]]
        # And webhooks that come after all change nothing.
        await payer.card_provider.webhooks()
        http = payer.customer.http
        for order in orders.values():
            for event in await payer.card_provider.events_of(order["provider_payment_id"]):
                body = written(event)
                ok(await http.post(WEBHOOK, content=body, headers=signed(body)))
        found = await ends_well(payer, orders)
    lost, two = found[dispute_lost], found[refunded_in_two_parts]
    assert [lost["provider_charge_id"]] == [await payer.card_provider.charge_of(lost["provider_payment_id"])]
    refunds = {each["id"] for each in await payer.card_provider.refunds_of(two["provider_payment_id"])}
    assert set(two["reversal_refs"]) == refunds
    same = ["ledger_operation_refs", "credited_at", "reconcile_status"]
    # What happened between two checks (a decline, a failed refund) is only in its webhook.
    unseen = (declined, declined_then_paid, refund_fails_later, refund_of_two_fails)
    for scenario, order in found.items():
        shown = [] if scenario in unseen else ["reversal_refs", "state_history", "failed_at", "refunded_at"]
        now = await payer.read(order["order_id"])
        for name in same + shown:
            assert now[name] == reconciled[scenario][name], (scenario.__name__, name)
    assert card_service.audit() == []


@pytest.mark.slow
async def test_orders_are_right_after_kills_and_resent_webhooks(
    new_service: NewService, new_customer: NewCustomer, card_provider: CardProviderProcess
) -> None:
    service = new_service(**card_provider.settings())
    await trio.to_thread.run_sync(service.start)
    card_provider.webhook_url = ""
    rng = random.Random(1)
    payers = [Payer(await new_customer(service), card_provider) for _ in range(3)]
    with trio.fail_after(240):
        tales: dict[int, dict[Scenario, dict[str, Any]]] = {}

        async def run_payer(number: int) -> None:
            tales[number] = await tell_tales(payers[number])

        async with trio.open_nursery() as nursery:
            for number in range(len(payers)):
                nursery.start_soon(run_payer, number)
        orders = [tales[number] for number in range(len(payers))]
        everything = await card_provider.events()
        storm: list[dict[str, Any]] = []
        for by_scenario in orders:
            for order in by_scenario.values():
                events = await card_provider.events_of(order["provider_payment_id"], everything)
                storm += events + rng.sample(events, len(events) // 2)
        rng.shuffle(storm)
        answered: list[dict[str, Any]] = []
        enough = trio.Event()

        async def deliver(http: httpx2.AsyncClient, events: list[dict[str, Any]]) -> None:
            for event in events:
                body = written(event)
                answer = await http.post(WEBHOOK, content=body, headers=signed(body))
                assert answer.status_code == 200, answer.text
                answered.append(event)
                if len(answered) >= len(storm) // 4:
                    enough.set()

        async def until_cut(http: httpx2.AsyncClient, events: list[dict[str, Any]]) -> None:
            with suppress(httpx2.TransportError):
                await deliver(http, events)

        http = payers[0].customer.http
        async with trio.open_nursery() as nursery:
            for lane in range(8):
                nursery.start_soon(until_cut, http, storm[lane::8])
            await enough.wait()
            service.kill()
        assert len(answered) < len(storm)
        await trio.to_thread.run_sync(service.start)
        assert {event["id"] for event in answered} <= kept_events(service)
        rng.shuffle(storm)
        async with trio.open_nursery() as nursery:
            for lane in range(8):
                nursery.start_soon(deliver, http, storm[lane::8])
        for payer, by_scenario in zip(payers, orders, strict=True):
            statement = await payer.statement()
            for scenario, order in by_scenario.items():
                now = await payer.read(order["order_id"])
                assert {name: now[name] for name in end_of(scenario)} == end_of(scenario), scenario.__name__
                check_consistency(now, statement)
            balance = sum(Decimal(each[-1]) for each in SCENARIOS.values())
            assert (await payer.customer.totals()).balance == balance
    assert service.audit() == []
    assert service.faults() == []
    assert service.stop() == 0
