"""Every page of the account, with something of everything on it, as browsers show it and axe-core reads it.

A page that is added is found; one at a path with parameters needs an example of each (``furnish``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.clients import IMAGE

from holdfast.http.kit.calls import Auth
from holdfast_console.account.sign_in import EVENTS
from holdfast_console.account.site import SITE

from .account_pages import AccountPages, bearer_of, open_account_pages
from .page_browser import faults_on_screens
from .service_process import Service
from .test_buy_pages import buy, poll, save_card

FILE = re.compile(rf"(\.csv|/pdf|/added)$|^{EVENTS}$")
"""Paths of files, of events, and of what leads on to a page."""
PUBLIC = ("/", "/models")
VIEWS = [view.path for view in SITE.views if view.method == "GET" and view.auth is Auth.SESSION]
BYTES_MAX = 100_000
"""The most bytes of a page without its pictures."""
BYTES_OF_A_PAGE = """() => performance.getEntries()
  .filter((each) => each.entryType === "navigation" || ["link", "script"].includes(each.initiatorType))
  .filter((each) => new URL(each.name).origin === location.origin)
  .reduce((sum, each) => sum + each.decodedBodySize, 0)"""

FORMS_OF_A_PAGE = """() => [...document.querySelectorAll("form[method=post]")].map((form) => ({
  action: new URL(form.action).pathname, fields: Object.fromEntries(
    [...new FormData(form)].filter(([, value]) => typeof value === "string"))}))"""
FORMS_LEAST = 20
ID = re.compile(r"/[a-z]+_[0-9a-f]{16,}")
OWNED = ("account", "alerts", "api-keys", "files", "key-groups", "limits", "payments", "tasks", "webhooks")
"""What the owner's API lists of an account."""


@pytest.fixture
def pages(shared_service: Service, browser: Browser) -> Iterator[AccountPages]:
    """The pages of the shared service, which has both emulators."""
    with open_account_pages(shared_service, browser) as pages:
        yield pages


def furnish(pages: AccountPages, page: Page) -> list[str]:
    """Give the account of a page something of everything; return the addresses of all its pages."""

    def api(method: str, path: str, **sent: Any) -> dict[str, Any]:
        return pages.api(page, method, f"/v2/control/{path}", **sent)

    buy(page, "40.00")
    save_card(page)
    page.get_by_role("button", name="Continue to payment").click()
    page.wait_for_url("**/pay")
    unpaid = page.url.removesuffix("/pay").rpartition("/")[2]
    group = api("POST", "key-groups", json={"name": "render farm", "limits": [{"window": "day", "credits": "9"}]})
    limited = {"limits": [{"window": "month", "credits": "20"}], "models": ["studio/*"]}
    api("POST", "api-keys", json={"name": "laptop", "group_id": group["group_id"]})
    api("POST", "api-keys", json={"name": "server", **limited})
    gone = api("POST", "api-keys", json={"name": "of last year"})["api_key_id"]
    api("DELETE", f"api-keys/{gone}")
    webhook = api("POST", "webhooks", json={"url": "http://127.0.0.1:9/holdfast", "events": ["task.*"]})
    tasks = [
        api("POST", "tasks", json={"model": f"studio/{model}", "input": given})["request_id"]
        for model, given in (
            ("image-1", {**IMAGE, "n": 2}),
            ("tone-1", {"prompt": "a slow bell"}),
            ("clip-1", {"prompt": "waves at night"}),
        )
    ]
    api("POST", "files", files={"file": ("a harbour.png", b"\x89PNG\r\n\x1a\n", "image/png")})
    api("PUT", "limits", json={"limits": [{"window": "day", "credits": "30"}]})
    for each in tasks:
        page.goto(f"/account/tasks/{each}")
        expect(page.get_by_text("Run it again…")).to_be_visible()
    page.goto(f"/account/webhooks/{webhook['webhook_id']}")
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    page.goto("/account/receipts")
    poll_receipt(page)
    paid = next(each["order_id"] for each in api("GET", "payments")["data"] if each["order_id"] != unpaid)
    examples = {
        "request_id": tasks,
        "webhook_id": [webhook["webhook_id"]],
        "order_id": [unpaid, paid],
    }
    addresses = [*PUBLIC, "/account/playground?model=studio/edit-1", "/account/usage?days=7", "/account/keys?all=1"]
    for path in VIEWS:
        if not FILE.search(path):
            name = "".join(re.findall(r"\{(\w+)\}", path))
            addresses += [path.replace(f"{{{name}}}", each) for each in examples[name]] if name else [path]
    addresses.remove(f"/account/buy/{paid}/pay")
    return addresses


