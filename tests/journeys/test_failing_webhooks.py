"""Webhooks that fail in two processes on one database, seen and tried again on the pages of either."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.clients import ok

from .operators_pages import Account, Pages, act, open_pages
from .quiet_provider import MODEL
from .receiver import Receiver, receiver
from .service_process import Service

WAIT_S = 60.0
ACCOUNTS_MAX = 60
"""Each account is one process's by chance: that so many are all of one does not happen."""


def fail_one(pages: Pages, endpoint: Receiver) -> Account:
    """Let an event of a new account fail once."""
    account = pages.account()
    path = f"/{account.account_id}"
    # It fails until the test clears the answers.
    url = endpoint.will_answer(path, *[500] * 1000)
    order = {"model": MODEL, "input": {"prompt": "a cat"}, "webhook_url": url, "webhook_events": ["task.canceled"]}
    created = pages.http.post("/v2/task/create", json=order, headers=account.key).json()
    ok(pages.http.post(f"/v2/task/{created['request_id']}/cancel", headers=account.key))
    wait_for_posts(endpoint, path, 1)
    return account


def wait_for_posts(endpoint: Receiver, path: str, number: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(endpoint.at(path)) < number:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def press(page: Page, label: str, action: str) -> None:
    act(page, label, "their server is mended")
    expect(page.get_by_role("status").filter(has_text=f"Done: {action}.")).to_be_visible()


@pytest.mark.slow
def test_events_that_fail_in_two_processes_are_tried_again_from_one_page(
    two_services: list[Service], browser: Browser
) -> None:
    one, other = two_services
    with receiver() as endpoint, open_pages(one, browser) as here, open_pages(other, browser) as there:
        accounts: list[Account] = []
        while min(service.metric("holdfast_event_deliveries_total") for service in two_services) < 1:
            assert len(accounts) < ACCOUNTS_MAX
            accounts += [fail_one(pages, endpoint) for pages in (here, there)]
        # Once more by itself, soon after; then minutes pass until the next attempt.
        for account in accounts:
            wait_for_posts(endpoint, f"/{account.account_id}", 2)
        host = urlsplit(endpoint.url).netloc
        for pages in (here, there):
            summary = pages.api("/ops/api/webhooks/summary")
            assert summary["failing"] == len(accounts)
            assert summary["hosts"] == [{"host": host, "accounts": len(accounts), "events": len(accounts)}]
        # All but one of the accounts have a server that is mended.
        *mended, last = accounts
        for account in mended:
            endpoint.answers[f"/{account.account_id}"].clear()
        page = there.page("/ops/webhooks")
        page.get_by_role("link", name=host).click()
        press(page, "Try all for this host again", "retry host webhooks")
        for account in mended:
            wait_for_posts(endpoint, f"/{account.account_id}", 3)
        cards = page.locator("main .card[id]")
        expect(cards).to_have_count(1)
        expect(cards).to_contain_text(last.account_id[-7:])
        [action] = there.api("/ops/api/actions?action=retry_host_webhooks")["data"]
        assert action["effect"] == {"retried": str(len(accounts))}
        wait_for_posts(endpoint, f"/{last.account_id}", 4)
        endpoint.answers[f"/{last.account_id}"].clear()
        page = here.page(f"/ops/webhooks?account_id={last.account_id}")
        press(page, "Try all of this account again", "retry account webhooks")
        wait_for_posts(endpoint, f"/{last.account_id}", 5)
        expect(page.get_by_text("No delivery fails that fits.")).to_be_visible()
        assert here.api("/ops/api/webhooks/summary") == {"failing": 0, "given_up": 0, "hosts": []}
    assert one.audit() == []
