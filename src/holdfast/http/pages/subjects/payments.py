"""Held payments: orders whose payment waits for an operator's decision."""

from __future__ import annotations

from holdfast.http.endpoints.operators.payments import list_held_orders
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit
from holdfast.http.schemas.payments import PaymentOrderList

view = ViewTable()


@view("/ops/payments")
async def payments(visit: Visit) -> ViewResult:
    """The held orders, oldest first."""
    return Html(
        "payments.html", {"orders": await visit.read_list(list_held_orders, PaymentOrderList)}, is_live=True
    )
