"""Payment orders of all accounts: those that need attention, and one of them with its account."""

from __future__ import annotations

from typing import Final, Unpack, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.http.endpoints.payments.orders import order_not_found, position_of
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import PAGE, ListOptions, Position, StoredListBody, filter_by, list_for_operators
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.payment_rendering import in_units, payment_order_body, render_order
from holdfast.http.schemas.payments import PaymentOrderBody
from holdfast.ledger.ids import is_id
from holdfast.ledger.orders.order import Order
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.accounts import email_of_account
from holdfast.persistence.queries.orders import OrderTrouble, TroubledOrder, order_by_id, troubled_orders
from holdfast.persistence.records.unreadable import UnreadableEntry

route = RouteTable("Operators")

_TROUBLE: Final = filter_by(
    "trouble",
    "`held`: the payment waits for a decision. `mismatched`: the order differs from its provider's record. "
    "`unreconciled`: paid, and not compared yet, or the comparison failed. Without it all but `held`.",
    get_args(OrderTrouble),
)


class ReceivedPayment(msgspec.Struct, frozen=True):
    """What an event says was captured for a payment, in units of its currency."""

    payment_id: str
    amount: str
    currency: str


class OrderDetails(msgspec.Struct, frozen=True):
    """A payment order and its account. ``received`` has what was paid for it, which may differ from its amount."""

    account_id: str
    email: str | None
    order: PaymentOrderBody
    received: list[ReceivedPayment]


class HeldOrder(PaymentOrderBody, frozen=True, kw_only=True):
    """A held payment order, with the account it belongs to."""

    account_id: str
    email: str | None


class HeldOrderList(StoredListBody[HeldOrder], frozen=True):
    """A page of held payment orders, oldest first. ``unreadable``: ids of those that cannot be read now."""


class OrderDetailsList(StoredListBody[OrderDetails], frozen=True):
    """A page of payment orders, oldest first. ``unreadable``: ids of those that cannot be read now."""


@route(
    "GET",
    "/ops/api/orders",
    summary="List the payment orders that need attention, oldest first",
    auth=Auth.OPERATOR_READ,
    reply=OrderDetailsList,
    parameters=(_TROUBLE, *PAGE),
)
async def list_troubled_orders(call: Call) -> Outcome:
    """Found by indexes of what is due or differs, so settled orders cost nothing."""
    return await list_for_operators(call, troubled_orders, _details, _position)


@route(
    "GET",
    "/ops/api/payments",
    summary="List the held payment orders of all accounts, oldest first",
    auth=Auth.OPERATOR_READ,
    reply=HeldOrderList,
    parameters=PAGE,
)
async def list_held_orders(call: Call) -> Outcome:
    """The same as the orders whose trouble is ``held``."""
    return await list_for_operators(call, _held_orders, _held_order, _position)


@route(
    "GET",
    "/ops/api/orders/{order_id}",
    summary="Retrieve a payment order of any account",
    auth=Auth.OPERATOR_READ,
    reply=OrderDetails,
    errors=("payment_order_not_found",),
)
async def read_order_details(call: Call) -> Outcome:
    """With all that was received for it."""
    order = await order_of_path(call)
    if isinstance(order, Refusal):
        return order
    email = await call.deps.database.read(lambda rows: email_of_account(rows, order.account_id))
    return _details(TroubledOrder(order, email))


async def order_of_path(call: Call) -> Order | Refusal:
    """Return the order of the path, whose account the call concerns. Refuses with ``payment_order_not_found``."""
    order_id = call.path["order_id"]
    order = None
    if is_id(order_id):
        order = await call.deps.database.read(lambda rows: order_by_id(rows, order_id))
    if order is None:
        return order_not_found(order_id)
    call.concern(order.account_id)
    return order


def _held_orders(rows: Connection, /, **options: Unpack[ListOptions]) -> list[TroubledOrder | UnreadableEntry]:
    options["filters"] = {"trouble": "held"}
    return troubled_orders(rows, **options)


def _held_order(found: TroubledOrder) -> HeldOrder:
    return render_order(HeldOrder, found.order, email=found.email)


def _position(found: TroubledOrder) -> Position:
    return position_of(found.order)


def _details(found: TroubledOrder) -> OrderDetails:
    order = found.order
    received = [
        ReceivedPayment(payment_id, in_units(claim.amount_micro, claim.currency), claim.currency)
        for payment_id, payment in order.state.facts.payments.items()
        for claim in payment.claims
    ]
    return OrderDetails(
        account_id=order.account_id, email=found.email, order=payment_order_body(order), received=received
    )
