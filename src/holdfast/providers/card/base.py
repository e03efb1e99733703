"""What the house asks of a card provider, whoever it is.

Amounts are integers in the currency's minor unit, as the provider counts (:mod:`holdfast.providers.card.amounts`
converts); currency codes are upper case; times are aware UTC datetimes. Nothing here is believed about money: a
snapshot is what the provider says now, and the payment order's rules decide what follows from it.

What goes wrong is raised as a :class:`CardFault`. After :class:`CardUnavailable` or :class:`CardTimeout` it is
unknown whether the call had an effect; creating an intent again for the same order finds the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol


class CardFault(Exception):
    """The card provider could not do what it was asked. Its messages never carry the provider's own words."""


class CardUnavailable(CardFault):
    """The provider is unreachable, broken, or its answer cannot be read. ``reason`` is for logs."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CardTimeout(CardFault):
    """The provider did not answer in time."""


class CardRejected(CardFault):
    """The provider will not do this (its 4xx). ``provider_code`` is its code, or its type of error without one."""

    def __init__(self, provider_code: str) -> None:
        super().__init__(provider_code)
        self.provider_code = provider_code


class CardRateLimited(CardFault):
    """The provider asks for patience. ``retry_after_s`` is its wish, or our guess where it names none."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class IntentCreated:
    """An intent stands ready to be paid. ``client_secret`` is for the customer alone: pass it on, never keep it."""

    provider_payment_id: str
    client_secret: str = field(repr=False)
    status: str


@dataclass(frozen=True, slots=True)
class CardRefund:
    """One refund. ``status``: pending, requires_action, succeeded, failed, canceled; a success may still fail."""

    id: str
    amount_minor: int
    currency: str
    status: str
    charge_id: str | None
    reason: str | None
    failure_reason: str | None
    created: datetime


@dataclass(frozen=True, slots=True)
class CardDispute:
    """One dispute. A ``status`` that begins with ``warning_`` is an inquiry: no money has moved."""

    id: str
    amount_minor: int
    currency: str
    status: str
    reason: str | None
    charge_id: str | None
    balance_transaction_ids: tuple[str, ...]
    created: datetime


@dataclass(frozen=True, slots=True)
class CardBalanceTransaction:
    """One movement on our balance at the provider: ``net_minor`` is ``amount_minor`` (signed) less ``fee_minor``.

    ``source_type`` (charge, refund, dispute) says through which object it was found. Judge a movement by
    ``reporting_category``: ``type`` calls disputes and their reversal alike an adjustment.
    """

    id: str
    source_id: str
    source_type: str
    type: str
    reporting_category: str
    amount_minor: int
    fee_minor: int
    net_minor: int
    currency: str
    exchange_rate: str | None
    available_on: datetime | None
    created: datetime


@dataclass(frozen=True, slots=True)
class CardSnapshot:
    """An intent with everything that hangs on it, as the provider tells it at this moment.

    ``status``: requires_payment_method, requires_confirmation, requires_action, processing, requires_capture,
    canceled, succeeded. ``charge_*`` speak of the latest charge. Money that was paid is ``amount_received_minor``,
    None where the provider does not say it; then a payment that succeeded is of ``amount_minor``.
    ``balance_transactions`` may come later than the money; ``failure_code`` is why the last attempt failed.
    """

    provider_payment_id: str
    status: str
    amount_minor: int
    amount_received_minor: int | None
    currency: str
    livemode: bool
    charge_id: str | None
    charge_paid: bool
    charge_captured: bool
    charge_amount_refunded_minor: int
    refunds: tuple[CardRefund, ...]
    disputes: tuple[CardDispute, ...]
    balance_transactions: tuple[CardBalanceTransaction, ...]
    failure_code: str | None
    cancellation_reason: str | None
    created: datetime
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Canceled:
    """The intent can no longer be paid; ``snapshot`` shows it canceled, also where it was so before."""

    snapshot: CardSnapshot


@dataclass(frozen=True, slots=True)
class AlreadyMoved:
    """The intent is past cancelling, as ``snapshot`` tells: paid, or with its payment under way."""

    snapshot: CardSnapshot


CancelResult = Canceled | AlreadyMoved


class CardProvider(Protocol):
    """A place where card payments are taken."""

    async def create_intent(
        self, order_id: str, account_id: str, amount_minor: int, currency: str, *, env: str
    ) -> IntentCreated:
        """Make the intent of an order, or find the one made before. Raises :class:`CardFault`.

        ``env`` marks whose order it is where several of our installations share one account at the provider.
        """

    async def retrieve(self, provider_payment_id: str) -> CardSnapshot:
        """Read an intent with charge, refunds, disputes and balance transactions. Raises :class:`CardFault`."""

    async def cancel_intent(self, provider_payment_id: str) -> CancelResult:
        """Make sure an intent can no longer be paid, or learn that it was. Raises :class:`CardFault`."""

    async def close(self) -> None:
        """Give back connections. Nothing may be asked afterwards."""
