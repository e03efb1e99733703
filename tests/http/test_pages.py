"""The operators' pages: who sees them, what they may contain, and what their forms do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx2
import msgspec
import pytest
import trio
from tests.clients import refused
from tests.cluster.samples import samples as make_samples
from tests.strict_html import StrictHtml

from holdfast.actors.task.messages import DecideReview, TaskReply
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.dependencies import Readiness
from holdfast.http.pages import views
from holdfast.http.pages.forms import MESSAGE_COOKIE, Message, local_path, message_cookie, read_message
from holdfast.http.pages.frame import COUNTS_VALID, Frame
from holdfast.http.pages.rendering import static_files, static_path
from holdfast.http.pages.subjects import all_views
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Progress
from holdfast.persistence.records import tables
from holdfast.providers.media.provider_check import CheckStep
from holdfast.supervision.control.messages import (
    DescribeKey,
    DescribeProcess,
    GroupDescription,
    KeyList,
    ListKeys,
    SampleList,
)
from holdfast.telemetry.metrics.samples import Sample
from holdfast.telemetry.reports.conditions import LastingCondition
from holdfast.telemetry.reports.report import Report

from .fake_rows import AwayRows
from .test_control_calls import CHILD, PROCESS, controls_of, detail, summary
from .test_event_calls import TASK, plant
from .test_operator_calls import frozen
from .test_provider_check_calls import checks_of

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

SAME_ORIGIN = {"Host": "localhost", "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PROTECTED = [view for view in all_views() if view.auth is not Auth.NONE]
PAGES = [view.path for view in PROTECTED if view.method == "GET"]


async def send_form(stage: Stage, path: str, headers: dict[str, str], **fields: str) -> httpx2.Response:
    return await stage.call("POST", path, headers={**FORM, **headers}, content=urlencode(fields))


async def sign_in(stage: Stage) -> dict[str, str]:
    """Sign in as the form does; the headers of a browser afterwards."""
    token = stage.deps.settings.operator_token
    response = await send_form(stage, "/ops/sign-in", SAME_ORIGIN, token=token, return_to="/ops/reviews")
    assert (response.status_code, response.headers["Location"]) == (303, "/ops/reviews")
    return {**SAME_ORIGIN, "Cookie": response.headers["Set-Cookie"].partition(";")[0]}


async def read_page(stage: Stage, path: str, headers: dict[str, str], status: int = 200) -> StrictHtml:
    """Read a page that must be valid, and safe for a browser."""
    response = await stage.call("GET", path, headers=headers)
    text = response.text
    assert response.status_code == status, text
    check_headers(response)
    page = StrictHtml(text)
    assert page.faults == []
    ours = re.compile(r"/ops\b|#|(https://holdfast\.example)?/v2/assets/")
    assert [link for link in page.links if not ours.match(link)] == []
    return page


def check_headers(response: httpx2.Response) -> None:
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def csrf_of(page: str) -> str:
    found = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize("view", PROTECTED, ids=lambda view: view.name)
async def test_no_operator_no_page_and_no_action(stage: Stage, view: Any) -> None:
    stage.change(write_record=None)
    path = re.sub(r"\{\w+\}", "x", view.path)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "holdfast_operator=wrong"}):
        if view.method == "GET" and "Cookie" not in headers:
            response = await stage.call("GET", path, headers=headers)
            assert response.status_code == 303
            assert response.headers["Location"] == "/ops/sign-in?" + urlencode({"return_to": path})
            assert response.content == b""
        elif view.method == "POST" and "Cookie" not in headers:
            response = await send_form(stage, path, headers)
            assert response.status_code == 401
            check_headers(response)


async def test_a_form_needs_the_session_and_its_token(api: Api) -> None:
    await api.add_task(frozen(api, 1))
    path, fields = "/ops/reviews/rev_1/approve", {"reason": "it is fine", "return_to": "/ops/reviews/rev_1"}
    browser = await sign_in(api)
    page = (await api.call("GET", "/ops/reviews/rev_1", headers=browser)).text
    token = csrf_of(page)
    elsewhere = {**browser, "Origin": "https://evil.example"}
    from_a_sibling = {**browser, "Sec-Fetch-Site": "same-site"}
    attempts: list[tuple[dict[str, str], dict[str, str]]] = [
        (browser, {}),
        ({**browser, "X-CSRF-Token": token}, {}),
        (browser, {"csrf_token": token[:-1] + "!"}),
        (elsewhere, {"csrf_token": token}),
        (from_a_sibling, {"csrf_token": token}),
    ]
    for headers, sent in attempts:
        answer = await send_form(api, path, headers, **fields, **sent)
        assert answer.status_code == 403
    assert api.tasks.asked == []


async def test_a_form_does_what_its_endpoint_does_and_says_so(api: Api) -> None:
    await api.add_task(frozen(api, 1))
    api.tasks.answer = TaskReply(frozen(api, 1))
    browser = await sign_in(api)
    page = (await api.call("GET", "/ops/reviews/rev_1", headers=browser)).text
    fields = {
        "csrf_token": csrf_of(page),
        "reason": "it is fine",
        "note": "looked at",
        "return_to": "/ops/reviews/rev_1",
    }
    done = await send_form(api, "/ops/reviews/rev_1/approve", browser, **fields)
    assert (done.status_code, done.headers["Location"]) == (303, "/ops/reviews/rev_1")
    assert [command for _, command in api.tasks.asked] == [DecideReview(approve=True, note="looked at")]
    message = done.headers["Set-Cookie"].partition(";")[0]
    shown = await read_page(api, "/ops/reviews/rev_1", {**browser, "Cookie": f"{browser['Cookie']}; {message}"})
    assert "Done: approve review." in shown.text
    answer = await send_form(api, "/ops/reviews/rev_9/approve", browser, **fields)
    text = read_message(answer.headers["Set-Cookie"].partition(";")[0].partition("=")[2])
    assert text is not None
    assert text.is_failure
    assert "does not exist" in text.text
    without_reason = await send_form(api, "/ops/reviews/rev_1/approve", browser, **{**fields, "reason": " "})
    assert without_reason.status_code == 303


async def test_the_form_of_a_provider_says_which_step_fails(api: Api) -> None:
    checks_of(api).steps = [
        CheckStep("connection", "ok", "connected", 0.01),
        CheckStep("submission", "failed", "the token is refused", 0.2),
    ]
    browser = await sign_in(api)
    page = (await api.call("GET", "/ops/providers", headers=browser)).text
    fields = {"csrf_token": csrf_of(page), "reason": "tasks wait", "return_to": "/ops/providers"}
    done = await send_form(api, "/ops/providers/studio/check", browser, **fields)
    message = read_message(done.headers["Set-Cookie"].partition(";")[0].partition("=")[2])
    assert message is not None
    assert message.is_failure
    first, *steps = message.text.splitlines()
    assert first.startswith("studio does not work, by a job of studio/")
    assert steps == [
        "connection: ok after 10 ms, connected",
        "submission: failed after 200 ms, the token is refused",
    ]


async def test_sign_in_refuses_wrong_tokens_and_other_origins(api: Api) -> None:
    wrong = await send_form(api, "/ops/sign-in", SAME_ORIGIN, token="wrong")
    assert wrong.status_code == 400
    assert "Set-Cookie" not in wrong.headers
    right = api.deps.settings.operator_token
    stolen = await send_form(api, "/ops/sign-in", {**SAME_ORIGIN, "Origin": "https://evil.example"}, token=right)
    assert stolen.status_code == 403
    assert "Set-Cookie" not in stolen.headers
    page = StrictHtml(wrong.text)
    assert page.faults == []
    assert "not the operators' token" in page.text


async def test_sign_out_ends_the_session(api: Api) -> None:
    browser = await sign_in(api)
    page = (await api.call("GET", "/ops/reviews", headers=browser)).text
    out = await send_form(api, "/ops/sign-out", browser, csrf_token=csrf_of(page))
    assert (out.status_code, out.headers["Location"]) == (303, "/ops/sign-in")
    assert "Max-Age=0" in out.headers["Set-Cookie"]
    assert (await api.call("GET", "/ops/reviews", headers=browser)).status_code == 303


async def test_pages_show_hostile_text_as_text(api: Api) -> None:
    task = frozen(api, 1)
    hostile = "</bdi><script>alert(1)</script>\u202egnp.exe" + "x" * 10_000
    await api.add_task(msgspec.structs.replace(task, state=msgspec.structs.replace(task.state, error=hostile)))
    browser = await sign_in(api)
    for path in ("/ops/reviews", "/ops/reviews/rev_1"):
        page = await read_page(api, path, browser)
        assert "<script>alert(1)</script>" in page.text
        assert "\u202e" not in page.text


async def test_the_pages_of_a_list_keep_its_filters(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "ROWS_SHOWN", "1")
    for number in (1, 2, 3):
        await api.add_task(frozen(api, number))
    browser = await sign_in(api)
    first = await read_page(api, "/ops/tasks?provider=studio&status=review", browser)
    assert [link for link in first.links if "cursor" not in link and "?" in link] == []
    next_page = next(link for link in first.links if "cursor" in link)
    assert next_page.startswith("/ops/tasks?provider=studio&status=review&cursor=")
    second = await read_page(api, next_page, browser)
    assert "/ops/tasks?provider=studio&status=review" in second.links
    plain = await read_page(api, "/ops/tasks", browser)
    following = await read_page(api, next(link for link in plain.links if "cursor" in link), browser)
    assert [link for link in following.links if link.startswith("/ops/tasks?")] == [
        link for link in following.links if "cursor" in link
    ]


async def test_pages_contain_no_secret(api: Api) -> None:
    await api.add_task(frozen(api, 1))
    browser = await sign_in(api)
    secrets = [*api.deps.settings.secret_values(), browser["Cookie"].partition("=")[2]]
    for path in PAGES:
        response = await api.call("GET", path.replace("{review_case_id}", "rev_1"), headers=browser)
        text = response.text
        assert [secret for secret in secrets if secret in text] == []


async def test_static_files_are_cached_under_the_hash_of_their_content(stage: Stage) -> None:
    for name in ("pages.css", "pages.js", "icon.svg"):
        response = await stage.call("GET", static_path(name))
        assert response.status_code == 200
        assert "immutable" in response.headers["Cache-Control"]
    assert len(static_files()) == 3
    assert (await stage.call("GET", "/ops/static/pages.css")).status_code == 404
    assert (await stage.call("GET", "/ops/static/..%2f..%2fserving.py")).status_code == 404


def test_the_stylesheet_and_the_script_load_nothing_from_outside() -> None:
    for file in static_files().values():
        assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", file.content)


@pytest.mark.parametrize(
    "elsewhere",
    ["", "https://evil.example", "//evil.example", "/v2/models", "/opsx", "/ops\\evil", "/ops/\r\nX: y"],
)
def test_the_way_back_stays_among_the_pages(elsewhere: str) -> None:
    assert local_path(elsewhere) == "/ops"
    assert local_path("/ops/tasks/task_1?cursor=a") == "/ops/tasks/task_1?cursor=a"


@pytest.mark.parametrize("cookie", [None, "", "not base64", "eyJ0ZXh0IjoxfQ", "e30", "A" * 5_000, "é"])
def test_an_invalid_message_is_none(cookie: str | None) -> None:
    assert read_message(cookie) is None
    sent = message_cookie(Message("naïve “text”" * 300, is_failure=False))
    assert len(sent) < 4_000
    assert read_message(sent.removeprefix(f"{MESSAGE_COOKIE}=").partition(";")[0]) is not None


@pytest.mark.parametrize(
    ("sought", "found"),
    [
        ("acct_1", "/ops/accounts/acct_1"),
        ("task_1/../x?y", "/ops/tasks/task_1%2F..%2Fx%3Fy"),
        ("rev_1", "/ops/reviews/rev_1"),
        ("proc_1", "/ops/tree#proc_1"),
        ("req_" + "4" * 32, "/ops/reports?trace_id=" + "4" * 32 + "&level="),
        ("4" * 32, "/ops/reports?trace_id=" + "4" * 32 + "&level="),
    ],
)
async def test_an_id_leads_to_its_page(api: Api, sought: str, found: str) -> None:
    browser = await sign_in(api)
    response = await api.call("GET", "/ops/find?" + urlencode({"q": sought}), headers=browser)
    assert (response.status_code, response.headers["Location"]) == (303, found)


async def test_an_address_leads_to_its_account(api: Api) -> None:
    browser = await sign_in(api)
    address = urlencode({"q": f" {api.account_id}@Example.com "})
    response = await api.call("GET", f"/ops/find?{address}", headers=browser)
    assert response.headers["Location"] == f"/ops/accounts/{api.account_id}"
    unknown = await api.call("GET", "/ops/find?q=unknown%40example.com", headers=browser)
    assert unknown.status_code == 404
    nonsense = await api.call("GET", "/ops/find?q=%3Cscript%3E", headers=browser)
    assert nonsense.status_code == 404


async def test_a_part_of_an_address_lists_the_accounts_that_begin_so(api: Api) -> None:
    for name in ("anna_lee", "anna%lee", "annabel", "bert"):
        await api.add_account(name)
    browser = await sign_in(api)

    async def find(sought: str) -> httpx2.Response:
        return await api.call("GET", "/ops/find?" + urlencode({"q": sought}), headers=browser)

    several = await read_page(api, "/ops/find?q=Anna", browser)
    assert [name in several.text for name in ("anna_lee@", "anna%lee@", "annabel@", "bert@")] == [True] * 3 + [
        False
    ]
    assert (await find("ber")).headers["Location"] == "/ops/accounts/bert"
    # What LIKE takes for a pattern is text.
    assert (await find("anna%")).headers["Location"] == "/ops/accounts/anna%lee"
    assert (await find("nnabel")).status_code == 404


async def test_the_prefix_of_a_key_leads_to_its_account(api: Api) -> None:
    browser = await sign_in(api)
    for sought in (api.minted.prefix, api.key):
        response = await api.call("GET", "/ops/find?" + urlencode({"q": sought}), headers=browser)
        assert response.headers["Location"] == f"/ops/accounts/{api.account_id}"
    assert (await api.call("GET", "/ops/find?q=hk_test_none", headers=browser)).status_code == 404


async def test_an_operation_leads_to_what_it_is_about(api: Api) -> None:
    browser = await sign_in(api)
    for number, reference in enumerate(("task_1", "ord_1", "a gift"), 1):
        await api.write(
            tables.operations.insert().values(
                account_id=api.account_id,
                number=number,
                operation_id=f"op_{number}",
                kind="credit",
                amount_micro=1,
                balance_after_micro=1,
                held_after_micro=0,
                reference=reference,
                reason="why",
                at=api.now,
                chain_hash=b"",
            )
        )
    found = [
        (await api.call("GET", f"/ops/find?q=op_{number}", headers=browser)).headers["Location"]
        for number in (1, 2, 3)
    ]
    assert found == ["/ops/tasks/task_1", "/ops/payments/ord_1", f"/ops/accounts/{api.account_id}"]
    assert (await api.call("GET", "/ops/find?q=op_9", headers=browser)).status_code == 404


async def test_a_task_and_a_review_show_what_was_asked_of_whom(api: Api) -> None:
    task = frozen(api, 1)
    said = Progress(ts=api.now, status="succeeded", source_ref="callback:evt_1", message="nudity, 0.97")
    task = msgspec.structs.replace(
        task,
        request=msgspec.structs.replace(task.request, webhook_url="https://ada.example/hook"),
        state=msgspec.structs.replace(task.state, provider_ref="job-77", progress=(said,)),
    )
    await api.add_task(task)
    browser = await sign_in(api)
    page = (await read_page(api, f"/ops/tasks/{task.request_id}", browser)).text
    assert [each in page for each in ("a lighthouse at dusk", "job-77", "https://ada.example/hook")] == [True] * 3
    page = (await read_page(api, "/ops/reviews/rev_1", browser)).text
    assert [each in page for each in ("a lighthouse at dusk", "job-77", "nudity, 0.97")] == [True] * 3
    await api.write(tables.tasks.update().values(request=msgspec.to_builtins(
        msgspec.structs.replace(task.request, input={}, input_dropped=True)
    )))  # fmt: skip
    assert "Deleted." in (await read_page(api, f"/ops/tasks/{task.request_id}", browser)).text


async def test_an_adjustment_sent_twice_is_one_command(api: Api) -> None:
    browser = await sign_in(api)
    page = (await api.call("GET", f"/ops/accounts/{api.account_id}", headers=browser)).text
    key = re.search(r'name="idempotency_key" value="([^"]+)"', page)
    assert key is not None
    api.accounts.answer = Refusal(code="insufficient_credit", message="Too much is held.")
    fields = {"csrf_token": csrf_of(page), "idempotency_key": key.group(1), "reason": "ticket 4711"}
    path = f"/ops/accounts/{api.account_id}/adjustments"
    for amount in ("-2.50", "-2.50", "-3.00"):
        response = await send_form(api, path, browser, amount=amount, **fields)
        assert response.status_code == 303
    commands: list[Any] = [command for _, command in api.accounts.asked]
    assert [command.amount_micro for command in commands] == [-2_500_000, -2_500_000, -3_000_000]
    keys = [command.idempotency for command in commands]
    assert keys[0] == keys[1]
    assert keys[0].key == keys[2].key
    assert keys[0].fingerprint != keys[2].fingerprint


async def test_pages_stay_while_the_database_is_away(api: Api) -> None:
    browser = await sign_in(api)
    controls: Any = api.deps.controls
    controls.answer = lambda command: {
        "DescribeProcess": PROCESS,
        "ReadSamples": SampleList("proc_1", []),
        "ListKeys": KeyList([summary("acct_1")]),
    }[type(command).__name__]
    answer = controls.answer
    await read_page(api, "/ops", browser)
    api.change(database=AwayRows(), readiness=lambda: Readiness(database=False, tree=True))
    for key in ("acct_1", "acct_2"):
        api.reporter.report(Report(kind="crash", at=api.now, path="holdfast/accounts", key=key))
    condition = LastingCondition(name="database", subject="", text="the database is away", lasts_s=90.0, count=7)
    controls.answer = lambda command: (
        msgspec.structs.replace(PROCESS, conditions=[condition])
        if isinstance(command, DescribeProcess)
        else answer(command)
    )
    away = await read_page(api, "/ops", browser)
    for words in ("requests wait or are refused", "the database is away", "1 min", "acct_2", "from its memory"):
        assert words in away.text
    found = await read_page(api, "/ops/reports?key=acct_1", browser)
    assert "from its memory" in found.text
    assert "holdfast/accounts:acct_1" in found.text
    assert "holdfast/accounts:acct_2" not in found.text
    assert "acct_1" in (await read_page(api, "/ops/actors", browser)).text
    assert "proc" in (await read_page(api, "/ops/tree", browser)).text
    for path in ("/ops/reviews", "/ops/poison", "/ops/actions"):
        assert "The database is not available" in (await read_page(api, path, browser)).text


async def test_what_costs_most_is_shown_first(api: Api) -> None:
    browser = await sign_in(api)
    controls: Any = api.deps.controls
    busy = msgspec.structs.replace(summary(api.account_id), messages_per_s=12.5)
    controls.answer = lambda command: {
        "DescribeProcess": PROCESS,
        "ListKeys": KeyList([summary(api.other_account_id), busy]),
    }[type(command).__name__]
    tree = (await read_page(api, "/ops/tree", browser)).text
    assert [each in tree for each in ("quote", "750 ms", "insufficient_credit", "402")] == [True] * 4
    page = await read_page(api, "/ops/actors?group=accounts&state=active&order=rate", browser)
    assert page.text.index(api.account_id) < page.text.index(api.other_account_id)
    assert f"{api.account_id}@example.com" in page.text
    assert "12.50" in page.text
    assert "/ops/actors?group=accounts&state=active&order=queue" in page.links
    assert [command.order for _, command in controls.asked if isinstance(command, ListKeys)] == ["rate"]


async def test_a_task_that_cannot_be_read_is_shown_as_it_is_stored(api: Api) -> None:
    browser = await sign_in(api)
    task = api.task(TASK)
    await api.add_task(task)
    await api.write(
        tables.holds.insert().values(
            account_id=api.account_id,
            hold_id=task.request.hold_id,
            amount_micro=12_000,
            reference=TASK,
            opened_number=1,
        )
    )
    await api.write(tables.tasks.update().values(state={"unknown": "whsec_MfKQ9r8GKYqrTwjU"}))
    page = await read_page(api, f"/ops/tasks/{TASK}", browser)
    for words in ("Stored row", "missing required field", "0.012 credits, still held", "studio/image-1", "unknown"):
        assert words in page.text, words
    assert "Overview" in page.text
    assert "MfKQ9r8" not in page.text
    row = (await api.call("GET", f"/ops/api/tasks/{TASK}/row", headers=browser)).json()
    assert row["hold"] == {"hold_id": task.request.hold_id, "credits": "0.012", "is_open": True}
    assert row["columns"]["status"] == task.status
    error = refused(await api.call("GET", f"/ops/api/tasks/{TASK}", headers=browser), 503, "record_unreadable")
    assert "missing required field" in error["message"]
    listed = await read_page(api, "/ops/tasks", browser)
    assert f"Stored rows that cannot be read: {TASK}" in listed.text
    of_customer = await api.as_key("GET", f"/v2/task/{TASK}")
    assert of_customer.headers["Retry-After"] == "60"
    assert "missing" not in (refused(of_customer, 503, "record_unreadable"))["message"]
    other = await api.add_key(api.other_account_id, "key_other")
    heads = {"Authorization": f"Bearer {other.secret}"}
    refused(await api.call("GET", f"/v2/task/{TASK}", headers=heads), 404, "task_not_found")


async def test_a_fault_is_shown_with_the_navigation(api: Api) -> None:
    browser = await sign_in(api)
    for path, status in (("/ops/tasks/task_none", 404), ("/ops/payments/ord_1", 503)):
        if status == 503:
            await api.add_order(api.order("ord_1"))
            await api.write(tables.orders.update().values(request={"unknown": 1}))
        page = await read_page(api, path, browser, status=status)
        assert "Unfinished tasks" in page.text


async def test_every_list_without_entries_is_a_valid_page(api: Api) -> None:
    browser = await sign_in(api)
    controls: Any = api.deps.controls
    controls.answer = lambda command: {
        "DescribeProcess": PROCESS,
        "ReadSamples": SampleList("proc_1", make_samples(Sample)),
        "ListKeys": KeyList([]),
    }[type(command).__name__]
    for path in PAGES:
        if "{" not in path and path != "/ops/find":
            await read_page(api, path, browser)


async def test_an_operator_who_may_read_sees_no_action(api: Api) -> None:
    await api.add_task(frozen(api, 1))
    browser = await sign_in(api)
    assert "Approve" in (await read_page(api, "/ops/reviews/rev_1", browser)).text
    api.configure(operator_readers=(f"{api.account_id}@example.com",))
    reader = {"Authorization": f"Bearer {api.session}"}
    page = await read_page(api, "/ops/reviews/rev_1", reader)
    assert "may read" in page.text
    assert "Approve" not in page.text
    answer = await send_form(api, "/ops/reviews/rev_1/approve", reader, reason="I may not")
    assert answer.status_code == 403
    actions = (await api.call("GET", "/ops/api/actions", headers=reader)).json()["data"]
    assert [
        (each["operator"], each["action"], each["target"], each["result"], each["code"]) for each in actions
    ] == [(f"{api.account_id}@example.com", "approve_review", "rev_1", "refused", "insufficient_role")]


async def test_a_time_line_is_filtered_on_the_page(api: Api) -> None:
    browser = await sign_in(api)
    other = await read_page(api, f"/ops/accounts/{api.account_id}?source=session", browser)
    assert "signed in" in other.text
    wrong = await read_page(api, f"/ops/accounts/{api.account_id}?source=gossip", browser)
    assert "Not available" in wrong.text


async def test_the_navigation_counts_quarantined_actors_without_the_database(api: Api) -> None:
    browser = await sign_in(api)
    group = GroupDescription(
        name="accounts",
        paused_by=None,
        pause_reason=None,
        states={"active": 4, "quarantined": 2},
        messages=0,
        oldest_message_age_s=None,
    )
    controls_of(api).answer = lambda command: (
        msgspec.structs.replace(PROCESS, groups=[group]) if isinstance(command, DescribeProcess) else KeyList([])
    )
    for _ in range(2):
        page = (await api.call("GET", "/ops/quarantine", headers=browser)).text
        assert re.search(r'href="/ops/quarantine"[^>]*>Quarantine<span class="count bad">4</span>', page)
        api.change(database=AwayRows(), now=lambda: api.now + COUNTS_VALID)


async def test_the_tree_is_folded_to_what_is_not_well(api: Api) -> None:
    browser = await sign_in(api)
    worker = msgspec.structs.replace(CHILD, child_id="outbox")
    broken = msgspec.structs.replace(CHILD, child_id="listener", restarts_in_window=1)
    parts = [
        msgspec.structs.replace(CHILD, child_id=name, children=(child,))
        for name, child in (("workers", worker), ("http", broken))
    ]
    tree = msgspec.structs.replace(CHILD, children=tuple(parts))
    controls_of(api).answer = lambda command: msgspec.structs.replace(PROCESS, tree=tree)
    page = (await api.call("GET", "/ops/tree", headers=browser)).text
    folds = re.findall(r'<details class="more"( open)?>\s*<summary>([^<]+)</summary>', page)
    assert folds[:3] == [(" open", "2 children"), ("", "1 child, all well"), (" open", "1 child")]


async def test_an_actor_is_crashed_on_purpose_in_development_only(api: Api) -> None:
    browser = await sign_in(api)
    controls = controls_of(api)
    controls.answer = lambda command: detail("acct_1", "proc_1") if isinstance(command, DescribeKey) else PROCESS
    page = "/ops/actors/accounts/acct_1"
    assert "Crash…" in (await read_page(api, page, browser)).text
    api.configure(env="production")
    operator = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    controls.asked.clear()
    answer = await api.call("POST", f"/ops/api{page[4:]}/crash", headers=operator, json={"reason": "a drill"})
    refused(answer, 403, "development_only")
    assert controls.asked == []
    shown = (await api.call("GET", page, headers=operator)).text
    assert "Restart…" in shown
    assert "Crash…" not in shown


async def test_orders_webhooks_tasks_and_books_are_valid_pages(api: Api) -> None:
    browser = await sign_in(api)
    order = api.order("ord_1")
    await api.add_order(order)
    await api.write(tables.orders.update().values(status="held"))
    await plant(api, attempts=2, url="https://evil.example/<script>\u202e" + "x" * 2_000)
    await api.write(tables.outbox.update().values(attempts=2))
    for path, words in (
        ("/ops/payments", "10.00 USD"),
        ("/ops/payments/ord_1", "Compare now"),
        ("/ops/orders?trouble=mismatched", "Every paid order"),
        ("/ops/webhooks", "<script>"),
        (f"/ops/accounts/{api.account_id}", "API keys"),
        (f"/ops/tasks/{TASK}", "studio/image-1"),
        ("/ops/books?by=model", "Trial balance"),
        ("/ops/books?from=yesterday", "Not available"),
    ):
        assert words in (await read_page(api, path, browser)).text, path


async def test_pages_that_ask_at_once_share_one_reading_of_the_counts(api: Api) -> None:
    frame, counts = Frame(), list[object]()

    async def ask() -> None:
        counts.append(await frame.counts(api.deps))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert api.rows.reads == 1
    assert counts == [counts[0]] * 5


async def test_counts_are_valid_from_the_end_of_their_reading(api: Api) -> None:
    frame, clock = Frame(), [api.now]

    class Slow:
        async def read(self, query: Any) -> Any:
            clock[0] += COUNTS_VALID
            return await api.rows.read(query)

    api.change(database=Slow(), now=lambda: clock[0])
    for _ in range(2):
        await frame.counts(api.deps)
    assert api.rows.reads == 1
