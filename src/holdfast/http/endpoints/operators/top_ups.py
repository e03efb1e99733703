"""Automatic top-ups of all accounts that were switched off: by a decline, a dispute or an operator."""

from __future__ import annotations

from functools import partial

import msgspec

from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import PAGE, Position, StoredListBody, list_for_operators
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.cards import AutoTopUpBody, auto_top_up_body
from holdfast.ledger.public_types import AccountId
from holdfast.persistence.queries.orders import SwitchedOffTopUp, switched_off_top_ups

route = OperatorRoutes()


class SwitchedOffTopUpBody(msgspec.Struct, frozen=True):
    """An account whose automatic top-up was switched off."""

    account_id: AccountId
    email: str
    """The e-mail address that signs in."""
    auto_top_up: AutoTopUpBody
    """The automatic top-up, with why and when it was switched off."""


class SwitchedOffTopUpList(StoredListBody[SwitchedOffTopUpBody], frozen=True):
    """A page of automatic top-ups that were switched off, the latest first."""


@route.read(
    "/ops/api/switched-off-top-ups",
    "List the accounts whose automatic top-up was switched off, the latest first",
    SwitchedOffTopUpList,
    parameters=PAGE,
)
async def list_switched_off_top_ups(call: Call) -> Outcome:
    """Those that their owners have switched off, or on again, are not listed."""
    return await list_for_operators(call, switched_off_top_ups, partial(_body, call), _position)


def _body(call: Call, found: SwitchedOffTopUp) -> SwitchedOffTopUpBody:
    top_up = found.top_up
    return SwitchedOffTopUpBody(top_up.account_id, found.email, auto_top_up_body(top_up, call.deps.now()))


def _position(found: SwitchedOffTopUp) -> Position:
    assert found.top_up.off_at is not None
    return Position(found.top_up.off_at, found.top_up.account_id)
