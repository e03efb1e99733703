"""Buying credit on the account's pages: orders, the page that pays them, cards, top-ups and coupons."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.strict_html import StrictHtml

from holdfast.actors.account.messages import RemoveCard, SetAutoTopUp
from holdfast.http.endpoints.payments.card import CARD_MIN_MICRO
from holdfast.http.schemas.payments import BalanceTransactionBody, PaymentOrderBody, payment_order_body
from holdfast.ledger.orders.order import Order, Statuses
from holdfast.ledger.orders.top_ups import AutoTopUp, SavedCard, TopUpSettings
from holdfast.ledger.values import MICRO
from holdfast.persistence.records import tables
from holdfast.persistence.records.rows import AutoTopUpRow
from holdfast.providers.card.base import CardDetails, CardTimeout
from holdfast_console.account import buy
from holdfast_console.account.order_words import shown_order, switched_off_words
from holdfast_console.rendering import policy_of
from holdfast_console.views import ROWS_SHOWN

from .order_stand_ins import make_order
from .page_reader import message_of
from .test_account_pages import AccountReader, owner

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api

__all__ = ["owner"]

BUY = "/account/buy"
STRICT = policy_of({})
SETTINGS = TopUpSettings(below_micro=5 * MICRO, amount_micro=10 * MICRO, max_per_day=2, max_per_month=10)


async def send(owner: AccountReader, path: str, **fields: str) -> httpx2.Response:
    """Send a form of the page for buying."""
    token = await owner.hidden(BUY)
    return await owner.send(path, csrf_token=token, return_to=BUY, **fields)


async def add_cards(api: Api, *saved_at: datetime, **fields: Any) -> None:
    """Save cards, the newest first, and set the top-up."""
    cards = tuple(
        SavedCard(
            card_id=f"pm_{number}", brand="visa", last4=f"424{number}", exp_month=3, exp_year=2035, saved_at=at
        )
        for number, at in enumerate(saved_at)
    )
    state = AutoTopUp(account_id=api.account_id, customer_id="cus_1", cards=cards, **fields)
    row = AutoTopUpRow.of(state)
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    await api.write(tables.auto_top_ups.insert().values(**values | {"state": msgspec.to_builtins(state)}))


async def add_order(api: Api, **fields: Any) -> Order:
    order = api.order(**fields)
    api.use_order_rules().orders[order.order_id] = order
    await api.add_order(order)
    return order


# ------------------------------------------------------------------------------------------------ ordering


async def test_a_form_that_is_sent_twice_makes_one_order(api: Api, owner: AccountReader) -> None:
    rules, _ = api.use_order_rules(), api.configure_card()
    key = await owner.hidden(BUY, "idempotency_key")
    sent = [await send(owner, BUY, choice="25.00", amount="3", idempotency_key=key) for _ in range(2)]
    [order] = rules.orders.values()
    assert order.request.amount_micro == 25 * MICRO
    assert {(each.status_code, each.headers["Location"]) for each in sent} == {(303, f"{BUY}/{order.order_id}/pay")}
    assert key != await owner.hidden(BUY, "idempotency_key")


@pytest.mark.parametrize("amount", ["0.10", "ten", "", "99999999"])
async def test_an_amount_of_ones_own_is_refused_beside_its_field(
    api: Api, owner: AccountReader, amount: str
) -> None:
    rules, _ = api.use_order_rules(), api.configure_card()
    wrong = await send(owner, BUY, choice="other", amount=amount)
    assert wrong.status_code == 400
    page = StrictHtml(wrong.text)
    assert page.faults == []
    assert re.findall(r'name="amount" value="([^"]*)" aria-invalid="true"', wrong.text) == [amount]
    assert 'value="other" checked' in wrong.text
    assert rules.orders == {}
    right = await send(owner, BUY, choice="other", amount="7.5")
    assert right.status_code == 303
    assert [each.request.amount_micro for each in rules.orders.values()] == [7_500_000]


async def test_an_order_that_the_provider_did_not_take_is_gone_on_with(api: Api, owner: AccountReader) -> None:
    rules, (card, _) = api.use_order_rules(), api.configure_card()
    card.fault = CardTimeout("too slow")
    away = await send(owner, BUY, choice="10.00", idempotency_key="k" * 22)
    assert away.status_code == 504
    assert f'name="idempotency_key" value="{"k" * 22}"' in away.text
    card.fault = None
    assert (await send(owner, BUY, choice="10.00", idempotency_key="k" * 22)).status_code == 303
    assert len(rules.orders) == 1


async def test_amounts_are_those_that_the_service_takes(api: Api, owner: AccountReader) -> None:
    api.configure(order_max_micro=25 * MICRO)
    api.configure_card()
    page = await owner.get(BUY)
    assert re.findall(r'name="choice" value="([^"]+)"', page.text) == ["10.00", "25.00", "other"]
    assert f"From {CARD_MIN_MICRO / MICRO:.2f} to 25.00 USD." in page.text


async def test_without_a_key_for_browsers_no_card_is_asked_for(api: Api, owner: AccountReader) -> None:
    api.configure_card(publishable_key=None)
    order = await add_order(api)
    page = await owner.read(BUY)
    assert "This service takes no cards." in page.text
    assert f"{BUY}/{order.order_id}/pay" not in page.links
    pay = await owner.get(f"{BUY}/{order.order_id}/pay")
    assert "publishable key" in pay.text
    assert pay.headers["Content-Security-Policy"] == STRICT


# ------------------------------------------------------------------------------------- the page that pays


@pytest.mark.parametrize(
    ("script_url", "allowed"),
    [
        (
            "https://js.stripe.com/v3/",
            {
                "script-src": "'self' https://js.stripe.com https://*.js.stripe.com",
                "frame-src": "https://js.stripe.com https://*.js.stripe.com https://hooks.stripe.com",
                "connect-src": "'self' https://api.stripe.com",
            },
        ),
        (
            "http://127.0.0.1:27311/v3/",
            {
                "script-src": "'self' http://127.0.0.1:27311",
                "frame-src": "http://127.0.0.1:27311",
                "connect-src": "'self'",
            },
        ),
    ],
)
async def test_only_the_page_that_pays_runs_the_providers_script(
    api: Api, owner: AccountReader, script_url: str, allowed: dict[str, str]
) -> None:
    api.configure_card(script_url=script_url)
    order = await add_order(api)
    address = f"{BUY}/{order.order_id}"
    pay = await owner.get(f"{address}/pay")
    assert StrictHtml(pay.text).faults == []
    policy = dict(each.split(" ", 1) for each in pay.headers["Content-Security-Policy"].split("; "))
    strict = dict(each.split(" ", 1) for each in STRICT.split("; "))
    assert policy == strict | allowed
    assert f'<script src="{script_url}" defer></script>' in pay.text
    for words in (
        f"pi_{order.order_id}_secret",
        'data-key="pk_test"',
        f'data-back="{address}"',
        "needs JavaScript",
    ):
        assert words in pay.text
    for path in (BUY, address):
        other = await owner.get(path)
        assert other.headers["Content-Security-Policy"] == STRICT
        assert script_url not in other.text


async def test_another_accounts_order_is_not_found(api: Api, owner: AccountReader) -> None:
    card, _ = api.configure_card()
    order = await add_order(api, account_id=api.other_account_id)
    for path in (f"{BUY}/{order.order_id}", f"{BUY}/{order.order_id}/pay", f"{BUY}/ord_1/pay"):
        assert (await owner.get(path)).status_code == 404
    assert order.order_id not in (await owner.read(BUY)).text
    assert card.asked == []


@pytest.mark.parametrize(
    "fields",
    [
        {"expires_at": datetime(2026, 11, 1).astimezone()},
        {"origin": "top_up"},
        {"provider": "sandbox", "sandbox_event_id": "evt_1", "signed_at": 0},
    ],
)
async def test_what_cannot_be_paid_leads_to_the_order(
    api: Api, owner: AccountReader, fields: dict[str, Any]
) -> None:
    card, _ = api.configure_card()
    order = await add_order(api, **fields)
    response = await owner.get(f"{BUY}/{order.order_id}/pay")
    assert (response.status_code, response.headers["Location"]) == (303, f"{BUY}/{order.order_id}")
    assert f"{BUY}/{order.order_id}/pay" not in (await owner.read(f"{BUY}/{order.order_id}")).links
    assert card.asked == []


async def test_the_secret_of_a_payment_leaves_the_address(api: Api, owner: AccountReader) -> None:
    order = await add_order(api)
    address = f"{BUY}/{order.order_id}"
    returned = {"payment_intent": "pi_1", "payment_intent_client_secret": "pi_1_secret_x"}
    back = await owner.get(address, **returned, redirect_status="succeeded")
    assert (back.status_code, back.headers["Location"]) == (303, f"{address}?redirect_status=succeeded")
    page = await owner.read(back.headers["Location"])
    assert "as soon as the card provider confirms" in page.text


@pytest.mark.parametrize(("saved_s", "offered"), [(-60, True), (60, False)])
async def test_cards_saved_before_an_order_can_pay_it(
    api: Api, owner: AccountReader, saved_s: int, offered: bool
) -> None:
    api.configure_card()
    order = await add_order(api)
    await add_cards(api, api.now + timedelta(seconds=saved_s))
    page = await owner.get(f"{BUY}/{order.order_id}/pay")
    assert ('name="card" value="pm_0" checked' in page.text) is offered


# ------------------------------------------------------------------------------- cards, top-up, credit


async def test_what_is_saved_and_set_is_shown_and_changed(api: Api, owner: AccountReader) -> None:
    card, _ = api.configure_card()
    await add_cards(api, api.now, api.now, settings=SETTINGS, enabled=True)
    page = await owner.read(BUY)
    for words in ("ending in 4240", "until 03/2035", "less than 5.00 credits", "0 of at most 2 today"):
        assert words in page.text
    api.accounts.answer = AutoTopUp(account_id=api.account_id)
    amounts = {"below": "6", "amount": "12", "max_per_day": "1", "max_per_month": "3"}
    changed = await send(owner, f"{BUY}/top-up", **amounts)
    off = await send(owner, f"{BUY}/top-up/off")
    detached = CardDetails(
        card_id="pm_1", customer_id="cus_1", brand="visa", last4="4241", exp_month=3, exp_year=2035
    )
    card.cards["pm_1"] = detached
    removed = await send(owner, f"{BUY}/cards/pm_1/remove")
    assert [message_of(each).text for each in (changed, off, removed)] == [
        "Automatic top-up is on.", "Automatic top-up is off.", "The card was removed."
    ]  # fmt: skip
    wanted = TopUpSettings(below_micro=6 * MICRO, amount_micro=12 * MICRO, max_per_day=1, max_per_month=3)
    assert [command for _, command in api.accounts.asked] == [
        SetAutoTopUp(wanted, True), SetAutoTopUp(SETTINGS, False), RemoveCard("pm_1")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("card_declined", "a charge failed: the bank declined the card"),
        ("insufficient_funds", "a charge failed: the card has insufficient funds"),
        ("stolen_card", "a charge failed: the bank declined the card"),
        ("disputed", "a payment of a top-up was disputed"),
        ("card_removed", "the last saved card was removed"),
        ("operator", "the operator of this service switched it off"),
    ],
)
def test_a_top_up_that_was_switched_off_says_why(reason: str, words: str) -> None:
    assert switched_off_words(reason) == words


async def test_it_is_shown_why_a_top_up_is_off(api: Api, owner: AccountReader) -> None:
    api.configure_card()
    await add_cards(api, api.now, settings=SETTINGS, off_reason="insufficient_funds", off_at=api.now)
    assert "because a charge failed: the card has insufficient funds." in (await owner.read(BUY)).text


async def test_a_card_is_saved_on_a_page_of_its_own(api: Api, owner: AccountReader) -> None:
    api.configure_card()
    await add_cards(api, livemode=None)
    page = await owner.get(f"{BUY}/card")
    assert StrictHtml(page.text).faults == []
    assert 'data-secret="seti_cus_1_secret"' in page.text
    assert 'data-kind="setup"' in page.text
    assert "https://hooks.stripe.com" in page.headers["Content-Security-Policy"]
    await api.write(tables.auto_top_ups.delete())
    await add_cards(api, api.now)
    added = await owner.get(f"{BUY}/card/added")
    assert (added.status_code, added.headers["Location"]) == (303, BUY)
    assert message_of(added).text == "The card ending in 4240 is saved."


async def test_a_card_that_is_not_confirmed_yet_is_announced(
    api: Api, owner: AccountReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buy, "LISTED_WITHIN_S", 0.0)
    await add_cards(api, api.now - timedelta(minutes=2))
    added = await owner.get(f"{BUY}/card/added")
    assert message_of(added).text == "The card is listed once the card provider has confirmed it."


async def test_older_orders_are_on_further_pages(api: Api, owner: AccountReader) -> None:
    made = [await add_order(api, order_id=f"ord_{number:032x}") for number in range(int(ROWS_SHOWN) + 1)]
    first = await owner.read(BUY)
    [link] = [each for each in first.links if "cursor=" in each]
    last = await owner.read(link)
    shown_on = [
        [each.order_id for each in made if f"{BUY}/{each.order_id}" in page.links] for page in (first, last)
    ]
    assert [len(each) for each in shown_on] == [int(ROWS_SHOWN), 1]
    assert sorted(shown_on[0] + shown_on[1]) == [each.order_id for each in made]


async def test_a_refused_coupon_is_refused_beside_its_field(api: Api, owner: AccountReader) -> None:
    wrong = await send(owner, f"{BUY}/coupon", code="NO-SUCH")
    assert wrong.status_code == 404
    assert '<span class="fault">No coupon has this code.</span>' in wrong.text
    assert 'value="NO-SUCH"' in wrong.text


async def test_test_credit_is_there_only_where_the_sandbox_is(api: Api, owner: AccountReader) -> None:
    assert "Add test credit" in (await owner.read(BUY)).text
    api.configure(sandbox_enabled=False)
    assert "Add test credit" not in (await owner.read(BUY)).text


# ------------------------------------------------------------------------------------------------- sentences

AT = datetime.fromisoformat("2026-11-20T12:00:00Z")
PAID = {"status": "credited", "processing_status": "succeeded"}


def shown(statuses: dict[str, Any], failure: str | None = None, returned: str = "", **request: Any) -> Any:
    order = make_order("ord_1", "acct_1", AT, **request)
    state = replace(order.state, statuses=Statuses(**statuses))
    body = replace(payment_order_body(replace(order, state=state)), failure_code=failure)
    return shown_order(body, AT, returned)


@pytest.mark.parametrize(
    ("statuses", "label", "text", "can_pay"),
    [
        ({}, "not paid", "It waits for your payment.", True),
        ({"processing_status": "requires_action"}, "not paid", "The bank wants you to approve the payment.", True),
        ({"processing_status": "processing"}, "processing", "The bank is processing the payment.", False),
        (PAID, "paid", "10.00 credits were added.", False),
        ({"status": "failed"}, "declined", "the bank declined the card. Nothing was charged.", True),
        ({"status": "canceled"}, "canceled", "No credit was added.", False),
        ({"status": "expired"}, "expired", "It was not paid in time.", False),
        ({"status": "held", "reconcile_status": "mismatch"}, "held", "a person looks at it", False),
        (PAID | {"reversal_status": "partially_refunded"}, "partly refunded", "Part of it went back", False),
        (PAID | {"reversal_status": "refunded"}, "refunded", "The money went back to your card", False),
        (PAID | {"reversal_status": "disputed"}, "disputed", "The cardholder disputes this payment.", False),
        (PAID | {"reversal_status": "chargeback"}, "charged back", "after a dispute", False),
        (PAID | {"reversal_status": "reinstated"}, "paid", "10.00 credits are yours again", False),
        (PAID | {"risk_status": "manual_review"}, "paid", "The payment is being reviewed.", False),
        (PAID | {"risk_status": "inquiry"}, "paid", "The bank has asked about it", False),
        (PAID | {"reconcile_status": "mismatch"}, "paid", "compared with the card provider's records", False),
    ],
)  # fmt: skip
def test_what_became_of_an_order_is_one_sentence(
    statuses: dict[str, Any], label: str, text: str, can_pay: bool
) -> None:
    found = shown(statuses)
    assert (found.label, found.can_pay) == (label, can_pay)
    assert text in found.text


@pytest.mark.parametrize(
    ("returned", "label"),
    [("succeeded", "confirming"), ("pending", "confirming"), ("failed", "not paid"), ("x", "not paid")],
)
def test_who_comes_back_from_the_provider_sees_that_it_is_awaited(returned: str, label: str) -> None:
    assert shown({}, returned=returned).label == label
    assert shown(PAID, returned=returned).label == "paid"


def test_a_decline_says_why_but_not_whether_the_card_is_stolen() -> None:
    texts = {code: shown({"status": "failed"}, code).text for code in ("expired_card", "stolen_card", "new_one")}
    assert "the card has expired" in texts["expired_card"]
    assert texts["stolen_card"] == texts["new_one"]


def test_a_top_up_and_an_order_past_its_time_cannot_be_paid() -> None:
    assert not shown({}, origin="top_up").can_pay
    late = shown({"status": "failed"}, expires_at=AT)
    assert not late.can_pay
    assert shown({}, expires_at=AT).label == "expired"


@pytest.mark.parametrize(("currency", "part"), [("usd", "7.50 USD of it"), ("eur", "Part of it")])
def test_a_part_that_was_refunded_is_named_in_the_orders_currency(currency: str, part: str) -> None:
    body = shown(PAID | {"reversal_status": "partially_refunded"}).order
    refs = [
        BalanceTransactionBody(
            id=f"txn_{number}", source_id="re_1", source_type="refund", event_id="evt_1", type="refund",
            reporting_category="refund", amount=amount, fee="0.00", net=amount, currency=currency,
            available_on=None, scanned_at="2026-11-20T12:00:00.000Z",
        )
        for number, amount in enumerate(("-5.00", "-2.50"))
    ]  # fmt: skip
    assert isinstance(body, PaymentOrderBody)
    assert shown_order(replace(body, provider_balance_transaction_refs=refs), AT).text.startswith(part)
