"""Accounts that are being closed, as operators see them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import PAGE, Position, StoredListBody, list_for_operators
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.common import render
from holdfast.ledger.public_types import AccountId, Amount, Time
from holdfast.persistence.queries.accounts import ClosingAccount, closing_accounts

route = OperatorRoutes("Accounts")


class ClosingAccountBody(msgspec.Struct, frozen=True):
    """An account that its owner has left."""

    account_id: AccountId
    email: str
    """The e-mail address that signs in; without one once it is closed."""
    state: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["closing", "closed"]})]
    """`closing` until its time has come and nothing of it is unsettled; `closed` until its data is deleted."""
    closes_at: Time
    """When its owner's time to think again is over."""
    closed_at: Time | None
    """When it was closed; null before."""
    balance: Amount
    """Its balance, which is forfeited; below zero it prevents the closing, as an open dispute or payment does."""
    tasks_in_flight: int
    """How many tasks have not ended, which prevents the closing."""


class ClosingAccountList(StoredListBody[ClosingAccountBody], frozen=True):
    """A page of accounts that are being closed, the next to be closed first."""


@route.read(
    "/ops/api/closing-accounts",
    "List the accounts that are being closed; the next to be closed first",
    ClosingAccountList,
    parameters=PAGE,
)
async def list_closing_accounts(call: Call) -> Outcome:
    """One whose time is over and that is not closed has a debt, a dispute, a payment or a task that is open."""
    return await list_for_operators(
        call, closing_accounts, _body, lambda found: Position(found.closes_at, found.account_id)
    )


def _body(found: ClosingAccount) -> ClosingAccountBody:
    return render(ClosingAccountBody, found, state="closing" if found.closed_at is None else "closed")
