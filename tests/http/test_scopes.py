"""Who may call which endpoint: every route with every kind of credential, as the table below says.

The table is written out, not derived: a route that opens to keys, or to others, changes a line here.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from holdfast.http.app import EXTENSIONS, ROUTES
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.openapi import describe
from holdfast.http.kit.reference import CUSTOMERS, reference_of
from holdfast.ledger.api_keys import ALL_SCOPES
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records import tables

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api

SESSION: Final = {
    "GET /v2/control/session", "DELETE /v2/control/session", "GET /v2/control/first-call",
    "POST /v2/control/email", "POST /v2/control/email/confirm", "DELETE /v2/control/account",
    "POST /v2/control/archive", "GET /v2/control/archive",
    "GET /v2/control/alerts", "PUT /v2/control/alerts",
    "POST /v2/control/sandbox/recharge", "POST /v2/control/coupons/redeem",
    "POST /v2/control/payments/{order_id}/client-secret",
    "POST /v2/control/cards/setup", "DELETE /v2/control/cards/{card_id}", "PUT /v2/control/auto-top-up",
    "POST /v2/control/tasks", "GET /v2/control/tasks", "GET /v2/control/tasks/{request_id}",
    "POST /v2/control/tasks/{request_id}/retry", "POST /v2/control/tasks/{request_id}/cancel",
    "DELETE /v2/control/tasks/{request_id}/results",
    "GET /v2/control/files", "DELETE /v2/control/files/{file_id}",
}  # fmt: skip
"""Only an owner's session: no scope opens these."""

SESSION_OR_KEY: Final = {
    "GET /v2/control/api-keys": "keys:read",
    "POST /v2/control/api-keys": "keys:write",
    "PATCH /v2/control/api-keys/{api_key_id}": "keys:write",
    "DELETE /v2/control/api-keys/{api_key_id}": "keys:write",
    "GET /v2/control/key-groups": "keys:read",
    "POST /v2/control/key-groups": "limits:write",
    "GET /v2/control/key-groups/{group_id}": "keys:read",
    "PATCH /v2/control/key-groups/{group_id}": "limits:write",
    "DELETE /v2/control/key-groups/{group_id}": "limits:write",
    "PUT /v2/control/limits": "limits:write",
    "GET /v2/control/limits": "account:read",
    "GET /v2/control/account": "account:read",
    "GET /v2/control/history": "account:read",
    "GET /v2/control/credit-lots": "account:read",
    "GET /v2/control/ledger": "account:read",
    "GET /v2/control/statement": "account:read",
    "GET /v2/control/cards": "account:read",
    "GET /v2/control/auto-top-up": "account:read",
    "GET /v2/control/receipts": "account:read",
    "GET /v2/control/receipt-totals": "account:read",
    "GET /v2/control/receipts/{number}": "account:read",
    "GET /v2/control/receipts/{number}/pdf": "account:read",
    "GET /v2/control/stream": "account:read tasks:read",
    "GET /v2/control/payments": "orders:read",
    "GET /v2/control/payments/{order_id}": "orders:read",
    "POST /v2/control/payments/sandbox": "orders:write",
    "POST /v2/control/payments/cardprovider": "orders:write",
    "POST /v2/control/files": "files:write",
    "GET /v2/usage/logs": "usage:read",
    "GET /v2/usage/totals": "usage:read",
    "POST /v2/control/webhooks": "webhooks:write",
    "GET /v2/control/webhooks": "webhooks:write",
    "GET /v2/control/webhooks/{webhook_id}": "webhooks:write",
    "PATCH /v2/control/webhooks/{webhook_id}": "webhooks:write",
    "DELETE /v2/control/webhooks/{webhook_id}": "webhooks:write",
    "POST /v2/control/webhooks/{webhook_id}/test": "webhooks:write",
    "GET /v2/control/webhooks/{webhook_id}/deliveries": "webhooks:write",
    "POST /v2/control/webhooks/{webhook_id}/deliveries/{event_id}/resend": "webhooks:write",
    "GET /v2/control/webhook-secret": "webhooks:write",
    "POST /v2/control/webhook-secret/rotate": "webhooks:write",
}
"""An owner's session, or a key with the scope."""

