"""Credit that operators give: grants and coupons that are refused, and the list of an account's lots."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.clients import every, refused

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
