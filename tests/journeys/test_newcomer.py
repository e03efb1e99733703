"""A newcomer in a browser, from the front page to the end of the account, on a service with the card emulator."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from .account_pages import AccountPages, open_account_pages, sign_in
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service
from .test_buy_pages import order, pay

EMAIL = "newcomer@example.com"


@pytest.fixture
def pages(quiet_service: Service, browser: Browser) -> Iterator[AccountPages]:
    """The pages of a service whose provider says what the test has it say."""
    with open_account_pages(quiet_service, browser) as pages:
        yield pages


def follow(page: Page, name: str) -> None:
    """Go to a page by the navigation."""
    page.get_by_role("navigation").first.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)


def downloaded(page: Page, control: Locator, folder: Path) -> Path:
    """Press what downloads a file, and return it."""
    with page.expect_download() as download:
        control.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


@pytest.mark.slow
def test_a_newcomer_buys_plays_proves_and_leaves(
    pages: AccountPages, provider: QuietProvider, tmp_path: Path
) -> None:
    page = pages.page()
    page.goto("/")
    page.get_by_role("link", name="Sign in or register").click()
    sign_in(page, EMAIL)
    page.wait_for_url("**/account")

    follow(page, "Buy credit")
    order(page, "7.00")
    pay(page)
    expect(page.locator(".outcome")).to_contain_text("7.00 credits were added.")

    follow(page, "Keys")
    new = page.locator("#new")
    new.get_by_label("Name").fill("laptop")
    new.get_by_role("button", name="Create the key").click()
    expect(page.get_by_label("The new API key")).to_have_text(re.compile(r"^hk_\S{40,}$"))

    follow(page, "Playground")
    page.get_by_role("link", name=MODEL).click()
    page.get_by_label("prompt").fill("a lighthouse at dusk")
    page.get_by_role("button", name=re.compile("^Run")).click()
    page.wait_for_url("**/account/tasks/task_*")
    request_id = page.url.rpartition("/")[2]

    def tell(body: bytes) -> None:
        """Have the provider say something of the task. The page changes by itself."""
        assert pages.http.post("/v2/callback", content=body, headers=signed(body)).status_code == 200

    expect(page.get_by_role("progressbar")).to_be_visible()
    tell(provider.callback_body(request_id, "processing", event_id="evt_1", sequence=1, percent=40))
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "40")
    tell(provider.success(request_id, event_id="evt_2", sequence=2))
    picture = page.get_by_alt_text("Output 1 of the task")
    expect(picture).to_be_visible()
    assert picture.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 0

    follow(page, "Keys")
    limits = page.locator("#limits")
    limits.get_by_label("Credits a day").fill("5")
    limits.get_by_role("button", name="Save the limits").click()
    expect(limits.get_by_label("Credits a day")).to_have_value("5.00")

    follow(page, "Receipts")
    ends = time.monotonic() + 60
    while not page.get_by_role("link", name="PDF of").count():
        assert time.monotonic() < ends, "no receipt"
        page.reload()
    assert downloaded(page, page.get_by_role("link", name="PDF of"), tmp_path).read_bytes().startswith(b"%PDF-")

    follow(page, "Statement")
    button = page.get_by_role("button", name="Signed statement", exact=True)
    statement = downloaded(page, button, tmp_path)
    page.get_by_label("A signed statement").set_input_files(statement)
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("Nothing was altered")

    follow(page, "Settings")
    page.get_by_role("link", name="Delete the account").click()
    page.get_by_label("Your e-mail address").fill(EMAIL)
    page.get_by_label(re.compile("I give up .* credits")).check()
    page.get_by_role("button", name="Delete the account").click()
    page.wait_for_url("**/account/sign-in")
    expect(page.get_by_role("status")).to_contain_text("Sign in before then to keep it.")
