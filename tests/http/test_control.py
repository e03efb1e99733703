"""Sign-in, sessions, API keys, the account and sandbox credit."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.clients import refused

from holdfast.actors.account.messages import (
    CreateApiKey,
    CreditChanged,
    Recharge,
    RevokeApiKey,
    SignOut,
)
from holdfast.actors.runtime.messages import Replayed
from holdfast.actors.sign_in.messages import (
    AdmitOrigin,
    CodeIssued,
    OriginAdmitted,
    RequestCode,
    SignedIn,
    VerifyCode,
)
from holdfast.http.kit.bodies import fingerprint
from holdfast.http.kit.credentials import digest
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import new_otp_id
from holdfast.persistence.records import tables
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRevokedRow
from holdfast.persistence.records.rows import SessionRevokedRow
from holdfast.providers.mail.base import MailFault

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

OTP, VERIFY, RECHARGE = "/v2/control/auth/otp", "/v2/control/auth/verify", "/v2/control/sandbox/recharge"


async def issue(key: str, command: object) -> object:
    if isinstance(command, AdmitOrigin):
        return OriginAdmitted()
    assert isinstance(command, RequestCode)
    return CodeIssued(otp_id="otp_1", code="123456", expires_in_s=600)


async def test_a_code_is_limited_generated_and_mailed(stage: Stage) -> None:
    stage.sign_ins.answer = issue
    response = await stage.call(
        "POST", OTP, json={"email": " Ada@EXAMPLE.com "}, extensions={"client": ("192.0.2.7", 4711)}
    )
    assert response.json() == {
        "otp_id": "otp_1",
        "expires_in_seconds": 600,
        "delivery": {"channel": "email", "destination": "ada@example.com", "status": "sent"},
        "debug_otp": "123456",
    }
    assert [key for key, _ in stage.sign_ins.asked] == ["origin:192.0.2.7", "email:ada@example.com"]
    assert stage.mailer.sent == [("ada@example.com", "123456", 600)]


async def test_production_never_returns_a_code(stage: Stage) -> None:
    stage.sign_ins.answer = issue
    stage.configure(env="production")
    answer = (await stage.call("POST", OTP, json={"email": "ada@example.com"})).json()
    assert answer["debug_otp"] is None


@pytest.mark.parametrize(
    ("client", "key"),
    [("2001:db8:1:2:3::4", "origin:2001:db8:1:2::/64"), ("::ffff:192.0.2.7", "origin:192.0.2.7")],
)
async def test_addresses_of_one_network_are_one_origin(stage: Stage, client: str, key: str) -> None:
    stage.sign_ins.answer = issue
    await stage.call("POST", OTP, json={"email": "ada@example.com"}, extensions={"client": (client, 1)})
    assert stage.sign_ins.asked[0][0] == key


async def test_a_forwarded_header_of_a_client_is_ignored(stage: Stage) -> None:
    stage.sign_ins.answer = issue
    headers = {"Remote-Addr": "198.51.100.9", "X-Forwarded-For": "198.51.100.9"}
    await stage.call(
        "POST", OTP, json={"email": "ada@example.com"}, headers=headers, extensions={"client": ("192.0.2.7", 1)}
    )
    assert stage.sign_ins.asked[0][0] == "origin:192.0.2.7"


@pytest.mark.parametrize(
    ("header", "sent", "origin"),
    [
        ("X-Forwarded-For", {"X-Forwarded-For": "203.0.113.1, 198.51.100.9"}, "198.51.100.9"),
        ("X-Forwarded-For", {"Forwarded": "for=198.51.100.9"}, "192.0.2.7"),
        ("Forwarded", {"Forwarded": "for=198.51.100.9", "X-Forwarded-For": "203.0.113.1"}, "198.51.100.9"),
    ],
)
async def test_a_trusted_proxy_names_the_client(
    stage: Stage, header: str, sent: dict[str, str], origin: str
) -> None:
    stage.sign_ins.answer = issue
    stage.configure(trusted_proxies=(ipaddress.ip_network("192.0.2.0/24"),), proxy_header=header)
    await stage.call(
        "POST", OTP, json={"email": "ada@example.com"}, headers=sent, extensions={"client": ("192.0.2.7", 1)}
    )
    assert stage.sign_ins.asked == [
        (f"origin:{origin}", AdmitOrigin()),
        ("email:ada@example.com", RequestCode(origin)),
    ]


@pytest.mark.parametrize(
    "email", ["no-at-sign", "", 5, None, ["a@example.com"], "a@example.com\r\nBcc: b@example.com"]
)
async def test_a_malformed_address_is_refused_without_asking_an_actor(stage: Stage, email: object) -> None:
    error = refused(await stage.call("POST", OTP, json={"email": email}), 400, "invalid_email")
    assert error["param"] == "email"
    assert stage.sign_ins.asked == []


async def test_limits_of_sign_in_reach_the_caller(stage: Stage) -> None:
    stage.sign_ins.answer = Refusal(code="otp_rate_limited", message="Wait.", retry_after_s=17)
    response = await stage.call("POST", OTP, json={"email": "ada@example.com"})
    refused(response, 429, "otp_rate_limited")
    assert response.headers["Retry-After"] == "17"


async def test_a_mail_fault_is_reported_without_detail(stage: Stage) -> None:
    stage.sign_ins.answer = issue
    stage.mailer.fault = MailFault("the host refused")
    error = refused(await stage.call("POST", OTP, json={"email": "ada@example.com"}), 503, "otp_delivery_failed")
    assert "host" not in error["message"]


@pytest.mark.parametrize("otp", ["12345", "1234567", "12345a", "１２３４５６", " 123456", ""])
async def test_a_malformed_code_is_not_counted_as_an_attempt(stage: Stage, otp: str) -> None:
    body = {"email": "ada@example.com", "otp_id": "otp_1", "otp": otp}
    error = refused(await stage.call("POST", VERIFY, json=body), 400, "invalid_parameter")
    assert (error["param"], stage.sign_ins.asked) == ("otp", [])


async def test_an_invented_code_id_starts_no_actor(stage: Stage) -> None:
    pepper = stage.deps.settings.otp_pepper
    real = new_otp_id(pepper, "ada@example.com")
    altered = real[:-1] + ("0" if real[-1] != "0" else "1")
    others = (new_otp_id(b"other", "ada@example.com"), new_otp_id(pepper, "eve@example.com"))
    for otp_id in ("otp_1", "", "\u00e9", altered, *others):
        body = {"email": "ada@example.com", "otp_id": otp_id, "otp": "123456"}
        refused(await stage.call("POST", VERIFY, json=body), 401, "invalid_otp")
    assert stage.sign_ins.asked == []


async def test_a_correct_code_creates_a_session(api: Api) -> None:
    at = api.now + timedelta(hours=24)
    api.sign_ins.answer = SignedIn(api.account_id, "ada@example.com", "User", "ses_2", "hst_x", at)
    otp_id = new_otp_id(api.deps.settings.otp_pepper, "ada@example.com")
    response = await api.call("POST", VERIFY, json={"email": "Ada@example.com", "otp_id": otp_id, "otp": "123456"})
    assert api.sign_ins.asked == [("email:ada@example.com", VerifyCode(otp_id, "123456"))]
    assert response.json() == {
        "account_id": api.account_id,
        "email": "ada@example.com",
        "role": "User",
        "session": {"type": "bearer", "token": "hst_x", "expires_at": "2026-11-21T12:00:00.000Z"},
        "account": {
            "account_id": api.account_id,
            "balance": "10.00",
            "held_total": "0.24",
            "available_balance": "9.76",
            "tier": {},
        },
        "first_call": {
            "account_id": api.account_id,
            "ready": True,
            "checks": {"has_api_key": True, "has_writable_key": True, "has_positive_balance": True},
            "suggested_next_actions": ["create_task"],
            "routes": {
                "create_api_key": "https://holdfast.example/v2/control/api-keys",
                "add_credit": "https://holdfast.example/v2/control/sandbox/recharge",
                "quote": "https://holdfast.example/v2/quote",
                "models": "https://holdfast.example/v2/models",
                "create_task": "https://holdfast.example/v2/task/create",
            },
        },
        "account_kept": False,
    }


async def test_the_session_shows_its_account_and_user(api: Api) -> None:
    assert (await api.as_session("GET", "/v2/control/session")).json() == {
        "account_id": api.account_id,
        "email": f"{api.account_id}@example.com",
        "role": "User",
        "auth": {
            "type": "session",
            "api_key_id": None,
            "api_key_prefix": None,
            "session_id": api.session_id,
            "expires_at": "2026-11-21T12:00:00.000Z",
            "scopes": [],
        },
    }


ONLY_FOR_SESSIONS = {"/v2/control/session", "/v2/control/first-call", "/v2/control/alerts", RECHARGE}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/control/session"), ("DELETE", "/v2/control/session"), ("GET", "/v2/control/first-call"),
        ("GET", "/v2/control/account"), ("GET", "/v2/control/api-keys"), ("POST", "/v2/control/api-keys"),
        ("DELETE", "/v2/control/api-keys/key_1"), ("POST", RECHARGE), ("GET", "/v2/usage/logs"),
        ("GET", "/v2/usage/logs?format=csv"), ("GET", "/v2/usage/totals"), ("GET", "/v2/control/payments"),
        ("GET", "/v2/control/ledger"), ("GET", "/v2/control/payments/ord_1"), ("GET", "/v2/control/credit-lots"),
        ("GET", "/v2/control/limits"), ("GET", "/v2/control/cards"), ("GET", "/v2/control/auto-top-up"),
        ("GET", "/v2/control/stream"), ("GET", "/v2/control/statement"), ("POST", "/v2/control/payments/sandbox"),
        ("POST", "/v2/control/payments/cardprovider"), ("GET", "/v2/control/webhooks"),
        ("POST", "/v2/control/webhooks"), ("GET", "/v2/control/alerts"), ("PUT", "/v2/control/alerts"),
    ],
)  # fmt: skip
async def test_every_control_route_requires_a_live_session(api: Api, method: str, path: str) -> None:
    async def call(authorization: str | None) -> Any:
        return await api.call(method, path, headers={"Authorization": authorization} if authorization else {})

    refused(await call(None), 401, "missing_credentials")
    refused(await call("Basic abc"), 401, "invalid_credentials")
    by_key = await call(f"Bearer {api.key}")
    if path in ONLY_FOR_SESSIONS:
        refused(by_key, 401, "wrong_credential_type")
    else:
        # A key may be used there, and this one does not have the scope.
        refused(by_key, 403, "insufficient_scope")
        assert "WWW-Authenticate" not in by_key.headers
    response = await call("Bearer hst_" + "B" * 43)
    refused(response, 401, "invalid_session")
    assert response.headers["WWW-Authenticate"] == "Bearer"
    await api.add_session(api.account_id, "ses_old", "hst_" + "C" * 43, expires_at=api.now)
    refused(await call("Bearer hst_" + "C" * 43), 401, "session_expired")
    await api.add_session(api.account_id, "ses_out", "hst_" + "D" * 43, revoked_at=api.now)
    refused(await call("Bearer hst_" + "D" * 43), 401, "invalid_session")


async def test_a_session_is_checked_before_a_body_that_the_route_does_not_have(api: Api) -> None:
    for token, status, code in (("hst_" + "B" * 43, 401, "invalid_session"), (api.session, 400, "invalid_json")):
        response = await api.call(
            "POST", "/v2/control/webhook-secret/rotate", content=b"{",
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )  # fmt: skip
        refused(response, status, code)


async def test_signing_out_is_a_command_of_the_account(api: Api) -> None:
    api.accounts.answer = SessionRevokedRow(api.account_id, api.session_id, api.now)
    answer = (await api.as_session("DELETE", "/v2/control/session")).json()
    assert answer == {"session_id": api.session_id, "signed_out": True}
    assert api.accounts.asked == [(api.account_id, SignOut(api.session_id))]


async def test_readiness_names_what_is_missing(api: Api) -> None:
    await api.write(tables.api_keys.update().values(revoked_at=api.now))
    await api.write(tables.accounts.update().values(balance_micro=0, held_micro=0))
    answer = (await api.as_session("GET", "/v2/control/first-call")).json()
    assert not answer["ready"]
    assert answer["suggested_next_actions"] == ["create_api_key", "add_credit"]
    await api.add_key(api.account_id, "key_2", scopes=("tasks:read",))
    answer = (await api.as_session("GET", "/v2/control/first-call")).json()
    assert answer["checks"] == {"has_api_key": True, "has_writable_key": False, "has_positive_balance": False}


async def test_held_credit_does_not_count_for_readiness(api: Api) -> None:
    await api.write(tables.accounts.update().values(balance_micro=240_000, held_micro=240_000))
    answer = (await api.as_session("GET", "/v2/control/first-call")).json()
    assert (answer["ready"], answer["checks"]["has_positive_balance"]) == (False, False)
    assert answer["suggested_next_actions"] == ["add_credit"]


async def test_readiness_names_an_available_way_to_add_credit(api: Api) -> None:
    async def way() -> object:
        answer = (await api.as_session("GET", "/v2/control/first-call")).json()
        return answer["routes"].get("add_credit")

    assert await way() == f"{api.public_url}{RECHARGE}"
    api.configure(sandbox_enabled=False)
    assert await way() is None
    api.configure_card()
    assert await way() == f"{api.public_url}/v2/control/payments/cardprovider"


async def test_a_request_takes_one_read_beside_that_of_its_credential(api: Api) -> None:
    """An account is looked up together with the credential, once it is known whose that is."""
    for path, reads in (("session", 1), ("first-call", 2), ("account", 1), ("api-keys", 2)):
        api.rows.reads = 0
        assert (await api.as_session("GET", f"/v2/control/{path}")).status_code == 200
        assert api.rows.reads == reads


async def test_the_account_of_a_new_credential_is_looked_up_after_it(api: Api) -> None:
    for _ in range(2):
        body = (await api.as_session("GET", "/v2/control/account")).json()
        assert body["account_id"] == api.account_id
    assert api.rows.reads == 3


async def test_a_keys_secret_is_returned_once_and_only_its_hash_sent(api: Api) -> None:
    async def create(key: str, command: object) -> ApiKeyRecord:
        assert isinstance(command, CreateApiKey)
        return ApiKeyRecord(api.account_id, command.key_id, command.prefix, command.terms, api.now)

    api.accounts.answer = create
    body = {"name": "ci", "scopes": ["tasks:read", "tasks:read"]}
    answer = (await api.as_session("POST", "/v2/control/api-keys", json=body)).json()
    command = api.accounts.asked[0][1]
    assert isinstance(command, CreateApiKey)
    assert (answer["name"], answer["scopes"]) == ("ci", ["tasks:read"])
    assert answer["api_key"].startswith("hk_test_")
    assert command.secret_sha256 == digest(answer["api_key"])
    assert answer["api_key"] not in repr(command)
    listed = (await api.as_session("GET", "/v2/control/api-keys")).text
    assert "hk_test_" in listed
    assert api.key not in listed


async def test_a_key_of_the_usual_terms_needs_no_body(api: Api) -> None:
    async def create(key: str, command: object) -> ApiKeyRecord:
        assert isinstance(command, CreateApiKey)
        return ApiKeyRecord(api.account_id, command.key_id, command.prefix, command.terms, api.now)

    api.accounts.answer = create
    answer = (await api.as_session("POST", "/v2/control/api-keys")).json()
    assert (answer["name"], answer["scopes"]) == ("API key", ["tasks:read", "tasks:write"])
    # What has no body replaces or changes nothing elsewhere.
    for method, path in (("PUT", "/v2/control/alerts"), ("PATCH", f"/v2/control/api-keys/{api.key_id}")):
        refused(await api.as_session(method, path), 415, "unsupported_media_type")
    assert len(api.accounts.asked) == 1


@pytest.mark.parametrize("scopes", [[], ["all"], ["tasks:read", ""], "tasks:read", [1]])
async def test_unknown_scopes_are_refused(api: Api, scopes: object) -> None:
    response = await api.as_session("POST", "/v2/control/api-keys", json={"scopes": scopes})
    refused(response, 400, "invalid_parameter")


async def test_only_the_accounts_own_keys_can_be_revoked(api: Api) -> None:
    await api.add_key(api.other_account_id, "key_other")
    path = "/v2/control/api-keys/"
    refused(await api.as_session("DELETE", path + "key_other"), 404, "api_key_not_found")
    refused(await api.as_session("DELETE", path + "'"), 404, "api_key_not_found")
    api.accounts.answer = ApiKeyRevokedRow(api.account_id, api.key_id, api.now)
    assert (await api.as_session("DELETE", path + api.key_id)).status_code == 200
    assert api.accounts.asked == [(api.account_id, RevokeApiKey(api.key_id))]


async def test_revoking_a_revoked_key_returns_the_time_of_revocation(api: Api) -> None:
    await api.write(tables.api_keys.update().values(revoked_at=api.now))
    answer = (await api.as_session("DELETE", f"/v2/control/api-keys/{api.key_id}")).json()
    assert answer == {"api_key_id": api.key_id, "revoked_at": "2026-11-20T12:00:00.000Z", "made_keys": []}
    assert api.accounts.asked == []


def recharged(api: Api) -> CreditChanged:
    return CreditChanged("op_1", 2_500_000, AccountTotals(api.account_id, 12_500_000, 240_000))


async def test_sandbox_credit_is_a_command_of_the_account(api: Api) -> None:
    api.accounts.answer = recharged(api)
    response = await api.as_session(
        "POST", RECHARGE, json={"amount": "2.5"}, headers={"Idempotency-Key": '"one two"'}
    )
    assert response.json() == {
        "operation_id": "op_1",
        "amount": "2.50",
        "currency": "USD",
        "account": {
            "account_id": api.account_id,
            "balance": "12.50",
            "held_total": "0.24",
            "available_balance": "12.26",
            "tier": {},
        },
    }
    command = api.accounts.asked[0][1]
    assert isinstance(command, Recharge)
    assert command.idempotency is not None
    assert (command.amount_micro, command.idempotency.key) == (2_500_000, "one two")
    assert command.idempotency.route == f"POST {RECHARGE}"
    assert command.idempotency.fingerprint == fingerprint(RECHARGE, {"amount": "2.5"})


@pytest.mark.parametrize("amount", [10, 1.5, True, None, [], "0", "0.0000001", "10000000000.00"])
async def test_invalid_amounts_are_refused(api: Api, amount: object) -> None:
    response = await api.as_session("POST", RECHARGE, json={"amount": amount})
    error = refused(response, 400, "invalid_amount")
    assert (error["param"], api.accounts.asked) == ("amount", [])


@pytest.mark.parametrize("key", ["", '""', "x" * 256, "sch\u00f6n", "a\tb"])
async def test_invalid_idempotency_keys_are_refused(api: Api, key: str) -> None:
    response = await api.as_session("POST", RECHARGE, json={"amount": "1"}, headers={"Idempotency-Key": key})
    refused(response, 400, "invalid_idempotency_key")


async def test_a_replay_is_marked(api: Api) -> None:
    api.accounts.answer = Replayed(recharged(api))
    response = await api.as_session("POST", RECHARGE, json={"amount": "2.5"}, headers={"Idempotency-Key": "k"})
    assert (response.status_code, response.headers["Idempotent-Replayed"]) == (200, "true")
    api.accounts.answer = Replayed(Refusal(code="amount_too_large", message="Too much."))
    response = await api.as_session("POST", RECHARGE, json={"amount": "2.5"}, headers={"Idempotency-Key": "k"})
    refused(response, 400, "amount_too_large")
    assert response.headers["Idempotent-Replayed"] == "true"


async def test_a_replay_is_returned_even_if_the_request_would_be_refused(api: Api) -> None:
    api.configure(sandbox_enabled=False)
    stored = msgspec.json.encode(recharged(api))
    values = {
        "account_id": api.account_id, "route": f"POST {RECHARGE}", "key": "k", "reply": stored,
        "fingerprint": fingerprint(RECHARGE, {"amount": "2.5"}), "created_at": api.now,
    }  # fmt: skip
    await api.write(tables.idempotency_records.insert().values(**values))

    async def call(amount: str, key: str) -> Any:
        return await api.as_session("POST", RECHARGE, json={"amount": amount}, headers={"Idempotency-Key": key})

    assert (await call("2.5", "k")).headers["Idempotent-Replayed"] == "true"
    refused(await call("2.6", "k"), 422, "idempotency_key_reused")
    refused(await call("2.5", "other"), 403, "sandbox_disabled")
    old = api.now - timedelta(seconds=api.deps.settings.idempotency_ttl_s)
    await api.write(tables.idempotency_records.update().values(created_at=old))
    refused(await call("2.5", "k"), 403, "sandbox_disabled")
    assert api.accounts.asked == []
