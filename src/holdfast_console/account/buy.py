"""Buying credit: amounts, saved cards, automatic top-up, coupons, and the orders with what became of them.

The card provider's script runs on the pages that pay an order or save a card, and on no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Final
from urllib.parse import urlencode, urlsplit

import trio

from holdfast.http.endpoints.account import read_account, recharge
from holdfast.http.endpoints.coupons import redeem
from holdfast.http.endpoints.payments.card import CARD_MIN_MICRO, continue_card_order, create_card_order
from holdfast.http.endpoints.payments.orders import list_bonuses, list_payment_orders, read_payment_order
from holdfast.http.endpoints.payments.saved_cards import (
    list_cards,
    read_auto_top_up,
    remove_card,
    set_auto_top_up,
    set_up_card,
)
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.cards import AutoTopUpBody, CardBody, CardList, CardSetupBody
from holdfast.http.schemas.common import AccountBody, CreditChangedBody, RechargedBody
from holdfast.http.schemas.payments import BonusList, CardOrderCreated, PaymentOrderBody, PaymentOrderList
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import MICRO, format_amount
from holdfast.providers.card.base import SCRIPT_URL, CardPayments
from holdfast_console.account.order_words import shown_order, switched_off_words
from holdfast_console.formats import read_moment
from holdfast_console.forms import IDEMPOTENCY_FIELD, Message
from holdfast_console.rendering import Html, Redirect
from holdfast_console.views import ViewResult, ViewTable, Visit

BUY: Final = "/account/buy"
ADD_CARD: Final = f"{BUY}/card"
CARD_ADDED: Final = f"{BUY}/card/added"
AMOUNTS: Final = ("10.00", "25.00", "50.00", "100.00")
AMOUNT_DEFAULT: Final = "25.00"
OTHER: Final = "other"
TOP_UP_DEFAULTS: Final = {"below": "5.00", "amount": "20.00", "max_per_day": 1, "max_per_month": 5}

LISTED_WITHIN_S = 5.0
LOOK_AGAIN_S: Final = 0.2
"""How long a card that was just saved is waited for, and how often it is looked for."""
JUST_NOW: Final = timedelta(minutes=1)

PROVIDER_SOURCES: Final[Mapping[str, str]] = {
    "script-src": "https://js.stripe.com https://*.js.stripe.com",
    "frame-src": "https://js.stripe.com https://*.js.stripe.com https://hooks.stripe.com",
    "connect-src": "https://api.stripe.com",
}
"""What the provider documents that its script needs of a page's Content-Security-Policy."""

NO_CARD_FORM: Final = Refusal(
    code="provider_not_configured",
    message="This service cannot take cards in a browser: the card provider's publishable key is not set.",
)
PROVIDER_AWAY: Final = frozenset({"provider_unavailable", "provider_timeout", "provider_rate_limited"})

view = ViewTable(Auth.SESSION)


def card_form_of(visit: Visit) -> CardPayments | None:
    """Return the card payments of this service, None where a browser cannot pay by card."""
    card = visit.call.deps.payments.card
    return None if card is None or card.publishable_key is None else card


@view(BUY)
async def buy(visit: Visit) -> ViewResult:
    """Everything about buying credit."""
    call, settings = visit.call, visit.call.deps.settings
    now, sent = call.deps.now(), call.sent_form
    account = await visit.read(read_account, AccountBody)
    cards = await visit.read(list_cards, CardList)
    top_up = await visit.read(read_auto_top_up, AutoTopUpBody)
    bonuses = await visit.read(list_bonuses, BonusList)
    orders = await visit.read_list(list_payment_orders)
    listed = orders.found
    off_reason = None if isinstance(top_up, Refusal) else top_up.disabled_reason
    values = {
        "account": account,
        "can_pay": card_form_of(visit) is not None,
        "amounts": [each for each in AMOUNTS if Decimal(each) * MICRO <= settings.order_max_micro],
        "amount_default": AMOUNT_DEFAULT,
        "bonuses": [] if isinstance(bonuses, Refusal) else bonuses.data,
        "other": OTHER,
        "amount_min": format_amount(CARD_MIN_MICRO),
        "amount_max": format_amount(settings.order_max_micro),
        # An order that the provider does not know yet is gone on with.
        "kept_key": call.form.get(IDEMPOTENCY_FIELD, "") if sent and sent.code in PROVIDER_AWAY else "",
        "credit_days": settings.paid_credit_days,
        "has_sandbox": settings.sandbox_enabled,
        "cards": cards,
        "top_up": top_up,
        "top_up_defaults": TOP_UP_DEFAULTS,
        "off_reason": None if off_reason is None else switched_off_words(off_reason),
        "orders": [shown_order(each, now) for each in listed.data]
        if isinstance(listed, PaymentOrderList)
        else listed,
        "next_cursor": listed.next_cursor if isinstance(listed, PaymentOrderList) else None,
    }
    return Html("buy.html", values, is_live=True)


@view(BUY, method="POST")
async def order_credit(visit: Visit) -> ViewResult:
    """Create the order, and go on to its payment."""
    form = visit.form
    chosen = form.get("choice", "")
    amount = form.get("amount", "") if chosen in ("", OTHER) else chosen
    made = await visit.submit(create_card_order, CardOrderCreated, {"amount": amount})
    return made if isinstance(made, Refusal) else Redirect(f"{BUY}/{made.order_id}/pay")


