"""The account's own pages of a running service in browsers."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from playwright.sync_api import Browser, BrowserContext, Page

from .page_browser import WAIT_MS, new_context
from .service_process import Service

EXPECTED = ("the server responded with a status of 4",)
"""What a browser says of a form that was refused."""


class AccountPages:
    """A service, and browsers of customers."""

    def __init__(self, service: Service, browser: Browser) -> None:
        self.url = service.url
        self.http = httpx2.Client(base_url=service.url, timeout=60, verify=False)
        self._browser = browser
        self.contexts: list[BrowserContext] = []
        self.complaints: list[str] = []

    def page(self, **options: Any) -> Page:
        """Open a browser of its own; what its console complains of is collected."""
        context = new_context(self._browser, self.url, **options)
        context.set_default_timeout(WAIT_MS)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda line: self._note(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def _note(self, complaint: str) -> None:
        if not any(each in complaint for each in EXPECTED):
            self.complaints.append(complaint)

    def owner(self, path: str = "/account", **options: Any) -> Page:
        """Register a new customer by the form, and return the page at ``path``."""
        page = self.page(**options)
        page.goto(path)
        sign_in(page)
        page.wait_for_url(f"**{path}")
        return page

    def api(self, page: Page, method: str, path: str, **sent: Any) -> dict[str, Any]:
        """Call the API with the session of a page's browser."""
        response = self.http.request(method, path, headers=bearer_of(page), **sent)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found


def bearer_of(page: Page) -> dict[str, str]:
    """The session of a browser, as programs send it."""
    [token] = [each["value"] for each in page.context.cookies() if each["name"] == "holdfast_account"]
    return {"Authorization": f"Bearer {token}"}


def sign_in(page: Page, email: str | None = None) -> None:
    """Fill in the forms of the sign-in, which the page shows."""
    if email is not None or page.get_by_label("E-mail address").count():
        page.get_by_label("E-mail address").fill(email or f"{secrets.token_hex(8)}@example.com")
        page.get_by_role("button", name="Send the code").click()
    code = page.locator("form code").inner_text()
    page.get_by_label("Code of six digits").fill(f"{code[:3]} {code[3:]}")
    page.get_by_role("button", name="Sign in", exact=True).click()


@contextmanager
def open_account_pages(service: Service, browser: Browser) -> Iterator[AccountPages]:
    """Yield the pages of a service. Nothing that they contain may be refused by their own policy."""
    pages = AccountPages(service, browser)
    yield pages
    for context in pages.contexts:
        context.close()
    pages.http.close()
    assert pages.complaints == [], pages.complaints
