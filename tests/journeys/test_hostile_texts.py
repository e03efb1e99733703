"""Texts of a catalog and responses of customers' receivers that try to be more than text, on all their pages."""

from __future__ import annotations

import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.threaded_server import serving

from .account_pages import AccountPages, open_account_pages
from .conftest import NewService
from .operators_pages import open_pages
from .page_browser import faults_on_screens
from .quiet_provider import QuietProvider
from .service_process import Service
from .test_every_account_page import open_folds

SCRIPT = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
HOSTILE = f"""</textarea></title></bdi>{SCRIPT}" onmouseover="window.ran = 1" x='{{{{ 2347 * 7331 }}}} {{% raw %}}
=cmd()\r\n\t\x01\x1b[31m\x7f\u2028 \u202egnp.exe\u2066 """
SHORT, LONG = HOSTILE[:100], HOSTILE + "x" * 10_000
RAN = """() => window.ran ?? [...document.querySelectorAll("[onmouseover], [onerror], img[src=x]")].map(
  (each) => each.outerHTML)"""

MODEL = "quiet/hostile-1"
MODELS = f"""
[[models]]
id = "{MODEL}"
modality = "image"
type = "async"
created = "2026-11-01"
description = {json.dumps(LONG)}
pricing = {{ mode = "per_request", unit_price = "1.00" }}
upstream = {{ provider = "quiet", model = "hostile" }}
hosting = {{ content_types = ["image/png"] }}
example_input = {{ prompt = {json.dumps(HOSTILE)}, style = {json.dumps(HOSTILE)} }}

[models.input_schema]
type = "object"
required = ["prompt", "style"]
[models.input_schema.properties]
prompt = {{ type = "string", title = {json.dumps(HOSTILE)}, description = {json.dumps(LONG)} }}
style = {{ type = "string", enum = [{json.dumps(HOSTILE)}, "plain"], description = {json.dumps(HOSTILE)} }}
note = {{ type = "string", maxLength = 100, default = {json.dumps(SHORT)}, description = {json.dumps(LONG)} }}
""".replace("\x7f", "\\u007F")

HEAD = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n"
BAD = SCRIPT.encode() + b"\xff\xfe\x00\x1b[31m\xe2\x80\xae"
RESPONSES = {
    "page": HEAD % (b"500 " + SCRIPT.encode(), len(BAD), b"X-A: " + SCRIPT.encode() + b"\r\n") + BAD,
    "bytes": HEAD % (b"500 \xff\xfe\xe2\x80\xae", 0, b""),
    "header": HEAD % (b"500 no", 0, b"X-\x00\x1b" + SCRIPT.encode() + b": \x07\r\n"),
    "megabytes": HEAD % (b"500 no", 8_000_000, b"") + b"<" * 8_000_000,
    "redirect": HEAD % (b"302 Found", 0, b"Location: javascript:window.ran=1\r\n"),
    "no-http": BAD * 100,
    "lines": b"HTTP/1.1 500 no\r\n" + b"X-A: " + b"<" * 300_000 + b"\r\n\r\n",
}


@contextmanager
def hostile_receiver() -> Iterator[str]:
    """Run a receiver that sends the response that its path names."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            name = self.rfile.readline().split()[1].decode().strip("/")
            length = 0
            while (line := self.rfile.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            self.rfile.read(length)
            try:
                self.wfile.write(RESPONSES[name])
            except ConnectionError:
                return  # who has read enough of it has closed

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with serving(server) as url:
        yield url


def look(page: Page, address: str) -> list[str] | dict[str, list[str]]:
    """Open a page with all its folds, and return what ran on it, what is not text, or what does not fit."""
    page.goto(address)
    page.wait_for_load_state()
    open_folds(page)
    for each in page.locator("main *:visible").all()[:60]:
        each.dispatch_event("mouseover")
    text = page.locator("body").inner_text()
    faults = [f"{name} is shown" for name, sign in SIGNS.items() if sign in text]
    return [*map(str, page.evaluate(RAN)), *faults] or faults_on_screens(page)


SIGNS = {
    "a right-to-left override": "\u202e",
    "a computed template": str(2347 * 7331),
    "a control character": "\x1b",
}


@pytest.mark.slow
def test_hostile_descriptions_of_models_are_text(
    new_service: NewService, browser: Browser, provider: QuietProvider, tmp_path: Path
) -> None:
    catalog = provider.write_catalog(tmp_path)
    catalog.write_text(catalog.read_text() + MODELS)
    service = new_service(CATALOG=str(catalog))
    service.start()
    found = {}
    with open_account_pages(service, browser) as pages, open_pages(service, browser) as operators:
        page = pages.owner()
        pages.api(page, "POST", "/v2/control/sandbox/recharge", json={"amount": "3.00"})
        page.goto(f"/account/playground?model={MODEL}")
        page.get_by_role("button", name="Run for").click()
        page.wait_for_url("**/account/tasks/task_*")
        task_id = page.url.rpartition("/")[2]
        addresses = ["/", "/models", "/account/playground", f"/account/playground?model={MODEL}", "/account/tasks"]
        for address in (*addresses, "/account/usage", "/account", f"/account/tasks/{task_id}"):
            found[address] = look(page, address)
        ops = operators.page("/ops")
        for address in ("/ops/providers", f"/ops/tasks/{task_id}", "/ops/all-tasks", f"/ops/follow?id={task_id}"):
            found[address] = look(ops, address)
        page.goto("/docs")
        page.wait_for_load_state("networkidle")
        found["/docs"] = [str(each) for each in page.evaluate(RAN)]
    assert {address: faults for address, faults in found.items() if faults} == {}
    assert service.stop() == 0


def send_all(pages: AccountPages, page: Page, url: str) -> list[str]:
    """Create a webhook for each response, send a test to it, and wait until it has failed; return their pages."""
    addresses = []
    for name in RESPONSES:
        made = pages.api(page, "POST", "/v2/control/webhooks", json={"url": f"{url}/{name}", "events": ["*"]})
        pages.api(page, "POST", f"/v2/control/webhooks/{made['webhook_id']}/test")
        addresses.append(f"/account/webhooks/{made['webhook_id']}")
    for address in addresses:
        page.goto(address)
        expect(page.get_by_role("row").nth(1)).to_contain_text("number 1")
    return addresses


@pytest.mark.slow
def test_hostile_responses_of_receivers_are_text(quiet_service: Service, browser: Browser) -> None:
    with (
        hostile_receiver() as url,
        open_account_pages(quiet_service, browser) as pages,
        open_pages(quiet_service, browser) as operators,
    ):
        page = pages.owner()
        found = {each: look(page, each) for each in (*send_all(pages, page, url), "/account/webhooks", "/account")}
        account_id = pages.api(page, "GET", "/v2/control/account")["account_id"]
        ops = operators.page("/ops")
        for address in (
            "/ops/webhooks",
            f"/ops/accounts/{account_id}",
            f"/ops/follow?id={account_id}",
            "/ops/reports",
        ):
            found[address] = look(ops, address)
    assert {address: faults for address, faults in found.items() if faults} == {}
