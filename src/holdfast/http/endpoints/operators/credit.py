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
from holdfast.http.endpoints.operators.accounts import change_credit, existing_account
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import list_for_operators, read_given_time
from holdfast.http.kit.routes import REQUIRED_IDEMPOTENCY_KEY, Outcome, RouteTable
from holdfast.http.kit.values import read_amount
from holdfast.http.schemas.common import AmountGiven, CreditChangedBody
from holdfast.http.schemas.operators import Note, Reason, text_of
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal

route = RouteTable("Operators")

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


@route(
    "POST",
    "/ops/api/accounts/{account_id}/grants",
    summary="Grant promotional credit, which may expire, to an account",
    auth=Auth.OPERATOR_ACT,
    action="grant_credit",
    body=Grant,
    reply=CreditChangedBody,
    parameters=(REQUIRED_IDEMPOTENCY_KEY,),
    errors=("account_not_found", "invalid_amount", "amount_too_large", "lot_limit_reached"),
)
async def grant_credit(call: Call) -> Outcome:
    """A repeat with the same Idempotency-Key returns the grant that was made."""
    body = call.body(Grant)
    idempotency = call.required_idempotency()
    if isinstance(idempotency, Refusal):
        return idempotency
    amount_micro = read_amount(body.amount)
    if isinstance(amount_micro, Refusal):
        return amount_micro
    expires_at = read_given_time("expires_at", body.expires_at)
    if isinstance(expires_at, Refusal):
        return expires_at
    assert call.action is not None
    command = GrantCredit(
        amount_micro=amount_micro,
        expires_at=expires_at,
        action_id=call.action.action_id,
        note=text_of(body.note) or NOTE,
        idempotency=idempotency,
    )
    return await change_credit(call, command)


@route(
    "GET",
    "/ops/api/accounts/{account_id}/credit-lots",
    summary="List an account's lots of credit with what is left of each",
    auth=Auth.OPERATOR_READ,
    reply=CreditLotList,
    parameters=FILTERS,
    errors=("account_not_found",),
)
async def list_account_lots(call: Call) -> Outcome:
    """Lots of which nothing is left are listed too."""
    account_id = await existing_account(call)
    if isinstance(account_id, Refusal):
        return account_id
    return await list_for_operators(
        call,
        lambda rows, **options: lot_entries(rows, account_id, **options),
        credit_lot_body,
        position_of_lot,
        owner=account_id,
    )
