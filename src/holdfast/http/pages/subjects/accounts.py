"""One account: its credit, keys and actor, and what happened to it."""

from __future__ import annotations

from holdfast.http.endpoints.operators.accounts.account import AccountDetails, read_account_details
from holdfast.http.endpoints.operators.accounts.time_lines import read_account_time_line
from holdfast.http.endpoints.operators.supervision.actors import read_actor
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import KeyDescription

view = ViewTable()


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
        "time_line": await visit.read_list(read_account_time_line),
    }
    return Html("account.html", values, is_live=True)
