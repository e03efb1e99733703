"""The facts known about a payment order, and how facts are joined.

Every event of a payment provider states some facts; what is known about an order is the join of its events' facts.
Sets grow, the higher rank or the later time wins, and ties are broken by value. So the result does not depend on
how often or in which order events arrive, and neither do the order's statuses and credit, which are functions of
the facts (:mod:`holdfast.ledger.orders.targets`).

Amounts are in micro-units of their currency (one dollar is 1_000_000), independent of the provider's minor unit;
``at`` is the provider's clock in unix seconds. The statuses below are listed by rank, the lowest first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Literal, TypeVar, get_args

import msgspec

ProcessingStatus = Literal[
    "pending", "requires_action", "processing", "succeeded", "failed", "canceled"
]  # fmt: skip
ProgressStatus = Literal["pending", "requires_action", "processing", "failed", "canceled"]
"""Of an attempt. The rank breaks ties between attempts reported in the same second."""

RefundStatus = Literal["pending", "requires_action", "succeeded", "canceled", "failed"]
DisputeStatus = Literal[
    "warning_needs_response", "warning_under_review", "needs_response", "under_review", "appeal_needs_response",
    "appeal_under_review", "warning_closed", "prevented", "lost", "won",
]  # fmt: skip
"""An appeal follows a loss, but the dispute stays lost until it is won."""

ReviewVerdict = Literal["open", "closed", "approved", "refunded_as_fraud"]

LIVE_REFUND: frozenset[RefundStatus] = frozenset({"pending", "requires_action", "succeeded"})
"""A refund counts from its request until it fails or is canceled."""


class PaymentAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of the newest attempt to pay; never money. ``reason`` is the decline or cancellation code."""

    status: ProgressStatus
    at: int
    reason: str | None = None


class StatedPayment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one event says was captured for a payment."""

    amount_micro: int
    currency: str
    livemode: bool | None = None
    account: str | None = None


class PaymentFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A succeeded payment. ``at`` is the time of its first report; ``charge_ids`` are the charges that paid it.

    ``stated``, in rows ``claims``, is what its events say was captured.
    """

    at: int
    stated: tuple[StatedPayment, ...] = msgspec.field(name="claims")
    charge_ids: tuple[str, ...] = ()


class RefundFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One refund; ``seen`` are all statuses ever reported for it. One that succeeded may still fail later."""

    status: RefundStatus
    seen: tuple[RefundStatus, ...]
    amount_micro: int
    charge_id: str | None = None
    payment_id: str | None = None


class RefundedTotal(msgspec.Struct, frozen=True, kw_only=True):
    """The total refunded of a charge so far: a running total, not one refund."""

    charge_id: str
    payment_id: str
    amount_micro: int


class DisputeMoney(msgspec.Struct, frozen=True, kw_only=True):
    """One movement of a dispute's money: below zero it was withdrawn, above zero it was returned. Without fees."""

    dispute_id: str
    transaction_id: str
    amount_micro: int
    currency: str


class DisputeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One dispute; ``money`` are its movements by transaction id, ``seen`` all statuses ever reported for it.

    ``status`` is None until one is reported that this release knows.
    """

    status: DisputeStatus | None = None
    seen: tuple[DisputeStatus, ...] = ()
    amount_micro: int = 0
    currency: str = ""
    reason: str | None = None
    withdrawn: bool = False
    reinstated: bool = False
    charge_id: str | None = None
    payment_id: str | None = None
    money: dict[str, DisputeMoney] = {}


class BalanceTransaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class OrderResolution(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's decision about a held order. ``amount_micro`` is the credit given, 0 for a cancel."""

    decision: Literal["credit", "cancel"]
    amount_micro: int


class OrderFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one event states about an order, or all that is known about it, by the provider's ids.

    ``payments`` are by intent, or by charge where no intent was named. Of each charge, ``charges`` has the payment,
    ``totals`` the refunded total, ``charge_balances`` the balance transaction. ``warnings`` are early fraud
    warnings; ``reviews`` are manual reviews at the provider.
    """

    payments: dict[str, PaymentFacts] = {}
    charges: dict[str, str] = {}
    attempt: PaymentAttempt | None = None
    refunds: dict[str, RefundFacts] = {}
    totals: dict[str, RefundedTotal] = {}
    disputes: dict[str, DisputeFacts] = {}
    warnings: tuple[str, ...] = ()
    reviews: dict[str, ReviewVerdict] = {}
    balance: dict[str, BalanceTransaction] = {}
    charge_balances: dict[str, str] = {}
    expired: bool = False
    resolution: OrderResolution | None = None


class PaymentEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A provider's event: its id, its type, the facts it states, and the ids by which its order is found.

    ``event_id`` is the provider's, or a synthetic one for what a reconcile read; one id is applied once. ``reason``
    is what the order's history records. ``order_id`` is our own, from the object's metadata. Refunds, disputes and
    the like carry none; their order is found by ``payment_id`` or ``charge_id``.
    """

    event_id: str
    type: str
    at: int
    reason: str
    facts: OrderFacts
    order_id: str | None = None
    payment_id: str | None = None
    charge_id: str | None = None

    @property
    def is_handled(self) -> bool:
        """Whether the event names an order."""
        return (self.order_id or self.payment_id or self.charge_id) is not None


