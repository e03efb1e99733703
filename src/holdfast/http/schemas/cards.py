"""The request and response bodies of saved cards and of automatic top-up."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeAlias

import msgspec

from holdfast.http.schemas.common import AmountGiven, render
from holdfast.http.schemas.payments import OrderAmount
from holdfast.ledger.orders.top_ups import AutoTopUp, SavedCard, TopUpStatus, status_of, utc_day
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.values import format_amount

PerDay: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=100, examples=[2])]
PerMonth: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1000, examples=[10])]


class CardSetupBody(msgspec.Struct, frozen=True):
    """A setup intent, by which the customer's browser saves a card at the provider."""

    setup_intent_id: str
    """The provider's id of the setup intent."""
    client_secret: str
    """What the provider's script in the browser confirms the setup intent with; returned only here."""
    publishable_key: str | None
    """The provider's key for that script; null if the settings have none."""


class CardBody(msgspec.Struct, frozen=True):
    """A saved card. Its number is known to the provider alone."""

    card_id: str
    """The provider's id of the card."""
    brand: str
    """The card's brand, such as `visa`."""
    last4: str
    """The last four digits of its number; empty if the provider does not say."""
    exp_month: int
    """The month in which it expires, from 1; 0 if the provider does not say."""
    exp_year: int
    """The year in which it expires; 0 if the provider does not say."""
    saved_at: Time
    """When it was saved."""


class CardList(msgspec.Struct, frozen=True):
    """The saved cards, newest first."""

    data: list[CardBody]
    """The cards; top-ups are charged to the first."""


class CardRemovedBody(msgspec.Struct, frozen=True):
    """The card was detached at the provider and cannot be charged any more."""

    card_id: str
    """The provider's id of the card."""
    deleted: bool = True
    """Always true."""


class AutoTopUpRequest(msgspec.Struct, frozen=True):
    """The automatic top-up to set."""

    below: AmountGiven
    """Top up when the available credit is below this."""
    amount: OrderAmount
    """The credit to buy each time."""
    max_per_day: PerDay
    """How many top-ups there may be in a UTC day, charged or undecided, from 1 to 100."""
    max_per_month: PerMonth
    """How many top-ups there may be in a UTC month, charged or undecided, from 1 to 1000."""
    enabled: bool = False
    """Whether it is on, for which a card must be saved."""


class AutoTopUpBody(msgspec.Struct, frozen=True):
    """The account's automatic top-up."""

    enabled: bool
    """Whether it is on."""
    status: TopUpStatus
    """`open` while the outcome of a charge is not known; `limited` while one is due that the limits prevent."""
    below: Amount | None
    """Top up when the available credit is below this; null before it was first set."""
    amount: Amount | None
    """The credit bought each time; null before it was first set."""
    max_per_day: int | None
    """How many top-ups there may be in a UTC day; null before it was first set."""
    max_per_month: int | None
    """How many top-ups there may be in a UTC month; null before it was first set."""
    today: int
    """How many there were in this UTC day, charged or undecided."""
    this_month: int
    """How many there were in this UTC month, charged or undecided."""
    card: CardBody | None
    """The card that is charged, the newest; null if none is saved."""
    open_order_id: str | None
    """The payment order whose outcome is not known; null without one."""
    resumes_at: Time | None
    """When the limits allow the top-up that is due; null if none is."""
    disabled_reason: str | None
    """Why it was switched off other than by its owner: the provider's code of a decline such as `card_declined` or
    `insufficient_funds`, `disputed`, `card_removed` or `operator`; null if it was not.
    """
    disabled_at: Time | None
    """When it was switched off so; null if it was not."""


def card_body(card: SavedCard) -> CardBody:
    """Render a saved card."""
    return render(CardBody, card)


def auto_top_up_body(top_up: AutoTopUp, now: datetime) -> AutoTopUpBody:
    """Render an account's automatic top-up as of ``now``."""
    settings = top_up.settings
    return render(
        AutoTopUpBody,
        top_up,
        top_up.attempts.at(utc_day(now)),
        status=status_of(top_up),
        below=None if settings is None else format_amount(settings.below_micro),
        amount=None if settings is None else format_amount(settings.amount_micro),
        max_per_day=None if settings is None else settings.max_per_day,
        max_per_month=None if settings is None else settings.max_per_month,
        card=card_body(top_up.cards[0]) if top_up.cards else None,
        resumes_at=top_up.resume_at,
        disabled_reason=top_up.off_reason,
        disabled_at=top_up.off_at,
    )
