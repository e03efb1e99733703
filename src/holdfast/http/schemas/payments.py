"""The request and response bodies of the payment endpoints: the interface's fields, null where unset.

Each response has its own subset of an order's fields. Amounts are decimal strings; those of the provider's balance
transactions are in the currency of settlement and may be negative.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

import msgspec

from holdfast.http.kit.listing import StoredListBody
from holdfast.http.schemas.common import render
from holdfast.ledger.catalog.bonuses import Bonus
from holdfast.ledger.orders.facts import ProcessingStatus
from holdfast.ledger.orders.order import (
    Order,
    OrderRequest,
    OrderStatus,
    Origin,
    Provider,
    ReconcileStatus,
    ReversalStatus,
    RiskStatus,
    Source,
    balance_readings_of,
    fee_micro_of,
    fx_of,
)
from holdfast.ledger.orders.sandbox_signature import SandboxValues
from holdfast.ledger.public_types import AccountId, Amount, Currency, OrderId, Time
from holdfast.ledger.values import MICRO, format_amount
from holdfast.providers.card.base import minor_decimals

SandboxOutcome = Literal["paid", "failed", "canceled"]

# --------------------------------------------------------------------------------------------- requests

OrderAmount: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        description="A plain decimal string of credits, above zero with at most 2 decimals.",
        extra_json_schema={"pattern": r"^(0|[1-9][0-9]*)(\.[0-9]{1,2})?$", "examples": ["10.00"]},
    ),
]
# Validated by the rules of the signature, which have their own codes.
SignedValue: TypeAlias = Annotated[
    Any, msgspec.Meta(extra_json_schema={"type": "string", "minLength": 1, "maxLength": 128})
]


class SandboxOrderRequest(msgspec.Struct, frozen=True):
    """The sandbox credit to order."""

    amount: OrderAmount
    """The credit to order."""
    outcome: SandboxOutcome = "paid"
    """The status in the signed callback; anything but `paid` simulates a failed payment."""


class CardOrderRequest(msgspec.Struct, frozen=True):
    """The credit to buy by card."""

    amount: OrderAmount
    """The credit to buy."""


class SandboxCallbackRequest(msgspec.Struct, frozen=True):
    """The payload of a sandbox order's callback, with its values unchanged."""

    order_id: Annotated[SignedValue, msgspec.Meta(examples=["ord_01935f6c2b7d7c3e8a4d5e6f70819203"])]
    """The `order_id` of the payload."""
    account_id: Annotated[SignedValue, msgspec.Meta(examples=["acct_01935f6c2b7d7c3e8a4d5e6f70819203"])]
    """The `account_id` of the payload."""
    amount: Annotated[SignedValue, msgspec.Meta(examples=["10.00"])]
    """The `amount` of the payload; `10` and `10.00` are the same."""
    currency: Annotated[SignedValue, msgspec.Meta(examples=["USD"])]
    """The `currency` of the payload."""
    status: Annotated[SignedValue, msgspec.Meta(extra_json_schema={"enum": list(get_args(SandboxOutcome))})]
    """The `status` of the payload."""
    provider_event_id: SignedValue | None = None
    """The `provider_event_id` of the payload; may be null or omitted."""


# ------------------------------------------------------------------------------------------ parts of an order


class AmountBreakdownBody(msgspec.Struct, frozen=True):
    """What was ordered, the provider's fee, and what is left."""

    gross: Amount
    """What was ordered, which is the credit given."""
    fee: Amount
    """The provider's fee, as far as it is known."""
    tax: Amount
    """The tax in it; always zero."""
    net: Amount
    """The gross amount less the fee."""
    currency: Currency


class OrderBonusBody(msgspec.Struct, frozen=True):
    """The promotional credit that an order gives in addition, as it was offered when the order was created."""

    credit: Amount
    """What the order gives once it is paid."""
    expires_days: int
    """How many days after that it expires."""
    expires_at: Time | None
    """When what is left of it expires; null while the order is not paid."""
    given: Amount
    """What it has given, less what was taken back with the payment."""
    operation_ids: list[str]
    """The ledger operations of the bonus so far, `op_…`."""


