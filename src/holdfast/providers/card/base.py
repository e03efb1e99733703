"""The interface of a card provider.

Amounts are integers in the currency's minor unit. Most currencies have two decimals, some none, a few three; the
table is Stripe's, in which UGX has two. One credit is one unit of the order's currency. Currency codes are upper
case. A snapshot is what the provider reports now, as facts; the payment order's rules decide what follows from
them.

Failures are raised as a :class:`CardFault`. After :class:`CardUnavailable` or :class:`CardTimeout` it is unknown
whether the call had an effect; creating an intent again for the same order finds the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from holdfast.ledger.orders.snapshots import ProviderSnapshot
from holdfast.ledger.values import MICRO

_ZERO_DECIMALS: Final = frozenset(
    "BIF CLP DJF GNF JPY KMF KRW MGA PYG RWF VND VUV XAF XOF XPF".split()  # noqa: SIM905 - reads as a table
)
_THREE_DECIMALS: Final = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})
DECIMALS_DEFAULT: Final = 2
SCRIPT_URL: Final = "https://js.stripe.com/v3/"


def minor_decimals(currency: str) -> int:
    """Return how many decimals the minor unit of ``currency`` (in either case) has."""
    code = currency.upper()
    if code in _ZERO_DECIMALS:
        return 0
    return 3 if code in _THREE_DECIMALS else DECIMALS_DEFAULT


def micro_per_minor(currency: str) -> int:
    """Return how many micro-units one minor unit of ``currency`` is: 10_000 for a cent."""
    return int(MICRO // 10 ** minor_decimals(currency))


def minor_from_micro(amount_micro: int, currency: str) -> int:
    """Convert micro-units to minor units. Raises ``ValueError`` unless the amount is a whole number of them."""
    minor, rest = divmod(amount_micro, micro_per_minor(currency))
    if rest:
        raise ValueError(f"{amount_micro} micro-credits are not whole minor units of {currency.upper()}")
    return minor


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
    """The provider refused the call (a 4xx). ``provider_code`` is its error code, or else the error's type.

    ``param`` and ``reason``, its own text, are for logs.
    """

    def __init__(self, provider_code: str, *, param: str | None = None, reason: str | None = None) -> None:
        super().__init__(provider_code)
        self.provider_code = provider_code
        self.param = param
        self.reason = reason


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


@dataclass(frozen=True, slots=True)
class SetupIntentCreated:
    """A setup intent, by which a customer saves a card. ``client_secret`` as in :class:`IntentCreated`."""

    setup_intent_id: str
    client_secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDetails:
    """A saved card, and the customer it is attached to; None once it is detached."""

    card_id: str
    customer_id: str | None
    brand: str
    last4: str
    exp_month: int
    exp_year: int


@dataclass(frozen=True, slots=True)
class RefundMade:
    """A refund at the provider; its status is the provider's, and may still change.

    ``request`` is that of :meth:`CardProvider.refund`, "" if it was made elsewhere.
    """

    provider_refund_id: str
    amount_minor: int
    status: str
    request: str


class CardProvider(Protocol):
    """A provider of card payments."""

    async def create_intent(
        self,
        order_id: str,
        account_id: str,
        amount_minor: int,
        currency: str,
        *,
        env: str,
        customer_id: str | None = None,
    ) -> IntentCreated:
        """Create the intent of an order, or return the one created before. Raises :class:`CardFault`.

        ``env`` identifies the installation where several share one account at the provider. ``customer_id`` is the
        customer whose saved cards may pay, always the same one for an order.
        """

    async def retrieve(self, provider_payment_id: str, *, as_of: int) -> ProviderSnapshot:
        """Read a payment with its charge, refunds, disputes and balance transactions. Raises :class:`CardFault`.

        ``as_of`` is the time of the read in unix seconds; what the provider reports later takes precedence.
        """

    async def cancel_intent(self, provider_payment_id: str, *, as_of: int) -> ProviderSnapshot:
        """Cancel an intent so that it can no longer be paid, then read it. Raises :class:`CardFault`.

        If the snapshot's state is not ``canceled``, the intent was paid or is being processed.
        """

    async def refund(
        self, provider_payment_id: str, amount_minor: int | None, *, key: str, request: str
    ) -> RefundMade:
        """Refund a payment, None: what is left of it; or return the refund made before under this ``key``.

        ``request`` names what is asked for: a refund under this key with another one was made for another request.
        Raises :class:`CardFault`.
        """

    async def create_customer(self, account_id: str, *, env: str) -> str:
        """Create the customer of an account, or return the one created within the last day; return its id.

        Raises :class:`CardFault`.
        """

    async def create_setup_intent(self, customer_id: str, account_id: str, *, env: str) -> SetupIntentCreated:
        """Create an intent by which the customer saves a card for later charges. Raises :class:`CardFault`."""

    async def retrieve_card(self, card_id: str) -> CardDetails:
        """Read a saved card. Raises :class:`CardFault`."""

    async def detach_card(self, card_id: str) -> None:
        """Detach a card from its customer, so that it cannot be charged any more. Raises :class:`CardFault`."""

    async def charge_saved_card(
        self,
        order_id: str,
        account_id: str,
        amount_minor: int,
        currency: str,
        *,
        customer_id: str,
        card_id: str,
        env: str,
    ) -> str:
        """Charge a saved card for an order, without its cardholder, or find the charge made before.

        Returns the intent's id, also if the card was declined. Raises :class:`CardFault`; a charge that was made
        more than a day ago would not be found, but made again.
        """

    async def find_intent(self, order_id: str, customer_id: str, *, since: datetime) -> str | None:
        """Return the intent that names the order, of those created for the customer since a time.

        Raises :class:`CardFault`.
        """

    async def close(self) -> None:
        """Close connections. No call may follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPayments:
    """The card provider, and the settings of card payments.

    ``livemode`` is the mode that every payment must have, None if it is not checked. Without ``webhook_secrets``
    the webhook refuses every request. ``script_url`` is the provider's script for the customer's browser.
    """

    provider: CardProvider
    webhook_secrets: Sequence[str] = field(repr=False)
    publishable_key: str | None
    livemode: bool | None
    script_url: str = SCRIPT_URL
