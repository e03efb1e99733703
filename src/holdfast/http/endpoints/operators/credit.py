"""An account's credit as operators see and give it: its lots, and grants of promotional credit."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.actors.account.messages import GrantCredit
from holdfast.http.endpoints.credit_lots import (
    FILTERS,
    CreditLotList,
    credit_lot_body,
    lot_entries,
    position_of_lot,
)
from holdfast.http.endpoints.operators.accounts import change_credit, refuse_unknown_account
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import list_for_operators, read_given_time
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.values import read_amount
from holdfast.http.schemas.common import AmountGiven, CreditChangedBody
from holdfast.http.schemas.operators import Note, Reason, text_of
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal

route = OperatorRoutes()

NOTE: Final = "granted by the operator"


class Grant(msgspec.Struct, frozen=True):
    """Promotional credit to give."""

    amount: AmountGiven
    """The credit to give."""
    reason: Reason
    expires_at: Time | None = None
    """When what is left of it expires, later than now; null or omitted: never."""
    note: Note | None = None
    """What the account's owner reads in the statement; null or omitted: `granted by the operator`."""


@route.action(
    "/ops/api/accounts/{account_id}/grants",
    "Grant promotional credit, which may expire, to an account",
    Grant,
    CreditChangedBody,
    errors=("account_not_found", "invalid_amount", "amount_too_large", "lot_limit_reached"),
    needs_key=True,
)
async def grant_credit(run: ActionRun, given: Grant, account_id: str) -> CreditChangedBody | Refusal:
    """A repeat with the same Idempotency-Key returns the grant that was made."""
    amount_micro = read_amount(given.amount)
    if isinstance(amount_micro, Refusal):
        return amount_micro
    expires_at = read_given_time("expires_at", given.expires_at)
    if isinstance(expires_at, Refusal):
        return expires_at
    command = GrantCredit(
        amount_micro=amount_micro,
        expires_at=expires_at,
        action_id=run.record.action_id,
        note=text_of(given.note) or NOTE,
        idempotency=run.key,
    )
    return await change_credit(run, account_id, command)


@route.read(
    "/ops/api/accounts/{account_id}/credit-lots",
    "List an account's lots of credit with what is left of each",
    CreditLotList,
    parameters=FILTERS,
    errors=("account_not_found",),
)
async def list_account_lots(call: Call) -> Outcome:
    """Lots of which nothing is left are listed too."""
    account_id = call.path["account_id"]
    return await refuse_unknown_account(call.deps, account_id) or await list_for_operators(
        call,
        lambda rows, **options: lot_entries(rows, account_id, **options),
        credit_lot_body,
        position_of_lot,
        owner=account_id,
    )
