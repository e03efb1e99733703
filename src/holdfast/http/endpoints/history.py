"""The account's history: what happened to the account as a whole, and what its API keys did with it."""

from __future__ import annotations

from typing import Final, get_args

import msgspec

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import PAGE, Position, StoredListBody, filter_by, list_of_account
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.common import render
from holdfast.ledger.api_keys import ACCOUNT_READ
from holdfast.ledger.public_types import Time
from holdfast.persistence.queries.history import changes_of_account
from holdfast.persistence.records.rows import AccountChange, AccountChangeRow

route = RouteTable("Account")


class AccountChangeBody(msgspec.Struct, frozen=True):
    """What happened to the account, or what one of its API keys did."""

    change_id: str
    """The entry's id, `chg_…`."""
    at: Time
    """When it happened."""
    what: AccountChange
    """What happened."""
    api_key_id: str | None
    """The API key that did it, `key_…`; null: the account's owner, an operator or the service."""
    subject: str | None
    """The id of what the key did it with: another key, a webhook, an event, an order or the account."""


class AccountHistory(StoredListBody[AccountChangeBody], frozen=True):
    """A page of the account's history, newest first."""


_BY_KEY: Final = filter_by("api_key_id", "Only what this API key did.")
_WHAT: Final = filter_by("what", "Only entries of this kind.", get_args(AccountChange))


@route(
    "GET",
    "/v2/control/history",
    summary="List what happened to the account, and what its API keys did; newest first",
    auth=Auth.SESSION_OR_KEY,
    scope=ACCOUNT_READ,
    reply=AccountHistory,
    parameters=(_WHAT, _BY_KEY, *PAGE),
)
async def list_history(call: Call) -> Outcome:
    """What API keys did is kept for 400 days. Tasks name their keys themselves."""
    return await list_of_account(call, changes_of_account, account_change_body, _position)


def account_change_body(change: AccountChangeRow) -> AccountChangeBody:
    """Render an entry of the history."""
    return render(AccountChangeBody, change)


def _position(change: AccountChangeRow) -> Position:
    return Position(change.at, change.change_id)