_T = TypeVar("_T")


def join(*facts: OrderFacts) -> OrderFacts:
    """Return everything that any of ``facts`` states."""
    return reduce(_join, facts)


def provider_objects_of(facts: OrderFacts) -> set[str]:
    """Return the ids of all payments and charges that the facts name."""
    reversals: list[RefundFacts | RefundedTotal | DisputeFacts] = [
        *facts.refunds.values(),
        *facts.totals.values(),
        *facts.disputes.values(),
    ]
    named = (name for each in reversals for name in (each.charge_id, each.payment_id))
    paid_by = (charge_id for payment in facts.payments.values() for charge_id in payment.charge_ids)
    ids = {*facts.payments, *facts.charges, *facts.charges.values(), *paid_by, *named}
    return {each for each in ids if each is not None}


def join_payments(one: PaymentFacts, other: PaymentFacts) -> PaymentFacts:
    """Return what two reports state about one payment."""
    return PaymentFacts(
        at=min(one.at, other.at),
        stated=_union(one.stated, other.stated),
        charge_ids=_union(one.charge_ids, other.charge_ids),
    )


def _join(known: OrderFacts, more: OrderFacts) -> OrderFacts:
    # A charge reported without its intent is its own payment until an event names the intent.
    charges = {
        charge_id: max(
            (each != charge_id, each) for each in (payment_id, known.charges.get(charge_id, payment_id))
        )[1]
        for charge_id, payment_id in more.charges.items()
    }
    return OrderFacts(
        payments=_merged(known.payments, more.payments, join_payments),
        charges=known.charges | charges,
        attempt=max((each for each in (known.attempt, more.attempt) if each), key=_attempt_rank, default=None),
        refunds=_merged(known.refunds, more.refunds, _join_refunds),
        totals=_merged(known.totals, more.totals, lambda *both: max(both, key=lambda each: each.amount_micro)),
        disputes=_merged(known.disputes, more.disputes, _join_disputes),
        warnings=_union(known.warnings, more.warnings),
        reviews=_merged(known.reviews, more.reviews, lambda *both: max(both, key=get_args(ReviewVerdict).index)),
        balance=_merged(known.balance, more.balance, _settled),
        charge_balances=_merged(known.charge_balances, more.charge_balances, max),
        expired=known.expired or more.expired,
        resolution=more.resolution or known.resolution,
    )


def _attempt_rank(attempt: PaymentAttempt) -> tuple[int, int, str]:
    return (attempt.at, get_args(ProgressStatus).index(attempt.status), attempt.reason or "")


def _join_refunds(one: RefundFacts, other: RefundFacts) -> RefundFacts:
    return RefundFacts(
        status=max(one.status, other.status, key=get_args(RefundStatus).index),
        seen=_union(one.seen, other.seen),
        amount_micro=max(one.amount_micro, other.amount_micro),
        charge_id=_either(one.charge_id, other.charge_id),
        payment_id=_either(one.payment_id, other.payment_id),
    )


def _join_disputes(one: DisputeFacts, other: DisputeFacts) -> DisputeFacts:
    statuses = (each for each in (one.status, other.status) if each)
    return DisputeFacts(
        status=max(statuses, key=get_args(DisputeStatus).index, default=None),
        seen=_union(one.seen, other.seen),
        amount_micro=max(one.amount_micro, other.amount_micro),
        currency=max(one.currency, other.currency),
        reason=_either(one.reason, other.reason),
        withdrawn=one.withdrawn or other.withdrawn,
        reinstated=one.reinstated or other.reinstated,
        charge_id=_either(one.charge_id, other.charge_id),
        payment_id=_either(one.payment_id, other.payment_id),
        money=_merged(one.money, other.money, _settled),
    )


def _settled(one: _T, other: _T) -> _T:
    """A booked transaction does not change; if two reports differ, the choice does not depend on their order."""
    return max(one, other, key=msgspec.json.encode)


def _either(one: str | None, other: str | None) -> str | None:
    """Return the value that is known; of two that differ, the greater one."""
    return max(one or "", other or "") or None


def _union(known: tuple[_T, ...], more: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(sorted({*known, *more}, key=str))


def _merged(known: dict[str, _T], more: dict[str, _T], join_two: Callable[[_T, _T], _T]) -> dict[str, _T]:
    return known | {key: join_two(known[key], each) if key in known else each for key, each in more.items()}
