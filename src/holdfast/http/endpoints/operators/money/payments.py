"""Held payment orders: their list, and the operator's decision on one."""

from __future__ import annotations

from typing import Final

import msgspec
from sqlalchemy import Connection

from holdfast.actors.account.order_messages import ResolveOrder
from holdfast.http.endpoints.operators.accounts.reviews import read_note
from holdfast.http.endpoints.payments.orders import order_not_found, position_of, read_order_amount, valid_order_id
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import Position, Window, read_operators_page
from holdfast.http.kit.parameters import CURSOR, FROM, LIMIT, TO
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.common import AmountGiven
from holdfast.http.schemas.operators import Reason
from holdfast.http.schemas.payment_rendering import payment_order_body
from holdfast.http.schemas.payments import PaymentOrderBody, PaymentOrderList
from holdfast.ledger.orders.order import Order
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.orders import held_orders, order_by_id
from holdfast.persistence.records.unreadable import UnreadableEntry

route = RouteTable("Operators")

_RESOLVE_ERRORS: Final = (
    "payment_order_not_found",
    "payment_order_not_payable",
    "invalid_amount",
    "amount_too_large",
)


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to give credit, and a note of at most 400 characters that is recorded in the order's history.

    Without ``amount`` the amount received is credited, at most the amount ordered; a payment in another currency
    needs one.
    """

    credit: bool
    reason: Reason
    amount: AmountGiven | None = None
    note: str | None = None


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
    """One read, with one row more than requested to know whether another page follows."""

    def read(rows: Connection, window: Window, after: Position | None) -> list[Order | UnreadableEntry]:
        return held_orders(rows, limit=window.read_max, since=window.since, until=window.until, after=after)

    page = await read_operators_page(call, read, position_of, kind="held payments")
    if isinstance(page, Refusal):
        return page
    return PaymentOrderList(
        data=[payment_order_body(order) for order in page.entries], next_cursor=page.next_cursor
    )


@route(
    "POST",
    "/ops/api/payments/{order_id}/resolve",
    summary="Resolve a held payment order: give credit for its payment, or none",
    auth=Auth.OPERATOR_ACT,
    action="resolve_payment",
    body=Resolution,
    reply=PaymentOrderBody,
    errors=_RESOLVE_ERRORS,
)
async def resolve_payment_order(call: Call) -> Outcome:
    """The order's account decides; the response is the order afterwards."""
    body = call.body(Resolution)
    note = read_note(body.note)
    if isinstance(note, Refusal):
        return note
    amount_micro = None
    if body.amount is not None:
        if not body.credit:
            return Refusal(
                code="invalid_parameter", message="'amount' is allowed only with credit.", param="amount"
            )
        read = read_order_amount(body.amount, max_micro=call.deps.settings.order_max_micro)
        if isinstance(read, Refusal):
            return read
        amount_micro = read
    order = await order_of_path(call)
    if isinstance(order, Refusal):
        return order
    command = ResolveOrder(order.order_id, body.credit, amount_micro, note)
    reply = await call.ask(call.deps.accounts.ref(order.account_id), command)
    return reply if isinstance(reply, Refusal) else payment_order_body(reply.order)


async def order_of_path(call: Call) -> Order | Refusal:
    """Return the order of the path, whose account the action concerns. Refuses with ``payment_order_not_found``."""
    order_id = call.path["order_id"]
    order = None
    if valid_order_id(order_id):
        order = await call.deps.database.read(lambda rows: order_by_id(rows, order_id))
    if order is None:
        return order_not_found(order_id)
    call.concern(order.account_id)
    return order
