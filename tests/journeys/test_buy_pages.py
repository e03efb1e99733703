"""Buying credit in a browser, on a running service with the card emulator."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from .operators_pages import Account, Pages
from .page_browser import WAIT_MS, Scheme, faults_of
from .service_process import Service

BUY = "/account/buy"
ORDER = re.compile(r"/account/buy/ord_[0-9a-f]{32}(\?redirect_status=\w+)?$")
THREE_D = "pm_card_threeDSecure2Required"


class Shop(Pages):
    """The account's pages for buying, and the emulator's controls."""

    def __init__(self, service: Service, browser: Browser) -> None:
        super().__init__(service, browser)
        self._emulator = f"http://127.0.0.1:{(service.data_dir / 'card.port').read_text().strip()}"

    def open(self, path: str = BUY, account: Account | None = None, **options: Any) -> Page:
        """Open a page as an account's owner."""
        page = self.page("/account/sign-in", signed_in=False, **options)
        token = (account or self.account()).session["Authorization"].removeprefix("Bearer ")
        page.context.add_cookies([{"name": "holdfast_account", "value": token, "url": self.url}])
        page.goto(path)
        return page

    def press(self, kind: str, thing_id: str, action: str, **body: Any) -> None:
        """Press a button of the emulator."""
        answer = httpx2.post(f"{self._emulator}/control/{kind}/{thing_id}/{action}", json=body)
        assert answer.status_code == 200, answer.text

    def orders(self, account: Account) -> list[dict[str, Any]]:
        """The account's orders, newest first."""
        found: list[dict[str, Any]] = self.http.get("/v2/control/payments", headers=account.session).json()["data"]
        return found

    def balance(self, account: Account) -> str:
        """The account's balance."""
        return str(self.http.get("/v2/control/account", headers=account.session).json()["balance"])


@pytest.fixture
def shop(shared_service: Service, browser: Browser) -> Iterator[Shop]:
    """The pages of the shared service. Nothing that they contain may be refused by their own policy."""
    shop = Shop(shared_service, browser)
    yield shop
    for context in shop.contexts:
        context.close()
    shop.http.close()
    # A browser reports each refused request, too.
    assert [each for each in shop.complaints if "the server responded with a status of 4" not in each] == []


def poll(page: Page, is_met: Callable[[], bool]) -> None:
    """Wait until a condition is met that the page does not show."""
    ends_at = time.monotonic() + WAIT_MS / 1000
    while not is_met():
        assert time.monotonic() < ends_at
        page.wait_for_timeout(50)


def order(page: Page, amount: str) -> None:
    """Order an amount of one's own, and wait for the provider's form."""
    page.get_by_label("Another", exact=True).check()
    page.get_by_label("Another amount").fill(amount)
    page.get_by_role("button", name="Continue to payment").click()
    expect(page.get_by_role("heading", name=f"Pay {amount} USD")).to_be_visible()


def pay(page: Page, test_card: str = "pm_card_visa") -> None:
    """Pay with a test card."""
    page.frame_locator("iframe").get_by_label("Test card").select_option(test_card)
    page.get_by_role("button", name=re.compile("^Pay ")).click()


def save_card(page: Page, test_card: str = "pm_card_visa") -> None:
    page.goto(f"{BUY}/card")
    page.frame_locator("iframe").get_by_label("Test card").select_option(test_card)
    page.get_by_role("button", name="Save the card").click()
    expect(page.get_by_role("status").filter(has_text="is saved.")).to_be_visible()


def buy(page: Page, amount: str) -> None:
    """Buy credit with a card that works, and stay on the order's page."""
    page.goto(BUY)
    order(page, amount)
    pay(page)
    expect(page.locator(".outcome")).to_contain_text(f"{amount} credits were added.")


def test_a_newcomer_buys_after_a_decline(shop: Shop) -> None:
    page = shop.page(BUY, signed_in=False)
    page.goto(BUY)
    page.get_by_label("E-mail address").fill("newcomer@example.com")
    page.get_by_role("button", name="Send the code").click()
    page.get_by_label("Code of six digits").fill(page.locator("code").inner_text())
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("You have 0.00 credits")).to_be_visible()
    page.get_by_label("10", exact=True).check()
    page.get_by_role("button", name="Continue to payment").click()
    pay(page, "pm_card_chargeDeclinedInsufficientFunds")
    fault = page.get_by_role("alert")
    expect(fault).to_have_text(
        "Your card has insufficient funds. Nothing was charged: try again, or take another card."
    )
    page.get_by_role("link", name="Not now").click()
    expect(page.locator(".outcome")).to_contain_text("the card has insufficient funds. Nothing was charged.")
    page.get_by_role("link", name="Try again").click()
    expect(page.get_by_text("Try again, or take another card.")).to_be_visible()
    pay(page)
    page.wait_for_url(ORDER)
    expect(page.locator(".outcome")).to_contain_text("10.00 credits were added.")
    page.get_by_role("link", name="Buy more").click()
    expect(page.get_by_text("You have 10.00 credits")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="10.00 USD")
    expect(row).to_contain_text("paid")
    expect(row.get_by_role("link", name="Pay")).to_have_count(0)