KEY: Final = {
    "POST /v2/files": "files:write",
    "GET /v2/files": "tasks:read",
    "GET /v2/files/{file_id}": "tasks:read",
    "GET /v2/files/{file_id}/content": "tasks:read",
    "DELETE /v2/files/{file_id}": "files:write",
    "POST /v2/task/create": "tasks:write",
    "GET /v2/task/list": "tasks:read",
    "GET /v2/task/{request_id}": "tasks:read",
    "GET /v2/task/{request_id}/stream": "tasks:read",
    "GET /v2/task/{request_id}/events": "tasks:read",
    "POST /v2/task/{request_id}/events/{event_id}/resend": "tasks:write",
    "POST /v2/task/{request_id}/retry": "tasks:write",
    "POST /v2/task/{request_id}/cancel": "tasks:write",
    "DELETE /v2/task/{request_id}/results": "tasks:write",
    "POST /v1/images/generations": "tasks:write tasks:read",
    "POST /v1/images/edits": "tasks:write tasks:read",
    "POST /v1/audio/speech": "tasks:write tasks:read",
    "POST /v1/videos": "tasks:write",
    "GET /v1/videos": "tasks:read",
    "GET /v1/videos/{video_id}": "tasks:read",
    "GET /v1/videos/{video_id}/content": "tasks:read",
    "DELETE /v1/videos/{video_id}": "tasks:write",
    "GET /replicate/v1/account": "account:read",
    "GET /replicate/v1/webhooks/default/secret": "account:read",
    "POST /replicate/v1/files": "files:write",
    "GET /replicate/v1/files": "tasks:read",
    "GET /replicate/v1/files/{file_id}": "tasks:read",
    "DELETE /replicate/v1/files/{file_id}": "files:write",
    "POST /replicate/v1/models/{owner}/{name}/predictions": "tasks:write",
    "POST /replicate/v1/predictions": "tasks:write",
    "GET /replicate/v1/predictions": "tasks:read",
    "GET /replicate/v1/predictions/{request_id}": "tasks:read",
    "POST /replicate/v1/predictions/{request_id}/cancel": "tasks:write",
}
"""A key with the scope."""

ANY_KEY: Final = {"POST /mcp"}
"""Any key: each tool asks for its own scope (test_mcp.py)."""

OPEN: Final = {
    "POST /v2/control/auth/otp", "POST /v2/control/auth/verify",
    "GET /v2/control/alerts/unsubscribe", "POST /v2/control/alerts/unsubscribe",
    "GET /openapi.json", "GET /v1/models", "GET /v1/models/{model_id}", "GET /v2/models", "POST /v2/quote",
    "GET /v2/bonuses",
    "GET /.well-known/holdfast-statement-keys.json", "GET /verify_statement.py",
    "GET /v2/assets/{asset_id}", "GET /v2/archives/{archive_id}",
    "GET /replicate/v1/models", "GET /replicate/v1/models/{owner}/{name}",
    "GET /replicate/v1/models/{owner}/{name}/versions",
    "GET /replicate/v1/models/{owner}/{name}/versions/{version}",
    "GET /replicate/v1/predictions/{request_id}/stream",
}  # fmt: skip
"""Anyone, or who has the link."""

SIGNED: Final = {
    "POST /v2/callback", "POST /v2/callback/{provider}", "POST /v2/control/payments/sandbox/callback",
    "POST /v2/control/payments/cardprovider/webhook",
}  # fmt: skip
"""Who has the secret that signs."""

INCLUDED: Final = {"tasks:write": {"tasks:write", "files:write"}, "account:read": {"account:read", "orders:read"}}
SCOPED: Final = SESSION_OR_KEY | KEY
EXAMPLES: Final = {
    "api_key_id": "key_" + "9" * 32,
    "webhook_id": "wh_" + "9" * 32,
    "group_id": "grp_" + "9" * 32,
    "event_id": "evt_" + "9" * 32,
    "order_id": "ord_" + "9" * 32,
    "request_id": "task_" + "9" * 32,
    "video_id": "video_" + "9" * 32,
    "file_id": "file_" + "9" * 32,
    "card_id": "pm_9",
    "number": "R-9",
    "owner": "studio",
    "name": "image-1",
}
STREAMS: Final = {"GET /v2/control/stream"}
"""What does not end once it is open."""
STOPPED: Final = Refusal(code="concurrency_limit_exceeded", message="An actor was asked.")


def test_each_route_is_in_the_table_once() -> None:
    served = [f"{each.method} {each.path}" for each in ROUTES if reference_of(each) is CUSTOMERS]
    table = [*SESSION, *SCOPED, *ANY_KEY, *OPEN, *SIGNED]
    assert sorted(table) == sorted(served)
    assert len(SESSION_OR_KEY) + len(KEY) == len(SCOPED)
    by_name = {f"{each.method} {each.path}": each for each in ROUTES}
    assert {name for name in served if by_name[name].auth is Auth.SESSION} == SESSION
    assert {name for name in served if by_name[name].auth is Auth.SESSION_OR_KEY} == SESSION_OR_KEY.keys()


def test_the_document_says_who_may_call() -> None:
    own = [each for each in ROUTES if reference_of(each) is CUSTOMERS]
    document = describe(own, "https://holdfast.example", EXTENSIONS, CUSTOMERS)
    for name, needed in SCOPED.items():
        method, path = name.split(" ")
        said = document["paths"][path][method.lower()]["description"]
        scopes = needed.split(" ")
        assert all(f"`{scope}`" in said for scope in scopes)
        assert ("An API key needs the scopes" if len(scopes) > 1 else "An API key needs the scope `") in said
        if scopes == ["files:write"]:
            assert "`files:write`, which `tasks:write` includes." in said
    for name in SESSION:
        method, path = name.split(" ")
        said = document["paths"][path][method.lower()]["description"]
        assert said.endswith("Only for sessions: no scope of an API key opens it.")


