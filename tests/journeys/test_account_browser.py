"""The account's own pages in a browser, on a running service. test_every_account_page.py looks at all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Route, expect

from holdfast_console.account.sign_in import EVENTS

from .account_pages import AccountPages, open_account_pages, sign_in
from .page_browser import Scheme, faults_of
from .quiet_provider import MODEL
from .service_process import Service

WATCH_SHIFTS = """() => {
  window.shifts = [];
  const note = (list) => list.getEntries().forEach((each) => window.shifts.push(
    each.sources.map((source) => source.node?.outerHTML?.slice(0, 80))));
  new PerformanceObserver(note).observe({type: "layout-shift"});
}"""


@pytest.fixture
def pages(quiet_service: Service, browser: Browser) -> Iterator[AccountPages]:
    """The pages of the shared service."""
    with open_account_pages(quiet_service, browser) as pages:
        yield pages


@pytest.mark.parametrize(("screen", "scheme"), [("phone", "dark"), ("desktop", "light")])
@pytest.mark.slow
def test_a_sign_in_and_a_task_that_runs_can_be_read(pages: AccountPages, screen: str, scheme: Scheme) -> None:
    page = pages.page(screen=screen, scheme=scheme)
    found: dict[str, object] = {}

    def look(name: str) -> None:
        if faults := faults_of(page):
            found[name] = faults

    page.goto("/account/settings")
    look("sign-in")
    page.get_by_label("E-mail address").fill("no-address@x")
    page.get_by_role("button", name="Send the code").click()
    expect(page.get_by_role("alert")).to_contain_text("is not valid")
    look("refused address")
    sign_in(page)
    page.wait_for_url("**/account/settings")
    pages.api(page, "POST", "/v2/control/sandbox/recharge", json={"amount": "3.00"})
    task = {"model": MODEL, "input": {"prompt": "a dog"}}
    request_id = pages.api(page, "POST", "/v2/control/tasks", json=task)["request_id"]
    for path in ("/account", f"/account/tasks/{request_id}"):
        page.goto(path)
        look(path)
    assert found == {}


def test_an_account_is_shown_as_it_changes_and_nothing_moves(pages: AccountPages) -> None:
    page = pages.owner()
    expect(page.locator("#live-status")).to_have_text("live")
    available = page.locator(".tile").filter(has_text="Available")
    expect(available).to_contain_text("0.00")
    page.evaluate(WATCH_SHIFTS)
    pages.api(page, "POST", "/v2/control/sandbox/recharge", json={"amount": "3.00"})
    expect(available).to_contain_text("3.00")
    key = pages.api(page, "POST", "/v2/control/api-keys", json={})["api_key"]
    bearer = {"Authorization": f"Bearer {key}"}
    task = {"model": MODEL, "input": {"prompt": "a dog"}}
    created = pages.http.post("/v2/task/create", json=task, headers=bearer).json()["request_id"]
    row = page.locator(f"#{created}")
    expect(row).to_contain_text(re.compile(r"queued|processing"))
    assert page.evaluate("window.shifts") == []
    pages.http.post(f"/v2/task/{created}/cancel", headers=bearer)
    expect(row).to_have_count(0)


@pytest.mark.slow
def test_a_form_outlives_its_session(pages: AccountPages) -> None:
    page = pages.owner("/account/settings")
    page.get_by_label("Alert me when less credit").fill("7.5")
    email = page.locator(".who strong").inner_text()
    other = page.context.new_page()
    other.goto("/account")
    other.get_by_role("button", name="Sign out").click()
    expect(other.get_by_role("status")).to_contain_text("You are signed out.")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("is kept")
    sign_in(page, email)
    expect(page.get_by_role("alert")).to_contain_text("Nothing was done yet")
    page.wait_for_url("**/account/settings")
    expect(page.get_by_label("Alert me when less credit")).to_have_value("7.5")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("The alerts are set.")
    assert pages.api(page, "GET", "/v2/control/alerts")["balance_below"] == "7.50"


@pytest.mark.slow
def test_everything_works_without_scripts_and_by_the_keyboard(pages: AccountPages) -> None:
    page = pages.page(has_script=False)
    page.goto("/account/settings")
    page.keyboard.type("kb@example.com")
    page.keyboard.press("Enter")
    code = page.locator("form code").inner_text()
    page.keyboard.type(code)
    page.keyboard.press("Enter")
    page.wait_for_url("**/account/settings")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Change the address")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("main").get_by_role("button", name="Sign out")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/account/sign-in")
    page.goto("/account")
    expect(page.get_by_label("E-mail address")).to_be_visible()


@pytest.mark.slow
def test_pages_of_another_origin_get_and_change_nothing(pages: AccountPages) -> None:
    page = pages.owner("/account/settings")
    token = page.locator("input[name=csrf_token]").first.get_attribute("value")
    target = f"{pages.url}/account/settings/alerts"
    stolen = f"""<form method=post action="{target}"><input name=csrf_token value="{token}">
        <input name=balance_below value=9></form><iframe src="{pages.url}/account"></iframe>"""

    def serve(route: Route) -> None:
        route.fulfill(body=stolen, content_type="text/html")

    # The same host with another port is another origin, but the same site: the browser sends the cookie along.
    evil = page.context.new_page()
    evil.route("http://127.0.0.1:1/**", serve)
    evil.goto("http://127.0.0.1:1/")
    expect(evil.frame_locator("iframe").locator("#main")).to_have_count(0)
    read = """async (url) => { try { return await (await fetch(url, {credentials: "include"})).text() }
        catch (refused) { return "refused" } }"""
    for path in ("/account", EVENTS, "/v2/control/session"):
        assert evil.evaluate(read, f"{pages.url}{path}") == "refused"
    evil.evaluate("document.forms[0].submit()")
    expect(evil.get_by_text("Not allowed")).to_be_visible()
    assert pages.api(page, "GET", "/v2/control/alerts")["balance_below"] is None
