"""Operators' changes of money over real HTTP: refunds with lost responses, adjustments, disabled accounts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal

import httpx2
import pytest
import trio
from tests.clients import Totals, code_of, ok

from .card_provider import CardProviderProcess, Payer
from .operator_client import Operator
from .payment_scenarios import check_consistency, make_order_due
from .service_process import Service


@pytest.fixture
async def operator(card_service: Service) -> AsyncIterator[Operator]:
    """An operator of the shared service."""
    operator = Operator(card_service)
    async with operator.http:
        yield operator


async def test_a_payment_is_refunded_in_parts_once_for_each_key(
    payer: Payer, operator: Operator, card_service: Service
) -> None:
    with trio.fail_after(240):
        order = await payer.paid_order()
        path = f"payments/{order['order_id']}/refund"
        replies: list[httpx2.Response] = []

        async def refund(key: str, **body: object) -> None:
            replies.append(await operator.act(path, key, **body))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(lambda: refund("part", amount="3.00"))
        # The card provider answers 409 while it handles a request under the same key.
        assert {reply.status_code for reply in replies} <= {200, 502}
        made = ok(await operator.act(path, "part", amount="3.00"))
        assert (made["amount"], made["status"]) == ("3.00", "succeeded")
        assert len(await payer.card_provider.refunds_of(order["provider_payment_id"])) == 1
        partly = await payer.wait_for(order["order_id"], reversal_status="partially_refunded")
        assert await payer.customer.totals() == Totals(Decimal(7), Decimal(0), Decimal(7))
        rest = ok(await operator.act(path, "rest"))
        assert rest["amount"] == "7.00"
        whole = await payer.wait_for(order["order_id"], reversal_status="refunded")
        nothing_left = await operator.act(path, "more")
        assert (nothing_left.status_code, code_of(nothing_left)) == (409, "payment_order_not_refundable")
        assert await payer.customer.totals() == Totals(Decimal(0), Decimal(0), Decimal(0))
        check_consistency(whole, await payer.statement())
        assert len(partly["reversal_operation_ids"]) == 1
    assert card_service.audit() == []


async def test_a_refund_whose_response_is_lost_is_found(
    payer: Payer, operator: Operator, card_service: Service, card_provider: CardProviderProcess
) -> None:
    """As after a crash after the call: no webhook, and no answer to the one who asked."""
    with trio.fail_after(240):
        order = await payer.paid_order()
        await card_provider.webhooks(drop=True)
        await card_provider.fail("refunds.create", "lose_answer")
        path = f"payments/{order['order_id']}/refund"
        lost = await operator.act(path, "once", amount="4.00")
        assert (lost.status_code, code_of(lost)) == (502, "provider_unavailable")
        assert (await payer.read(order["order_id"]))["reversal_status"] == "none"
        await card_provider.recover()
        make_order_due(card_service, order["order_id"])
        await payer.wait_for(order["order_id"], reversal_status="partially_refunded")
        again = ok(await operator.act(path, "once", amount="4.00"))
        assert again["amount"] == "4.00"
        assert len(await card_provider.refunds_of(order["provider_payment_id"])) == 1
        after = await payer.wait_for(order["order_id"], reversal_status="partially_refunded")
        assert await payer.customer.totals() == Totals(Decimal(6), Decimal(0), Decimal(6))
        check_consistency(after, await payer.statement())
        actions = ok(await operator.http.get(f"/ops/api/actions?target={order['order_id']}"))["data"]
        assert [(each["result"], each["account_id"]) for each in actions] == [
            ("done", payer.customer.account_id), ("refused", payer.customer.account_id)
        ]  # fmt: skip
    assert card_service.audit() == []


async def test_the_record_of_an_action_has_its_amounts_and_decision(payer: Payer, operator: Operator) -> None:
    with trio.fail_after(240):
        paid, held = await payer.paid_order(), await payer.order()
        await payer.card_provider.act("payment_intents", held["provider_payment_id"], "pay", amount_received=900)
        await payer.wait_for(held["order_id"], status="held")
        ok(await operator.act(f"payments/{paid['order_id']}/refund", "k", amount="5.00"))
        note = "mail of ada@example.com, password=hunter2 " + "x" * 500
        ok(await operator.act(f"payments/{held['order_id']}/resolve", credit=True, note=note[:400]))
        account_id = payer.customer.account_id
        ok(await operator.act(f"accounts/{account_id}/adjustments", "less", amount="-1.50"))
        listed = ok(await operator.http.get(f"/ops/api/actions?account_id={account_id}"))["data"]
        adjusted, resolved, refunded = listed
        assert refunded["parameters"] == {"amount": "5.00"}
        assert (refunded["effect"]["amount"], refunded["effect"]["currency"]) == ("5.00", "USD")
        assert (resolved["parameters"]["credit"], resolved["effect"]) == (
            "true", {"decision": "credit", "amount": "9.00"},
        )  # fmt: skip
        assert "hunter2" not in str(resolved)
        assert "ada@" not in str(resolved)
        assert len(resolved["parameters"]["note"]) <= 400
        assert (adjusted["parameters"], adjusted["effect"]["amount"]) == ({"amount": "-1.50"}, "-1.50")
