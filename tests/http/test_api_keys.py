"""API keys and limits over HTTP: what is asked of the account, what is refused before, and what is shown."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.clients import refused

from holdfast.actors.account.messages import ChangeApiKey, CreateApiKey, SetCeiling, SetLimits
from holdfast.ledger.credit.limits import Limit
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records import tables
from holdfast.persistence.records.key_rows import ApiKeyRecord
from holdfast.persistence.records.rows import AccountLimitRow

from .stage import make_task

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api

KEYS = "/v2/control/api-keys"
LIMITS = "/v2/control/limits"
MODEL = "studio/image-1"
DONE = "done"
"""The reply of an account that does what it is asked to. Nothing reads it."""
OF_A_DAY = {"credits": "5.00", "window": "day"}

BAD: list[tuple[dict[str, Any], int, str, str | None, str]] = [
    ({"limit": {"credits": "-5.00", "window": "day"}}, 400, "invalid_amount", "limit.credits", "above zero"),
    ({"limit": {"credits": "0", "window": "day"}}, 400, "invalid_amount", "limit.credits", "above zero"),
    ({"limit": {"credits": "NaN", "window": "day"}}, 400, "invalid_amount", "limit.credits", "'NaN'"),
    ({"limit": {"credits": "1e3", "window": "day"}}, 400, "invalid_amount", "limit.credits", "'1e3'"),
    ({"limit": {"credits": "0.0000001", "window": "day"}}, 400, "invalid_amount", "limit.credits", "6 decimals"),
    ({"limit": {"credits": "9999999999", "window": "day"}}, 400, "invalid_amount", "limit.credits", "9999999999"),
    ({"limit": {"credits": 5, "window": "day"}}, 400, "invalid_amount", "limit.credits", "not a JSON number"),
    ({"limit": {"credits": "5", "window": "hour"}}, 400, "invalid_parameter", "limit.window", "day, week, month"),
    ({"limit": {"credits": "5"}}, 400, "missing_parameter", "limit.window", "limit.window"),
    ({"limit": {"window": "day"}}, 400, "missing_parameter", "limit.credits", "limit.credits"),
    ({"limit": "5.00"}, 400, "invalid_parameter", "limit", "limit"),
    ({"limit": OF_A_DAY, "limits": [OF_A_DAY]}, 400, "invalid_parameter", "limits", "with limit"),
    ({"limits": [OF_A_DAY, {"credits": "1", "window": "day"}]}, 400, "invalid_parameter", "limits", "day twice"),
    ({"limits": [OF_A_DAY] * 9}, 400, "invalid_parameter", "limits", "limits"),
    ({"limits": [OF_A_DAY | {"models": ["nowhere/*"]}]}, 404, "model_not_found", "limits[0].models", "nowhere"),
    ({"limits": [OF_A_DAY | {"models": []}]}, 400, "invalid_parameter", "limits[0].models", "null is every"),
    ({"limits": [{"credits": "0", "window": "day"}]}, 400, "invalid_amount", "limits[0].credits", "above zero"),
    ({"limits": [OF_A_DAY, {"credits": "1", "window": "x"}]}, 400, "invalid_parameter", "limits[1].window", "day"),
    ({"expires_at": "2026-11-20T12:00:00Z"}, 400, "invalid_parameter", "expires_at", "later than now"),
    ({"expires_at": "1970-01-01"}, 400, "invalid_parameter", "expires_at", "later than now"),
    ({"expires_at": "tomorrow"}, 400, "invalid_parameter", "expires_at", "RFC 3339"),
    ({"expires_at": "2027-01-01T00:00:00"}, 400, "invalid_parameter", "expires_at", "with an offset"),
    ({"expires_at": 1800000000}, 400, "invalid_parameter", "expires_at", "not a JSON number"),
    ({"models": []}, 400, "invalid_parameter", "models", "null is every model"),
    ({"models": "studio/*"}, 400, "invalid_parameter", "models", "models"),
    ({"models": [MODEL, "nowhere/nothing"]}, 404, "model_not_found", "models", "'nowhere/nothing'"),
    ({"models": ["nowhere/*"]}, 404, "model_not_found", "models", "'nowhere/*'"),
    ({"models": ["*"]}, 404, "model_not_found", "models", "'*'"),
    ({"models": ["studio/image*"]}, 404, "model_not_found", "models", "'studio/image*'"),
    ({"max_credits_per_task": "0"}, 400, "invalid_amount", "max_credits_per_task", "above zero"),
    ({"max_credits_per_task": 5}, 400, "invalid_parameter", "max_credits_per_task", "not a JSON number"),
    ({"name": "a\nb"}, 400, "invalid_parameter", "name", "unprintable"),
]


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_value_has_an_error_of_its_own_and_asks_no_actor(
    api: Api, method: str, bad: tuple[dict[str, Any], int, str, str | None, str]
) -> None:
    body, status, code, param, said = bad
    path = KEYS if method == "POST" else f"{KEYS}/{api.key_id}"
    error = refused(await api.as_session(method, path, json=body), status, code)
    assert error["param"] == param
    assert said in error["message"]
    assert api.accounts.asked == []


async def test_not_a_number_is_no_json(api: Api) -> None:
    sent = b'{"limit": {"credits": NaN, "window": "day"}}'
    heads = {"Content-Type": "application/json"}
    refused(await api.as_session("POST", KEYS, content=sent, headers=heads), 400, "invalid_json")


async def test_a_key_is_created_with_its_terms(api: Api) -> None:
    async def create(key: str, command: object) -> ApiKeyRecord:
        assert isinstance(command, CreateApiKey)
        assert command.limit is not None
        return ApiKeyRecord(
            api.account_id,
            command.key_id,
            command.prefix,
            command.terms,
            api.now,
            limit_micro=command.limit.credits_micro,
            limit_window=command.limit.window,
            window_start=api.now.replace(hour=0),
        )

    api.accounts.answer = create
    body = {
        "name": "ci",
        "expires_at": "2026-12-24T18:00:00+01:00",
        "models": ["studio/*", MODEL, MODEL],
        "limit": OF_A_DAY,
        "max_credits_per_task": "0.5",
    }
    answer = (await api.as_session("POST", KEYS, json=body)).json()
    [(_, command)] = api.accounts.asked
    assert isinstance(command, CreateApiKey)
    assert (command.terms.models, command.limit) == (("studio/*", MODEL), Limit(5_000_000, "day"))
    assert command.terms.max_credits_per_task_micro == 500_000
    assert answer["max_credits_per_task"] == "0.50"
    shown = {name: answer[name] for name in ("expires_at", "models", "limit", "spent", "resets_at", "paused")}
    assert shown == {
        "expires_at": "2026-12-24T17:00:00.000Z",
        "models": ["studio/*", MODEL],
        "limit": OF_A_DAY,
        "spent": "0.00",
        "resets_at": "2026-11-21T00:00:00.000Z",
        "paused": False,
    }


async def test_a_change_names_only_what_was_sent(api: Api) -> None:
    path = f"{KEYS}/{api.key_id}"
    api.accounts.answer = DONE
    for body, command in (
        ({}, ChangeApiKey(api.key_id, {})),
        ({"paused": True}, ChangeApiKey(api.key_id, {"is_paused": True})),
        ({"name": " ci "}, ChangeApiKey(api.key_id, {"name": "ci"})),
        (
            {"limit": None, "models": None, "expires_at": None},
            ChangeApiKey(api.key_id, {"models": (), "expires_at": None}, None),
        ),
        ({"max_credits_per_task": "0.5"}, ChangeApiKey(api.key_id, {"max_credits_per_task_micro": 500_000})),
        ({"max_credits_per_task": None}, ChangeApiKey(api.key_id, {"max_credits_per_task_micro": None})),
        ({"limit": OF_A_DAY}, ChangeApiKey(api.key_id, {}, Limit(5_000_000, "day"))),
        ({"limits": [OF_A_DAY]}, ChangeApiKey(api.key_id, {}, Limit(5_000_000, "day"))),
        ({"limits": []}, ChangeApiKey(api.key_id, {}, None)),
        ({"limits": None}, ChangeApiKey(api.key_id, {}, None)),
        (
            {"limits": [{"credits": "9", "window": "week"}, OF_A_DAY, OF_A_DAY | {"models": [MODEL]}]},
            ChangeApiKey(
                api.key_id,
                {},
                Limit(9_000_000, "week"),
                (Limit(5_000_000, "day"), Limit(5_000_000, "day", (MODEL,))),
            ),
        ),
    ):
        response = await api.as_session("PATCH", path, json=body)
        assert (response.status_code, response.json()["api_key_id"]) == (200, api.key_id)
        assert api.accounts.asked.pop() == (api.account_id, command)


async def test_only_the_accounts_own_live_keys_can_be_changed(api: Api) -> None:
    await api.add_key(api.other_account_id, "key_other")
    await api.add_key(api.account_id, "key_gone", revoked_at=api.now)
    refused(await api.as_session("PATCH", f"{KEYS}/key_other", json={"paused": True}), 404, "api_key_not_found")
    refused(await api.as_session("PATCH", f"{KEYS}/key_gone", json={"paused": True}), 409, "api_key_revoked")
    refused(await api.as_key("PATCH", f"{KEYS}/{api.key_id}", json={}), 403, "insufficient_scope")
    assert api.accounts.asked == []


async def add_usage(api: Api, request_id: str, *, key_id: str, open_micro: int) -> None:
    """Add the rows of a task that a key created an hour ago and that has not ended."""
    task = make_task(request_id, account_id=api.account_id, at=api.now - timedelta(hours=1))
    await api.add_task(replace(task, request=replace(task.request, api_key_id=key_id)))
    await api.write(
        tables.holds.insert().values(
            account_id=api.account_id,
            hold_id=task.request.hold_id,
            amount_micro=open_micro,
            reference=request_id,
            opened_number=1,
        )
    )


async def test_what_is_spent_of_each_limit_of_a_key_is_shown(api: Api) -> None:
    """Of further limits what was captured is in the totals of days, also if no process has served the account."""
    today = api.now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    more = [
        {"credits_micro": 5_000_000, "window": "day"},
        {"credits_micro": 6_000_000, "window": "month", "models": ["other/*"]},
        {"credits_micro": 7_000_000, "window": "week", "models": ["studio/*"]},
    ]
    row: dict[str, Any] = {"limit_micro": 9_000_000, "limit_window": "total", "captured_micro": 4_000_000}
    await api.add_key(api.account_id, "key_1", more_limits=more, **row)
    await add_usage(api, "task_1", key_id="key_1", open_micro=250_000)
    total = {
        "account_id": api.account_id,
        "end_user_by": "",
        "span_s": 86_400,
        "status": "succeeded",
        "end_user": "",
    }
    for days, model, key_id in (
        (0, MODEL, "key_1"),
        (1, MODEL, "key_1"),
        (1, "other/x", "key_1"),
        (0, MODEL, "key_2"),
    ):
        of_day = {"start_at": today - timedelta(days=days), "model": model, "api_key_id": key_id}
        await api.write(tables.usage_totals.insert().values(count=1, cost_micro=1_000_000, **of_day, **total))
    [shown] = [key for key in (await api.as_session("GET", KEYS)).json()["data"] if key["api_key_id"] == "key_1"]
    assert (shown["limit"], shown["spent"]) == ({"credits": "9.00", "window": "total"}, "4.25")
    found = [(each["window"], each["models"], each["credits"], each["spent"]) for each in shown["limits"]]
    assert found == [
        ("day", None, "5.00", "1.25"),
        ("week", ["studio/*"], "7.00", "2.25"),
        ("month", ["other/*"], "6.00", "1.00"),
        ("total", None, "9.00", "4.25"),
    ]
    assert [each["resets_at"] is None for each in shown["limits"]] == [False, False, False, True]


async def test_what_is_spent_is_captured_and_held_in_the_current_window(api: Api) -> None:
    today = api.now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    limit: dict[str, Any] = {"limit_micro": 5_000_000, "captured_micro": 1_500_000}
    await api.add_key(api.account_id, "key_today", limit_window="day", window_start=today, **limit)
    await api.add_key(
        api.account_id, "key_before", limit_window="day", window_start=today - timedelta(days=1), **limit
    )
    await api.add_key(api.account_id, "key_total", limit_window="total", **limit)
    await api.add_key(api.account_id, "key_gone", limit_window="total", revoked_at=api.now, **limit)
    await add_usage(api, "task_1", key_id="key_today", open_micro=250_000)
    listed = (await api.as_session("GET", KEYS)).json()["data"]
    tomorrow = "2026-11-21T00:00:00.000Z"
    assert {key["api_key_id"]: (key["spent"], key["resets_at"]) for key in listed} == {
        "key_today": ("1.75", tomorrow),
        "key_before": ("0.00", tomorrow),
        "key_total": ("1.50", None),
        "key_gone": (None, None),
        api.key_id: (None, None),
    }
    rows: list[tuple[LimitWindow, int | None]] = [("day", None), ("month", 9_000_000), ("week", None)]
    for window, ceiling_micro in rows:
        row = AccountLimitRow(api.account_id, window, 7_000_000, ceiling_micro, today, 1_000_000)
        await api.write(tables.account_limits.insert().values({n: getattr(row, n) for n in row.__struct_fields__}))
    limits = tables.account_limits
    await api.write(limits.update().where(limits.c.limit_window == "week").values(limit_micro=None))
    shown = (await api.as_session("GET", LIMITS)).json()
    assert shown == {
        "limits": [
            {"window": "day", "credits": "7.00", "ceiling": None, "spent": "1.25", "resets_at": tomorrow},
            {
                "window": "month",
                "credits": "7.00",
                "ceiling": "9.00",
                "spent": "1.25",
                "resets_at": "2026-12-01T00:00:00.000Z",
            },
        ]
    }
    operator = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    details = (await api.call("GET", f"/ops/api/accounts/{api.account_id}", headers=operator)).json()
    assert details["limits"] == shown["limits"]
    assert {key["api_key_id"]: key["spent"] for key in details["api_keys"]}["key_today"] == "1.75"


@pytest.mark.parametrize(
    ("limits", "code", "param"),
    [
        ([{"credits": "-1", "window": "day"}], "invalid_amount", "limits[0].credits"),
        ([OF_A_DAY, {"credits": "0", "window": "week"}], "invalid_amount", "limits[1].credits"),
        ([{"credits": 1, "window": "day"}], "invalid_amount", "limits[0].credits"),
        ([{"credits": "1", "window": "year"}], "invalid_parameter", "limits[0].window"),
        ([OF_A_DAY, {"credits": "6.00", "window": "day"}], "invalid_parameter", "limits"),
        ({}, "invalid_parameter", "limits"),
        (None, "invalid_parameter", "limits"),
    ],
)
async def test_bad_limits_of_an_account_ask_no_actor(api: Api, limits: Any, code: str, param: str) -> None:
    error = refused(await api.as_session("PUT", LIMITS, json={"limits": limits}), 400, code)
    assert error["param"] == param
    assert api.accounts.asked == []


async def test_the_limits_of_an_account_are_replaced(api: Api) -> None:
    api.accounts.answer = DONE
    body = {"limits": [OF_A_DAY, {"credits": "100", "window": "month"}]}
    assert (await api.as_session("PUT", LIMITS, json=body)).json() == {"limits": []}
    assert (await api.as_session("PUT", LIMITS, json={"limits": []})).status_code == 200
    assert api.accounts.asked == [
        (api.account_id, SetLimits((Limit(5_000_000, "day"), Limit(100_000_000, "month")))),
        (api.account_id, SetLimits(())),
    ]
    api.accounts.answer = Refusal(code="limit_above_ceiling", message="No.", param="limits")
    refused(await api.as_session("PUT", LIMITS, json=body), 403, "limit_above_ceiling")
    refused(await api.as_key("PUT", LIMITS, json=body), 403, "insufficient_scope")


async def ceiling(api: Api, body: dict[str, Any], account_id: str = "") -> httpx2.Response:
    heads = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    path = f"/ops/api/accounts/{account_id or api.account_id}/ceilings"
    return await api.call("POST", path, json={"reason": "ticket 7", **body}, headers=heads)


async def test_an_operator_sets_and_removes_a_ceiling(api: Api) -> None:
    api.accounts.answer = DONE
    assert (await ceiling(api, {"window": "day", "credits": "50"})).json() == {"limits": []}
    assert (await ceiling(api, {"window": "day"})).status_code == 200
    assert api.accounts.asked == [
        (api.account_id, SetCeiling("day", 50_000_000)),
        (api.account_id, SetCeiling("day", None)),
    ]
    refused(await ceiling(api, {"window": "day", "credits": "50"}, "acct_9"), 404, "account_not_found")
    refused(await ceiling(api, {"window": "year", "credits": "50"}), 400, "invalid_parameter")
    refused(await ceiling(api, {"window": "day", "credits": "0"}), 400, "invalid_amount")
    refused(await ceiling(api, {"window": "day", "credits": "5", "reason": ""}), 400, "invalid_parameter")
    heads = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    actions = (await api.call("GET", "/ops/api/actions", headers=heads)).json()["data"]
    done = [each for each in actions if each["action"] == "set_ceiling" and each["result"] == "done"]
    assert [each["effect"] for each in done] == [{"ceiling_day": "none"}, {"ceiling_day": "50.00"}]


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"is_paused": True}, "api_key_paused"),
        ({"expires_at": "now"}, "api_key_expired"),
    ],
)
async def test_a_key_that_cannot_be_used_now_reads_nothing(api: Api, columns: dict[str, Any], code: str) -> None:
    if "expires_at" in columns:
        columns = {"expires_at": api.now}
    minted = await api.add_key(api.account_id, "key_2", **columns)
    heads = {"Authorization": f"Bearer {minted.secret}"}
    for method, path in (
        ("GET", "/v2/task/list"),
        ("GET", "/v2/task/task_1"),
        ("GET", "/v2/files"),
        ("GET", "/v2/control/account"),
        ("POST", "/v2/task/task_1/cancel"),
    ):
        response = await api.call(method, path, headers=heads)
        refused(response, 401, code)
        assert response.headers["WWW-Authenticate"] == "Bearer"
    ready = (await api.as_session("GET", "/v2/control/first-call")).json()["checks"]
    assert ready["has_api_key"]
    await api.write(tables.api_keys.delete().where(tables.api_keys.c.key_id == api.key_id))
    ready = (await api.as_session("GET", "/v2/control/first-call")).json()["checks"]
    assert (ready["has_api_key"], ready["has_writable_key"]) == (False, False)
