"""Money: payment orders, one of them, coupons, and the books."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.operators.accounts import list_switched_off_top_ups
from holdfast.http.endpoints.operators.actions import ActionList, list_operator_actions
from holdfast.http.endpoints.operators.books import read_liabilities, read_revenue, read_trial_balance
from holdfast.http.endpoints.operators.credit import read_coupons
from holdfast.http.endpoints.operators.orders import (
    OrderDetails,
    list_all_orders,
    list_troubled_orders,
    read_order_details,
)
from holdfast.http.kit.calls import Auth
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.books import LiabilitiesBody, RevenueBody, TrialBalanceBody
from holdfast_console.rendering import Html
from holdfast_console.views import ROWS_SHOWN, ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)


@view("/ops/payments")
async def held_payments(visit: Visit) -> ViewResult:
    """The held orders, oldest first."""
    held = await visit.read_list(list_troubled_orders, always={"trouble": "held"})
    return Html("payments.html", {"orders": held}, is_live=True)


@view("/ops/orders")
async def unreconciled_orders(visit: Visit) -> ViewResult:
    """The orders that do not match their provider's record, or are not compared yet."""
    return Html("orders.html", {"orders": await visit.read_list(list_troubled_orders)}, is_live=True)


@view("/ops/all-orders")
async def all_orders(visit: Visit) -> ViewResult:
    """The orders of every status; their totals are summed, so the page is not renewed by itself."""
    return Html("all_orders.html", {"orders": await visit.read_list(list_all_orders)})


@view("/ops/coupons")
async def coupons(visit: Visit) -> ViewResult:
    """The coupons, newest first."""
    return Html("coupons.html", {"coupons": await visit.read_list(read_coupons)})


@view("/ops/top-ups")
async def switched_off_top_ups(visit: Visit) -> ViewResult:
    """The automatic top-ups that were switched off other than by their owners."""
    return Html("top_ups.html", {"top_ups": await visit.read_list(list_switched_off_top_ups)}, is_live=True)


@view("/ops/payments/{order_id}")
async def order(visit: Visit) -> ViewResult:
    """One order."""
    found = await visit.read(read_order_details, OrderDetails, path=visit.path)
    if isinstance(found, Refusal):
        return found
    about = {"account_id": found.account_id, "target": found.order.order_id, "limit": ROWS_SHOWN}
    values = {
        "account_id": found.account_id,
        "email": found.email,
        "order": found.order,
        "received": found.received,
        "actions": await visit.read(list_operator_actions, ActionList, query=about),
    }
    return Html("order.html", values, is_live=True)


FILTERS: Final = ("by", "from", "to")


@view("/ops/books")
async def books(visit: Visit) -> ViewResult:
    """Three sums over all rows, so the page is not renewed by itself."""
    filters = {name: visit.parameter(name) for name in FILTERS}
    values = {
        "balance": await visit.read(read_trial_balance, TrialBalanceBody),
        "liabilities": await visit.read(read_liabilities, LiabilitiesBody),
        "revenue": await visit.read(read_revenue, RevenueBody, query=filters),
        "filters": filters,
    }
    return Html("books.html", values)
