"""A payment order as a value: what was ordered (immutable), and its current state (changed by decisions).

``request`` and ``state`` are stored as two JSON columns and decode equal to what was encoded. Only the functions of
:mod:`holdfast.ledger.orders.decisions` create new ones. The five statuses are always those of the newest history
entry, and the sum of the moves is the order's share of the account's balance.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal

import msgspec

from holdfast.ledger.orders.facts import BalanceTransaction, OrderFacts, ProcessingStatus
from holdfast.ledger.refusals import StepVerdict
from holdfast.ledger.values import CURRENCY, new_id, new_id_of_account

Provider = Literal["sandbox", "cardprovider"]
Origin = Literal["customer", "top_up"]
OrderStatus = Literal["pending", "credited", "failed", "canceled", "expired", "held"]
ReversalStatus = Literal[
    "none", "partially_refunded", "refunded", "disputed", "chargeback", "reinstated"
]  # fmt: skip
RiskStatus = Literal[
    "none", "manual_review", "fraud_warning", "inquiry", "disputed", "fraud", "mismatch", "cleared"
]  # fmt: skip
ReconcileStatus = Literal["unreconciled", "pending", "reconciled", "mismatch", "error"]
Source = Literal["api", "sandbox_callback", "provider_webhook", "reconcile", "expiry", "operator"]


class FxSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The exchange rate of an order: presented amount times ``rate`` is settled amount. Decimal strings.

    ``credits_per_unit`` is what one unit of ``base`` buys, fixed when the order was created.
    """

    base: str
    quote: str
    rate: str
    source: str
    captured_at: datetime
    credits_per_unit: str = "1"


def identity_fx(currency: str, captured_at: datetime) -> FxSnapshot:
    """Return the rate of an order whose money is settled in the currency it is presented in: one to one."""
    return FxSnapshot(base=currency, quote=currency, rate="1", source="identity", captured_at=captured_at)


class OrderBonus(msgspec.Struct, frozen=True, kw_only=True):
    """The promotional credit that a paid order gives in addition, by the catalog when it was created."""

    credit_micro: int
    expires_days: int


class OrderRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was ordered, fixed at creation.

    ``operation_id`` is reserved for the credit, so that crediting twice is a repeated key. ``sandbox_event_id`` and
    ``signed_at`` (unix seconds) belong to the descriptor of a sandbox order. ``livemode`` is None where the
    provider's mode is not compared. An order of origin ``top_up`` is charged to a card saved at the provider, which
    ``customer_id`` and ``card_id`` name, and until ``expires_at``; no customer can pay it, and it does not expire.
    ``customer_id`` of another one is the customer at the provider whose saved cards can pay it; None without cards.
    ``traceparent`` is the trace of the request, and ``http_request_id`` its id unless that is the trace's digits.
    """

    order_id: str
    account_id: str
    provider: Provider
    amount_micro: int
    currency: str
    operation_id: str
    brand_id: str
    legal_entity_id: str
    merchant_of_record: str
    provider_account_id: str
    created_at: datetime
    expires_at: datetime
    fx: FxSnapshot
    livemode: bool | None = None
    sandbox_event_id: str | None = None
    signed_at: int | None = None
    origin: Origin = "customer"
    customer_id: str | None = None
    card_id: str | None = None
    traceparent: str | None = None
    http_request_id: str | None = None
    bonus: OrderBonus | None = None


class Seller(msgspec.Struct, frozen=True, kw_only=True):
    """Who sells credit, as each order records it."""

    brand_id: str
    legal_entity_id: str
    merchant_of_record: str
    provider_account_id: str


def order_request(
    seller: Seller,
    account_id: str,
    provider: Provider,
    amount_micro: int,
    now: datetime,
    *,
    ttl_s: int,
    **more: Any,
) -> OrderRequest:
    """Return a new order of the account under new ids; ``more`` are further fields of :class:`OrderRequest`."""
    return OrderRequest(
        order_id=new_id_of_account("ord", account_id),
        account_id=account_id,
        provider=provider,
        amount_micro=amount_micro,
        currency=CURRENCY,
        operation_id=new_id("op"),
        brand_id=seller.brand_id,
        legal_entity_id=seller.legal_entity_id,
        merchant_of_record=seller.merchant_of_record,
        provider_account_id=seller.provider_account_id,
        created_at=now,
        expires_at=now + timedelta(seconds=ttl_s),
        fx=identity_fx(CURRENCY, now),
        **more,
    )


class Statuses(msgspec.Struct, frozen=True, kw_only=True):
    """The five status fields of an order."""

    status: OrderStatus = "pending"
    processing_status: ProcessingStatus = "pending"
    reversal_status: ReversalStatus = "none"
    risk_status: RiskStatus = "none"
    reconcile_status: ReconcileStatus = "unreconciled"


class StateEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of an order's history: the statuses after the change, and its cause. ``at`` is our clock."""

    statuses: Statuses
    source: Source
    at: datetime
    reason: str
    event_id: str | None = None
    operation_id: str | None = None


