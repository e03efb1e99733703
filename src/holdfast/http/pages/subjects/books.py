"""The books over all accounts: trial balance, liabilities, revenue."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.operators.money.books import (
    LiabilitiesBody,
    RevenueBody,
    TrialBalanceBody,
    read_liabilities,
    read_revenue,
    read_trial_balance,
)
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit

view = ViewTable()

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