class FxSnapshotBody(msgspec.Struct, frozen=True):
    """The exchange rate between the order's currency and that of the provider's settlement."""

    base: str
    """The order's currency, ISO 4217 in capitals."""
    quote: str
    """The currency of settlement, ISO 4217."""
    rate: str
    """A decimal string: the presented amount times the rate is the settled amount."""
    credits_per_unit: str
    """Credits for one unit of `base`, a decimal string."""
    source: str
    """Where the rate is from: `identity` if the currencies are the same, `balance_transaction` if the provider
    stated it.
    """
    captured_at: Time
    """When the rate was read."""


class BalanceTransactionBody(msgspec.Struct, frozen=True):
    """One of the provider's balance transactions for this order."""

    id: str
    """The provider's id of the balance transaction."""
    source_id: str
    """The provider's id of the charge, refund or dispute that caused it."""
    source_type: Literal["charge", "refund", "dispute"]
    """What caused it."""
    event_id: str
    """The event under which it was read first."""
    type: str
    """The provider's type of it, such as `charge`."""
    reporting_category: str
    """The provider's reporting category, such as `charge` or `refund`."""
    amount: str
    """A decimal string in units of the currency of settlement; below zero if money was taken."""
    fee: str
    """The provider's fee, a decimal string in units of the currency of settlement."""
    net: str
    """`amount` less `fee`, a decimal string in units of the currency of settlement."""
    currency: str
    """The currency of settlement, ISO 4217 in lower case."""
    available_on: Time | None
    """When the provider makes the money available; null if it did not say."""
    scanned_at: Time
    """When it was read."""


class StateBody(msgspec.Struct, frozen=True):
    """The five statuses after one change, and its cause."""

    status: OrderStatus
    """The order's status after the change."""
    processing_status: ProcessingStatus
    """The status of the payment itself after the change."""
    reversal_status: ReversalStatus
    """What of the payment was refunded or disputed, after the change."""
    risk_status: RiskStatus
    """The risk of the payment, after the change."""
    reconcile_status: ReconcileStatus
    """The outcome of the comparison with the provider, after the change."""
    source: Source
    """What caused the change."""
    at: Time
    """When it was recorded."""
    event_id: str | None
    """The event that caused it; null without one."""
    operation_id: str | None
    """The ledger operation that was made, `op_…`; null if none was."""
    reason: str
    """The cause in words."""


class ReconcileCursorBody(msgspec.Struct, frozen=True):
    """How far the order has been reconciled with its provider."""

    provider: Provider
    """The payment provider."""
    brand_id: str
    """The brand that sold the credit, a setting."""
    provider_account_id: str
    """The service's own account at the provider, a setting."""
    provider_object_type: str | None
    """`payment_intent` for a card order; null for a sandbox order."""
    provider_object_id: str | None
    """The provider's id of the payment; null while it is not known, and for a sandbox order."""
    event_id: str | None
    """The newest event received from the provider; null before the first."""
    event_type: str | None
    """The type of that event; null before the first."""
    synthetic_event_id: str | None
    """The newest event made by a comparison with the provider; null before the first."""
    scan_strategy: Literal["order_retrieve"]
    """How the order is compared: its payment is read from the provider."""
    reconciled_at: Time | None
    """When the comparison agreed last; null before that."""