class LedgerMove(msgspec.Struct, frozen=True, kw_only=True):
    """One operation on the account that the order requires; ``amount_micro`` is above zero for both kinds."""

    kind: Literal["credit", "reversal"]
    amount_micro: int
    operation_id: str
    reason: str

    @property
    def signed_micro(self) -> int:
        """The move's signed effect on the account's balance."""
        return self.amount_micro if self.kind == "credit" else -self.amount_micro


class BonusMove(msgspec.Struct, frozen=True, kw_only=True):
    """One operation on an order's bonus: what it gave, or what was left and was voided, below zero."""

    amount_micro: int
    operation_id: str


class BalanceReading(msgspec.Struct, frozen=True, kw_only=True):
    """The event under which a balance transaction was first read, and when."""

    event_id: str
    scanned_at: datetime


class OrderState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The current state of an order. Outcome times are set once and never cleared.

    ``moves`` are all ledger operations of its money so far, ``bonus_moves`` those of its bonus. ``event_ids`` are
    all events ever applied, synthetic ones too, in order of arrival. ``provider_object_ids`` are all payments and
    charges that the provider ever named for the order; each belongs to this order alone. ``reconcile_due_at`` is
    when to reconcile with the provider next; ``reconcile_tries`` counts the reconciles since the last change.
    """

    statuses: Statuses = Statuses()
    facts: OrderFacts = OrderFacts()
    moves: tuple[LedgerMove, ...] = ()
    bonus_moves: tuple[BonusMove, ...] = ()
    history: tuple[StateEntry, ...] = ()
    event_ids: tuple[str, ...] = ()
    provider_object_ids: tuple[str, ...] = ()
    reversal_refs: tuple[str, ...] = ()
    balance_readings: dict[str, BalanceReading] = {}
    intent_id: str | None = None
    payment_id: str | None = None
    charge_id: str | None = None
    applied_event_id: str | None = None
    real_event_id: str | None = None
    real_event_type: str | None = None
    synthetic_event_id: str | None = None
    credited_at: datetime | None = None
    failed_at: datetime | None = None
    refunded_at: datetime | None = None
    disputed_at: datetime | None = None
    chargeback_at: datetime | None = None
    reconciled_at: datetime | None = None
    reconcile_due_at: datetime | None = None
    reconcile_tries: int = 0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A payment order at one version. ``wake_at`` is when a worker should check it; None if never."""

    version: int
    updated_at: datetime
    wake_at: datetime | None
    request: OrderRequest
    state: OrderState

    @property
    def order_id(self) -> str:
        """The order's own id."""
        return self.request.order_id

    @property
    def account_id(self) -> str:
        """The id of the account that owns the order."""
        return self.request.account_id

    @property
    def statuses(self) -> Statuses:
        """The five statuses now."""
        return self.state.statuses

    @property
    def status(self) -> OrderStatus:
        """Whether the order was paid: the first of the five statuses."""
        return self.state.statuses.status

    @property
    def failure_code(self) -> str | None:
        """Why the newest attempt to pay failed or was canceled, by its provider's code; None once it is paid."""
        attempt = self.state.facts.attempt
        return None if attempt is None or self.statuses.processing_status == "succeeded" else attempt.reason

    @property
    def net_micro(self) -> int:
        """What the order has added to the account's balance so far."""
        return sum(move.signed_micro for move in self.state.moves)

    @property
    def bonus_micro(self) -> int:
        """What the order has given as its bonus so far, less what was voided of that."""
        return sum(move.amount_micro for move in self.state.bonus_moves)

    @property
    def bonus_due_micro(self) -> int:
        """The share of its bonus that the order should have given: as much as it has of its amount."""
        bonus = self.request.bonus
        return 0 if bonus is None else bonus.credit_micro * self.net_micro // self.request.amount_micro

    @property
    def bonus_expires_at(self) -> datetime | None:
        """When what is left of the bonus expires; None while it was not given, or if there is none."""
        bonus, credited_at = self.request.bonus, self.state.credited_at
        return None if bonus is None or credited_at is None else credited_at + timedelta(days=bonus.expires_days)

    @property
    def provider_event_id(self) -> str | None:
        """The last event that was applied, or the one that a sandbox order expects."""
        return self.state.applied_event_id or self.request.sandbox_event_id

    @property
    def ledger_operation_refs(self) -> tuple[str, ...]:
        """Every operation of the order's money, in posting order."""
        return tuple(move.operation_id for move in self.state.moves)

    @property
    def reversal_operation_ids(self) -> tuple[str, ...]:
        """The operations after the credit: reversals, and reinstated amounts."""
        return tuple(each for each in self.ledger_operation_refs if each != self.request.operation_id)

    @property
    def balance_transaction_ids(self) -> tuple[str, ...]:
        """The provider's balance transactions of this order, including those known by id alone."""
        facts = self.state.facts
        return tuple(dict.fromkeys((*facts.balance, *facts.charge_balances.values())))


