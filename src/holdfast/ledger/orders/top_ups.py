"""Automatic top-up: an account whose credit runs low is charged for more on a card saved at the provider.

A charge is a payment order of origin ``top_up``, the attempt. It is open until its order is credited or has ended
without payment, and while it is open there is no other. Attempts that were charged, and the open one, whose outcome
is not known, count towards the limits of a UTC day and a UTC month, by the time they were opened. Few fail in
a day, however often the owner switches the top-up on again. A day that has passed is forgotten, so the state has a
fixed size.

Everything here is pure, and part of the account's state: who decides on it is fenced by the account's version.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal

import msgspec

from holdfast.ledger.orders.order import Order
from holdfast.ledger.refusals import Refusal

CARDS_MAX: Final = 10
"""How many saved cards an account may have."""
FAILED_PER_DAY_MAX: Final = 5
"""After so many failed attempts of a UTC day the top-up is not switched on again before the next."""
CHARGE_PERIOD_S: Final = 20 * 3600
"""How long after its opening an attempt may be charged: providers forget an idempotency key after a day."""

NOT_CHARGED: Final = "not_charged_in_time"
"""The end of an attempt that no charge was made for within its period: its provider was away, not its card bad."""
OFF_DISPUTED: Final = "disputed"
OFF_CARD_REMOVED: Final = "card_removed"
OFF_BY_OPERATOR: Final = "operator"

CARD_NOT_FOUND: Final = Refusal(code="card_not_found", message="The account has no such saved card.")
NO_CARD: Final = Refusal(
    code="card_required", message="Automatic top-up needs a saved card; save one first.", final=True
)


class SavedCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card saved at the provider, and what of it may be shown. ``card_id`` is the provider's."""

    card_id: str
    brand: str
    last4: str
    exp_month: int
    exp_year: int
    saved_at: datetime


class TopUpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``amount_micro`` is charged when the available credit is below ``below_micro``, at most so often."""

    below_micro: int
    amount_micro: int
    max_per_day: int
    max_per_month: int


class TopUpAttempts(msgspec.Struct, frozen=True, kw_only=True):
    """How many attempts count towards the limits of the UTC day ``on`` and of its month."""

    on: date = date.min
    today: int = 0
    this_month: int = 0

    def at(self, day: date) -> TopUpAttempts:
        """Return the numbers of a day, of ``on`` itself for an earlier day."""
        if day <= self.on:
            return self
        is_same_month = (day.year, day.month) == (self.on.year, self.on.month)
        return TopUpAttempts(on=day, today=0, this_month=self.this_month if is_same_month else 0)

    def counted(self, opened_on: date, by: int) -> TopUpAttempts:
        """Count one attempt more or less of those opened on a day, as far as that day is not forgotten."""
        now = self.at(opened_on)
        is_same_month = (opened_on.year, opened_on.month) == (now.on.year, now.on.month)
        return TopUpAttempts(
            on=now.on,
            today=now.today + (by if opened_on == now.on else 0),
            this_month=now.this_month + (by if is_same_month else 0),
        )


class AutoTopUp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An account's saved cards and its automatic top-up.

    ``customer_id`` is the account at the provider, in its ``livemode``; its cards are the newest first, and the
    first is charged. ``off_reason`` is why it was switched off other than by its owner. ``open_order_id`` is the
    open attempt. ``resume_at`` is when the next attempt is possible, while the limits prevent one that is due.
    ``failed_today`` attempts failed on the UTC day ``failed_on``.
    """

    account_id: str
    customer_id: str | None = None
    livemode: bool | None = None
    cards: tuple[SavedCard, ...] = ()
    settings: TopUpSettings | None = None
    enabled: bool = False
    off_reason: str | None = None
    off_at: datetime | None = None
    open_order_id: str | None = None
    attempts: TopUpAttempts = TopUpAttempts()
    failed_on: date = date.min
    failed_today: int = 0
    resume_at: datetime | None = None


def utc_day(at: datetime) -> date:
    """Return the UTC day of a time."""
    return at.astimezone(UTC).date()


def is_open(order: Order) -> bool:
    """Whether it is not known yet what becomes of an attempt. A held one was paid, and an operator decides."""
    return order.status in ("pending", "held")


def is_counted(order: Order) -> bool:
    """Whether an attempt counts towards the limits: it is open, or it was paid."""
    return is_open(order) or bool(order.state.facts.payments)


def is_due(top_up: AutoTopUp, available_micro: int) -> bool:
    """Whether an attempt should be opened, as far as the limits allow."""
    return (
        top_up.enabled
        and top_up.open_order_id is None
        and top_up.settings is not None
        and available_micro < top_up.settings.below_micro
    )


def attempt_time(top_up: AutoTopUp, now: datetime) -> datetime:
    """Return the time of an attempt opened now: never of a day that is over, although clocks differ a little."""
    return max(now, _midnight(top_up.attempts.on))


def next_attempt_at(top_up: AutoTopUp, now: datetime) -> datetime:
    """Return when the limits allow the next attempt: ``now``, or the beginning of a UTC day or month."""
    settings = top_up.settings
    assert settings is not None
    attempts = top_up.attempts.at(utc_day(now))
    if attempts.this_month >= settings.max_per_month:
        return _midnight((attempts.on.replace(day=1) + timedelta(days=32)).replace(day=1))
    if attempts.today >= settings.max_per_day:
        return _midnight(attempts.on + timedelta(days=1))
    return now


