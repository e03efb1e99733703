"""The operators' pages: who sees them, what they may contain, and what their forms do."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
import pytest
import sqlalchemy
import trio
from tests.clients import refused
from tests.cluster.samples import samples as make_samples
from tests.strict_html import StrictHtml

from holdfast.actors.account.messages import SetCeiling
from holdfast.actors.task.messages import DecideReview, TaskReply
from holdfast.http.endpoints import all_routes
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.operating import Readiness
from holdfast.ledger.public_types import counted, noun
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Progress
from holdfast.persistence.claims.reports import write_reports
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.records import tables
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.providers.media.provider_check import CheckStep
from holdfast.supervision.control.messages import (
    DescribeKey,
    DescribeProcess,
    GroupDescription,
    KeyList,
    LevelList,
    LineList,
    ListKeys,
    MemberView,
    RefusedRequestList,
    SampleList,
    SlowTurnList,
)
from holdfast.telemetry.costs import CostOf, Costs, NameCount, TopCount
from holdfast.telemetry.metrics.samples import Sample
from holdfast.telemetry.reports.conditions import LastingCondition
from holdfast.telemetry.reports.report import Report
from holdfast_console import formats, views
from holdfast_console.forms import MESSAGE_COOKIE, Message, local_path, message_cookie, read_message
from holdfast_console.operators.action_forms import form_of
from holdfast_console.operators.frame import COUNTS_VALID, Frame
from holdfast_console.operators.site import SITE
from holdfast_console.rendering import static_files, static_path

from .fake_rows import AwayRows
from .page_reader import SAME_ORIGIN, PageReader, answer_controls, check_headers, message_of
from .test_control_calls import AWAY, CHILD, PROCESS, controls_of, detail, summary
from .test_event_calls import TASK, plant
from .test_operator_calls import frozen
from .test_provider_check_calls import checks_of

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

PROTECTED = [view for view in SITE.views if view.auth is not Auth.NONE]
PAGES = [view.path for view in PROTECTED if view.method == "GET"]


async def test_no_operator_no_page_and_no_action(stage: Stage) -> None:
    stage.change(write_record=None)
    for view, headers in product(PROTECTED, ({}, {"Authorization": "Bearer wrong"})):
        path = re.sub(r"\{\w+\}", "x", view.path)
        stranger = PageReader(stage, headers)
        if view.method == "GET":
            response = await stranger.get(path)
            assert response.status_code == 303, view.name
            assert response.headers["Location"] == "/ops/sign-in?" + urlencode({"return_to": path})
            assert response.content == b""
        else:
            response = await stranger.send(path)
            assert response.status_code == 401, view.name
            check_headers(response)


async def test_a_form_of_elsewhere_does_nothing(api: Api, browser: PageReader) -> None:
    token = await browser.hidden("/ops")
    api.change(write_record=None)
    attempts: list[tuple[dict[str, str], dict[str, str]]] = [
        ({}, {}),
        ({"X-CSRF-Token": token}, {}),
        ({}, {"csrf_token": token[:-1] + "!"}),
        ({"Origin": "https://evil.example"}, {"csrf_token": token}),
        ({"Origin": "null"}, {"csrf_token": token}),
        ({"Sec-Fetch-Site": "same-site"}, {"csrf_token": token}),
    ]
    forms = [view for view in PROTECTED if view.method == "POST"]
    for view, (headers, sent) in product(forms, attempts):
        path = re.sub(r"\{\w+\}", "x", view.path)
        answer = await browser.send(path, headers, **{"reason": "it is fine", **sent})
        assert answer.status_code == 403, (view.name, headers, sent)
    assert [*api.tasks.asked, *api.accounts.asked] == []


def test_every_form_names_an_action_and_what_its_path_needs() -> None:
    templates = files("holdfast_console") / "templates" / "operators"
    text = "".join(each.read_text() for each in templates.iterdir())
    forms = re.findall(r"""(?:ui\.act\("[^"]+", |form_of\()["'](\w+)["'], \[([^]]*)\]""", text)
    assert len(forms) == len(re.findall(r"ui\.act\(|form_of\('", text)) > 20
    actions = {route.action: route for route in all_routes()}
    for action, target in forms:
        path = form_of(action, ["a/b"] * len(target.split(","))).path
        assert path == re.sub(r"{\w+}", "a%2Fb", actions[action].path.replace("/ops/api", "/ops"))


async def test_a_form_does_what_its_endpoint_does_and_says_so(api: Api, browser: PageReader) -> None:
    await api.add_task(frozen(api, 1))
    api.tasks.answer = TaskReply(frozen(api, 1))
    page = "/ops/reviews/rev_1"
    fields = {"csrf_token": await browser.hidden(page), "note": "looked at", "return_to": page}
    done = await browser.send(f"{page}/approve", reason="it is fine", **fields)
    assert (done.status_code, done.headers["Location"]) == (303, page)
    assert [command for _, command in api.tasks.asked] == [DecideReview(approve=True, note="looked at")]
    unknown = await browser.send("/ops/reviews/rev_9/approve", reason="it is fine", **fields)
    assert message_of(unknown).is_failure
    assert "does not exist" in message_of(unknown).text
    assert (await browser.send(f"{page}/approve", reason=" ", **fields)).status_code == 303
    shown = done.headers["Set-Cookie"].partition(";")[0]
    browser.headers = {**browser.headers, "Cookie": f"{browser.headers['Cookie']}; {shown}"}
    assert "Done: approve review." in (await browser.read(page)).text


async def test_the_form_of_a_provider_says_which_step_fails(api: Api, browser: PageReader) -> None:
    checks_of(api).steps = [
        CheckStep("connection", "ok", "connected", 0.01),
        CheckStep("submission", "failed", "the token is refused", 0.2),
    ]
    token = await browser.hidden("/ops/providers")
    message = message_of(await browser.send("/ops/providers/studio/check", csrf_token=token, reason="tasks wait"))
    assert message.is_failure
    first, *steps = message.text.splitlines()
    assert first.startswith("studio does not work, by a job of studio/")
    assert steps == [
        "connection: ok after 10 ms, connected",
        "submission: failed after 200 ms, the token is refused",
    ]


async def test_sign_in_refuses_wrong_tokens_and_other_origins(api: Api) -> None:
    stranger, right = PageReader(api, SAME_ORIGIN), api.deps.settings.operator_token
    wrong = await stranger.send("/ops/sign-in", token="wrong")
    stolen = await stranger.send("/ops/sign-in", {"Origin": "https://evil.example"}, token=right)
    assert (wrong.status_code, stolen.status_code) == (400, 403)
    assert "Set-Cookie" not in {*wrong.headers, *stolen.headers}
    page = StrictHtml(wrong.text)
    assert page.faults == []
    assert "not the operators' token" in page.text


async def test_sign_out_ends_the_session(api: Api, browser: PageReader) -> None:
    out = await browser.send("/ops/sign-out", csrf_token=await browser.hidden("/ops/reviews"))
    assert (out.status_code, out.headers["Location"]) == (303, "/ops/sign-in")
    assert "Max-Age=0" in out.headers["Set-Cookie"]
    assert (await browser.get("/ops/reviews")).status_code == 303


async def test_pages_show_hostile_text_as_text(api: Api, browser: PageReader) -> None:
    task = frozen(api, 1)
    hostile = "</bdi><script>alert(1)</script>\u202egnp.exe" + "x" * 10_000
    await api.add_task(msgspec.structs.replace(task, state=msgspec.structs.replace(task.state, error=hostile)))
    for path in ("/ops/reviews", "/ops/reviews/rev_1"):
        page = await browser.read(path)
        assert "<script>alert(1)</script>" in page.text
        assert "\u202e" not in page.text


async def test_the_pages_of_a_list_keep_its_filters(
    api: Api, browser: PageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "ROWS_SHOWN", "1")
    for number in (1, 2, 3):
        await api.add_task(frozen(api, number))
    first = await browser.read("/ops/tasks?provider=studio&status=review")
    assert [link for link in first.links if link.startswith("/ops/tasks?") and "cursor" not in link] == []
    next_page = next(link for link in first.links if "cursor" in link)
    assert next_page.startswith("/ops/tasks?provider=studio&status=review&cursor=")
    second = await browser.read(next_page)
    assert "/ops/tasks?provider=studio&status=review" in second.links
    plain = await browser.read("/ops/tasks")
    following = await browser.read(next(link for link in plain.links if "cursor" in link))
    assert [link for link in following.links if link.startswith("/ops/tasks?")] == [
        link for link in following.links if "cursor" in link
    ]


async def test_pages_contain_no_secret(api: Api, browser: PageReader) -> None:
    await api.add_task(frozen(api, 1))
    secrets = [*api.deps.settings.secret_values(), browser.headers["Cookie"].partition("=")[2]]
    for path in PAGES:
        response = await browser.get(path.replace("{review_case_id}", "rev_1"))
        text = response.text
        assert [secret for secret in secrets if secret in text] == []


async def test_static_files_are_cached_under_the_hash_of_their_content(stage: Stage) -> None:
    names = ("icon.svg", "pages.css", "pages.js", "pay.js")
    for name in names:
        response = await stage.call("GET", static_path("/ops", name))
        assert response.status_code == 200
        assert "immutable" in response.headers["Cache-Control"]
    assert len(static_files()) == len(names)
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
    assert local_path(elsewhere, "/ops") == "/ops"
    assert local_path("/ops/tasks/task_1?cursor=a", "/ops") == "/ops/tasks/task_1?cursor=a"


@pytest.mark.parametrize("cookie", [None, "", "not base64", "eyJ0ZXh0IjoxfQ", "e30", "A" * 5_000, "é"])
def test_an_invalid_message_is_none(cookie: str | None) -> None:
    assert read_message(cookie) is None
    sent = message_cookie(Message("naïve “text”" * 300, is_failure=False), "/ops")
    assert len(sent) < 4_000
    assert read_message(sent.removeprefix(f"{MESSAGE_COOKIE}=").partition(";")[0]) is not None


async def test_a_task_and_a_review_show_what_was_asked_of_whom(api: Api, browser: PageReader) -> None:
    task = frozen(api, 1)
    said = Progress(ts=api.now, status="succeeded", source_ref="callback:evt_1", message="nudity, 0.97")
    task = msgspec.structs.replace(
        task,
        request=msgspec.structs.replace(task.request, webhook_url="https://ada.example/hook"),
        state=msgspec.structs.replace(task.state, provider_ref="job-77", progress=(said,)),
    )
    await api.add_task(task)
    page = (await browser.read(f"/ops/tasks/{task.request_id}")).text
    assert [each in page for each in ("a lighthouse at dusk", "job-77", "https://ada.example/hook")] == [True] * 3
    page = (await browser.read("/ops/reviews/rev_1")).text
    assert [each in page for each in ("a lighthouse at dusk", "job-77", "nudity, 0.97")] == [True] * 3
    await api.write(tables.tasks.update().values(request=msgspec.to_builtins(
        msgspec.structs.replace(task.request, input={}, input_dropped=True)
    )))  # fmt: skip
    assert "Deleted." in (await browser.read(f"/ops/tasks/{task.request_id}")).text


async def test_an_adjustment_sent_twice_is_one_command(api: Api, browser: PageReader) -> None:
    page = f"/ops/accounts/{api.account_id}"
    fields = {name: await browser.hidden(page, name) for name in ("csrf_token", "idempotency_key")}
    api.accounts.answer = Refusal(code="insufficient_credit", message="Too much is held.")
    for amount in ("-2.50", "-2.50", "-3.00"):
        response = await browser.send(f"{page}/adjustments", amount=amount, reason="ticket 4711", **fields)
        assert response.status_code == 303
    commands: list[Any] = [command for _, command in api.accounts.asked]
    assert [command.amount_micro for command in commands] == [-2_500_000, -2_500_000, -3_000_000]
    keys = [command.idempotency for command in commands]
    assert keys[0] == keys[1]
    assert keys[0].key == keys[2].key
    assert keys[0].fingerprint != keys[2].fingerprint


async def test_an_accounts_page_shows_limits_and_sets_ceilings(api: Api, browser: PageReader) -> None:
    limit = {"limit_micro": 7_000_000, "captured_micro": 1_500_000, "window_start": api.now.replace(hour=0)}
    row = {"account_id": api.account_id, "limit_window": "day", "ceiling_micro": 9_000_000, **limit}
    await api.write(tables.account_limits.insert().values(**row))
    terms = {"models": ["studio/*"], "is_paused": True, "max_credits_per_task_micro": 250_000}
    await api.write(tables.api_keys.update().values(limit_window="day", **terms, **limit))
    group = {"account_id": api.account_id, "group_id": "grp_1"}
    limits = [{"credits_micro": 3_000_000, "window": "week", "models": ["studio/*"]}]
    await api.write(tables.key_groups.insert().values(**group, name="farm", limits=limits, created_at=api.now))
    await api.write(tables.group_keys.insert().values(**group, key_id=api.key_id))
    page = f"/ops/accounts/{api.account_id}"
    shown = (await browser.read(page)).text
    for words in (
        "7.00 (day)",
        "spent 1.50",
        "studio/*",
        "a task 0.25 at most",
        "paused",
        "9.00",
        "in 12 h",
        "farm",
        "3.00 (week, studio/*)",
    ):
        assert words in shown, words
    token = await browser.hidden(page, "csrf_token")
    api.accounts.answer = "done"
    for amount in ("12.50", ""):
        response = await browser.send(
            f"{page}/ceilings", window="week", credits=amount, reason="ticket 4711", csrf_token=token
        )
        assert response.status_code == 303
    assert api.accounts.asked == [
        (api.account_id, SetCeiling("week", 12_500_000)),
        (api.account_id, SetCeiling("week", None)),
    ]


async def test_pages_stay_while_the_database_is_away(api: Api, browser: PageReader) -> None:
    known = KeyList([summary("acct_1")])
    answers = {"DescribeProcess": PROCESS, "ReadSamples": SampleList("proc_1", []), "ListKeys": known}
    answer_controls(api, **answers)
    await browser.read("/ops")
    api.change(database=AwayRows(), readiness=lambda: Readiness(database=False, tree=True))
    for key in ("acct_1", "acct_2"):
        api.reporter.report(Report(kind="crash", at=api.now, path="holdfast/accounts", key=key))
    condition = LastingCondition(name="database", subject="", text="the database is away", lasts_s=90.0, count=7)
    answers["DescribeProcess"] = msgspec.structs.replace(PROCESS, conditions=[condition])
    answer_controls(api, **answers)
    away = await browser.read("/ops")
    for words in ("requests wait or are refused", "the database is away", "1 min", "acct_2", "from its memory"):
        assert words in away.text
    found = await browser.read("/ops/reports?key=acct_1")
    assert "from its memory" in found.text
    assert "holdfast/accounts:acct_1" in found.text
    assert "holdfast/accounts:acct_2" not in found.text
    assert "acct_1" in (await browser.read("/ops/actors")).text
    assert "proc" in (await browser.read("/ops/tree")).text
    for path in ("/ops/reviews", "/ops/poison", "/ops/actions"):
        assert "The database is not available" in (await browser.read(path)).text


async def test_what_lasts_in_several_processes_is_shown_once(api: Api, browser: PageReader) -> None:
    def lasting(name: str, subject: str, lasts_s: float) -> LastingCondition:
        return LastingCondition(name=name, subject=subject, text=f"of {name}", lasts_s=lasts_s, count=7)

    hosts = [lasting("webhooks", f"shop-{number}.example", 10.0 - number) for number in range(3)]
    found = [lasting("unavailable", "", 99.0), *hosts, lasting("database", "", 90.0)]
    process = msgspec.structs.replace(PROCESS, conditions=found)
    controls = answer_controls(api, DescribeProcess=process, ReadSamples=SampleList("proc_1", []))
    controls.others = (MemberView(member_id="proc_2", is_this=False, state="ready", unreachable_for_s=None),)
    page = (await browser.read("/ops")).text
    assert "Quarantine" not in page.partition("Health")[2].partition("Reports")[0]
    assert (page.count("of database"), page.count("14 failures"), page.count("2 more")) == (1, 5, 1)
    order = ["of database", "shop-0", "shop-1", "2 more", "shop-2", "of unavailable", "Health"]
    assert sorted(order, key=page.index) == order


async def test_who_has_a_session_that_cannot_be_looked_up_may_sign_in(api: Api) -> None:
    async def away(_change: object) -> None:
        raise DatabaseAway("gone", retry_after_s=1.0)

    returning = PageReader(api, SAME_ORIGIN)
    await returning.sign_in()
    api.change(database=AwayRows(), write_record=away)
    answer_controls(api, DescribeProcess=PROCESS, ReadSamples=SampleList("proc_1", []))
    assert "/ops/sign-in" in (await returning.read("/ops", 503)).links
    assert "token" in (await returning.read("/ops/sign-in")).text
    await returning.sign_in()
    await returning.read("/ops")


async def test_what_costs_most_is_shown_first(api: Api, browser: PageReader) -> None:
    busy = msgspec.structs.replace(summary(api.account_id), messages_per_s=12.5)
    controls = answer_controls(
        api, DescribeProcess=PROCESS, ListKeys=KeyList([summary(api.other_account_id), busy])
    )
    tree = (await browser.read("/ops/tree")).text
    assert [each in tree for each in ("quote", "750 ms", "insufficient_credit", "402")] == [True] * 4
    page = await browser.read("/ops/actors?group=accounts&state=active&order=rate")
    assert page.text.index(api.account_id) < page.text.index(api.other_account_id)
    assert f"{api.account_id}@example.com" in page.text
    assert "12.50" in page.text
    assert "/ops/actors?group=accounts&state=active&order=queue" in page.links
    assert [command.order for _, command in controls.asked if isinstance(command, ListKeys)] == ["rate"]


async def test_a_task_that_cannot_be_read_is_shown_as_it_is_stored(api: Api, browser: PageReader) -> None:
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
    page = await browser.read(f"/ops/tasks/{TASK}")
    for words in ("Stored row", "missing required field", "0.012 credits, still held", "studio/image-1", "unknown"):
        assert words in page.text, words
    assert "Overview" in page.text
    assert "MfKQ9r8" not in page.text
    row = (await browser.get(f"/ops/api/tasks/{TASK}/row")).json()
    assert row["hold"] == {"hold_id": task.request.hold_id, "credits": "0.012", "is_open": True}
    assert row["columns"]["status"] == task.status
    error = refused(await browser.get(f"/ops/api/tasks/{TASK}"), 503, "record_unreadable")
    assert "missing required field" in error["message"]
    listed = await browser.read("/ops/tasks")
    assert f"Stored rows that cannot be read: {TASK}" in listed.text
    of_customer = await api.as_key("GET", f"/v2/task/{TASK}")
    assert of_customer.headers["Retry-After"] == "60"
    assert "missing" not in (refused(of_customer, 503, "record_unreadable"))["message"]
    other = await api.add_key(api.other_account_id, "key_other")
    refused(await api.call("GET", f"/v2/task/{TASK}", credential=other.secret), 404, "task_not_found")


async def test_an_account_with_a_time_that_cannot_be_read_is_named(api: Api, browser: PageReader) -> None:
    await api.write(sqlalchemy.text("update accounts set created_at = 'infinity'"))
    error = refused(await browser.get(f"/ops/api/accounts/{api.account_id}"), 503, "record_unreadable")
    assert f"accounts.created_at {api.account_id}: timestamp too large" in error["message"]
    page = await browser.read(f"/ops/accounts/{api.account_id}")
    for words in ("The row cannot be read: accounts.created_at ", "What happened"):
        assert words in page.text, words
    await api.write(sqlalchemy.text("update accounts set disabled_at = 'infinity'"))
    with pytest.raises(UnreadableRow, match=r"^accounts\.disabled_at "):
        await api.database.read(load_account, api.account_id)


ROWS_OF_AN_ACCOUNT = """
insert into credit_lots (account_id, number, kind, source, reference, amount_micro, created_at)
    values (:account_id, 1, 'paid', 'recharge', 'op_1', 9, now()),
        (:account_id, 2, 'promotional', 'grant', 'op_2', 9, now());
