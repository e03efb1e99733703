"""The search field: from an id or an e-mail address to the page on it."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from holdfast.http.endpoints.operators.accounts.account import AccountDetails, find_account
from holdfast.http.kit.shown import shown
from holdfast.http.pages.rendering import Redirect
from holdfast.http.pages.views import ViewResult, ViewTable, Visit
from holdfast.ledger.refusals import Refusal

view = ViewTable()

PLACES: Final = {
    "acct_": "/ops/accounts/",
    "task_": "/ops/tasks/",
    "rev_": "/ops/reviews/",
    "ord_": "/ops/payments/",
    "proc_": "/ops/tree#",
}


@view("/ops/find")
async def find(visit: Visit) -> ViewResult:
    """Go to the page; the id of a request shows its reports."""
    sought = visit.parameter("q")
    if not sought:
        return Redirect("/ops")
    if "@" in sought:
        found = await visit.read(find_account, AccountDetails, query={"email": sought})
        return found if isinstance(found, Refusal) else Redirect(f"/ops/accounts/{found.account_id}")
    for prefix, place in PLACES.items():
        if sought.startswith(prefix):
            return Redirect(place + quote(sought, safe=""))
    if sought.startswith("req_"):
        return Redirect("/ops/reports?" + urlencode({"trace_id": sought, "level": ""}))
    return Refusal(
        code="invalid_parameter",
        message=f"{shown(sought)} is neither an id of an account, task, order, review, process or request, "
        "nor an e-mail address.",
        param="q",
    )
