"""Credit that operators give: grants and coupons that are refused, and the list of an account's lots."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.clients import every, refused

from holdfast.actors.account.messages import CreditChanged, VoidLot
from holdfast.ledger.credit.account import AccountTotals
from holdfast.persistence.records import tables

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api

LOTS = "/v2/control/credit-lots"


def operator(api: Api, key: str | None = None) -> dict[str, str]:
    heads = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    return heads if key is None else heads | {"Idempotency-Key": key}


async def give(api: Api, path: str, body: dict[str, Any], key: str | None = "k") -> httpx2.Response:
    return await api.call("POST", f"/ops/api/{path}", json={"reason": "a test"} | body, headers=operator(api, key))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"amount": "0"}, "invalid_amount"),
        ({"amount": "1.00", "expires_at": "soon"}, "invalid_parameter"),
        ({"amount": "1.00", "expires_at": "2999-01-01T00:00:00"}, "invalid_parameter"),
        ({"amount": "1.00", "reason": ""}, "invalid_parameter"),
        ({}, "missing_parameter"),
    ],
)
async def test_an_invalid_grant_asks_no_actor(api: Api, body: dict[str, Any], code: str) -> None:
    path = f"accounts/{api.account_id}/grants"
    refused(await give(api, path, body), 400, code)
    refused(await give(api, path, {"amount": "1.00"}, key=None), 400, "missing_parameter")
    assert api.accounts.asked == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"amount": "0"}, "invalid_amount"),
        ({"amount": "1.00", "uses_max": 0}, "invalid_parameter"),
        ({"amount": "1.00", "uses_max": 10**7}, "invalid_parameter"),
        ({"amount": "1.00", "credit_days": 0}, "invalid_parameter"),
        ({"amount": "1.00", "redeem_until": "2020-01-01"}, "invalid_parameter"),
        ({"amount": "1.00", "code": "no spaces"}, "invalid_parameter"),
        ({"amount": "1.00", "code": "-"}, "invalid_parameter"),
        ({"amount": "1.00", "code": "X" * 65}, "invalid_parameter"),
    ],
)
async def test_an_invalid_coupon_is_not_made(api: Api, body: dict[str, Any], code: str) -> None:
    refused(await give(api, "coupons", body), 400, code)
    made = await api.call("GET", "/ops/api/coupons", headers=operator(api))
    assert made.json()["data"] == []


async def test_a_void_is_asked_of_the_account_with_its_action(api: Api) -> None:
    api.accounts.answer = CreditChanged("op_9", -2_500_000, AccountTotals(api.account_id, 7_500_000, 0))
    path = f"accounts/{api.account_id}/credit-lots/12/void"
    body = (await give(api, path, {"note": "a mistake"})).json()
    assert (body["amount"], body["operation_id"], body["account"]["balance"]) == ("-2.50", "op_9", "7.50")
    [(account_id, command)] = api.accounts.asked
    assert isinstance(command, VoidLot)
    assert (account_id, command.number, command.note) == (api.account_id, 12, "a mistake")
    assert command.idempotency.key == "k"
    actions = await api.call("GET", "/ops/api/actions?action=void_credit_lot", headers=operator(api))
    [action] = actions.json()["data"]
    assert (action["action_id"], action["reason"]) == (command.action_id, "a test")
    assert action["effect"] == {"amount": "-2.50", "operation_id": "op_9"}


async def test_an_invalid_void_asks_no_actor(api: Api) -> None:
    lots = f"accounts/{api.account_id}/credit-lots"
    for number in ("0", "-1", "x", "01", "9" * 19):
        refused(await give(api, f"{lots}/{number}/void", {}), 404, "credit_lot_not_found")
    refused(await give(api, f"{lots}/1/void", {"reason": ""}), 400, "invalid_parameter")
    refused(await give(api, f"{lots}/1/void", {}, key=None), 400, "missing_parameter")
    refused(await give(api, "accounts/acct_9/credit-lots/1/void", {}), 404, "account_not_found")
    assert api.accounts.asked == []


async def test_lots_are_listed_by_pages_and_for_their_account_alone(api: Api) -> None:
    for number in range(1, 6):
        lot = {"number": number, "amount_micro": 1_000_000, "created_at": api.now + timedelta(minutes=number)}
        origin = {"kind": "paid", "source": "recharge", "reference": f"op_{number}"}
        await api.write(tables.credit_lots.insert().values(account_id=api.account_id, **lot, **origin))
    pages, query = [], "?limit=2"
    while query:
        page = (await api.as_session("GET", LOTS + query)).json()
        pages.append([lot["number"] for lot in page["data"]])
        query = f"?limit=2&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert pages == [[5, 4], [3, 2], [1]]

    async def read(path: str) -> httpx2.Response:
        return await api.call("GET", path, headers=operator(api))

    shown = await every(read, f"/ops/api/accounts/{api.account_id}/credit-lots")
    assert shown == (await api.as_session("GET", LOTS)).json()["data"]
    token = "hst_" + "B" * 43
    await api.add_session(api.other_account_id, "ses_2", token)
    assert (await api.call("GET", LOTS, credential=token)).json()["data"] == []
    cursor = (await api.as_session("GET", f"{LOTS}?limit=1")).json()["next_cursor"]
    refused(await api.call("GET", f"{LOTS}?cursor={cursor}", credential=token), 400, "invalid_cursor")
    refused(await read("/ops/api/accounts/acct_x/credit-lots"), 404, "account_not_found")