@pytest.mark.parametrize("first_status", [200, pytest.param(429, marks=pytest.mark.slow)])
def test_a_change_before_the_first_event_is_shown(shop: Shop, first_status: int) -> None:
    """It comes after the page was made and before its stream is opened, or opened again by the script."""
    account = shop.account()
    page = shop.open(account=account)
    order(page, "6.00")
    held: list[Route] = []

    def hold(route: Route) -> None:
        if first_status == 429 and not held:
            route.fulfill(status=429)
        held.append(route)

    page.route("**/account/events", hold)
    page.goto(page.url.removesuffix("/pay"))
    outcome = page.locator(".outcome")
    expect(outcome).to_contain_text("It waits for your payment.")
    poll(page, lambda: len(held) == (1 if first_status == 200 else 2))
    before = shop.orders(account)
    shop.press("payment_intents", before[0]["provider_payment_id"], "decline", decline_code="insufficient_funds")
    poll(page, lambda: shop.orders(account) != before)
    expect(outcome).to_contain_text("It waits for your payment.")
    held[-1].continue_()
    expect(outcome).to_contain_text("the card has insufficient funds. Nothing was charged.")


@pytest.mark.slow
def test_a_refused_form_stays_when_its_page_is_refreshed(shop: Shop) -> None:
    account = shop.account()
    page = shop.open(account=account)
    page.get_by_label("Another", exact=True).check()
    page.get_by_label("Another amount").fill("75 dollars")
    page.get_by_role("button", name="Continue to payment").click()
    expect(page.locator(".fault")).to_be_visible()
    account.recharge()
    expect(page.get_by_text("You have 2.00 credits")).to_be_visible()
    expect(page.locator(".fault")).to_be_visible()
    expect(page.get_by_label("Another amount")).to_have_value("75 dollars")


