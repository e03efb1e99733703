"""What the endpoints of payments need of the card provider and of its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from holdfast.actors.unfenced import UnmatchedEventStore
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.http.kit.fair_shares import FairShares
from holdfast.providers.card.base import CardPayments

CARD_CALLS_MAX: Final = 2
CARD_CALLS_WAITING_MAX: Final = 8
"""With those that are made: each may take as long as the provider's timeouts allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payments:
    """The card provider, and what is known of its payments.

    ``card`` is None if no card provider is configured. ``card_shares`` are those of the calls to it that accounts
    cause. ``order_checks`` compare an order with the provider, for operators.
    """

    card: CardPayments | None
    unmatched_events: UnmatchedEventStore
    order_checks: OrderChecks
    card_shares: FairShares = field(
        default_factory=lambda: FairShares(at_once_max=CARD_CALLS_MAX, jobs_max=CARD_CALLS_WAITING_MAX)
    )
