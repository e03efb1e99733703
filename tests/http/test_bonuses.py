"""Bonuses over HTTP: which ones there are, what an order has of its own, and the account's pages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace as with_fields
from tests.strict_html import StrictHtml

from holdfast.http.schemas.payments import order_bonus_body
from holdfast.ledger.catalog.bonuses import Bonus
from holdfast.ledger.orders.order import BonusMove, OrderBonus, Statuses
from holdfast.ledger.values import MICRO

from .identities import NOW
from .order_stand_ins import make_order
from .page_reader import PageReader
from .stage import default_catalog
from .test_account_buy import BUY, add_order, send
from .test_account_pages import AccountReader, owner

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

__all__ = ["owner"]

BONUSES = (
    Bonus(orders_from_micro=20 * MICRO, percent=None, credit_micro=1_500_000, expires_days=1),
    Bonus(orders_from_micro=100 * MICRO, percent=10, credit_micro=0, expires_days=90),
)


def offer(stage: Stage, *bonuses: Bonus) -> None:
    """Have the catalog give these bonuses from now on."""
    stage.sell(replace(default_catalog(), bonuses=bonuses))


async def test_anybody_may_list_the_bonuses(stage: Stage) -> None:
    assert (await stage.call("GET", "/v2/bonuses")).json() == {"data": []}
    offer(stage, *BONUSES)
    assert (await stage.call("GET", "/v2/bonuses")).json() == {
        "data": [
            {"orders_from": "20.00", "percent": None, "credit": "1.50", "expires_days": 1},
            {"orders_from": "100.00", "percent": 10, "credit": None, "expires_days": 90},
        ]
    }


@pytest.mark.parametrize("provider", ["sandbox", "cardprovider"])
@pytest.mark.parametrize(
    ("amount", "credit", "days"), [("19.99", None, None), ("99.99", "1.50", 1), ("250.50", "25.05", 90)]
)
async def test_an_order_has_the_bonus_of_the_catalog_as_it_was(
    api: Api, provider: str, amount: str, credit: str | None, days: int | None
) -> None:
    api.use_order_rules()
    api.configure_card()
    offer(api, *BONUSES)

    async def create() -> dict[str, Any]:
        path = f"/v2/control/payments/{provider}"
        headers = {"Idempotency-Key": "one order"}
        made = await api.as_session("POST", path, json={"amount": amount}, headers=headers)
        assert made.status_code == 200, made.content
        body: dict[str, Any] = made.json()
        return body

    created = await create()
    expected: dict[str, object] = {
        "credit": credit,
        "expires_days": days,
        "expires_at": None,
        "given": "0.00",
        "operation_ids": [],
    }
    assert created["bonus"] == (None if credit is None else expected)
    offer(api)
    assert (await create())["bonus"] == created["bonus"]


def test_a_paid_order_shows_what_its_bonus_has_given_and_until_when() -> None:
    order = make_order("ord_1", "acct_1", NOW, bonus=OrderBonus(credit_micro=3 * MICRO, expires_days=2))
    moves = tuple(
        BonusMove(amount_micro=amount * MICRO, operation_id=f"op_{number}") for number, amount in enumerate((3, -1))
    )
    state = with_fields(order.state, bonus_moves=moves, credited_at=NOW)
    body = order_bonus_body(with_fields(order, state=state))
    assert body is not None
    assert (body.given, body.operation_ids) == ("2.00", ["op_0", "op_1"])
    assert body.expires_at == "2026-11-22T12:00:00.000Z"


async def test_the_page_shows_the_bonuses_before_anything_is_paid(api: Api, owner: AccountReader) -> None:
    rules, _ = api.use_order_rules(), api.configure_card()
    assert 'id="bonuses"' not in (await owner.get(BUY)).text
    offer(api, *BONUSES)
    page = (await owner.get(BUY)).text
    assert StrictHtml(page).faults == []
    assert "From 20.00 USD on you get 1.50 credits more, for 1 day." in page
    assert "From 100.00 USD on you get 10 % more, for 90 days." in page
    await send(owner, BUY, choice="100.00", idempotency_key="k" * 22)
    [order] = rules.orders.values()
    await api.add_order(order)
    offer(api)
    pay = (await owner.get(f"{BUY}/{order.order_id}/pay")).text
    assert StrictHtml(pay).faults == []
    assert "For 100.00 credits, and 10.00 more as a bonus, which can be used for 90 days." in pay
    shown = (await owner.get(f"{BUY}/{order.order_id}")).text
    assert "<dt>Bonus</dt><dd>10.00 credits for 90 days</dd>" in shown


async def test_the_pages_of_a_paid_order_show_what_its_bonus_gave(
    api: Api, owner: AccountReader, browser: PageReader
) -> None:
    order = await add_order(api, bonus=OrderBonus(credit_micro=3 * MICRO, expires_days=2))
    moves = (BonusMove(amount_micro=3 * MICRO, operation_id="op_1"),)
    state = with_fields(order.state, bonus_moves=moves, credited_at=NOW, statuses=Statuses(status="credited"))
    await api.add_order(with_fields(order, state=state))
    page = (await owner.get(f"{BUY}/{order.order_id}")).text
    assert "10.00 credits were added, and 3.00 as a bonus." in page
    assert "<dt>Bonus</dt><dd>3.00 credits, until " in page
    operators = (await browser.get(f"/ops/payments/{order.order_id}")).text
    assert StrictHtml(operators).faults == []
    assert "<dt>Bonus</dt><dd>3.00 of 3.00 credits, until " in operators
    assert '<code class="break">op_1</code>' in operators