class OrderPart(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every response about an order, except for the one that creates a sandbox order."""

    order_id: OrderId
    provider: Provider
    """The payment provider."""
    status: OrderStatus
    """The order as a whole: `credited` once credit was given, `held` while an operator must decide."""
    processing_status: ProcessingStatus
    """The payment itself at its provider."""
    reversal_status: ReversalStatus
    """What of the payment was refunded or disputed."""
    risk_status: RiskStatus
    """The risk that the provider or an operator sees in the payment."""
    reconcile_status: ReconcileStatus
    """Whether the order agrees with the provider's record."""
    amount: Amount
    """The credit ordered."""
    currency: Currency
    operation_id: str
    """The id that the ledger operation of the credit has, or will have, `op_…`."""
    brand_id: str
    """The brand that sells the credit, a setting."""
    legal_entity_id: str
    """The legal entity that sells the credit, a setting."""
    merchant_of_record: str
    """Who sells in the sense of tax law, a setting."""
    provider_account_id: str
    """The service's own account at the provider, a setting."""
    amount_breakdown: AmountBreakdownBody
    """The amount, and what is left of it after the fee."""
    fx_snapshot: FxSnapshotBody
    """The exchange rate."""
    provider_event_id: str | None
    """The event that was applied last; null before the first."""
    provider_event_ids: list[str]
    """Every event applied, in order of arrival."""
    ledger_operation_refs: list[str]
    """Every ledger operation of the order so far, `op_…`, but for those of its bonus."""
    reversal_operation_ids: list[str]
    """Those of them that reversed credit."""
    reversal_refs: list[str]
    """The provider's refunds and disputes behind the reversals."""
    provider_balance_transaction_ids: list[str]
    """The provider's ids of its balance transactions for the order."""
    provider_balance_transaction_refs: list[BalanceTransactionBody]
    """Those that were read, in the order of reading."""
    state_history: list[StateBody]
    """Every change of a status, oldest first."""
    reconcile_cursor: ReconcileCursorBody
    """How far the order has been reconciled."""
    bonus: OrderBonusBody | None
    """The promotional credit that it gives in addition; null if it gives none."""


# ------------------------------------------------------------------------------------------- responses


class CallbackPayload(msgspec.Struct, frozen=True):
    """The body that pays a sandbox order."""

    order_id: OrderId
    account_id: AccountId
    amount: Amount
    """The credit ordered."""
    currency: Currency
    status: SandboxOutcome
    """The outcome that was asked for."""
    provider_event_id: str
    """The id of the sandbox's event, `evt_…`."""


class CallbackDescriptor(msgspec.Struct, frozen=True):
    """How to pay: POST ``payload`` to ``url`` with ``signature`` in the header ``signature_header``."""

    url: str
    """Where to POST the payload."""
    signature_header: Literal["X-Sandbox-Payment-Signature"]
    """The header to send the signature in."""
    payload: CallbackPayload
    """The body to send."""
    signature: str
    """The signature of the payload's values; valid until the order expires."""


class SandboxOrderCreated(msgspec.Struct, frozen=True):
    """A new sandbox order, to be paid by its signed callback."""

    order_id: OrderId
    provider: Provider
    """Always `sandbox`."""
    status: OrderStatus
    """`pending` until the callback has been received."""
    amount: Amount
    """The credit ordered."""
    currency: Currency
    operation_id: str
    """The id that the ledger operation of the credit will have, `op_…`."""
    expires_at: Time
    """Until when the order can be paid."""
    callback: CallbackDescriptor
    """How to pay."""
    bonus: OrderBonusBody | None
    """The promotional credit that it gives in addition; null if it gives none."""


class SandboxOrderBody(OrderPart, frozen=True, kw_only=True):
    """A sandbox order after its callback."""

    credited_at: Time | None
    """When credit was given; null if none was."""
    failed_at: Time | None
    """When the payment failed; null if it did not."""


class CardOrderCreated(OrderPart, frozen=True, kw_only=True):
    """A card order and what the customer's browser needs to pay it."""

    provider_payment_id: str | None
    """The provider's id of the payment; null until it is created."""
    provider_charge_id: str | None
    """The provider's id of the charge; null until the payment succeeded."""
    client_secret: str
    """What the provider's script in the browser confirms the payment with; it is not stored."""
    publishable_key: str | None
    """The provider's key for that script; null if the settings have none."""
    expires_at: Time
    """Until when the order can be paid."""


class PaymentOrderBody(OrderPart, frozen=True, kw_only=True):
    """A payment order with all its fields."""

    provider_payment_id: str | None
    """The provider's id of the payment; null until it is created, and for a sandbox order."""
    provider_charge_id: str | None
    """The provider's id of the charge; null until the payment succeeded, and for a sandbox order."""
    credited_at: Time | None
    """When credit was given; null if none was."""
    failed_at: Time | None
    """When a payment failed first; null if none did."""
    failure_code: str | None
    """Why the newest payment failed or was canceled: the provider's code, such as `card_declined` or
    `insufficient_funds`; null if it was not, or the provider named none.
    """
    refunded_at: Time | None
    """When a refund was first recorded; null without one."""
    disputed_at: Time | None
    """When a dispute was first recorded; null without one."""
    chargeback_at: Time | None
    """When a dispute was lost; null if none was."""
    reconciled_at: Time | None
    """When the order last agreed with the provider's record; null before that."""
    expires_at: Time
    """Until when the order can be paid."""
    origin: Origin
    """`top_up` for an automatic top-up, which charges a saved card; else `customer`."""


class BonusBody(msgspec.Struct, frozen=True):
    """The promotional credit that orders from an amount on get in addition.

    Of several bonuses an order gets the one with the largest `orders_from` that it reaches.
    """

    orders_from: Amount
    """The least order that gets it."""
    percent: int | None
    """Its part of the order's amount, in percent; null if it is a fixed credit."""
    credit: Amount | None
    """The credit, whatever the order's amount; null if it is a part of that."""
    expires_days: int
    """How many days after the payment it expires."""


class BonusList(msgspec.Struct, frozen=True):
    """The bonuses of orders, by rising amounts."""

    data: list[BonusBody]
    """The bonuses; without any an empty list."""


class EventIgnored(msgspec.Struct, frozen=True):
    """The event was received and changed no payment order of this service."""

    event_id: str
    """The event's id."""
    received: bool = True
    """Always true."""
    ignored: bool = True
    """False if a card was saved."""


class PaymentOrderList(StoredListBody[PaymentOrderBody], frozen=True):
    """A page of payment orders, newest first."""


S = TypeVar("S", bound=OrderPart)


def sandbox_values(request: OrderRequest, outcome: SandboxOutcome) -> SandboxValues:
    """Return the values that a sandbox order's callback carries and its signature covers."""
    return SandboxValues(
        order_id=request.order_id,
        account_id=request.account_id,
        amount=format_amount(request.amount_micro),
        currency=request.currency,
        status=outcome,
        provider_event_id=request.sandbox_event_id,
    )


def payment_order_body(order: Order) -> PaymentOrderBody:
    """Render an order with all its fields."""
    return render_order(PaymentOrderBody, order)


def render_order(shape: type[S], order: Order, **fields: object) -> S:
    """Render an order as ``shape``; ``fields`` are those that an order does not have."""
    request, state, fee_micro = order.request, order.state, fee_micro_of(order)
    is_card = request.provider == "cardprovider"
    return render(
        shape,
        order,
        order.statuses,
        order.request,
        state,
        amount_breakdown=AmountBreakdownBody(
            gross=format_amount(request.amount_micro),
            fee=format_amount(fee_micro),
            tax=format_amount(0),
            net=format_amount(request.amount_micro - fee_micro),
            currency=request.currency,
        ),
        fx_snapshot=render(FxSnapshotBody, fx_of(order)),
        provider_charge_id=state.charge_id,
        provider_event_ids=state.event_ids,
        provider_balance_transaction_ids=order.balance_transaction_ids,
        provider_balance_transaction_refs=list(_balance_transactions(order)),
        state_history=[render(StateBody, entry, entry.statuses) for entry in state.history],
        reconcile_cursor=render(
            ReconcileCursorBody,
            request,
            state,
            provider_object_type="payment_intent" if is_card else None,
            provider_object_id=state.payment_id if is_card else None,
            event_id=state.real_event_id,
            event_type=state.real_event_type,
            scan_strategy="order_retrieve",
        ),
        provider_payment_id=state.payment_id,
        bonus=order_bonus_body(order),
        **fields,
    )


def bonus_body(bonus: Bonus) -> BonusBody:
    """Render a bonus of the catalog."""
    return BonusBody(
        orders_from=format_amount(bonus.orders_from_micro),
        percent=bonus.percent,
        credit=format_amount(bonus.credit_micro) if bonus.percent is None else None,
        expires_days=bonus.expires_days,
    )


def order_bonus_body(order: Order) -> OrderBonusBody | None:
    """Render an order's bonus; None if it has none."""
    if order.request.bonus is None:
        return None
    return render(
        OrderBonusBody,
        order.request.bonus,
        credit=format_amount(order.request.bonus.credit_micro),
        expires_at=order.bonus_expires_at,
        given=format_amount(order.bonus_micro),
        operation_ids=[move.operation_id for move in order.state.bonus_moves],
    )


def _balance_transactions(order: Order) -> Iterator[BalanceTransactionBody]:
    for transaction, reading in balance_readings_of(order):
        available_on = transaction.available_on
        yield render(
            BalanceTransactionBody,
            transaction,
            reading,
            id=transaction.transaction_id,
            amount=in_units(transaction.amount_micro, transaction.currency),
            fee=in_units(transaction.fee_micro, transaction.currency),
            net=in_units(transaction.net_micro, transaction.currency),
            available_on=None if available_on is None else datetime.fromtimestamp(available_on, UTC),
        )


def in_units(amount_micro: int, currency: str) -> str:
    """Format an amount in units of its currency, with as many decimals as the currency has."""
    return f"{Decimal(amount_micro) / MICRO:.{minor_decimals(currency)}f}"
