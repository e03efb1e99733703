"""The API reference: what it begins with works as it is written, and its pages fit, stay here, and try calls."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from tests.clients import Customer, loopback_client, ok
from tests.tools import needs

from .page_browser import SCREENS, VIEWER_RULES, WAIT_MS, Scheme, faults_of, new_context, sign_in
from .service_process import OPERATOR_TOKEN, Service, new_folder, running_service

pytestmark = pytest.mark.slow
CUT_LISTS = "lists => lists.filter((list) => list.scrollWidth > list.clientWidth).map((list) => list.innerText)"
SCROLL_TO_THE_END = """async () => {
  const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  for (let from = -1; scrollY > from; await drawn()) {
    from = scrollY;
    scrollBy({top: innerHeight, behavior: "instant"});
  }
}"""
CREATE = "tag/tasks/POST/v2/task/create"
CANCEL = re.compile(r"^\s*Cancel a task(?! with)")
"""That of an API key; a session has the same call beside it."""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service(new_folder(), OPERATOR_TOKEN=OPERATOR_TOKEN) as service:
        yield service


def run_first_call(document: dict[str, Any], folder: Path) -> str:
    """Run the code that a document begins with, and return what it printed."""
    code = re.search(r"^```sh\n(.*?)^```$", document["info"]["description"], re.MULTILINE | re.DOTALL)
    assert code is not None
    environment = {**os.environ, "OPERATOR_TOKEN": OPERATOR_TOKEN}
    command = ["sh", "-eu", "-c", code[1]]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs("curl")
def test_what_the_references_begin_with_works(service: Service, tmp_path: Path) -> None:
    run_first_call(httpx2.get(f"{service.url}/openapi.json", verify=False).json(), tmp_path)
    with Image.open(tmp_path / "lighthouse.png") as picture:
        picture.load()
    operator = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
    answer = httpx2.get(f"{service.url}/ops/openapi.json", headers=operator, verify=False)
    assert '"members":' in run_first_call(answer.json(), tmp_path)


def watched(page: Page, url: str) -> list[str]:
    """Return a list to which errors of the page, and its requests to other origins, are added."""
    troubles: list[str] = []
    page.set_default_timeout(WAIT_MS)
    page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda sent: None if sent.url.startswith((url, "data:")) else troubles.append(sent.url))
    return troubles


@pytest.mark.parametrize(("screen", "scheme"), [("phone", "dark"), ("desktop", "light")])
def test_the_page_fits_its_screen_and_follows_the_theme(
    service: Service, browser: Browser, screen: str, scheme: Scheme
) -> None:
    with new_context(browser, service.url, screen=screen, scheme=scheme) as context:
        page = context.new_page()
        troubles = watched(page, service.url)
        page.goto("/")
        page.get_by_role("link", name="API reference").first.click()
        page.wait_for_url(f"{service.url}/docs")
        expect(page.get_by_role("heading", name="A first picture")).to_be_in_viewport()
        assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen][0]
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(re.findall(r"\d+", background)[0])
        assert (red < 64) == (scheme == "dark")
        assert page.locator("a[href^=http]:visible").count() == 0
        if screen == "phone":
            page.get_by_role("button", name="Open Menu").click()
        contents = page.get_by_role("complementary")
        expect(contents.get_by_role("link", name="Send a one-time code")).to_be_visible()
        contents.get_by_role("link", name="Tasks", exact=True).click()
        contents.get_by_role("link", name=CANCEL).click()
        expect(page.get_by_role("heading", name=CANCEL)).to_be_in_viewport()
        assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen][0]
        operations = page.locator("ul.endpoints")
        expect(operations.first).to_be_attached()
        assert operations.evaluate_all(CUT_LISTS) == []
        assert troubles == []


@pytest.mark.parametrize(("screen", "scheme"), [("phone", "dark"), ("desktop", "light")])
@pytest.mark.parametrize("path", ["/docs", "/ops/docs"])
def test_the_page_can_be_read_to_its_end(
    service: Service, browser: Browser, path: str, screen: str, scheme: Scheme
) -> None:
    """The page draws what comes on the screen. Its ids and tables are those of a viewer of others."""
    with new_context(browser, service.url, screen=screen, scheme=scheme) as context:
        page = context.new_page()
        troubles = watched(page, service.url)
        if path == "/ops/docs":
            sign_in(page, OPERATOR_TOKEN, path)
        else:
            page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.evaluate(SCROLL_TO_THE_END)
        assert faults_of(page, *VIEWER_RULES) == []
        assert troubles == []


async def new_customer(service: Service) -> Customer:
    async with loopback_client(base_url=service.url, timeout=60) as http:
        customer = Customer(http)
        await customer.sign_in()
        await customer.recharge("1.00")
    return customer


async def tasks_of(service: Service, customer: Customer) -> list[dict[str, Any]]:
    async with loopback_client(base_url=service.url, timeout=60) as http:
        customer.http = http
        found: list[dict[str, Any]] = ok(await customer.as_key("GET", "/v2/task/list"))["data"]
    return found


def test_a_call_is_tried_with_a_key(service: Service, browser: Browser) -> None:
    customer = trio.run(new_customer, service)
    with new_context(browser, service.url) as context:
        page = context.new_page()
        troubles = watched(page, service.url)
        page.goto("/docs")
        page.get_by_placeholder("Token").first.fill(customer.key)
        page.goto(f"/docs#{CREATE}")
        page.locator(f"[id$='{CREATE}']").get_by_role("button", name="Test Request").first.click()
        page.get_by_role("button", name="Send").first.click()
        expect(page.get_by_role("dialog").get_by_text("200 OK")).to_be_visible()
        assert faults_of(page, *VIEWER_RULES) == []
        assert troubles == []
    [task] = trio.run(tasks_of, service, customer)
    assert task["model"] == "studio/image-1"


def test_operators_have_a_page_of_their_own(service: Service, browser: Browser) -> None:
    with new_context(browser, service.url) as context:
        page = context.new_page()
        troubles = watched(page, service.url)
        sign_in(page, OPERATOR_TOKEN, "/ops/docs")
        expect(page.get_by_role("heading", name="Holdfast operators' API")).to_be_visible()
        expect(page.get_by_role("link", name="Poison messages", exact=True).first).to_be_visible()
        assert troubles == []
