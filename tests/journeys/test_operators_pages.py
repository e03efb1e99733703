"""The operators' pages in a browser, on a running service."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Route, expect
from sqlalchemy import select

from holdfast.persistence.records.tables import accounts
from holdfast.persistence.server.connections import connected

from .operators_pages import Pages, act, open_pages
from .page_browser import PAGES, faults_on_screens
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service


@pytest.fixture
def pages(quiet_service: Service, browser: Browser) -> Iterator[Pages]:
    """The pages of the shared service."""
    with open_pages(quiet_service, browser) as pages:
        yield pages


def test_a_crash_and_the_restart_appear_without_a_reload(pages: Pages) -> None:
    account = pages.account()
    page = pages.page(f"/ops/actors/accounts/{account.account_id}")
    page.evaluate("window.wasNotReloaded = true")
    incarnation = pages.api(f"/ops/api/actors/accounts/{account.account_id}")["incarnation"]
    pages.api(f"/ops/api/actors/accounts/{account.account_id}/crash", "to see it recover")
    assert account.recharge().status_code == 200
    row = page.get_by_role("row").filter(has_text="to see it recover")
    expect(row).to_be_visible()
    facts = page.locator(".pairs")
    expect(facts).to_contain_text(re.compile(rf"Incarnation\s*{incarnation + 1}\b"))
    expect(facts.get_by_text("active", exact=True)).to_be_visible()
    assert page.evaluate("window.wasNotReloaded")


@pytest.mark.slow
def test_a_quarantine_leaves_neighbours_alone_until_its_release(pages: Pages) -> None:
    account, neighbour = pages.account(), pages.account()
    page = pages.page(f"/ops/actors/accounts/{account.account_id}")
    act(page, "Quarantine", "its balance is looked at")
    expect(page.get_by_role("status").filter(has_text="Done: quarantine actor.")).to_be_visible()
    refused = account.recharge()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "quarantined")
    assert neighbour.recharge().status_code == 200
    page.goto("/ops/quarantine")
    card = page.locator(f"#accounts-{account.account_id}")
    expect(card).to_contain_text("quarantined")
    card.get_by_text("Release…").click()
    card.get_by_label("Reason").fill("all is well")
    card.get_by_role("button", name="Release").click()
    expect(page.get_by_role("status").filter(has_text="Done: release actor.")).to_be_visible()
    expect(card).to_have_count(0)
    assert account.recharge().status_code == 200


def test_a_poison_message_is_replayed_once_its_cause_is_gone(pages: Pages, quiet_service: Service) -> None:
    account = pages.account()
    number = count_operations(quiet_service, account.account_id, 2**63 - 1)
    pages.api(f"/ops/api/actors/accounts/{account.account_id}/restart", "read the row that cannot be counted on")
    assert account.recharge().status_code == 500
    page = pages.page(f"/ops/poison?key={account.account_id}")
    card = page.locator("main .card").filter(has_text="Recharge")
    expect(card).to_contain_text("out of range")
    count_operations(quiet_service, account.account_id, number)
    act(page, "Replay", "its row is mended")
    expect(page.get_by_role("status").filter(has_text="Done: replay poison.")).to_be_visible()
    expect(card.get_by_text("replayed")).to_be_visible()
    totals = pages.http.get("/v2/control/account", headers=account.session).json()
    assert totals["balance"] == "2.00"


def count_operations(service: Service, account_id: str, number: int) -> int:
    """Write how many operations an account has, and return what was written before."""
    with connected(service.database_url) as rows, rows.begin():
        count = rows.execute(select(accounts.c.operation_count).where(accounts.c.id == account_id)).scalar_one()
        rows.execute(accounts.update().where(accounts.c.id == account_id).values(operation_count=number))
    return int(count)


@pytest.mark.slow
def test_a_review_is_approved_on_its_page(pages: Pages, provider: QuietProvider) -> None:
    account = pages.account()
    request_id = pages.http.post(
        "/v2/task/create", json={"model": MODEL, "input": {"prompt": "a cat"}}, headers=account.key
    ).json()["request_id"]
    page = pages.page("/ops/reviews")
    outputs = [{"url": f"{provider.url}/picture.png", "content_type": "image/png"}]
    flagged = {"flagged": True, "categories": ["gore"]}
    body = provider.callback_body(
        request_id, "succeeded", event_id="evt_1", sequence=1, outputs=outputs, moderation=flagged
    )
    assert pages.http.post("/v2/callback", content=body, headers=signed(body)).status_code == 200
    row = page.get_by_role("row").filter(has_text=account.account_id[-7:])
    expect(row).to_be_visible()
    row.get_by_role("link").first.click()
    act(page, "Approve", "it is a cat")
    expect(page.get_by_role("status").filter(has_text="Done: approve review.")).to_be_visible()
    expect(page.locator(".pairs").get_by_text("succeeded")).to_be_visible()
    actions = pages.api(f"/ops/api/actions?task_id={request_id}")["data"]
    assert [(each["action"], each["reason"], each["result"]) for each in actions] == [
        ("approve_review", "it is a cat", "done")
    ]


def test_reports_arrive_stop_and_are_filtered(pages: Pages) -> None:
    account, other = pages.account(), pages.account()
    page = pages.page(f"/ops/reports?key={account.account_id}")
    expect(page.locator("#stream-status")).to_have_text("live")
    lines = page.locator("#reports .line:visible")
    pages.api(f"/ops/api/actors/accounts/{account.account_id}/crash", "the first blow")
    expect(lines.filter(has_text="crashed").filter(has_text="the first blow")).to_have_count(1)
    page.get_by_role("button", name="Stop updates").click()
    pages.api(f"/ops/api/actors/accounts/{other.account_id}/crash", "of another")
    assert account.recharge().status_code == 200
    pages.api(f"/ops/api/actors/accounts/{account.account_id}/crash", "the second blow")
    resume = page.get_by_role("button", name=re.compile(r"Update again \(\d+ new\)"))
    expect(resume).to_be_visible()
    expect(lines.filter(has_text="the second blow")).to_have_count(0)
    resume.click()
    expect(lines.filter(has_text="crashed").filter(has_text="the second blow")).to_have_count(1)
    expect(lines.filter(has_text="of another")).to_have_count(0)
    page.get_by_label("With the words").fill("first blow")
    expect(lines.filter(has_text="second blow")).to_have_count(0)
    expect(lines.filter(has_text="first blow").first).to_be_visible()


@pytest.mark.slow
def test_reports_go_on_after_answers_that_are_no_stream(pages: Pages) -> None:
    account = pages.account()
    page = pages.page("/ops")
    answers = iter((503, 401, 502))

    def answer(route: Route) -> None:
        status = next(answers, 0)
        if not status:
            route.continue_()
        elif status == 502:
            # Emitted while nothing is followed: the stream must begin where the page ends.
            pages.api(f"/ops/api/actors/accounts/{account.account_id}/crash", "unseen")
            route.fulfill(status=status)
        else:
            route.fulfill(status=status)

    page.route("**/ops/api/reports/stream**", answer)
    page.goto(f"/ops/reports?key={account.account_id}")
    missed = page.locator("#reports .line").filter(has_text="unseen")
    expect(missed.first).to_be_visible()
    expect(page.locator("#stream-status")).to_have_text("live")
    refused = ("503", "401", "502")
    assert [next(code for code in refused if code in line) for line in pages.complaints] == [*refused]
    pages.complaints.clear()


@pytest.mark.slow
def test_everything_works_without_scripts(pages: Pages) -> None:
    account = pages.account()
    page = pages.page(f"/ops/actors/accounts/{account.account_id}", has_script=False)
    act(page, "Restart", "without scripts")
    expect(page.get_by_role("status").filter(has_text="Done: restart actor.")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="without scripts")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/ops/sign-in")
    page.goto("/ops/reports")
    expect(page.get_by_label("Operator token")).to_be_visible()


@pytest.mark.slow
def test_pages_of_another_origin_get_and_change_nothing(pages: Pages) -> None:
    account = pages.account()
    page = pages.page(f"/ops/actors/accounts/{account.account_id}")
    token = page.locator("input[name=csrf_token]").first.get_attribute("value")
    target = f"{pages.url}/ops/actors/accounts/{account.account_id}/quarantine"
    stolen = f"""<form method=post action="{target}"><input name=csrf_token value="{token}">
        <input name=reason value=evil></form><iframe src="{pages.url}/ops"></iframe>"""

    def serve(route: Route) -> None:
        route.fulfill(body=stolen, content_type="text/html")

    # The same host with another port is another origin, but the same site: the browser sends the cookie along.
    evil = page.context.new_page()
    evil.route("http://127.0.0.1:1/**", serve)
    evil.goto("http://127.0.0.1:1/")
    expect(evil.frame_locator("iframe").locator("#main")).to_have_count(0)
    read = """async (url) => { try { return await (await fetch(url, {credentials: "include"})).text() }
        catch (refused) { return "refused" } }"""
    for path in ("/ops", "/ops/api/tree", "/ops/api/reports/stream"):
        assert evil.evaluate(read, f"{pages.url}{path}") == "refused"
    evil.evaluate("document.forms[0].submit()")
    expect(evil.get_by_text("Not allowed")).to_be_visible()
    assert pages.api(f"/ops/api/actors/accounts/{account.account_id}")["state"] == "active"
    assert account.recharge().status_code == 200


@pytest.mark.slow
def test_pages_fit_every_screen_and_can_be_read(pages: Pages) -> None:
    account = pages.account()
    task = {"model": MODEL, "input": {"prompt": "a dog"}}
    request_id = pages.http.post("/v2/task/create", json=task, headers=account.key).json()["request_id"]
    page = pages.page("/ops")
    found = {}
    one = f"accounts/{account.account_id}"
    # A viewer of others draws the reference, which test_reference_pages.py reads.
    own = [path for path in PAGES if path != "/ops/docs"]
    apart = (
        f"/ops/actors/{one}",
        f"/ops/{one}",
        f"/ops/tasks/{request_id}",
        f"/ops/follow?id={account.account_id}",
    )
    # The account's own pages first: its actor stops when it has had nothing to do for a while.
    for path in (*apart, *own):
        page.goto(path)
        if faults := faults_on_screens(page):
            found[path] = faults
    assert found == {}
