"""Refunds, held payments, comparisons and webhooks by the forms of the operators' pages, also without scripts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
import trio
from playwright.sync_api import Browser, Locator, Page, expect
from tests.clients import Customer, loopback_client, ok

from .card_provider import CardProviderProcess, Payer
from .operators_pages import Pages, act, open_pages
from .page_browser import faults_of
from .receiver import Receiver
from .service_process import Service

T = TypeVar("T")

WAIT_S = 60.0

both_ways = pytest.mark.parametrize("has_script", [True, False], ids=["with scripts", "without scripts"])


@pytest.fixture
def pages(card_service: Service, card_provider: CardProviderProcess, browser: Browser) -> Iterator[Pages]:
    """The pages of the shared service, which gets the card provider's webhooks."""
    card_provider.serve(card_service)
    with open_pages(card_service, browser) as pages:
        yield pages


def as_payer(
    pages: Pages, card_provider: CardProviderProcess, do: Callable[[Payer], Awaitable[T]], **given: str
) -> T:
    """Do something as a new customer who pays by card, ``email`` among what may be given."""

    async def run() -> T:
        with trio.fail_after(WAIT_S):
            async with loopback_client(base_url=pages.url, timeout=WAIT_S) as http:
                customer = Customer(http, **given)
                await customer.sign_in()
                return await do(Payer(customer, card_provider))

    return trio.run(run)


async def held_order(payer: Payer) -> dict[str, Any]:
    """Pay less than was ordered."""
    order = await payer.order()
    paid = {"amount_received": 900}
    await payer.card_provider.act("payment_intents", order["provider_payment_id"], "pay", **paid)
    return await payer.wait_for(order["order_id"], status="held")


def order_with(pages: Pages, order_id: str, **fields: object) -> dict[str, Any]:
    """Wait until an order has these values, and return it."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found: dict[str, Any] = pages.api(f"/ops/api/orders/{order_id}")["order"]
        if all(found[name] == value for name, value in fields.items()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def find(page: Page, entry: Locator) -> Locator:
    """Turn the pages of a list until an entry is there."""
    following = page.get_by_role("link", name="Next page")
    while not entry.count() and following.count():
        following.click()
        page.wait_for_load_state()
    expect(entry).to_have_count(1)
    return entry


def expect_done(page: Page, what: str) -> None:
    expect(page.get_by_role("status").filter(has_text=f"Done: {what}.")).to_be_visible()


@both_ways
@pytest.mark.slow
def test_a_refund_shows_on_the_page_of_its_order(
    pages: Pages, card_provider: CardProviderProcess, has_script: bool
) -> None:
    order_id = as_payer(pages, card_provider, lambda payer: payer.paid_order())["order_id"]
    page = pages.page(f"/ops/payments/{order_id}", has_script=has_script)
    expect(page.locator(".pairs")).to_contain_text("10.00 USD")
    act(page, "Refund", "bought twice", **{"Amount in USD (all that is left if empty)": "4.00"})
    expect_done(page, "refund payment")
    order_with(pages, order_id, reversal_status="partially_refunded")
    if not has_script:
        page.reload()
    expect(page.locator(".head").get_by_text("partially refunded")).to_be_visible()
    act(page, "Refund", "the rest too")
    expect_done(page, "refund payment")
    order_with(pages, order_id, reversal_status="refunded")
    for path in (f"/ops/payments/{order_id}", f"/ops/actions?target={order_id}"):
        page.goto(path)
        refunded = page.get_by_role("row").filter(has_text="bought twice")
        expect(refunded).to_contain_text("done")
        expect(refunded).to_contain_text("amount 4.00, currency USD")


@both_ways
@pytest.mark.slow
def test_held_payments_are_given_credit_or_none(
    pages: Pages, card_provider: CardProviderProcess, has_script: bool
) -> None:
    credited = as_payer(pages, card_provider, held_order)["order_id"]
    ended = as_payer(pages, card_provider, held_order)["order_id"]
    page = pages.page("/ops/payments", has_script=has_script)
    card = find(page, page.locator(f"#{credited}"))
    expect(card).to_contain_text("Received9.00 USD")
    act(card, "Give credit", "what came is credited", **{"Amount in credits (optional)": "9.00"})
    expect_done(page, "resolve payment")
    expect(page.locator(f"#{credited}")).to_have_count(0)
    act(find(page, page.locator(f"#{ended}")), "Give none", "sent back")
    expect_done(page, "resolve payment")
    expect(page.locator(f"#{ended}")).to_have_count(0)
    order_with(pages, credited, status="credited")
    order_with(pages, ended, status="canceled")


@pytest.mark.slow
@pytest.mark.parametrize("has_script", [True, False], ids=["with scripts", "without scripts"])
def test_an_order_not_compared_yet_is_compared_from_the_list(
    pages: Pages, card_provider: CardProviderProcess, has_script: bool
) -> None:
    order_id = as_payer(pages, card_provider, lambda payer: payer.paid_order())["order_id"]
    page = pages.page("/ops/orders?trouble=unreconciled", has_script=has_script)
    row = find(page, page.locator(f"#{order_id}"))
    expect(row).to_contain_text("unreconciled")
    act(row, "Compare now", "before the books are closed")
    expect_done(page, "reconcile payment")
    order_with(pages, order_id, reconcile_status="reconciled")
    page.goto("/ops/orders?trouble=unreconciled")
    expect(page.locator(f"#{order_id}")).to_have_count(0)


@pytest.mark.parametrize("screen", ["phone", "desktop"])
@pytest.mark.slow
def test_pages_of_orders_fit_their_screen(pages: Pages, card_provider: CardProviderProcess, screen: str) -> None:
    async def orders(payer: Payer) -> list[str]:
        held, paid = await held_order(payer), await payer.paid_order()
        return [held["order_id"], paid["order_id"]]

    email = f"{secrets.token_hex(32)}@a-customer-with-a-long-name.accounts.example.com"
    order_ids = as_payer(pages, card_provider, orders, email=email)
    page = pages.page("/ops", screen=screen)
    found = {}
    for path in ("/ops/orders", "/ops/payments", *(f"/ops/payments/{each}" for each in order_ids)):
        page.goto(path)
        if faults := faults_of(page):
            found[path] = faults
    assert found == {}


@both_ways
@pytest.mark.slow
def test_a_failed_webhook_is_tried_again(
    pages: Pages, card_provider: CardProviderProcess, endpoint: Receiver, has_script: bool
) -> None:
    path = f"/customer/{has_script}"
    url = endpoint.will_answer(path, 500)

    async def refuse_once(payer: Payer) -> str:
        await payer.customer.recharge("1.00")
        body = {"model": "studio/image-1", "input": {"prompt": "a lighthouse"}, "webhook_url": url}
        only = {"webhook_events": ["task.succeeded"]}
        ok(await payer.customer.as_key("POST", "/v2/task/create", {**body, **only}))
        await endpoint.wait(path, 1)
        return payer.customer.account_id

    account_id = as_payer(pages, card_provider, refuse_once)
    page = pages.page("/ops", has_script=has_script)
    card = page.locator("main .card").filter(has_text="task.succeeded")
    page.goto(f"/ops/webhooks?account_id={account_id}")
    expect(card).to_contain_text("status 500")
    act(card, "Try again now", "their server is mended")
    expect_done(page, "retry webhook")

    async def delivered() -> None:
        await endpoint.wait(path, 2)

    trio.run(delivered)
    if not has_script:
        page.goto(f"/ops/webhooks?account_id={account_id}")
    expect(page.get_by_text("No delivery fails that fits.")).to_be_visible()
