"""What a payment provider can report about an order, each report as a value: a fact.

A fact stays true after later reports, so facts may arrive in any order, any number of times. Amounts are in
micro-units of their currency (one dollar is 1_000_000), independent of the provider's minor unit; ``at`` is the
provider's clock in unix seconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

ProcessingStatus = Literal[
    "pending", "requires_action", "processing", "succeeded", "failed", "canceled"
]  # fmt: skip
ProgressStatus = Literal["pending", "requires_action", "processing", "failed", "canceled"]
RefundStatus = Literal["pending", "requires_action", "succeeded", "canceled", "failed"]
DisputeStatus = Literal[
    "warning_needs_response", "warning_under_review", "needs_response", "under_review", "appeal_needs_response",
    "appeal_under_review", "warning_closed", "prevented", "lost", "won",
]  # fmt: skip
ReviewVerdict = Literal["open", "closed", "approved", "refunded_as_fraud"]


class Paid(msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag="paid", omit_defaults=True):
    """Money was captured. ``payment_id`` is the intent, or the charge itself if it has no intent."""

    payment_id: str
    charge_id: str | None = None
    amount_micro: int
    currency: str
    livemode: bool | None = None
    account: str | None = None
    at: int


class Attempt(msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag="attempt", omit_defaults=True):
    """The status of the newest attempt to pay; never money. ``reason`` is the decline or cancellation code."""

    status: ProgressStatus
    at: int
    reason: str | None = None


class ChargeSeen(msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag="charge", omit_defaults=True):
    """Which payment a charge belongs to, and the id of its balance transaction once it has one."""

    charge_id: str
    payment_id: str
    balance_transaction_id: str | None = None


class RefundSeen(msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag="refund", omit_defaults=True):
    """One refund and its status. A refund that succeeded may still fail later."""

    refund_id: str
    status: RefundStatus
    amount_micro: int
    charge_id: str | None = None
    payment_id: str | None = None


class RefundedTotal(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag="refunded_total", omit_defaults=True
):
    """The total refunded of a charge so far: a running total, not one refund."""

    charge_id: str
    payment_id: str
    amount_micro: int


class DisputeSeen(msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag="dispute", omit_defaults=True):
    """The status of a dispute; None for a status unknown to this release, so that only the rest counts."""

    dispute_id: str
    status: DisputeStatus | None
    amount_micro: int
    currency: str
    reason: str | None = None
    withdrawn: bool = False
    reinstated: bool = False
    charge_id: str | None = None
    payment_id: str | None = None


class DisputeMoney(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag="dispute_money", omit_defaults=True
):
    """One movement of a dispute's money: below zero it was withdrawn, above zero it was returned. Without fees."""

    dispute_id: str
    transaction_id: str
    amount_micro: int
    currency: str


class FraudWarning(msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag="fraud_warning"):
    """The card's issuer suspects fraud; no money has moved."""

    warning_id: str


class ReviewSeen(msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag="review"):
    """A manual review at the provider: open, or how it was closed."""

    review_id: str
    verdict: ReviewVerdict


class BalanceTransaction(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag="balance", omit_defaults=True
):
    """A balance transaction of the provider: ``net = amount - fee``, all signed, in the currency of settlement.

    ``exchange_rate`` is a decimal string: presented amount times rate is settled amount. ``available_on`` is in
    unix seconds.
    """

    transaction_id: str
    source_id: str
    source_type: Literal["charge", "refund", "dispute"]
    type: str
    reporting_category: str
    amount_micro: int
    fee_micro: int
    net_micro: int
    currency: str
    available_on: int | None = None
    exchange_rate: str | None = None


Fact = (
    Paid | Attempt | ChargeSeen | RefundSeen | RefundedTotal | DisputeSeen | DisputeMoney
    | FraudWarning | ReviewSeen | BalanceTransaction
)  # fmt: skip


class PaymentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's event about one order: its id, its type, and the facts it carries.

    ``event_id`` is the provider's, or a synthetic one for what a reconcile read; one id is applied once.
    ``reason`` is what the order's history records.
    """

    event_id: str
    type: str
    at: int
    reason: str
    facts: tuple[Fact, ...]
    synthetic: bool = False