update accounts set lots = '[[1,5,0]]' where id = :account_id;
update api_keys set limit_window = 'day', limit_micro = 1 where account_id = :account_id;
insert into account_limits (account_id, limit_window, limit_micro, window_start, captured_micro)
    values (:account_id, 'day', 1, now(), 0);
insert into key_groups values (:account_id, 'grp_1', 'farm', '[]', now());
insert into alerts values (:account_id, '{}');
insert into auto_top_ups (account_id, state) values (:account_id, json_build_object('account_id', :account_id));
insert into webhooks (account_id, webhook_id, url, events, enabled, created_at, updated_at)
    values (:account_id, 'wh_1', 'https://a.example', '{task.*}', true, now(), now())
"""
DAMAGES = [
    ("update accounts set lots = 'x'", "accounts.lots"),
    ("update credit_lots set kind = 'gift'", "credit_lots.kind"),
    ("update credit_lots set source = 'sky'", "credit_lots.source"),
    ("update account_limits set limit_window = 'hour'", "account_limits.limit_window"),
    ("update api_keys set limit_window = 'hour'", "api_keys.limit_window"),
    ("update key_groups set limits = '[7]'", "key_groups"),
    ("update alerts set alerts = '{\"email\": 1}'", "alerts.alerts"),
    ("update auto_top_ups set state = '[]'", "auto_top_ups.state"),
    # Its actor does without these.
    ("update accounts set role = 'Wizard'", "accounts.role"),
    ("update webhooks set events = '{task.eaten}'", None),
    ("update api_keys set scopes = '{tasks\\:eat}'", None),
]


@pytest.mark.parametrize(("damage", "named"), DAMAGES)
async def test_an_account_that_cannot_be_read_has_a_page(
    api: Api, browser: PageReader, damage: str, named: str | None
) -> None:
    """It names the column that must be repaired, and has the actor, which does not start, and the time line."""
    for statement in ROWS_OF_AN_ACCOUNT.split(";\n"):
        await api.write(sqlalchemy.text(statement).bindparams(account_id=api.account_id))
    await api.write(sqlalchemy.text(damage))
    stopped = msgspec.structs.replace(
        detail(api.account_id, "proc_1"), state="quarantined", quarantined_for_s=60.0, quarantine_reason="damaged"
    )
    answer_controls(api, DescribeKey=stopped, DescribeProcess=PROCESS)
    page = await browser.read(f"/ops/accounts/{api.account_id}")
    for words in ("damaged", "Release", "What happened", "signed in"):
        assert words in page.text, words
    if named is None:
        return
    assert f"The row cannot be read: {named} " in page.text
    if named != "accounts.role":
        with pytest.raises(UnreadableRow, match=f"^{named} "):
            await api.database.read(load_account, api.account_id)


async def test_a_fault_is_shown_with_the_navigation(api: Api, browser: PageReader) -> None:
    for path, status in (("/ops/tasks/task_none", 404), ("/ops/payments/ord_1", 503)):
        if status == 503:
            await api.add_order(api.order("ord_1"))
            await api.write(tables.orders.update().values(request={"unknown": 1}))
        page = await browser.read(path, status)
        assert "Unfinished tasks" in page.text


async def test_every_list_without_entries_is_a_valid_page(api: Api, browser: PageReader) -> None:
    answer_controls(
        api,
        DescribeProcess=PROCESS,
        ReadSamples=SampleList("proc_1", make_samples(Sample)),
        ListKeys=KeyList([]),
        ListLevels=LevelList([]),
        ListRefusedRequests=RefusedRequestList([], []),
        ListSlowTurns=SlowTurnList([]),
    )
    for path in PAGES:
        # The reference has no template of ours.
        if "{" not in path and path not in {"/ops/find", "/ops/docs"}:
            await browser.read(path)


async def test_a_page_of_all_processes_names_those_that_did_not_answer(api: Api, browser: PageReader) -> None:
    controls = answer_controls(
        api,
        DescribeProcess=PROCESS,
        ListKeys=KeyList([]),
        ListLevels=LevelList([]),
        ListLines=LineList([], "2026-11-20T12:00:00.000Z", is_cut=False),
        ListRefusedRequests=RefusedRequestList([], []),
        ListSlowTurns=SlowTurnList([]),
    )
    controls.others = (AWAY,)
    for path in ("actors", "costs", "follow?id=task_1", "log-levels", "profile", "refused-requests"):
        page = await browser.read(f"/ops/{path}")
        assert "of 1 process that did not answer: proc_3" in page.text, path


async def test_an_operator_who_may_read_sees_no_action(api: Api, browser: PageReader) -> None:
    await api.add_task(frozen(api, 1))
    assert "Approve" in (await browser.read("/ops/reviews/rev_1")).text
    api.configure(operator_readers=(f"{api.account_id}@example.com",))
    reader = PageReader(api, {"Authorization": f"Bearer {api.session}"})
    page = await reader.read("/ops/reviews/rev_1")
    assert "may read" in page.text
    assert "Approve" not in page.text
    assert (await reader.send("/ops/reviews/rev_1/approve", reason="I may not")).status_code == 403
    actions = (await reader.get("/ops/api/actions")).json()["data"]
    assert [
        (each["operator"], each["action"], each["target"], each["result"], each["code"]) for each in actions
    ] == [(f"{api.account_id}@example.com", "approve_review", "rev_1", "refused", "insufficient_role")]


async def test_a_time_line_is_filtered_on_the_page(api: Api, browser: PageReader) -> None:
    other = await browser.read(f"/ops/accounts/{api.account_id}?source=session")
    assert "signed in" in other.text
    wrong = await browser.read(f"/ops/accounts/{api.account_id}?source=gossip")
    assert "Not available" in wrong.text


WITH_QUARANTINED = msgspec.structs.replace(
    PROCESS,
    groups=[
        GroupDescription(
            name="accounts",
            paused_by=None,
            pause_reason=None,
            states={"active": 4, "quarantined": 2},
            messages=0,
            oldest_message_age_s=None,
        )
    ],
)


async def test_the_navigation_counts_quarantined_actors_without_the_database(api: Api, browser: PageReader) -> None:
    controls_of(api).answer = lambda command: (
        WITH_QUARANTINED if isinstance(command, DescribeProcess) else KeyList([])
    )
    for _ in range(2):
        page = (await browser.get("/ops/quarantine")).text
        assert re.search(r'href="/ops/quarantine"[^>]*>Quarantine<span class="count bad">4</span>', page)
        api.change(database=AwayRows(), now=lambda: api.now + COUNTS_VALID)


async def test_a_quarantined_actor_is_listed_with_its_cause(api: Api, browser: PageReader) -> None:
    key = api.account_id
    first = Report(
        kind="quarantine",
        level="error",
        at=api.now,
        path="holdfast/accounts",
        key=key,
        report_id="rep_1",
        number=1,
        reason="the first cause",
        delay_s=111.199,
    )
    later = api.now + timedelta(seconds=1)
    reason = "the disk is full" + " again" * 100
    second = msgspec.structs.replace(first, at=later, report_id="rep_2", number=2, reason=f"{reason} \u202ex")
    assert await api.database.work(write_reports, [first, second])
    stopped = msgspec.structs.replace(summary(key), state="quarantined", quarantined_for_s=60.0)
    controls = answer_controls(api)
    controls.answer = lambda command: (
        KeyList([stopped] if command.group == "accounts" else []) if isinstance(command, ListKeys) else PROCESS
    )
    page = await browser.read("/ops/quarantine")
    assert "quarantined for 111 s: the disk is full" in page.text
    assert "the first cause" not in page.text
    # However long the cause is, the advice is in sight, and all of the cause is below it.
    assert "…; remove the cause" in page.text
    samples = SampleList("proc_1", make_samples(Sample))
    lists = {
        "DescribeProcess": WITH_QUARANTINED,
        "ReadSamples": samples,
        "ReadCosts": Costs({}, {}),
        "ListKeys": KeyList([stopped]),
    }
    answer_controls(api, **lists)
    overview = (await browser.get("/ops")).text
    above, _, reports = overview.partition("<h2>Reports</h2>")
    for part in (above, reports):
        assert "quarantined for 111 s: the disk is full" in part
        assert "…; remove the cause" in part
    assert reason in reports
    assert "\u202e" not in overview
    assert f'href="/ops/actors/accounts/{key}"' in above


async def test_the_overview_says_once_who_is_far_ahead(api: Api, browser: PageReader) -> None:
    flood = TopCount(210, [NameCount("192.0.2.1", 200, 0), NameCount("other", 10, 0)])
    earlier = TopCount(1_000, [NameCount("192.0.2.7", 900, 0), NameCount("other", 10, 0)])
    minutes: dict[CostOf, TopCount] = {"refused_caller": flood}
    keys = TopCount(210, [NameCount("hk_test_abcd", 200, 0), NameCount("hk_test_efgh", 10, 0)])
    day: dict[CostOf, TopCount] = {"refused_caller": flood, "route": earlier, "key": keys}
    samples = SampleList("proc_1", make_samples(Sample))
    answer_controls(api, DescribeProcess=PROCESS, ReadSamples=samples, ReadCosts=Costs(minutes, day))
    page = (await browser.get("/ops")).text
    assert page.count("192.0.2.1") == 2  # its link, and the link's text
    assert '<a href="/ops/refused-requests?about=192.0.2.1">' in page
    assert '<a href="/ops/follow?id=hk_test_abcd">' in page
    found = [page.index(each) for each in ("Refusals by caller", "<h2>Reports</h2>", "Requests by route")]
    assert found == sorted(found)


async def test_the_tree_is_folded_to_what_is_not_well(api: Api, browser: PageReader) -> None:
    worker = msgspec.structs.replace(CHILD, child_id="outbox")
    broken = msgspec.structs.replace(CHILD, child_id="listener", restarts_in_window=1)
    parts = [
        msgspec.structs.replace(CHILD, child_id=name, children=(child,))
        for name, child in (("workers", worker), ("http", broken))
    ]
    tree = msgspec.structs.replace(CHILD, children=tuple(parts))
    controls_of(api).answer = lambda command: msgspec.structs.replace(PROCESS, tree=tree)
    page = (await browser.get("/ops/tree")).text
    folds = re.findall(r'<details class="more"( open)?>\s*<summary>([^<]+)</summary>', page)
    assert folds[:3] == [(" open", "2 children"), ("", "1 child, all well"), (" open", "1 child")]


async def test_an_actor_is_crashed_on_purpose_in_development_only(api: Api, browser: PageReader) -> None:
    controls = controls_of(api)
    controls.answer = lambda command: detail("acct_1", "proc_1") if isinstance(command, DescribeKey) else PROCESS
    page = "/ops/actors/accounts/acct_1"
    assert "Crash…" in (await browser.read(page)).text
    api.configure(env="production")
    operator = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    controls.asked.clear()
    answer = await api.call("POST", f"/ops/api{page[4:]}/crash", headers=operator, json={"reason": "a drill"})
    refused(answer, 403, "development_only")
    assert controls.asked == []
    shown = (await api.call("GET", page, headers=operator)).text
    assert "Restart…" in shown
    assert "Crash…" not in shown


async def test_orders_webhooks_tasks_and_books_are_valid_pages(api: Api, browser: PageReader) -> None:
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
        assert words in (await browser.read(path)).text, path


async def test_pages_that_ask_at_once_share_one_reading_of_the_counts(api: Api) -> None:
    frame, counts = Frame(), list[object]()

    async def ask() -> None:
        counts.append(await frame.counts(api.deps))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert api.rows.reads == 1
    assert counts == [counts[0]] * 5


async def test_a_count_that_fails_takes_no_page_with_it(api: Api) -> None:
    class Broken:
        async def read(self, query: Any) -> Any:
            raise RuntimeError("a table is gone")

    api.change(database=Broken())
    assert await Frame().counts(api.deps) == {"quarantined": 0}


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


def test_every_counted_noun_of_the_pages_has_its_singular() -> None:
    templates = Path(formats.__file__).with_name("templates")
    found = [
        (template.name, many)
        for template in sorted(templates.rglob("*.html"))
        for many in re.findall(r"\|(?:number|length) \}\}(?:</b>)? (?:\w+ )?([a-z]+s)\b", template.read_text())
    ]
    assert {many for _, many in found} <= {"bytes"}, found
    assert [noun(count, "process", "processes") for count in (0, 1, 2)] == ["processes", "process", "processes"]
    assert [counted(count, "message") for count in (0, 1, 2000)] == ["0 messages", "1 message", "2,000 messages"]
