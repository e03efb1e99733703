"""The usage of an account, as operators see it."""

from __future__ import annotations

from holdfast.http.endpoints.operators.accounts import refuse_unknown_account
from holdfast.http.endpoints.tasks.usage_totals import (
    FILTERS,
    GROUP_BY,
    PERIOD,
    TIME_ZONE,
    UsageTotals,
    answer,
    read_question,
)
from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome
from holdfast.ledger.refusals import Refusal

route = OperatorRoutes()


@route.read(
    "/ops/api/accounts/{account_id}/usage/totals",
    "Sum an account's usage by day, model, API key, status or end user, or by two of them",
    UsageTotals,
    parameters=(GROUP_BY, *FILTERS, TIME_ZONE, *PERIOD),
    errors=("account_not_found",),
)
async def sum_usage_of_account(call: Call) -> Outcome:
    """What the account's owner reads."""
    asked = read_question(call)
    if isinstance(asked, Refusal):
        return asked
    account_id = call.path["account_id"]
    refusal = await refuse_unknown_account(call.deps, account_id)
    return refusal or await answer(asked, account_id, call.deps.database.read)
