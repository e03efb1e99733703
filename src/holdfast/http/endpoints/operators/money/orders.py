"""Payment orders of all accounts: those that need attention, and one of them with its account."""

from __future__ import annotations

from typing import Final, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.http.endpoints.payments.orders import order_not_found, position_of, valid_order_id
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import Page, Position, Window, read_operators_page
from holdfast.http.kit.parameters import CURSOR, FROM, LIMIT, TO
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.schemas.payment_rendering import in_units, payment_order_body
from holdfast.http.schemas.payments import PaymentOrderBody, PaymentOrderList
from holdfast.ledger.orders.order import Order
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.orders import OrderTrouble, order_by_id, troubled_orders
from holdfast.persistence.records.unreadable import UnreadableEntry

route = RouteTable("Operators")

_TROUBLE: Final = Parameter(
    name="trouble",
    place="query",
    description="`held`: the payment waits for a decision. `mismatched`: the order differs from its provider's "
    "record. `unreconciled`: paid, and not compared yet, or the comparison failed. Without it all but `held`.",
    schema=(("type", "string"), ("enum", list(get_args(OrderTrouble)))),
)


class ReceivedPayment(msgspec.Struct, frozen=True):
    """What an event says was captured for a payment, in units of its currency."""

    payment_id: str
    amount: str
    currency: str


class OrderDetails(msgspec.Struct, frozen=True):
    """A payment order and its account. ``received`` has what was paid for it, which may differ from its amount."""

    account_id: str
    order: PaymentOrderBody
    received: list[ReceivedPayment]


class OrderDetailsList(msgspec.Struct, frozen=True):
    """A page of payment orders, oldest first."""

    data: list[OrderDetails]
    next_cursor: str | None


@route(
    "GET",
    "/ops/api/orders",
    summary="List the payment orders that need attention, oldest first",
    auth=Auth.OPERATOR_READ,
    reply=OrderDetailsList,
    parameters=(_TROUBLE, FROM, TO, CURSOR, LIMIT),
    errors=("invalid_parameter", "invalid_cursor"),
)
async def list_troubled_orders(call: Call) -> Outcome:
    """One read."""
    page = await _read_page(call, "orders that need attention", filters=(_TROUBLE,))
    if isinstance(page, Refusal):
        return page
    return OrderDetailsList(data=[_details(order) for order in page.entries], next_cursor=page.next_cursor)


@route(
    "GET",
    "/ops/api/payments",
    summary="List the held payment orders of all accounts, oldest first",
    auth=Auth.OPERATOR_READ,
    reply=PaymentOrderList,
    parameters=(FROM, TO, CURSOR, LIMIT),
    errors=("invalid_parameter", "invalid_cursor"),
)
async def list_held_orders(call: Call) -> Outcome:
    """The same as the orders whose trouble is ``held``, without their accounts."""
    page = await _read_page(call, "held payments", "held")
    if isinstance(page, Refusal):
        return page
    return PaymentOrderList(
        data=[payment_order_body(order) for order in page.entries], next_cursor=page.next_cursor
    )


@route(
    "GET",
    "/ops/api/orders/{order_id}",
    summary="Retrieve a payment order of any account",
    auth=Auth.OPERATOR_READ,
    reply=OrderDetails,
    errors=("payment_order_not_found",),
)
async def read_order_details(call: Call) -> Outcome:
    """One read."""
    order = await order_of_path(call)
    return order if isinstance(order, Refusal) else _details(order)


async def order_of_path(call: Call) -> Order | Refusal:
    """Return the order of the path, whose account the call concerns. Refuses with ``payment_order_not_found``."""
    order_id = call.path["order_id"]
    order = None
    if valid_order_id(order_id):
        order = await call.deps.database.read(lambda rows: order_by_id(rows, order_id))
    if order is None:
        return order_not_found(order_id)
    call.concern(order.account_id)
    return order


async def _read_page(
    call: Call, kind: str, trouble: OrderTrouble | None = None, filters: tuple[Parameter, ...] = ()
) -> Page[Order] | Refusal:
    """Read orders with this trouble, or with the one that the query asks for."""

    def read(rows: Connection, window: Window, after: Position | None) -> list[Order | UnreadableEntry]:
        wanted = trouble or msgspec.convert(window.filters.get("trouble"), OrderTrouble | None)
        return troubled_orders(
            rows, wanted, limit=window.read_max, since=window.since, until=window.until, after=after
        )

    return await read_operators_page(call, read, position_of, kind=kind, filters=filters)


def _details(order: Order) -> OrderDetails:
    received = [
        ReceivedPayment(payment_id, in_units(claim.amount_micro, claim.currency), claim.currency)
        for payment_id, payment in order.state.facts.payments.items()
        for claim in payment.claims
    ]
    return OrderDetails(account_id=order.account_id, order=payment_order_body(order), received=received)
