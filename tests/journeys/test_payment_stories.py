"""Every story of a card payment comes to its end: told in any order, not at all, or to a service that is killed."""

from __future__ import annotations

import random
from contextlib import suppress
from decimal import Decimal
from typing import Any

import httpx
import psycopg
import pytest
import trio

from .card_bank import WEBHOOK, CardBank, Payer, signed, written
from .conftest import NewCustomer, NewService
from .house import Service, ok, until
from .payment_stories import (
    STORIES,
    Story,
    agrees,
    declined,
    declined_then_paid,
    dispute_lost,
    dispute_won,
    end_of,
    ends_well,
    inquiry,
    look_now,
    paid,
    refund_fails_later,
    refund_of_two_fails,
    refunded_in_two_parts,
    tell_tales,
)


def kept_events(service: Service) -> set[str]:
    """The ids of all events that the service has written down."""
    with psycopg.connect(service.database_url) as connection:
        return {row[0] for row in connection.execute("select event_id from payment_events")}


@pytest.mark.parametrize("order", ["as_is", "shuffled"])
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
        reconciled: dict[Story, dict[str, Any]] = {}

        async def look(story: Story, order: dict[str, Any]) -> None:
            wanted = "mismatch" if end_of(story)["status"] == "held" else "reconciled"
            if story is declined:
                wanted = "pending"  # it may still be paid

            async def compared() -> dict[str, Any] | None:
                look_now(paid_house, order["order_id"])
                await trio.sleep(0.5)
                seen = await payer.read(order["order_id"])
                return seen if seen["reconcile_status"] == wanted else None

            seen = reconciled[story] = await until(compared, within_s=60)
            cursor = seen["reconcile_cursor"]
            assert (cursor["provider_object_id"], cursor["scan_strategy"]) == (
                order["provider_payment_id"], "order_retrieve"
            )  # fmt: skip
            assert cursor["synthetic_event_id"].startswith("syn_")
            assert cursor["event_id"] is None
            assert (seen["reconciled_at"] is not None) == (wanted == "reconciled")

        async with trio.open_nursery() as nursery:
            for story, order in orders.items():
                nursery.start_soon(look, story, order)
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


@pytest.mark.parametrize("seed", [1])
async def test_killed_in_a_storm_of_webhooks_every_order_is_right_after_they_are_sent_again(
    new_service: NewService, new_customer: NewCustomer, bank: CardBank, seed: int
) -> None:
    service = new_service(**bank.settings())
    await trio.to_thread.run_sync(service.start)
    bank.webhook_url = ""
    rng = random.Random(seed)
    payers = [Payer(await new_customer(service), bank) for _ in range(3)]
    with trio.fail_after(240):
        tales: dict[int, dict[Story, dict[str, Any]]] = {}

        async def tell(number: int) -> None:
            tales[number] = await tell_tales(payers[number])

        async with trio.open_nursery() as nursery:
            for number in range(len(payers)):
                nursery.start_soon(tell, number)
        orders = [tales[number] for number in range(len(payers))]
        everything = await bank.events()
        storm: list[dict[str, Any]] = []
        for told in orders:
            for order in told.values():
                events = await bank.events_of(order["provider_payment_id"], everything)
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
