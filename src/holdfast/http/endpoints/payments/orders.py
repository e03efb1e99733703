"""What both payment providers' endpoints share, and the reads: one order, and the account's list.

An order is stored before any external call, by the account's actor and under ids generated here. Reads are served
from the rows.
"""

from __future__ import annotations

from functools import partial
from typing import Final, get_args

import msgspec

from holdfast.actors.account.messages import CreateOrder
from holdfast.actors.runtime.messages import Replayed
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import PAGE, Position, filter_by, list_of_account
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.values import shown
from holdfast.http.schemas.payments import (
    BonusList,
    PaymentOrderBody,
    PaymentOrderList,
    bonus_body,
    payment_order_body,
)
from holdfast.ledger.api_keys import ORDERS_READ
from holdfast.ledger.catalog.bonuses import bonus_of
from holdfast.ledger.orders.order import (
    Order,
    OrderBonus,
    OrderResult,
    OrderStatus,
    Provider,
    Seller,
    order_request,
)
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import is_id, new_id
from holdfast.persistence.queries.orders import order_of_account, orders_of_account
from holdfast.telemetry.traces import other_request_id, traceparent

route = RouteTable("Payments")

CREATE_ERRORS: Final = ("invalid_amount", "amount_too_large", "too_many_open_orders", "account_disabled")

_STATUS: Final = filter_by("status", "Only orders with this status.", get_args(OrderStatus))
_PROVIDER: Final = filter_by("provider", "Only orders of this payment provider.", get_args(Provider))


@route(
    "GET",
    "/v2/control/payments",
    summary="List the account's payment orders; newest first",
    auth=Auth.SESSION_OR_KEY,
    scope=ORDERS_READ,
    reply=PaymentOrderList,
    parameters=(_STATUS, _PROVIDER, *PAGE),
)
async def list_payment_orders(call: Call) -> Outcome:
    """Orders of every provider, whatever their status."""
    return await list_of_account(call, orders_of_account, payment_order_body, position_of)


def position_of(order: Order) -> Position:
    """Return an order's position in a list of orders."""
    return Position(order.request.created_at, order.order_id)


@route(
    "GET",
    "/v2/control/payments/{order_id}",
    summary="Retrieve a payment order",
    auth=Auth.SESSION_OR_KEY,
    scope=ORDERS_READ,
    reply=PaymentOrderBody,
    errors=("payment_order_not_found",),
)
async def read_payment_order(call: Call) -> Outcome:
    """The order as it is stored: the payment provider is not asked."""
    order_id = call.path["order_id"]

    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    if not is_id(order_id):
        return order_not_found(order_id)
    found = await call.read(partial(order_of_account, account_id=account_id, order_id=order_id))
    return order_not_found(order_id) if found is None else payment_order_body(found)


@route(
    "GET",
    "/v2/bonuses",
    summary="List the bonuses of orders: promotional credit in addition, by the order's amount",
    reply=BonusList,
)
async def list_bonuses(call: Call) -> Outcome:
    """An order keeps the bonus that it was created with. Automatic top-ups get none."""
    return BonusList(data=[bonus_body(each) for each in call.deps.registry.catalog.bonuses])


# ------------------------------------------------------------------------------------------------------ creating


def order_not_found(order_id: str) -> Refusal:
    """Return the refusal of an order id that the caller has no order for."""
    return Refusal(code="payment_order_not_found", message=f"The payment order {shown(order_id)} does not exist.")


async def write_order(
    call: Call,
    provider: Provider,
    amount_micro: int | Refusal,
    *,
    ttl_s: int,
    livemode: bool | None = None,
    customer_id: str | None = None,
) -> OrderResult | Refusal | Replayed[OrderResult]:
    """Have the account store a new order, and return the order as created, or the reply that a key replays.

    A refusal of the amount is returned only if the request's Idempotency-Key has no reply yet.
    """
    idempotency = call.idempotency()
    if isinstance(idempotency, Refusal):
        return idempotency
    if isinstance(amount_micro, Refusal):
        return await call.refuse(amount_micro, idempotency, OrderResult)
    now = call.deps.now()
    is_sandbox = provider == "sandbox"
    request = order_request(
        msgspec.convert(call.deps.settings, Seller, from_attributes=True),
        call.known_key.account_id,
        provider,
        amount_micro,
        now,
        ttl_s=ttl_s,
        livemode=livemode,
        customer_id=customer_id,
        sandbox_event_id=new_id("evt") if is_sandbox else None,
        signed_at=int(now.timestamp()) if is_sandbox else None,
        bonus=_bonus_of_order(call, amount_micro),
        traceparent=traceparent.get(),
        http_request_id=other_request_id(),
    )
    command = CreateOrder(request=request, idempotency=idempotency)
    return await call.act(command)


def _bonus_of_order(call: Call, amount_micro: int) -> OrderBonus | None:
    """Return the bonus that the current catalog has for an order of this amount."""
    bonus = bonus_of(call.deps.registry.catalog.bonuses, amount_micro)
    if bonus is None:
        return None
    return OrderBonus(credit_micro=bonus.micro_of(amount_micro), expires_days=bonus.expires_days)
