"""Bonuses of orders over real HTTP: from the catalog to credit that is spent first, and back with the payment."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.clients import Customer, Totals, ok, until

from holdfast.ledger.catalog import catalog as shipped

from .card_provider import CardProviderProcess, Payer
from .conftest import NewCustomer, NewService
from .operator_client import Operator
from .test_catalog_reload import reload

BONUSES = """
[[bonus]]
orders_from = "20.00"
credit = "1.00"
expires_days = 7

[[bonus]]
orders_from = "100.00"
percent = 10
expires_days = 90
"""


async def bonus_lots(customer: Customer) -> list[tuple[str, str, str]]:
    lots = ok(await customer.as_session("GET", "/v2/control/credit-lots"))["data"]
    return [(lot["kind"], lot["amount"], lot["remaining"]) for lot in lots if lot["source"] == "bonus"]


@pytest.mark.slow
async def test_a_bonus_is_given_once_spent_first_and_voided(
    new_service: NewService, new_customer: NewCustomer, card_provider: CardProviderProcess, tmp_path: Path
) -> None:
    shutil.copytree(Path(shipped.__file__).with_name("default_catalog"), tmp_path / "catalog")
    catalog = tmp_path / "catalog" / "catalog.toml"
    without = catalog.read_text()
    catalog.write_text(without + BONUSES)
    service = new_service(CATALOG=str(catalog), **card_provider.settings())
    await trio.to_thread.run_sync(service.start)
    card_provider.serve(service)
    operator = Operator(service)
    async with operator.http:
        with trio.fail_after(240):
            ada = await new_customer(service)
            payer = Payer(ada, card_provider)
            listed = ok(await ada.http.get("/v2/bonuses"))["data"]
            assert [(each["orders_from"], each["percent"], each["credit"]) for each in listed] == [
                ("20.00", None, "1.00"),
                ("100.00", 10, None),
            ]
            order = await payer.order("100.00")
            assert (order["bonus"]["credit"], order["bonus"]["given"]) == ("10.00", "0.00")
            assert (await payer.order("19.99"))["bonus"] is None

            # What was shown is given, although the catalog has no bonus any more and the process is another.
            await reload(service, catalog, without, reported="catalog loaded")
            assert ok(await ada.http.get("/v2/bonuses"))["data"] == []
            assert (await payer.order("100.00"))["bonus"] is None
            await trio.to_thread.run_sync(service.stop)
            await trio.to_thread.run_sync(service.start)
            intent_id = order["provider_payment_id"]
            await card_provider.act("payment_intents", intent_id, "pay")
            paid = await payer.wait_for(order["order_id"], status="credited")
            for event in await card_provider.events_of(intent_id):
                await card_provider.act("events", event["id"], "resend")
            await card_provider.quiet(intent_id)
            assert paid["bonus"]["given"] == "10.00"
            assert await ada.totals() == Totals(Decimal(110), Decimal(0), Decimal(110))
            assert await bonus_lots(ada) == [("promotional", "10.00", "10.00")]

            # It is spent before what was paid for.
            task = ok(await ada.create())
            await ada.all_ended()
            cost = Decimal(ok(await ada.as_key("GET", f"/v2/task/{task['request_id']}"))["usage"]["cost_credits"])
            assert cost > 0
            [(_, _, left)] = await bonus_lots(ada)
            assert Decimal(left) == 10 - cost

            async def receipts() -> list[dict[str, Any]] | None:
                found: list[dict[str, Any]] = ok(await ada.as_session("GET", "/v2/control/receipts"))["data"]
                return found or None

            [receipt] = await until(receipts)
            assert (receipt["kind"], receipt["credit"], receipt["amount"]) == ("receipt", "100.00", "100.00")

            # Half of the payment goes back, and half of the bonus.
            path = f"payments/{order['order_id']}/refund"
            ok(await operator.act(path, "half", amount="50.00"))
            half = await payer.wait_for(order["order_id"], reversal_status="partially_refunded")
            assert half["bonus"]["given"] == "5.00"
            assert await ada.totals() == Totals(Decimal(55) - cost, Decimal(0), Decimal(55) - cost)
            statement = await ada.statement()
            assert [each["kind"] for each in statement] == [
                "credit", "grant", "hold", "capture", "adjustment", "reversal",
            ]  # fmt: skip
            assert {each["reference"] for each in statement if each["kind"] in ("grant", "adjustment")} == {
                order["order_id"]
            }
            assert [each["operation_id"] for each in statement if each["kind"] in ("grant", "adjustment")] == half[
                "bonus"
            ]["operation_ids"]

            # A dispute takes the other half, and of the bonus what is left; both are given again when it is won.
            charge_id = await card_provider.charge_of(intent_id)
            dispute_id = await card_provider.act("charges", charge_id, "dispute", amount=5000)
            disputed = await payer.wait_for(order["order_id"], reversal_status="disputed")
            assert Decimal(disputed["bonus"]["given"]) == cost
            assert await ada.totals() == Totals(Decimal(0), Decimal(0), Decimal(0))
            await card_provider.act("disputes", dispute_id, "respond")
            await card_provider.act("disputes", dispute_id, "win")

            async def given_again() -> bool:
                return bool((await payer.read(order["order_id"]))["bonus"]["given"] == "5.00")

            await until(given_again)
            assert await ada.totals() == Totals(Decimal(55) - cost, Decimal(0), Decimal(55) - cost)
    assert service.audit() == []
    assert service.faults() == []
