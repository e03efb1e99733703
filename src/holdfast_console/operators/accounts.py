"""Accounts: all of them, the search field that leads to one, and one with what happened to it."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from holdfast.http.endpoints.credit_lots import CreditLotList
from holdfast.http.endpoints.operators.accounts import (
    TRACE_OR_REQUEST_ID,
    AccountDetails,
    FoundList,
    WebhooksAndAlerts,
    list_all_accounts,
    read_account_details,
    read_webhooks_and_alerts,
    sum_usage_of_account,
)
from holdfast.http.endpoints.operators.accounts import find as find_accounts
from holdfast.http.endpoints.operators.actors import read_actor
from holdfast.http.endpoints.operators.credit import list_account_lots
from holdfast.http.endpoints.operators.overrides import OverrideList, list_overrides
from holdfast.http.endpoints.operators.processes import RefusedRequestPage, list_refused_requests
from holdfast.http.endpoints.operators.time_lines import read_account_time_line
from holdfast.http.endpoints.tasks.usage_totals import UsageTotals
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.values import shown
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.transitions import task_of_attempt
from holdfast.persistence.queries.finding import Found
from holdfast.supervision.control.messages import KeyDescription
from holdfast_console.operators.cells import cells_elsewhere
from holdfast_console.rendering import Html, Redirect
from holdfast_console.views import ROWS_SHOWN, ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)


@view("/ops/accounts")
async def accounts(visit: Visit) -> ViewResult:
    """The accounts that the filters select; some are found by reading all, so the page is not renewed by itself."""
    return Html("accounts.html", {"accounts": await visit.read_list(list_all_accounts)})


@view("/ops/accounts/{account_id}")
async def account(visit: Visit) -> ViewResult:
    """One account."""
    account_id = visit.path["account_id"]
    found = await visit.read(read_account_details, AccountDetails, path=visit.path)
    if isinstance(found, Refusal) and found.code == "account_not_found":
        return found
    values = {
        "account": found,
        "account_id": account_id,
        "actor": await visit.read(read_actor, KeyDescription, path={"group": "accounts", "key": account_id}),
        "announced": await visit.read(read_webhooks_and_alerts, WebhooksAndAlerts, path=visit.path),
        "usage": await visit.read(
            sum_usage_of_account, UsageTotals, path=visit.path, query={"group_by": "model,status"}
        ),
        "lots": await visit.read(
            list_account_lots, CreditLotList, path=visit.path, query={"status": "open", "limit": ROWS_SHOWN}
        ),
        "overrides": await visit.read(list_overrides, OverrideList),
        "time_line": await visit.read_list(read_account_time_line),
    }
    return Html("account.html", values, is_live=True)


PAGES: Final = {
    "acct_": "/ops/accounts/",
    "task_": "/ops/tasks/",
    "rev_": "/ops/reviews/",
    "ord_": "/ops/payments/",
    "proc_": "/ops/tree#",
}


@view("/ops/find")
async def find(visit: Visit) -> ViewResult:
    """Go to the page; several are listed. A request or trace that created nothing was refused, or has reports."""
    sought = visit.parameter("q")
    if not sought:
        return Redirect("/ops")
    elsewhere = await cells_elsewhere(visit, sought)
    if elsewhere:
        return Html("elsewhere.html", {"sought": sought, "elsewhere": elsewhere})
    for prefix, page in PAGES.items():
        if sought.startswith(prefix) and "@" not in sought:
            # A provider's job may have the name of an attempt.
            return Redirect(page + quote(task_of_attempt(sought), safe=""))
    found = await visit.read(find_accounts, FoundList, query={"q": sought, "limit": ROWS_SHOWN})
    trace = TRACE_OR_REQUEST_ID.fullmatch(sought)
    if trace and (isinstance(found, Refusal) or not found.data):
        return await _refused_or_reported(visit, sought, trace[1])
    if isinstance(found, Refusal):
        return found
    if len(found.data) == 1:
        return Redirect(_page_of(found.data[0]))
    if found.data:
        pages = [_page_of(each) for each in found.data]
        return Html("find.html", {"found": found.data, "pages": pages, "sought": sought, "most": int(ROWS_SHOWN)})
    cells = visit.call.deps.cells
    if cells is not None and cells.others:
        return Html("elsewhere.html", {"sought": sought, "elsewhere": cells.others})
    return Refusal(
        code="account_not_found",
        message=f"Nothing is found by {shown(sought)}. Give a whole id, the number of a receipt, "
        "or the beginning of an e-mail address or of an API key.",
        param="q",
    )


async def _refused_or_reported(visit: Visit, sought: str, trace_id: str) -> Redirect:
    """Go to a refused request, if a process remembers it, or else to the reports of a trace."""
    refused = await visit.read(list_refused_requests, RefusedRequestPage, query={"about": sought, "limit": "1"})
    if not isinstance(refused, Refusal) and refused.data:
        return Redirect("/ops/refused-requests?" + urlencode({"about": sought}))
    return Redirect("/ops/reports?" + urlencode({"trace_id": trace_id, "level": ""}))


def _page_of(found: Found) -> str:
    """Return the page on what was found: of an operation, on its task or order."""
    subject = found.reference or ""
    for prefix, page in PAGES.items():
        if subject.startswith(prefix):
            return page + quote(subject, safe="")
    return f"/ops/accounts/{found.account_id}"
