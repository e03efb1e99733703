"""What an owner deletes, takes along and changes of the whole account, on its pages in a browser."""

from __future__ import annotations

import re
import secrets
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.clients import IMAGE

from .account_pages import AccountPages, open_account_pages, sign_in
from .page_browser import faults_of
from .service_process import Service

SETTINGS, EMAIL, DELETE, FILES = (
    f"/account/{each}" for each in ("settings", "settings/email", "settings/delete", "files")
)


@pytest.fixture
def pages(shared_service: Service, browser: Browser) -> Iterator[AccountPages]:
    with open_account_pages(shared_service, browser) as pages:
        yield pages


def signed_in_as(page: Page) -> str:
    return page.locator(".who strong").inner_text()


def faultless(page: Page) -> None:
    assert faults_of(page) == []


def ask_for_codes(page: Page, email: str) -> list[str]:
    """Have codes sent for a change of the address; return both, as development shows them."""
    page.get_by_label("New e-mail address").fill(email)
    page.get_by_role("button", name="Send the codes").click()
    expect(page.get_by_role("status").first).to_contain_text(f"and another to {email}")
    return re.findall(r"\b\d{6}\b", page.get_by_role("status").first.inner_text())


def confirm(page: Page, current: str, new: str) -> None:
    fields = page.get_by_label("Code sent to")
    fields.nth(0).fill(current)
    fields.nth(1).fill(f"{new[:3]} {new[3:]}")
    page.get_by_role("button", name="Change the address").click()


@pytest.mark.slow
def test_the_address_is_changed_with_both_codes(pages: AccountPages) -> None:
    page = pages.owner(SETTINGS)
    old, new = signed_in_as(page), f"{secrets.token_hex(8)}@new.example"
    page.get_by_role("link", name="Change the address").click()
    page.get_by_label("New e-mail address").fill(old)
    page.get_by_role("button", name="Send the codes").click()
    expect(page.get_by_role("alert")).to_contain_text("is the account's address already")
    current_code, new_code = ask_for_codes(page, new)
    faultless(page)
    confirm(page, "000000" if current_code != "000000" else "000001", new_code)
    expect(page.locator("label").filter(has_text=old).locator(".fault")).to_have_text("This code is not valid.")
    faultless(page)
    assert signed_in_as(page) == old
    # The form is still there, with what was typed.
    expect(page.get_by_label("Code sent to").nth(1)).to_have_value(f"{new_code[:3]} {new_code[3:]}")
    confirm(page, current_code, new_code)
    expect(page.get_by_role("status").first).to_contain_text(f"You sign in with {new} from now on.")
    assert signed_in_as(page) == new
    assert pages.api(page, "GET", "/v2/control/session")["email"] == new


@pytest.mark.slow
def test_all_data_are_one_file(pages: AccountPages, tmp_path: Path) -> None:
    page = pages.owner(SETTINGS)
    pages.api(page, "POST", "/v2/control/sandbox/recharge", json={"amount": "3.00"})
    section = page.locator("#archive")
    section.get_by_role("button", name="Make the file").click()
    expect(section).to_contain_text("It is ready")
    faultless(page)
    with page.expect_download() as download:
        section.get_by_role("link", name="Download").click()
    path = tmp_path / "archive.zip"
    download.value.save_as(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert signed_in_as(page) in archive.read("account.jsonl").decode()
        assert archive.read("operations.jsonl").count(b"\n") == 1
    expect(section.get_by_role("button")).to_have_count(0)


@pytest.mark.slow
def test_results_and_files_are_deleted_by_their_owner(pages: AccountPages) -> None:
    page = pages.owner()
    pages.api(page, "POST", "/v2/control/sandbox/recharge", json={"amount": "3.00"})
    task = {"model": "studio/image-1", "input": IMAGE}
    request_id = pages.api(page, "POST", "/v2/control/tasks", json=task)["request_id"]
    page.goto(f"/account/tasks/{request_id}")
    expect(page.locator("figure img")).to_have_count(1)
    url = pages.api(page, "GET", f"/v2/control/tasks/{request_id}")["output"][0]["url"]
    assert pages.http.get(url).status_code == 200
    page.locator("summary").filter(has_text="Delete the results").click()
    faultless(page)
    page.get_by_role("button", name="Delete the results").click()
    expect(page.get_by_role("status").first).to_contain_text("The results are deleted.")
    expect(page.locator("#result")).to_contain_text("is no longer stored")
    expect(page.locator("summary").filter(has_text="Delete the results")).to_have_count(0)
    assert pages.http.get(url).status_code == 410

    stored = pages.api(page, "POST", "/v2/control/files", files={"file": ("a <b>.txt", b"mine")})
    kept = pages.api(page, "POST", "/v2/control/files", files={"file": ("kept.txt", b"kept")})
    page.goto(FILES)
    row = page.locator(f"#{stored['file_id']}")
    expect(row).to_contain_text("a <b>.txt")
    row.locator("summary").click()
    faultless(page)
    row.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status").first).to_contain_text("The file is deleted.")
    expect(row).to_have_count(0)
    expect(page.locator(f"#{kept['file_id']}")).to_have_count(1)
    assert pages.http.get(stored["url"]).status_code in {404, 410}


@pytest.mark.slow
def test_the_account_is_deleted_unless_its_owner_signs_in(pages: AccountPages) -> None:
    page = pages.owner(SETTINGS)
    email = signed_in_as(page)
    pages.api(page, "POST", "/v2/control/sandbox/recharge", json={"amount": "3.00"})
    key = {"Authorization": f"Bearer {pages.api(page, 'POST', '/v2/control/api-keys', json={})['api_key']}"}
    page.get_by_role("link", name="Delete the account").click()
    faultless(page)
    typed, button = page.get_by_label("Your e-mail address"), page.get_by_role("button", name="Delete the account")
    typed.fill("eve@example.com")
    button.click()
    expect(page.locator(".fault")).to_contain_text("is not the account's address")
    typed.fill(email)
    button.click()
    expect(page.locator(".fault")).to_contain_text("The account has credit left")
    faultless(page)
    # An order that may still be paid is a reason too.
    page.get_by_label("I give up 3.00 credits").check()
    order = pages.api(page, "POST", "/v2/control/payments/sandbox", json={"amount": "5.00"})
    button.click()
    expect(page.get_by_role("alert")).to_contain_text("A payment order of the account is neither paid nor expired")
    pages.http.post(
        order["callback"]["url"],
        json=order["callback"]["payload"],
        headers={order["callback"]["signature_header"]: order["callback"]["signature"]},
    ).raise_for_status()
    page.goto(DELETE)
    typed.fill(email)
    page.get_by_label("I give up 8.00 credits").check()
    button.click()
    page.wait_for_url("**/account/sign-in")
    expect(page.get_by_role("status")).to_contain_text("Sign in before then to keep it.")
    faultless(page)
    assert pages.http.get("/v2/task/list", headers=key).json()["error"]["code"] == "account_closing"
    page.goto(SETTINGS)
    sign_in(page, email)
    page.wait_for_url(f"**{SETTINGS}")
    expect(page.get_by_role("status").first).to_contain_text("Because you signed in, it is kept.")
    assert signed_in_as(page) == email
    assert pages.http.get("/v2/task/list", headers=key).status_code == 200
