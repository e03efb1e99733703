"""The interface of a card provider.

Amounts are integers in the currency's minor unit (:mod:`holdfast.providers.card.amounts` converts); currency codes
are upper case; times are aware UTC datetimes. A snapshot is what the provider reports now; the payment order's
rules decide what follows from it.

Failures are raised as a :class:`CardFault`. After :class:`CardUnavailable` or :class:`CardTimeout` it is unknown
whether the call had an effect; creating an intent again for the same order finds the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol


class CardFault(Exception):
    """A call to the card provider failed. The message never contains the provider's own text."""


class CardUnavailable(CardFault):
    """The provider is unreachable or broken, or its response cannot be parsed. ``reason`` is for logs."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CardTimeout(CardFault):
    """The provider did not respond in time."""


class CardRejected(CardFault):
    """The provider refused the call (a 4xx). ``provider_code`` is its error code, or else the error's type."""

    def __init__(self, provider_code: str) -> None:
        super().__init__(provider_code)
        self.provider_code = provider_code


class CardRateLimited(CardFault):
    """The provider limits the rate of calls. ``retry_after_s`` is its value, or a default if it names none."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class IntentCreated:
    """An intent ready to be paid. ``client_secret`` is for the customer alone: pass it on, never store it."""

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
    """One movement of our balance at the provider: ``net_minor`` is ``amount_minor`` (signed) less ``fee_minor``.

    ``source_type`` (charge, refund, dispute) is the object that it was read from. Classify a movement by
    ``reporting_category``: ``type`` is an adjustment for both a dispute and its reversal.
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
    """An intent with its charge, refunds, disputes and balance transactions, as the provider reports them now.

    ``status``: requires_payment_method, requires_confirmation, requires_action, processing, requires_capture,
    canceled, succeeded. ``charge_*`` describe the latest charge. The money paid is ``amount_received_minor``, None
    if the provider does not report it; a payment that succeeded is then of ``amount_minor``.
    ``balance_transactions`` may appear later than the money; ``failure_code`` is why the last attempt failed.
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
    """The intent can no longer be paid; ``snapshot`` shows it canceled, even if it was canceled before."""

    snapshot: CardSnapshot


@dataclass(frozen=True, slots=True)
class AlreadyMoved:
    """The intent cannot be canceled, as ``snapshot`` shows: it is paid, or its payment is being processed."""

    snapshot: CardSnapshot


CancelResult = Canceled | AlreadyMoved


class CardProvider(Protocol):
    """A provider of card payments."""

    async def create_intent(
        self, order_id: str, account_id: str, amount_minor: int, currency: str, *, env: str
    ) -> IntentCreated:
        """Create the intent of an order, or return the one created before. Raises :class:`CardFault`.

        ``env`` identifies the installation where several share one account at the provider.
        """

    async def retrieve(self, provider_payment_id: str) -> CardSnapshot:
        """Read an intent with charge, refunds, disputes and balance transactions. Raises :class:`CardFault`."""

    async def cancel_intent(self, provider_payment_id: str) -> CancelResult:
        """Cancel an intent so that it can no longer be paid, or return its state. Raises :class:`CardFault`."""

    async def close(self) -> None:
        """Close connections. No call may follow."""