def poll_receipt(page: Page) -> None:
    """Wait until the payment has its receipt."""
    poll(page, lambda: bool(page.reload() and page.get_by_role("link", name="PDF of").count()))


def open_folds(page: Page) -> None:
    """Show all that is behind a button."""
    page.evaluate("document.querySelectorAll('main details:not([name])').forEach((each) => { each.open = true; })")


@pytest.mark.slow
def test_every_page_is_readable_fits_and_is_small(pages: AccountPages) -> None:
    page = pages.owner()
    found: dict[str, object] = {}
    for address in furnish(pages, page):
        page.goto(address)
        page.wait_for_load_state()
        size = page.evaluate(BYTES_OF_A_PAGE)
        if not 10_000 < size < BYTES_MAX:
            found[f"bytes of {address}"] = size
        found[address] = faults_on_screens(page)
        open_folds(page)
        found[f"{address}, open"] = faults_on_screens(page)
    assert {address: faults for address, faults in found.items() if faults} == {}


@pytest.mark.slow
def test_no_form_of_an_owner_works_for_others_or_afterwards(pages: AccountPages) -> None:
    page = pages.owner()
    addresses = furnish(pages, page)
    forms: dict[str, dict[str, Any]] = {}
    for address in addresses:
        page.goto(address)
        forms |= {each["action"]: each["fields"] for each in page.evaluate(FORMS_OF_A_PAGE)}
    sign_out = forms.pop("/account/sign-out")
    assert len(forms) >= FORMS_LEAST, sorted(forms)
    owner, other = page.context, pages.owner().context

    def replay(context: BrowserContext, fields: Mapping[str, str]) -> dict[str, tuple[int, str]]:
        """Send each form with these fields instead, and return how it is answered and where that leads."""
        found = {}
        for action, own in forms.items():
            headers = {"Origin": pages.url, "Sec-Fetch-Site": "same-origin", "Accept": "text/html"}
            sent = context.request.post(action, form={**own, **fields}, headers=headers, max_redirects=0)
            found[action] = (sent.status, sent.headers.get("location", ""))
        return found

    def owned() -> list[str]:
        """Return all that the account has, without its links: each answer signs them again, until a later time."""
        found = [json.dumps(pages.api(page, "GET", f"/v2/control/{name}"), indent=1) for name in OWNED]
        return [re.sub(r'"https?://[^"]+"|"expires_at": .*', "", each) for each in found]

    before = owned()
    # It is shown again as refused, on a page that the other account may not have.
    assert {status for status, _ in replay(other, {}).values()} == {403, 404}
    # With a token of its own, another account names what is the owner's, in addresses and in fields.
    others = other.new_page()
    others.goto("/account/settings")
    token = others.locator("input[name=csrf_token]").first.input_value()
    answers = replay(other, {"csrf_token": token})
    assert {action: found[0] for action, found in answers.items() if ID.search(action)} == dict.fromkeys(
        filter(ID.search, forms), 404
    )
    assert owned() == before
    kept = bearer_of(page)["Authorization"].removeprefix("Bearer ")
    assert owner.request.post("/account/sign-out", form=sign_out, headers={"Origin": pages.url}).ok
    owner.add_cookies([{"name": "holdfast_account", "value": kept, "url": pages.url}])
    for answers in (replay(owner, {}), replay(pages.page().context, {})):
        assert {status for status, _ in answers.values()} <= {303, 401}
        assert {place.partition("?")[0] for _, place in answers.values()} <= {"", SITE.sign_in_path}
