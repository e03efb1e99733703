"""The operators' pages of a running service in browsers, its operators' API, and customers who give it work."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from playwright.sync_api import Browser, BrowserContext, Locator, Page

from .page_browser import WAIT_MS, new_context, sign_in
from .service_process import Service


@dataclass
class Account:
    """A customer's account."""

    http: httpx2.Client
    account_id: str
    session: dict[str, str]
    key: dict[str, str] = field(default_factory=dict)

    def recharge(self) -> httpx2.Response:
        """Add a credit, which wakes the account's actor."""
        return self.http.post("/v2/control/sandbox/recharge", json={"amount": "1.00"}, headers=self.session)


class Pages:
    """A service, its operators' API, and browsers."""

    def __init__(self, service: Service, browser: Browser) -> None:
        self.url = service.url
        self.token = (service.data_dir / "secrets" / "operator_token").read_text().strip()
        self.http = httpx2.Client(base_url=service.url, timeout=60, verify=False)
        self._bearer = {"Authorization": f"Bearer {self.token}"}
        self._browser = browser
        self.contexts: list[BrowserContext] = []
        self.complaints: list[str] = []

    def page(self, path: str, *, signed_in: bool = True, **options: Any) -> Page:
        """Open a page in a browser of its own; what its console complains of is collected."""
        context = new_context(self._browser, self.url, **options)
        context.set_default_timeout(WAIT_MS)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        if signed_in:
            sign_in(page, self.token, path)
        return page

    def api(self, path: str, reason: str | None = None) -> dict[str, Any]:
        """Read from the operators' API, or act by it."""
        body = None if reason is None else {"reason": reason}
        response = self.http.request("GET" if body is None else "POST", path, json=body, headers=self._bearer)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def account(self) -> Account:
        """Sign a new customer in, with some credit and an API key."""
        email = f"{secrets.token_hex(8)}@example.com"
        sent = self.http.post("/v2/control/auth/otp", json={"email": email}).json()
        proof = {"email": email, "otp_id": sent["otp_id"], "otp": sent["debug_otp"]}
        verified = self.http.post("/v2/control/auth/verify", json=proof).json()
        session = {"Authorization": f"Bearer {verified['session']['token']}"}
        key = self.http.post("/v2/control/api-keys", json={}, headers=session).json()["api_key"]
        account = Account(self.http, verified["account_id"], session, {"Authorization": f"Bearer {key}"})
        assert account.recharge().status_code == 200
        return account


@contextmanager
def open_pages(service: Service, browser: Browser) -> Iterator[Pages]:
    """Yield the pages of a service. Nothing that they contain may be refused by their own policy."""
    pages = Pages(service, browser)
    yield pages
    for context in pages.contexts:
        context.close()
    pages.http.close()
    assert pages.complaints == [], pages.complaints


def act(part: Page | Locator, label: str, reason: str, **fields: str) -> None:
    """Open an action's form on a page or a part of one, and send it with a reason, and fields by their labels."""
    part.get_by_text(f"{label}…", exact=True).click()
    form = part.locator("details.act[open] form")
    for name, value in fields.items():
        form.get_by_label(name).fill(value)
    form.get_by_label("Reason").fill(reason)
    form.get_by_role("button", name=label).click()