def with_attempt(top_up: AutoTopUp, order: Order) -> AutoTopUp:
    """Return the state with a new open attempt."""
    assert top_up.open_order_id is None
    counted = top_up.attempts.counted(utc_day(order.request.created_at), 1)
    return msgspec.structs.replace(top_up, open_order_id=order.order_id, attempts=counted, resume_at=None)


def after_order(top_up: AutoTopUp, before: Order, after: Order) -> AutoTopUp:
    """Return the state after a change of an attempt.

    An attempt that ends without payment switches the top-up off, unless the provider was away all the time; so does
    a dispute of any attempt.
    """
    assert after.request.origin == "top_up"
    by = is_counted(after) - is_counted(before)
    if by:
        counted = top_up.attempts.counted(utc_day(after.request.created_at), by)
        top_up = msgspec.structs.replace(top_up, attempts=counted)
    if not is_open(after) and top_up.open_order_id == after.order_id:
        top_up = msgspec.structs.replace(top_up, open_order_id=None)
    if is_open(before) and not is_open(after) and after.status != "credited":
        attempt = after.state.facts.attempt
        reason = (attempt and attempt.reason) or after.status
        if reason == NOT_CHARGED:
            return top_up
        day = max(utc_day(after.updated_at), top_up.failed_on)
        failed_today = top_up.failed_today + 1 if day == top_up.failed_on else 1
        failed = msgspec.structs.replace(top_up, failed_on=day, failed_today=failed_today)
        return switched_off(failed, reason, after.updated_at)
    disputed = ("disputed", "chargeback")
    if after.statuses.reversal_status in disputed and before.statuses.reversal_status not in disputed:
        return switched_off(top_up, OFF_DISPUTED, after.updated_at)
    return top_up


def switched_off(top_up: AutoTopUp, reason: str | None, at: datetime) -> AutoTopUp:
    """Return the state without automatic top-up; one that is off already keeps its reason."""
    if not top_up.enabled:
        return top_up
    return msgspec.structs.replace(top_up, enabled=False, off_reason=reason, off_at=at, resume_at=None)


def with_settings(
    top_up: AutoTopUp, settings: TopUpSettings, *, enabled: bool, now: datetime
) -> AutoTopUp | Refusal:
    """Return the state with the owner's settings.

    Refuses: 1. ``card_required`` (to enable it without a card); 2. ``rate_limit_exceeded`` (to enable it again
    after too many failed attempts).
    """
    if enabled and not top_up.cards:
        return NO_CARD
    has_failed_often = utc_day(now) <= top_up.failed_on and top_up.failed_today >= FAILED_PER_DAY_MAX
    if enabled and not top_up.enabled and has_failed_often:
        again_at = _midnight(top_up.failed_on + timedelta(days=1))
        return Refusal(
            code="rate_limit_exceeded",
            message=f"{top_up.failed_today} automatic top-ups failed today; enable it again tomorrow, in UTC.",
            retry_after_s=math.ceil((again_at - now).total_seconds()),
        )
    return msgspec.structs.replace(
        top_up,
        settings=settings,
        enabled=enabled,
        off_reason=None if enabled else top_up.off_reason,
        off_at=None if enabled else top_up.off_at,
        resume_at=None,
    )


def with_customer(top_up: AutoTopUp, customer_id: str, *, livemode: bool | None, at: datetime) -> AutoTopUp:
    """Return the state with the account's customer at the provider: the first one, of each of its modes."""
    if top_up.customer_id is not None and top_up.livemode == livemode:
        return top_up
    off = switched_off(top_up, OFF_CARD_REMOVED, at)
    return msgspec.structs.replace(off, customer_id=customer_id, livemode=livemode, cards=())


def with_card(top_up: AutoTopUp, card: SavedCard) -> AutoTopUp | Refusal:
    """Return the state with a card. Refuses: 1. ``card_limit_reached``."""
    if any(each.card_id == card.card_id for each in top_up.cards):
        return top_up
    if len(top_up.cards) >= CARDS_MAX:
        return card_limit_reached(top_up)
    return msgspec.structs.replace(top_up, cards=(card, *top_up.cards))


def without_card(top_up: AutoTopUp, card_id: str, at: datetime) -> AutoTopUp | Refusal:
    """Return the state without a card; without any the top-up is off. Refuses: 1. ``card_not_found``."""
    cards = tuple(each for each in top_up.cards if each.card_id != card_id)
    if len(cards) == len(top_up.cards):
        return CARD_NOT_FOUND
    left = msgspec.structs.replace(top_up, cards=cards)
    return left if cards else switched_off(left, OFF_CARD_REMOVED, at)


def card_limit_reached(top_up: AutoTopUp) -> Refusal:
    """Return the refusal of a further card."""
    return Refusal(
        code="card_limit_reached",
        message=f"This account has {len(top_up.cards)} saved cards, the most allowed; remove one first.",
        final=True,
    )


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


TopUpStatus = Literal["off", "on", "open", "limited"]


def status_of(top_up: AutoTopUp) -> TopUpStatus:
    """Return the state in a word: ``open`` while an attempt is, ``limited`` while the limits prevent a due one."""
    if top_up.open_order_id is not None:
        return "open"
    if not top_up.enabled:
        return "off"
    return "on" if top_up.resume_at is None else "limited"