async def call(api: Api, name: str, credential: str) -> httpx2.Response:
    method, path = name.split(" ")
    return await api.call(method, re.sub(r"\{(\w+)\}", lambda m: EXAMPLES[m[1]], path), credential=credential)


def outcome(response: httpx2.Response) -> tuple[int, str, str]:
    """The status, code and message of an error, in the form of either API."""
    if response.status_code < 400:
        return response.status_code, "", ""
    body = response.json()
    error = body.get("error", body)
    return response.status_code, error["code"], error.get("message", error.get("detail"))


@pytest.mark.parametrize("scope", [*ALL_SCOPES, "all but", "none"])
async def test_a_key_opens_what_its_scope_is_for_and_nothing_else(api: Api, scope: str) -> None:
    """``all but``: for each route, a key that has every scope but one that the route needs."""
    api.accounts.answer = STOPPED
    secrets: dict[str, str] = {}
    for left_out in ALL_SCOPES if scope == "all but" else (scope,):
        scopes = tuple(each for each in ALL_SCOPES if each != left_out) if scope == "all but" else (left_out,)
        secrets[left_out] = (await api.add_key(api.account_id, f"key_{left_out}", scopes=scopes)).secret
    for name, needed in SCOPED.items():
        for wanted in needed.split(" ") if scope == "all but" else (needed,):
            if scope == "all but":
                wider = next((wide for wide, narrow in INCLUDED.items() if wanted in narrow - {wide}), None)
                missing = None if wider else wanted
                secret = secrets[wanted]
            else:
                has = INCLUDED.get(scope, {scope})
                missing = next((each for each in needed.split(" ") if each not in has), None)
                secret = secrets[scope]
            if missing is None and name in STREAMS:
                continue
            status, code, message = outcome(await call(api, name, secret))
            if missing is not None:
                said = f"The API key does not have the scope {missing}."
                assert (name, status, code, message) == (name, 403, "insufficient_scope", said)
            else:
                assert (status, code) not in {(403, "insufficient_scope"), (401, "wrong_credential_type")}, name
                assert status != 401, name
    for name in SESSION:
        status, code, message = outcome(await call(api, name, next(iter(secrets.values()))))
        assert (name, status, code) == (name, 401, "wrong_credential_type")
        assert message == "This endpoint requires a session token; no scope of an API key opens it."


@pytest.mark.parametrize("state", ["paused", "expired", "revoked", "disabled", "closing", "mistyped"])
async def test_a_key_that_cannot_be_used_opens_nothing(api: Api, state: str) -> None:
    states: dict[str, tuple[dict[str, Any], tuple[int, str]]] = {
        "paused": ({"is_paused": True}, (401, "api_key_paused")),
        "expired": ({"expires_at": api.now}, (401, "api_key_expired")),
        "revoked": ({"revoked_at": api.now}, (401, "invalid_api_key")),
        "disabled": ({}, (403, "account_disabled")),
        "closing": ({}, (403, "account_closing")),
        "mistyped": ({}, (401, "invalid_api_key")),
    }
    columns, expected = states[state]
    secret = (await api.add_key(api.account_id, "key_x", scopes=ALL_SCOPES, **columns)).secret
    if state == "mistyped":
        secret = secret[:-1] + ("a" if secret[-1] != "a" else "b")
    if state in ("disabled", "closing"):
        at = {"disabled": {"disabled_at": api.now}, "closing": {"closes_at": api.now + timedelta(days=7)}}[state]
        await api.write(tables.accounts.update().values(**at))
    for name in SCOPED:
        status, code, _ = outcome(await call(api, name, secret))
        assert (name, status, code) == (name, *expected)
    assert api.accounts.asked == []


async def test_a_session_opens_what_is_its_own_and_no_credential_opens_nothing(api: Api) -> None:
    api.accounts.answer = STOPPED
    for name in [*SESSION - {"DELETE /v2/control/session"}, *SESSION_OR_KEY.keys() - STREAMS]:
        status, _, _ = outcome(await call(api, name, api.session))
        assert status not in {401, 403}, name
    for name in KEY:
        assert outcome(await call(api, name, api.session))[:2] == (401, "wrong_credential_type")
    for name in [*SESSION, *SCOPED]:
        method, path = name.split(" ")
        bare = await api.call(method, re.sub(r"\{(\w+)\}", lambda m: EXAMPLES[m[1]], path))
        assert (name, *outcome(bare)[:2]) == (name, 401, "missing_credentials")