class OrderResult(msgspec.Struct, frozen=True, tag="order_result"):
    """An order after a decision (the same object if unchanged). What its state gained is committed with it.

    ``verdict``: ``duplicate`` was applied before; ``stale`` is older than what is known and only recorded;
    ``ignored`` requires nothing.
    """

    order: Order
    verdict: StepVerdict


def fee_micro_of(order: Order) -> int:
    """Return the provider's fee in the order's currency; 0 until a balance transaction states it."""
    return sum(
        _presented(transaction, order.request.currency)
        for transaction in order.state.facts.balance.values()
        if transaction.reporting_category == "charge"
    )


def fx_of(order: Order) -> FxSnapshot:
    """Return the latest known exchange rate: the provider's once it has settled the charge in another currency."""
    frozen = order.request.fx
    for transaction_id in sorted(order.state.facts.balance):
        transaction = order.state.facts.balance[transaction_id]
        reading = order.state.balance_readings.get(transaction_id)
        if transaction.reporting_category == "charge" and transaction.exchange_rate and reading is not None:
            return msgspec.structs.replace(
                frozen,
                quote=transaction.currency,
                rate=transaction.exchange_rate,
                source="balance_transaction",
                captured_at=reading.scanned_at,
            )
    return frozen


def balance_readings_of(order: Order) -> list[tuple[BalanceTransaction, BalanceReading]]:
    """Return the balance transactions that were read, in reading order."""
    known, readings = order.state.facts.balance, order.state.balance_readings
    ordered = sorted(readings.items(), key=lambda item: (item[1].scanned_at, item[0]))
    return [(known[each], reading) for each, reading in ordered]


def _presented(transaction: BalanceTransaction, currency: str) -> int:
    """Return a fee in the order's own currency; 0 if it was taken in another currency and no rate is known."""
    if transaction.currency == currency:
        return transaction.fee_micro
    rate = Decimal(transaction.exchange_rate or "0")
    if rate <= 0:
        return 0
    return int((Decimal(transaction.fee_micro) / rate).quantize(Decimal(1), ROUND_HALF_UP))