def test_the_bank_asks_for_approval_at_a_page_of_another_site(shop: Shop) -> None:
    """The service is at localhost here, and the emulator at 127.0.0.1: other sites to a browser."""
    account = shop.account()
    shop.url = shop.url.replace("127.0.0.1", "localhost")
    page = shop.open(account=account)
    order(page, "12.00")
    address = page.url.removesuffix("/pay")
    pay(page, THREE_D)
    page.get_by_role("button", name="Fail the authentication").click()
    page.wait_for_url(ORDER)
    assert page.url == f"{address}?redirect_status=failed"
    expect(page.locator(".outcome")).to_contain_text("not approved")
    expect(page.locator(".outcome")).to_contain_text("Nothing was charged.")
    page.get_by_role("link", name="Try again").click()
    pay(page, THREE_D)
    expect(page.get_by_text("$12.00")).to_be_visible()
    page.get_by_role("button", name="Approve").click()
    page.wait_for_url(ORDER)
    assert urlsplit(page.url).query == "redirect_status=succeeded"
    expect(page.locator(".outcome")).to_contain_text("12.00 credits were added.")
    assert (shop.balance(account), len(shop.orders(account))) == ("13.00", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("one_day")
def test_a_saved_card_pays_and_tops_up(shop: Shop) -> None:
    account = shop.account()
    page = shop.open(account=account)
    save_card(page)
    card = page.get_by_role("listitem").filter(has_text="ending in 4242")
    expect(card).to_be_visible()
    order(page, "9.00")
    expect(page.get_by_label("Visa ending in 4242")).to_be_checked()
    expect(page.locator("#card-form")).to_be_hidden()
    page.get_by_role("button", name="Pay 9.00 USD").click()
    page.wait_for_url(ORDER)
    expect(page.locator(".outcome")).to_contain_text("9.00 credits were added.")
    page.goto(BUY)
    page.get_by_text("Switch on…").click()
    page.get_by_label("When less is available than").fill("20")
    page.get_by_label("Buy, in USD").fill("15")
    page.get_by_role("button", name="Switch on").click()
    expect(page.get_by_role("status").filter(has_text="Automatic top-up is on.")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="15.00 USD")
    expect(row).to_contain_text("15.00 credits were added.")
    expect(page.get_by_text("1 of at most 1 today")).to_be_visible()
    page.get_by_role("button", name="Switch off").click()
    expect(page.get_by_role("status").filter(has_text="Automatic top-up is off.")).to_be_visible()
    card.get_by_text("Remove…").click()
    card.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No card is saved.")).to_be_visible()
    assert shop.balance(account) == "25.00"


@pytest.mark.slow
def test_a_card_that_fails_switches_the_top_up_off_and_says_why(shop: Shop) -> None:
    page = shop.open()
    save_card(page, "pm_card_chargeCustomerFail")
    page.get_by_text("Switch on…").click()
    page.get_by_label("When less is available than").fill("20")
    page.get_by_role("button", name="Switch on").click()
    why = page.get_by_text("because a charge failed: the bank declined the card.")
    expect(why).to_be_visible()


@pytest.mark.slow
def test_refunds_and_disputes_appear_on_the_order(shop: Shop) -> None:
    account = shop.account()
    page = shop.open(account=account)
    buy(page, "8.00")
    outcome = page.locator(".outcome")
    charge_id = shop.orders(account)[0]["provider_charge_id"]
    shop.press("charges", charge_id, "refund", amount=300)
    expect(outcome).to_contain_text("of it went back to your card, and that much credit was taken back.")
    shop.press("charges", charge_id, "refund")
    expect(outcome).to_contain_text("The money went back to your card")
    buy(page, "6.00")
    shop.press("charges", shop.orders(account)[0]["provider_charge_id"], "dispute")
    expect(outcome).to_contain_text("The cardholder disputes this payment.")
    assert shop.balance(account) == "1.00"
    page.goto(BUY)
    expect(page.get_by_role("row").filter(has_text="8.00 USD")).to_contain_text("refunded")
    expect(page.get_by_role("row").filter(has_text="6.00 USD")).to_contain_text("disputed")


@pytest.mark.slow
def test_a_coupon_is_redeemed_once(shop: Shop) -> None:
    body = {"amount": "4.00", "reason": "a journey", "code": "BUY-PAGES-4", "uses_max": 9}
    made = shop.http.post(
        "/ops/api/coupons", json=body, headers={"Authorization": f"Bearer {shop.token}", "Idempotency-Key": "c"}
    )
    assert made.status_code == 200, made.text
    page = shop.open()
    page.get_by_label("Code").fill("buy-pages-4")
    page.get_by_role("button", name="Redeem").click()
    expect(page.get_by_role("status").filter(has_text="The coupon gave you 4.00 credits.")).to_be_visible()
    expect(page.get_by_text("You have 5.00 credits")).to_be_visible()
    page.get_by_label("Code").fill("BUY-PAGES-4")
    page.get_by_role("button", name="Redeem").click()
    expect(page.get_by_role("alert")).to_contain_text("This account has redeemed this coupon.")


@pytest.mark.slow
def test_a_double_click_makes_one_order(shop: Shop) -> None:
    account = shop.account()
    page = shop.open(account=account)
    page.get_by_role("button", name="Continue to payment").dblclick()
    # Not wait_for_url: the second click ends the navigation of the first, which that takes for a failure.
    expect(page).to_have_url(re.compile(r"/pay$"))
    expect(page.get_by_role("button", name="Pay 25.00 USD")).to_be_enabled()
    assert [each["amount"] for each in shop.orders(account)] == ["25.00"]


@pytest.mark.slow
def test_the_keyboard_alone_buys(shop: Shop) -> None:
    account = shop.account()
    page = shop.open(account=account)
    page.get_by_label("25", exact=True).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    button = page.get_by_role("button", name="Pay 50.00 USD")
    expect(button).to_be_enabled()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "IFRAME":
            break
    page.keyboard.press("Tab")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".outcome")).to_contain_text("50.00 credits were added.")
    assert shop.balance(account) == "51.00"


@pytest.mark.slow
def test_without_javascript_all_but_the_providers_form_works(shop: Shop) -> None:
    account = shop.account()
    page = shop.open(account=account, has_script=False)
    order(page, "5.00")
    # Playwright shows no <noscript>.
    assert "<noscript>" in page.content()
    expect(page.get_by_text("Loading")).to_be_hidden()
    expect(page.get_by_role("button", name="Pay 5.00 USD")).to_be_disabled()
    page.get_by_role("link", name="Not now").click()
    expect(page.locator(".outcome")).to_contain_text("It waits for your payment.")
    shop.press("payment_intents", shop.orders(account)[0]["provider_payment_id"], "pay")
    page.goto(BUY)
    page.get_by_text("Add test credit…").click()
    page.get_by_label("Amount", exact=True).fill("2.00")
    page.get_by_role("button", name="Add test credit").click()
    expect(page.get_by_text("2.00 test credits were added.")).to_be_visible()


@pytest.mark.parametrize(("screen", "scheme"), [("phone", "dark"), ("desktop", "light")])
@pytest.mark.slow
def test_pages_are_readable_on_every_screen(shop: Shop, screen: str, scheme: Scheme) -> None:
    account = shop.account()
    page = shop.open(account=account, screen=screen, scheme=scheme)
    save_card(page)
    order(page, "7.00")
    address = page.url.removesuffix("/pay")
    found = {}
    for path in (BUY, f"{BUY}/card", f"{address}/pay", address):
        page.goto(path)
        if path.endswith(("/pay", "/card")):
            expect(page.get_by_role("button", name=re.compile("^(Pay|Save) "))).to_be_enabled()
        found[path] = faults_of(page)
    assert {path: faults for path, faults in found.items() if faults} == {}
