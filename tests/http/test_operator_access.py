"""Who may call operators' endpoints: credentials, roles, origins, sessions in a browser, the record of actions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import httpx2
import pytest
import trio
from sqlalchemy import Connection, select
from tests.clients import ok, refused
from trio.testing import MockClock

from holdfast.actors.account.messages import SignOut
from holdfast.actors.runtime.faults import Unavailable
from holdfast.actors.sign_in.messages import CodeIssued, CountWrongToken, OriginAdmitted, SignedIn
from holdfast.actors.task.messages import TaskReply
from holdfast.http.app import ROUTES
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.fair_shares import TokenTries
from holdfast.http.kit.operators import UNCONFIRMED
from holdfast.http.kit.routes import is_for_operators
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import (
    INVALID_OTP,
    WRONG_TOKENS_MAX,
    WRONG_TOKENS_WINDOW,
    admit_token,
    new_otp_id,
)
from holdfast.persistence.operators.records import write_action
from holdfast.persistence.records import tables
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry.reports.report import in_words
from holdfast.telemetry.scrubbing import scrub

from .fake_rows import AwayRows
from .test_operator_calls import frozen

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

READ = ("GET", "/ops/api/reviews/none")
ACT = ("POST", "/ops/api/reviews/none/approve")
OPERATED = [route for route in ROUTES if route.path.startswith("/ops/api/")]
OPERATOR = "acct_" + "1" * 32 + "@example.com"
HOST = {"Host": "localhost", "Sec-Fetch-Site": "same-origin"}


def bearer(stage: Stage) -> dict[str, str]:
    return {"Authorization": f"Bearer {stage.deps.settings.operator_token}"}


async def sign_in(stage: Stage) -> tuple[dict[str, str], str]:
    """Begin a session with the token; the cookie as a header, and the CSRF token."""
    token = {"token": stage.deps.settings.operator_token}
    response = await stage.call("POST", "/ops/api/session", json=token, headers=HOST)
    body = response.json()
    assert response.status_code == 200, body
    cookie = response.headers["Set-Cookie"].partition(";")[0]
    return {"Cookie": cookie}, body["csrf_token"]


def test_every_route_of_operators_has_a_role_and_every_change_is_recorded() -> None:
    open_to_all = {"sign_in_with_token", "request_operator_code", "sign_in_with_code"}
    for route in OPERATED:
        assert is_for_operators(route.path)
        if route.handler.__name__ in open_to_all:
            continue
        if route.method == "GET" or route.handler.__name__ == "sign_operator_out":
            assert (route.auth, route.action) == (Auth.OPERATOR_READ, None), route.name
        else:
            assert route.auth is Auth.OPERATOR_ACT, route.name
            assert route.action, route.name


@pytest.mark.parametrize(
    "route", [each for each in OPERATED if each.auth is not Auth.NONE], ids=lambda each: each.name
)
async def test_operator_routes_require_an_operator(stage: Stage, route: Any) -> None:
    right = stage.deps.settings.operator_token
    refusals = {
        None: "missing_credentials",
        f"Basic {right}": "invalid_credentials",
        "Bearer ": "invalid_credentials",
        f"Bearer {right[:-1]}": "invalid_credentials",
        f"Bearer {right}x": "invalid_credentials",
        f"Bearer {right} {right}": "invalid_credentials",
        "Bearer \u00fc": "invalid_credentials",
        f"Bearer {stage.key}": "wrong_credential_type",
    }
    for sent, code in refusals.items():
        headers = {} if sent is None else {"Authorization": sent}
        response = await stage.call(route.method, route.path, headers=headers)
        assert response.headers["WWW-Authenticate"] == "Bearer"
        refused(response, 401, code)


async def test_a_session_has_the_role_that_the_settings_give_it(api: Api) -> None:
    for settings, read, act in (
        ({}, 403, 403),
        ({"operators": (OPERATOR,)}, 404, 404),
        ({"operators": (), "operator_readers": (OPERATOR,)}, 404, 403),
        ({"operator_readers": ()}, 403, 403),
    ):
        api.configure(**settings)
        for (method, path), status in ((READ, read), (ACT, act)):
            code = "review_not_found" if status == 404 else "insufficient_role"
            refused(await api.as_session(method, path), status, code)
    api.configure(operators=(OPERATOR,))
    await api.add_session(api.account_id, "ses_old", "hst_" + "B" * 43, expires_at=api.now)
    response = await api.call(*READ, credential="hst_" + "B" * 43)
    refused(response, 401, "session_expired")
    response = await api.call(*READ, credential="hst_" + "C" * 43)
    refused(response, 401, "invalid_session")


async def test_a_session_in_a_browser_reads_and_acts_with_its_csrf_token(api: Api) -> None:
    cookie, csrf = await sign_in(api)
    who = (await api.call("GET", "/ops/api/session", headers=cookie)).json()
    expected = {"operator": "operator-token", "role": "act", "credential": "cookie", "csrf_token": csrf}
    assert who == expected
    refused(await api.call(*READ, headers=cookie), 404, "review_not_found")
    from_page = {**cookie, **HOST, "X-CSRF-Token": csrf}
    refused(await api.call(*ACT, headers=from_page), 404, "review_not_found")
    other = (await sign_in(api))[1]
    for headers, code in (
        ({**cookie, **HOST}, "invalid_csrf_token"),
        ({**from_page, "X-CSRF-Token": other}, "invalid_csrf_token"),
        ({**from_page, "X-CSRF-Token": "\u00fc"}, "invalid_csrf_token"),
        ({**cookie, "X-CSRF-Token": csrf}, "cross_origin_request"),
    ):
        refused(await api.call(*ACT, headers=headers), 403, code)


@pytest.mark.parametrize(
    ("headers", "is_let_in"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, False),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://[bad"}, False),
        ({"Origin": "https://localhost.evil.example", "Sec-Fetch-Site": "same-origin"}, False),
        ({"Origin": "http://localhost"}, True),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, True),
    ],
)
async def test_requests_of_other_origins_are_refused(api: Api, headers: dict[str, str], is_let_in: bool) -> None:
    cookie, csrf = await sign_in(api)
    for credential in (cookie, bearer(api)):
        for method, path in (READ, ACT):
            sent = {"Host": "localhost", **credential, "X-CSRF-Token": csrf, **headers}
            response = await api.call(method, path, headers=sent)
            code = "review_not_found" if is_let_in else "cross_origin_request"
            refused(response, 404 if is_let_in else 403, code)
    if not is_let_in:
        token = {"token": api.deps.settings.operator_token}
        response = await api.call("POST", "/ops/api/session", json=token, headers={"Host": "localhost", **headers})
        refused(response, 403, "cross_origin_request")


async def test_head_is_a_read(api: Api) -> None:
    cookie, _ = await sign_in(api)
    assert (await api.call("HEAD", READ[1], headers=cookie)).status_code == 404
    assert (await api.call("HEAD", READ[1], headers={**cookie, "Sec-Fetch-Site": "cross-site"})).status_code == 403
    assert (await api.call("HEAD", READ[1])).status_code == 401


async def test_a_link_from_another_site_may_be_followed(api: Api) -> None:
    cookie, _ = await sign_in(api)
    follow = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    refused(await api.call(*READ, headers={**cookie, **follow}), 404, "review_not_found")
    refused(await api.call(*ACT, headers={**cookie, **follow}), 403, "cross_origin_request")


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(api: Api) -> None:
    token = {"token": api.deps.settings.operator_token}
    plain = (await api.call("POST", "/ops/api/session", json=token)).headers["Set-Cookie"]
    assert plain.startswith("holdfast_operator=")
    assert plain.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict")
    api.configure(public_url="https://holdfast.example")
    over_tls = (await api.call("POST", "/ops/api/session", json=token)).headers["Set-Cookie"]
    assert over_tls.startswith("__Host-holdfast_operator=")
    assert over_tls.endswith("; HttpOnly; SameSite=Strict; Secure")
    from_public = {
        "Cookie": over_tls.partition(";")[0],
        "Host": "inside:9000",
        "Origin": "https://holdfast.example",
    }
    refused(await api.call(*READ, headers=from_public), 404, "review_not_found")


async def test_a_session_in_a_browser_ends(api: Api) -> None:
    now = api.now
    cookie, csrf = await sign_in(api)
    left = await api.call("DELETE", "/ops/api/session", headers={**cookie, **HOST, "X-CSRF-Token": csrf})
    assert "Max-Age=0" in left.headers["Set-Cookie"]
    refused(await api.call(*READ, headers=cookie), 401, "invalid_session")
    cookie, _ = await sign_in(api)
    api.change(now=lambda: now + timedelta(hours=12))
    refused(await api.call(*READ, headers=cookie), 401, "session_expired")
    api.change(now=lambda: now)
    api.configure(operator_token="another-token-of-the-operators")
    refused(await api.call(*READ, headers=cookie), 401, "invalid_session")
    for invented in ("holdfast_operator=", "holdfast_operator=" + "A" * 43, "holdfast_operator=" + "A" * 500):
        response = await api.call(*READ, headers={"Cookie": invented})
        assert response.status_code == 401


async def test_an_outage_of_the_database_keeps_a_session_for_a_while(api: Api) -> None:
    now = api.now
    cookie, _ = await sign_in(api)
    other, _ = await sign_in(api)
    who = "/ops/api/session"
    assert (await api.call("GET", who, headers=cookie)).status_code == 200

    class Away:
        async def read(self, *_: object) -> Any:
            raise DatabaseAway("gone", retry_after_s=1.0)

    api.change(database=Away())
    assert (await api.call("GET", who, headers=cookie)).status_code == 200
    assert (await api.call("GET", who, headers=other)).status_code == 503
    api.change(now=lambda: now + timedelta(minutes=16))
    assert (await api.call("GET", who, headers=cookie)).status_code == 503


async def test_a_cookie_is_stored_as_a_mac_alone(api: Api) -> None:
    cookie, csrf = await sign_in(api)

    def read(rows: Connection) -> list[str]:
        return [str(row) for row in rows.execute(select(tables.operator_sessions))]

    [stored] = await api.database.read(read)
    secret = cookie["Cookie"].partition("=")[2]
    for each in (secret, csrf, api.deps.settings.operator_token):
        assert each not in stored
        assert each not in str(api.reports)


async def test_a_locked_origin_locks_no_operator_out(stage: Stage) -> None:
    right = stage.deps.settings.operator_token

    async def try_in(token: str) -> httpx2.Response:
        return await stage.call("POST", "/ops/api/session", json={"token": token})

    async def guess() -> httpx2.Response:
        return await stage.call(*READ, credential="wrong")

    refused(await guess(), 401, "invalid_credentials")
    refused(await try_in("wrong"), 401, "invalid_credentials")
    assert (await try_in(right)).status_code == 200
    assert stage.sign_ins.asked == [("origin:unknown", CountWrongToken())] * 2
    stage.sign_ins.answer = admit_token((stage.now,) * WRONG_TOKENS_MAX, stage.now)
    for locked in (await try_in("wrong"), await guess()):
        refused(locked, 429, "sign_in_locked")
        assert int(locked.headers["Retry-After"]) == WRONG_TOKENS_WINDOW.total_seconds()
    assert (await try_in(right)).status_code == 200
    who = await stage.call("GET", "/ops/api/session", headers=bearer(stage))
    assert who.status_code == 200


async def test_guesses_at_either_sign_in_are_paced_together(stage: Stage) -> None:
    tried: list[str] = []

    class Counted(TokenTries):
        async def try_once(self, caller: str, is_right: Callable[[], bool]) -> bool:
            tried.append(caller)
            return await super().try_once(caller, is_right)

    stage.change(token_tries=Counted())
    await stage.call(*READ, credential="wrong")
    await stage.call("POST", "/ops/api/session", json={"token": "wrong"})
    assert tried == ["unknown"] * 2


async def test_the_token_admits_who_must_resume_paused_sign_ins(stage: Stage) -> None:
    stage.sign_ins.answer = Unavailable("paused")
    for token, status in ((stage.deps.settings.operator_token, 200), ("wrong", 503)):
        response = await stage.call("POST", "/ops/api/session", json={"token": token})
        assert response.status_code == status


async def test_an_operator_signs_in_with_a_code(api: Api) -> None:
    api.configure(operator_readers=("grace@example.com",))
    pepper = api.deps.settings.otp_pepper
    otp_id = new_otp_id(pepper, "grace@example.com")
    signed_in = SignedIn("acct_9", "grace@example.com", "User", "ses_9", "hst_" + "Z" * 43, api.now)
    replies = iter((OriginAdmitted(), CodeIssued(otp_id, "123456", 600), signed_in))

    async def reply(_key: str, _command: object) -> Any:
        return next(replies)

    api.sign_ins.answer = reply
    sent = await api.call("POST", "/ops/api/session/code", json={"email": "Grace@Example.com"})
    assert (sent.json())["otp_id"] == otp_id
    tells: list[tuple[str, object]] = []
    api.accounts.tell = lambda key, command: tells.append((key, command))  # type: ignore[method-assign]
    proof = {"email": "grace@example.com", "otp_id": otp_id, "otp": "123456"}
    response = await api.call("POST", "/ops/api/session/verify", json=proof)
    body = response.json()
    assert (body["operator"], body["role"]) == ("grace@example.com", "read")
    assert tells == [("acct_9", SignOut("ses_9"))]
    cookie = {"Cookie": response.headers["Set-Cookie"].partition(";")[0]}
    refused(await api.call(*READ, headers=cookie), 404, "review_not_found")
    acting = {**cookie, **HOST, "X-CSRF-Token": body["csrf_token"]}
    refused(await api.call(*ACT, headers=acting), 403, "insufficient_role")
    api.configure(operator_readers=())
    refused(await api.call(*READ, headers=cookie), 403, "insufficient_role")


async def test_strangers_learn_nothing_from_the_operators_sign_in(stage: Stage) -> None:
    """Operators and others get the same: from the same actor, with the same refusals, and a mail."""
    emails = ("eve@example.com", "grace@example.com")
    stage.configure(operator_readers=emails[1:])

    async def ask(email: str, reply: object) -> tuple[int, str]:
        stage.sign_ins.answer = reply
        sent = await stage.call("POST", "/ops/api/session/code", json={"email": email})
        assert stage.sign_ins.asked.pop()[0] in {f"email:{email}", "origin:unknown"}
        return sent.status_code, (sent.text).replace(email, "").split("request_id")[0]

    async def verify(email: str) -> tuple[int, str]:
        proof = {"email": email, "otp_id": new_otp_id(stage.deps.settings.otp_pepper, email), "otp": "123456"}
        tried = await stage.call("POST", "/ops/api/session/verify", json=proof)
        return tried.status_code, (tried.json())["error"]["code"]

    limited = Refusal(code="otp_rate_limited", message="Too many codes.", retry_after_s=30)
    for reply, status in ((CodeIssued("otp_1", "123456", 600), 200), (limited, 429)):
        eve, grace = [await ask(email, reply) for email in emails]
        assert eve == grace
        assert eve[0] == status
    assert [email for email, _, _ in stage.mailer.sent] == [*emails]
    for refusal in (INVALID_OTP, Refusal(code="otp_attempts_exceeded", message="Too many.", final=True)):
        stage.sign_ins.answer = refusal
        eve_tried, grace_tried = [await verify(email) for email in emails]
        assert eve_tried == grace_tried
        assert eve_tried[1] == refusal.code


async def test_who_redeems_a_code_without_being_an_operator_gets_no_session(stage: Stage) -> None:
    stage.sign_ins.answer = SignedIn("acct_9", "eve@example.com", "User", "ses_9", "hst_" + "Z" * 43, stage.now)
    tells: list[tuple[str, object]] = []
    stage.accounts.tell = lambda key, command: tells.append((key, command))  # type: ignore[method-assign]
    otp_id = new_otp_id(stage.deps.settings.otp_pepper, "eve@example.com")
    proof = {"email": "eve@example.com", "otp_id": otp_id, "otp": "123456"}
    response = await stage.call("POST", "/ops/api/session/verify", json=proof)
    refused(response, 403, "insufficient_role")
    assert "Set-Cookie" not in response.headers
    assert tells == [("acct_9", SignOut("ses_9"))]


# --------------------------------------------------------------------------------------------------------- actions


async def listed(api: Api, query: str = "") -> list[dict[str, Any]]:
    response = await api.call("GET", f"/ops/api/actions{query}", headers=bearer(api))
    body = response.json()
    assert response.status_code == 200, body
    return cast("list[dict[str, Any]]", body["data"])


async def test_an_action_is_recorded_with_who_when_what_and_why(api: Api) -> None:
    task = frozen(api, 1)
    await api.add_task(task)

    async def decide(_key: str, _command: object) -> TaskReply:
        [begun] = await listed(api)
        assert (begun["result"], begun["ended_at"]) == (None, None)
        return TaskReply(task)

    api.tasks.answer = decide
    path = "/ops/api/reviews/rev_1/approve"
    reason = {"reason": " ticket 7; token=abcdef "}
    approved = await api.call("POST", path, json=reason, headers=bearer(api))
    assert approved.status_code == 200
    [action] = await listed(api)
    assert action.pop("action_id").startswith("act_")
    assert action == {
        "parameters": None,
        "effect": None,
        "at": "2026-11-20T12:00:00.000Z",
        "operator": "operator-token",
        "credential": "token",
        "origin": "unknown",
        "action": "approve_review",
        "target": "rev_1",
        "account_id": api.account_id,
        "task_id": "task_1",
        "reason": "ticket 7; token=***",
        "trace_id": approved.headers["X-Request-Id"].removeprefix("req_"),
        "ended_at": "2026-11-20T12:00:00.000Z",
        "result": "done",
        "code": None,
    }
    [report] = api.reports
    assert (report.kind, report.operator, report.key) == ("action", "operator-token", "rev_1")
    assert report.reason == "approve review: done; reason: ticket 7; token=***"
    logged = scrub(in_words(report))
    assert logged == "by operator-token, approve review: done; reason: ticket 7; token=***"


async def test_what_a_reader_tries_is_refused_and_recorded(api: Api) -> None:
    api.configure(operator_readers=(OPERATOR,))
    response = await api.as_session("POST", "/ops/api/reviews/rev_1/approve", json={"reason": "mine"})
    refused(response, 403, "insufficient_role")
    [action] = await listed(api)
    assert (action["operator"], action["action"], action["target"]) == (OPERATOR, "approve_review", "rev_1")
    assert (action["result"], action["code"]) == ("refused", "insufficient_role")
    [report] = api.reports
    assert in_words(report) == f"by {OPERATOR}, approve review: refused (insufficient_role)"


async def test_refused_and_failed_actions_are_recorded_too(api: Api) -> None:
    await api.call("POST", "/ops/api/reviews/rev_9/reject", headers=bearer(api))
    await api.add_task(frozen(api, 1))
    api.tasks.answer = DatabaseAway("gone", retry_after_s=1.0)
    await api.call("POST", "/ops/api/reviews/rev_1/reject", headers=bearer(api))
    api.tasks.answer = RuntimeError("a bug")
    await api.call("POST", "/ops/api/reviews/rev_1/reject", headers=bearer(api))
    found = [(each["target"], each["result"], each["code"]) for each in await listed(api)]
    assert found == [
        ("rev_1", "failed", "internal_error"),
        ("rev_1", "failed", "temporarily_unavailable"),
        ("rev_9", "refused", "review_not_found"),
    ]
    assert [each["target"] for each in await listed(api, "?result=refused")] == ["rev_9"]
    assert await listed(api, "?operator=grace@example.com") == []
    assert len(await listed(api, "?action=reject_review&task_id=task_1")) == 2


async def test_a_secret_in_the_place_of_an_id_is_not_recorded(api: Api) -> None:
    for pasted in (api.deps.settings.operator_token, "hk_live_4eC39HqLyjWDarjtT1zdp7dc"):
        await api.call("POST", f"/ops/api/reviews/{pasted}/reject", headers=bearer(api))
    targets = [each["target"] for each in await listed(api)]
    assert targets == ["hk_live_***", "***"]


async def test_an_action_that_cannot_be_recorded_is_not_done(api: Api) -> None:
    await api.add_task(frozen(api, 1))

    async def away(_change: object) -> None:
        raise DatabaseAway("gone", retry_after_s=1.0)

    api.change(write_record=away)
    response = await api.call("POST", "/ops/api/reviews/rev_1/reject", headers=bearer(api))
    refused(response, 503, "temporarily_unavailable")
    assert api.tasks.asked == []


@pytest.mark.parametrize("trouble", ["slow", "away for a moment"])
async def test_the_result_of_an_action_is_written_however_slow_the_database_is(
    stage: Stage, trouble: str, autojump_clock: MockClock
) -> None:
    written: list[str | None] = []
    tries = 0

    async def write(change: partial[Any]) -> bool:
        nonlocal tries
        if change.func is write_action:
            tries += 1
            if trouble == "slow":
                await trio.sleep(12)
            elif 2 <= tries <= 4:
                raise DatabaseAway("it restarts", retry_after_s=5.0)
            written.append(change.keywords["action"].result)
        return True

    stage.change(write_record=write)
    coupon = {"amount": "1.00", "uses_max": 1, "reason": "spring"}
    made = await stage.call("POST", "/ops/api/coupons", json=coupon, headers=bearer(stage))
    assert made.status_code == 200
    assert written == [None, "done"]


async def test_a_sign_in_while_the_database_is_away_lasts_until_it_is_back(api: Api) -> None:
    async def away(_change: object) -> None:
        raise DatabaseAway("gone", retry_after_s=1.0)

    database = api.deps.database
    api.change(database=AwayRows(), write_record=away)
    cookie, csrf_token = await sign_in(api)
    path = "/ops/api/session"
    session = (await api.call("GET", path, headers=cookie)).json()
    assert (session["operator"], session["role"], session["csrf_token"]) == ("operator-token", "act", csrf_token)
    name, _, value = cookie["Cookie"].partition("=")
    begun, rest = value.split(".", 1)
    later = {**cookie, "Cookie": f"{name}={int(begun) + 60}.{rest}"}
    refused(await api.call("GET", path, headers=later), 503, "temporarily_unavailable")
    now = api.deps.now()
    api.change(now=lambda: now + UNCONFIRMED)
    refused(await api.call("GET", path, headers=cookie), 401, "session_expired")
    api.change(database=database, now=lambda: now)
    refused(await api.call("GET", path, headers=cookie), 401, "invalid_session")
    api.change(database=AwayRows())
    refused(await api.call("GET", path, headers=cookie), 401, "invalid_session")


async def test_who_signs_out_while_the_database_is_away_stays_signed_out(api: Api) -> None:
    async def away(_change: object) -> None:
        raise DatabaseAway("gone", retry_after_s=1.0)

    path = "/ops/api/session"
    api.change(database=AwayRows(), write_record=away)
    cookie, csrf_token = await sign_in(api)
    left = await api.call("DELETE", path, headers={**cookie, **HOST, "X-CSRF-Token": csrf_token})
    assert (left.status_code, left.json()) == (200, {"signed_out": True})
    assert "Max-Age=0" in left.headers["Set-Cookie"]
    refused(await api.call("GET", path, headers=cookie), 401, "invalid_session")


async def test_a_sign_out_in_an_outage_is_refused_and_so_is_the_session(api: Api) -> None:
    async def away(_change: object) -> None:
        raise DatabaseAway("gone", retry_after_s=1.0)

    path = "/ops/api/session"
    cookie, csrf_token = await sign_in(api)
    ok(await api.call("GET", path, headers=cookie))
    api.change(database=AwayRows(), write_record=away)
    ok(await api.call("GET", path, headers=cookie))
    left = await api.call("DELETE", path, headers={**cookie, **HOST, "X-CSRF-Token": csrf_token})
    refused(left, 503, "temporarily_unavailable")
    refused(await api.call("GET", path, headers=cookie), 401, "invalid_session")


async def test_a_sign_out_needs_no_control_actor(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(*_args: object, **_kwargs: object) -> None:
        raise Unavailable("it starts again")

    path = "/ops/api/session"
    cookie, csrf_token = await sign_in(api)
    ok(await api.call("GET", path, headers=cookie))
    monkeypatch.setattr(api.deps.operating.controls, "ask", unavailable)
    ok(await api.call("DELETE", path, headers={**cookie, **HOST, "X-CSRF-Token": csrf_token}))
    api.change(database=AwayRows())
    refused(await api.call("GET", path, headers=cookie), 401, "invalid_session")


async def test_a_read_that_began_before_a_sign_out_revives_no_session(api: Api, nursery: trio.Nursery) -> None:
    database, path = api.deps.database, "/ops/api/session"
    has_read, may_answer = trio.Event(), trio.Event()

    class LateRows(AwayRows):
        async def read(self, query: Callable[[Connection], Any], /) -> Any:
            found = await database.read(query)
            has_read.set()
            await may_answer.wait()
            return found

    async def read_late() -> None:
        ok(await api.call("GET", path, headers=cookie))
        has_answered.set()

    has_answered = trio.Event()
    cookie, csrf_token = await sign_in(api)
    api.change(database=LateRows())
    nursery.start_soon(read_late)
    await has_read.wait()
    api.change(database=database)
    ok(await api.call("DELETE", path, headers={**cookie, **HOST, "X-CSRF-Token": csrf_token}))
    may_answer.set()
    await has_answered.wait()
    api.change(database=AwayRows())
    refused(await api.call("GET", path, headers=cookie), 401, "invalid_session")


async def test_an_urgent_action_does_not_wait_for_a_database_that_is_away(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async def away(_change: object) -> None:
        raise DatabaseAway("gone", retry_after_s=5.0)

    stage.change(write_record=away)
    began = trio.current_time()
    pause = "/ops/api/processes/proc_1/groups/accounts/pause"
    await stage.call("POST", pause, json={"reason": "they crash"}, headers=bearer(stage))
    assert trio.current_time() == began
    assert [report.reason for report in stage.reports if report.kind == "action"]


async def test_a_caller_who_is_no_operator_leaves_no_action(api: Api) -> None:
    await api.as_session(*ACT)
    await api.call(*ACT)
    assert await listed(api) == []


async def test_a_finished_action_is_recorded_after_its_caller_has_gone(api: Api) -> None:
    task = frozen(api, 1)
    await api.add_task(task)
    api.tasks.answer = TaskReply(task)
    caller = trio.CancelScope()
    # Between the handler's return and the record.
    api.change(report=lambda _report: caller.cancel())
    with caller:
        await api.call("POST", "/ops/api/reviews/rev_1/approve", json={"reason": "mine"}, headers=bearer(api))
    [action] = await listed(api)
    assert (action["action"], action["result"]) == ("approve_review", "done")
