"""Accounts as operators see and change them, over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.clients import ok, refused

from holdfast.actors.account.messages import AdjustCredit, CreditChanged, SetAccess
from holdfast.actors.runtime.messages import Replayed
from holdfast.http.kit.operator_access import begin_session
from holdfast.http.kit.operators import OPERATOR_COOKIE
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records import tables
from holdfast.persistence.records.rows import AccountAccessRow

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api

WHY = {"reason": "ticket 7"}


def operator(api: Api, key: str | None = None) -> dict[str, str]:
    heads = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    return heads if key is None else heads | {"Idempotency-Key": key}


async def adjust(api: Api, body: dict[str, Any], *, key: str | None = "k", account_id: str = "") -> httpx2.Response:
    path = f"/ops/api/accounts/{account_id or api.account_id}/adjustments"
    return await api.call("POST", path, json=body, headers=operator(api, key))


async def test_an_account_is_found_by_its_id_and_its_address(api: Api) -> None:
    hold = {"account_id": api.account_id, "reference": "task_1", "opened_number": 1}
    await api.write(tables.holds.insert().values(hold_id="hold_1", amount_micro=240_000, **hold))
    await api.write(tables.holds.insert().values(hold_id="hold_2", amount_micro=1, settled_number=2, **hold))
    await api.add_session(api.account_id, "ses_old", "hst_" + "B" * 43, expires_at=api.now)
    ok(await api.as_key("POST", "/v2/files", files={"file": b"a file"}))
    by_id = await api.call("GET", f"/ops/api/accounts/{api.account_id}", headers=operator(api))
    found = by_id.json()
    [key] = found.pop("api_keys")
    assert (key["api_key_id"], key["api_key_prefix"]) == (api.key_id, api.minted.prefix)
    assert api.key not in by_id.text
    email = f"{api.account_id}@example.com"
    assert found == {
        "account_id": api.account_id,
        "email": email,
        "role": "User",
        "brand_id": "holdfast",
        "created_at": "2026-11-20T12:00:00.000Z",
        "disabled_at": None,
        "closes_at": None,
        "closed_at": None,
        "erased_at": None,
        "balance": "10.00",
        "held_total": "0.24",
        "available_balance": "9.76",
        "operation_count": 0,
        "tasks_in_flight": 1,
        "file_count": 1,
        "file_bytes": 6,
        "sessions_live": 1,
        "key_groups": [],
        "limits": [],
        "auto_top_up": None,
    }
    by_email = await api.call("GET", f"/ops/api/accounts?email={email.upper()}", headers=operator(api))
    assert by_email.json() == by_id.json()
    for path, status, code in (
        ("/ops/api/accounts/acct_9", 404, "account_not_found"),
        ("/ops/api/accounts/x'y", 404, "account_not_found"),
        ("/ops/api/accounts?email=eve@example.com", 404, "account_not_found"),
        ("/ops/api/accounts?email=eve", 400, "invalid_email"),
        ("/ops/api/accounts", 400, "missing_parameter"),
    ):
        refused(await api.call("GET", path, headers=operator(api)), status, code)


async def test_an_adjustment_is_asked_of_the_account_with_its_action(api: Api) -> None:
    totals = AccountTotals(api.account_id, 7_500_000, 240_000)
    for amount, amount_micro in (("-2.50", -2_500_000), ("0.000001", 1), ("1000", 1_000_000_000)):
        reply = CreditChanged("op_1", amount_micro, totals)
        api.accounts.answer = reply
        response = await adjust(api, {"amount": amount, **WHY, "note": "a present"})
        assert response.status_code == 200
        assert (response.json())["account"]["balance"] == "7.50"
        account_id, command = api.accounts.asked[-1]
        assert isinstance(command, AdjustCredit)
        assert (account_id, command.amount_micro, command.note) == (api.account_id, amount_micro, "a present")
        assert command.action_id.startswith("act_")
        assert command.idempotency.key == "k"
    api.accounts.answer = Replayed(reply)
    response = await adjust(api, {"amount": "-1.00", **WHY})
    assert response.headers["Idempotent-Replayed"] == "true"
    listed = await api.call("GET", "/ops/api/actions?action=adjust_credit", headers=operator(api))
    actions = (listed.json())["data"]
    assert [(each["result"], each["account_id"]) for each in actions] == [("done", api.account_id)] * 4
    assert actions[-1]["action_id"] == api.accounts.asked[0][1].action_id  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"amount": "1.00"}, "missing_parameter"),
        ({"amount": "1.00", "reason": ""}, "invalid_parameter"),
        ({"amount": "1.00", "reason": " \t"}, "invalid_parameter"),
        ({"amount": "0", **WHY}, "invalid_amount"),
        ({"amount": "--1", **WHY}, "invalid_amount"),
        ({"amount": "+1", **WHY}, "invalid_amount"),
        ({"amount": "1.0000001", **WHY}, "invalid_amount"),
        ({"amount": 1, **WHY}, "invalid_amount"),
        ({"amount": "1.00", **WHY, "note": "x" * 401}, "invalid_parameter"),
    ],
)
async def test_an_invalid_adjustment_asks_no_actor(api: Api, body: dict[str, Any], code: str) -> None:
    refused(await adjust(api, body), 400, code)
    assert api.accounts.asked == []


async def test_an_adjustment_needs_a_key_and_an_account(api: Api) -> None:
    body = {"amount": "1.00", **WHY}
    refused(await adjust(api, body, key=None), 400, "missing_parameter")
    refused(await adjust(api, body, account_id="acct_9"), 404, "account_not_found")
    assert api.accounts.asked == []
    refusal = Refusal(code="insufficient_credit", message="No.", required_micro=2, available_micro=1)
    api.accounts.answer = refusal
    refused(await adjust(api, body), 402, "insufficient_credit")


async def test_an_account_is_disabled_and_enabled(api: Api) -> None:
    for word, at in (("disable", api.now), ("enable", None)):
        path = f"/ops/api/accounts/{api.account_id}/{word}"
        refused(await api.call("POST", path, json={}, headers=operator(api)), 400, "missing_parameter")
        api.accounts.answer = AccountAccessRow(api.account_id, at)
        response = await api.call("POST", path, json=WHY, headers=operator(api))
        disabled_at = "2026-11-20T12:00:00.000Z" if at else None
        assert response.json() == {"account_id": api.account_id, "disabled_at": disabled_at}
        assert api.accounts.asked[-1] == (api.account_id, SetAccess(is_disabled=at is not None))
        unknown = await api.call("POST", f"/ops/api/accounts/acct_9/{word}", json=WHY, headers=operator(api))
        refused(unknown, 404, "account_not_found")


async def test_the_credentials_of_a_disabled_account_are_refused(api: Api) -> None:
    email = f"{api.account_id}@example.com"
    api.configure(operators=(email,))
    assert (await api.as_session("GET", "/ops/api/session")).status_code == 200
    await api.write(tables.accounts.update().values(disabled_at=api.now))
    api.know_key()
    for method, path in (
        ("GET", "/v2/control/account"),
        ("DELETE", "/v2/control/session"),
        ("POST", "/v2/control/api-keys"),
        ("POST", "/v2/control/sandbox/recharge"),
        ("GET", "/ops/api/session"),
        ("POST", "/ops/api/reviews/rev_1/approve"),
    ):
        body = {"json": {"amount": "1.00"}} if method == "POST" else {}
        refused(await api.as_session(method, path, **body), 403, "account_disabled")
    for method, path in (
        ("GET", "/v2/task/list"),
        ("GET", "/v2/task/task_1"),
        ("POST", "/v2/task/task_1/cancel"),
        ("POST", "/v2/task/task_1/retry"),
    ):
        refused(await api.as_key(method, path), 403, "account_disabled")
    # The cache knows the key, so that its account decides.
    api.accounts.answer = Refusal(code="account_disabled", message="The account is disabled.")
    task = {"model": "studio/image-1", "input": {"prompt": "a lighthouse"}}
    refused(await api.as_key("POST", "/v2/task/create", json=task), 403, "account_disabled")
    refused(await api.as_key("POST", "/v2/task/create", json={}), 403, "account_disabled")
    assert len(api.accounts.asked) == 1


async def test_a_disabled_operators_browser_session_is_refused(api: Api) -> None:
    email = f"{api.account_id}@example.com"
    api.configure(operators=(email,))
    cookie, _ = await begin_session(api.deps, email, "unknown")
    heads = {"Cookie": f"{OPERATOR_COOKIE.name_for(api.deps.settings)}={cookie}"}
    assert (await api.call("GET", "/ops/api/session", headers=heads)).status_code == 200
    await api.write(tables.accounts.update().values(disabled_at=api.now - timedelta(days=1)))
    refused(await api.call("GET", "/ops/api/session", headers=heads), 403, "account_disabled")