@view(f"{BUY}/sandbox", method="POST")
async def add_test_credit(visit: Visit) -> ViewResult:
    """Add sandbox credit."""
    done = await visit.submit(recharge, RechargedBody, visit.form)
    return done if isinstance(done, Refusal) else _done(f"{done.amount} test credits were added.")


@view(f"{BUY}/coupon", method="POST")
async def redeem_coupon(visit: Visit) -> ViewResult:
    """Redeem a coupon."""
    done = await visit.submit(redeem, CreditChangedBody, {"code": visit.form.get("code", "")})
    return done if isinstance(done, Refusal) else _done(f"The coupon gave you {done.amount} credits.")


@view(f"{BUY}/top-up", method="POST")
async def set_top_up(visit: Visit) -> ViewResult:
    """Set the automatic top-up and switch it on."""
    return await visit.act(set_auto_top_up, BUY, "Automatic top-up is on.", {**visit.form, "enabled": "true"})


@view(f"{BUY}/top-up/off", method="POST")
async def switch_off_top_up(visit: Visit) -> ViewResult:
    """Switch the automatic top-up off; its amounts stay."""
    top_up = await visit.read(read_auto_top_up, AutoTopUpBody)
    if isinstance(top_up, Refusal):
        return top_up
    kept = {name: getattr(top_up, name) for name in TOP_UP_DEFAULTS}
    return await visit.act(set_auto_top_up, BUY, "Automatic top-up is off.", {**kept, "enabled": False})


@view(f"{BUY}/cards/{{card_id}}/remove", method="POST")
async def forget_card(visit: Visit) -> ViewResult:
    """Remove a saved card."""
    return await visit.act(remove_card, BUY, "The card was removed.")


@view(ADD_CARD)
async def add_card(visit: Visit) -> ViewResult:
    """The provider's form for a card to save."""
    card = card_form_of(visit)
    if card is None:
        return NO_CARD_FORM
    setup = await visit.submit(set_up_card, CardSetupBody)
    if isinstance(setup, Refusal):
        return setup
    return _card_page(card, setup.client_secret, CARD_ADDED)


@view(CARD_ADDED)
async def card_added(visit: Visit) -> ViewResult:
    """Where the provider's form leads: the card is listed once the provider's event has arrived."""
    since = visit.call.deps.now() - JUST_NOW
    with trio.move_on_after(LISTED_WITHIN_S):
        while True:
            cards = await visit.read(list_cards, CardList)
            if isinstance(cards, Refusal):
                return cards
            if cards.data and read_moment(cards.data[0].saved_at) >= since:
                return _done(f"The card ending in {cards.data[0].last4} is saved.")
            await trio.sleep(LOOK_AGAIN_S)
    return _done("The card is listed once the card provider has confirmed it.")


@view(f"{BUY}/{{order_id}}")
async def show_order(visit: Visit) -> ViewResult:
    """One order, until it is settled; also where the provider's form and the bank's page lead back."""
    order = await visit.read(read_payment_order, PaymentOrderBody, path=visit.path)
    if isinstance(order, Refusal):
        return order
    returned = visit.parameter("redirect_status")
    if visit.parameter("payment_intent_client_secret"):
        # The secret leaves the address.
        return Redirect(f"{BUY}/{order.order_id}?{urlencode({'redirect_status': returned})}")
    shown = shown_order(order, visit.call.deps.now(), returned)
    return Html("buy_order.html", {"shown": shown}, is_live=True)


@view(f"{BUY}/{{order_id}}/pay")
async def pay(visit: Visit) -> ViewResult:
    """The provider's form for an order that can be paid."""
    order = await visit.read(read_payment_order, PaymentOrderBody, path=visit.path)
    if isinstance(order, Refusal):
        return order
    address = f"{BUY}/{order.order_id}"
    shown = shown_order(order, visit.call.deps.now())
    if not shown.can_pay:
        return Redirect(address)
    card = card_form_of(visit)
    if card is None:
        return NO_CARD_FORM
    going_on = await visit.submit(continue_card_order, CardOrderCreated)
    cards = await visit.read(list_cards, CardList)
    if isinstance(going_on, Refusal):
        return going_on
    # An order can be paid with saved cards if there were any when it was made.
    made_at = read_moment(order.state_history[0].at)
    saved = [] if isinstance(cards, Refusal) else cards.data
    usable = saved if any(read_moment(each.saved_at) < made_at for each in saved) else []
    return _card_page(card, going_on.client_secret, address, shown=shown, cards=usable)


def _card_page(
    card: CardPayments, client_secret: str, back: str, *, shown: object = None, cards: Sequence[CardBody] = ()
) -> Html:
    """Return a page with the provider's script, which leads to the path ``back`` when it is done."""
    values = {
        "shown": shown,
        "script_url": card.script_url,
        "publishable_key": card.publishable_key,
        "client_secret": client_secret,
        "back": back,
        "cards": cards,
    }
    sources = PROVIDER_SOURCES
    if card.script_url != SCRIPT_URL:
        emulator = urlsplit(card.script_url)
        sources = dict.fromkeys(("script-src", "frame-src"), f"{emulator.scheme}://{emulator.netloc}")
    return Html("buy_pay.html", values, sources=sources)


def _done(text: str) -> Redirect:
    return Redirect(BUY, Message(text))
