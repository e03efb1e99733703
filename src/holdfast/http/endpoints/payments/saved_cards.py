"""Saved cards and automatic top-up.

A card is saved by the customer's browser at the provider, whose webhook names it to us. What is stored of it is the
provider's id, and what may be shown.
"""

from __future__ import annotations

from functools import partial

from holdfast.actors.account.messages import RecordCustomer, RemoveCard, SetAutoTopUp
from holdfast.http.endpoints.payments.card import CARD_ERRORS, NOT_CONFIGURED, read_card_amount, refusal_of_card
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.values import read_amount
from holdfast.http.schemas.cards import (
    AutoTopUpBody,
    AutoTopUpRequest,
    CardList,
    CardRemovedBody,
    CardSetupBody,
    auto_top_up_body,
    card_body,
)
from holdfast.http.schemas.common import render
from holdfast.ledger.api_keys import ACCOUNT_READ
from holdfast.ledger.orders.top_ups import CARD_NOT_FOUND, CARDS_MAX, AutoTopUp, TopUpSettings, card_limit_reached
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.orders import top_up_of_account
from holdfast.providers.card.base import CardFault, CardPayments

route = RouteTable("Cards")


@route(
    "POST",
    "/v2/control/cards/setup",
    summary="Begin to save a card; the response has what the customer's browser needs for it",
    auth=Auth.SESSION,
    reply=CardSetupBody,
    errors=("account_disabled", "card_limit_reached", *CARD_ERRORS),
)
async def set_up_card(call: Call) -> Outcome:
    """The card is listed once the provider's webhook has named it. Each request begins a new one."""
    card, account_id = call.deps.payments.card, call.session.account_id
    if card is None:
        return NOT_CONFIGURED
    top_up = await _top_up_of(call, account_id)
    if len(top_up.cards) >= CARDS_MAX:
        return card_limit_reached(top_up)
    try:
        customer_id = await _customer_of(call, card, top_up)
        if isinstance(customer_id, Refusal):
            return customer_id
        env = call.deps.settings.env
        create = partial(card.provider.create_setup_intent, customer_id, account_id, env=env)
        intent = await call.deps.payments.card_shares.run(account_id, create)
    except CardFault as fault:
        return refusal_of_card(fault)
    return render(CardSetupBody, intent, card)


@route(
    "GET",
    "/v2/control/cards",
    summary="List the saved cards; newest first",
    auth=Auth.SESSION_OR_KEY,
    scope=ACCOUNT_READ,
    reply=CardList,
)
async def list_cards(call: Call) -> Outcome:
    """What the provider said of each card when it was saved."""
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    top_up = await _top_up_of(call, account_id)
    return CardList(data=[card_body(card) for card in top_up.cards])


@route(
    "DELETE",
    "/v2/control/cards/{card_id}",
    summary="Remove a saved card; without any, automatic top-up is switched off",
    auth=Auth.SESSION,
    reply=CardRemovedBody,
    errors=("card_not_found", *CARD_ERRORS),
)
async def remove_card(call: Call) -> Outcome:
    """The card is detached at the provider first, so that it is certainly not charged any more."""
    card, card_id, account_id = call.deps.payments.card, call.path["card_id"], call.session.account_id
    if card is None:
        return NOT_CONFIGURED
    top_up = await _top_up_of(call, account_id)
    if all(each.card_id != card_id for each in top_up.cards):
        return CARD_NOT_FOUND
    try:
        await call.deps.payments.card_shares.run(account_id, partial(card.provider.detach_card, card_id))
    except CardFault as fault:
        return refusal_of_card(fault)
    removed = await call.ask(call.deps.accounts.ref(account_id), RemoveCard(card_id))
    return removed if isinstance(removed, Refusal) else CardRemovedBody(card_id)


@route(
    "GET",
    "/v2/control/auto-top-up",
    summary="Retrieve the automatic top-up",
    auth=Auth.SESSION_OR_KEY,
    scope=ACCOUNT_READ,
    reply=AutoTopUpBody,
)
async def read_auto_top_up(call: Call) -> Outcome:
    """It is off until it is set."""
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    return auto_top_up_body(await _top_up_of(call, account_id), call.deps.now())


@route(
    "PUT",
    "/v2/control/auto-top-up",
    summary="Set the automatic top-up: when it charges the saved card, how much, and how often at most",
    auth=Auth.SESSION,
    body=AutoTopUpRequest,
    reply=AutoTopUpBody,
    errors=("invalid_amount", "amount_too_small", "amount_too_large", "card_required", "account_disabled",
            "provider_not_configured", "rate_limit_exceeded"),
)  # fmt: skip
async def set_auto_top_up(call: Call) -> Outcome:
    """All of it is replaced. If the available credit is below already, the first charge follows at once."""
    body = call.body(AutoTopUpRequest)
    below_micro = read_amount(body.below, param="below")
    if isinstance(below_micro, Refusal):
        return below_micro
    amount_micro = read_card_amount(body.amount, call.deps.settings.order_max_micro)
    if isinstance(amount_micro, Refusal):
        return amount_micro
    if call.deps.payments.card is None and body.enabled:
        return NOT_CONFIGURED
    settings = TopUpSettings(
        below_micro=below_micro,
        amount_micro=amount_micro,
        max_per_day=body.max_per_day,
        max_per_month=body.max_per_month,
    )
    command = SetAutoTopUp(settings, body.enabled)
    top_up = await call.ask(call.deps.accounts.ref(call.session.account_id), command)
    return top_up if isinstance(top_up, Refusal) else auto_top_up_body(top_up, call.deps.now())


async def _top_up_of(call: Call, account_id: str) -> AutoTopUp:
    found = await call.read(partial(top_up_of_account, account_id=account_id))
    return found or AutoTopUp(account_id=account_id)


async def _customer_of(call: Call, card: CardPayments, top_up: AutoTopUp) -> str | Refusal:
    """Return the account's customer at the provider, created at the first request. Raises :class:`CardFault`."""
    if top_up.customer_id is not None and top_up.livemode == card.livemode:
        return top_up.customer_id
    create = partial(card.provider.create_customer, top_up.account_id, env=call.deps.settings.env)
    customer_id = await call.deps.payments.card_shares.run(top_up.account_id, create)
    command = RecordCustomer(customer_id, card.livemode)
    recorded = await call.ask(call.deps.accounts.ref(top_up.account_id), command)
    if isinstance(recorded, Refusal):
        return recorded
    assert recorded.customer_id is not None
    return recorded.customer_id
