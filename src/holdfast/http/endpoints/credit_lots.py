"""The account's credit by lots: where it came from, what is left of it, and when it expires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import PAGE, ListBody, Position, filter_by, list_of_account, number_of
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.common import render
from holdfast.ledger.api_keys import ACCOUNT_READ
from holdfast.ledger.credit.operations import LotKind, LotSource
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.lots import LotRecord, lots_of_account

route = RouteTable("Credit")


class CreditLotBody(msgspec.Struct, frozen=True):
    """Credit that was given at once. Promotional credit is used before paid, then what expires first, then the
    oldest.
    """

    number: int
    """The number of the operation that gave it, by which postings name it."""
    kind: LotKind
    """Whether it was paid for."""
    source: LotSource
    """Where it came from."""
    reference: str
    """The order, grant or other object that it came from, by its id."""
    amount: Amount
    """What was given."""
    remaining: Amount
    """What is left of it, with what is reserved."""
    reserved: Amount
    """What tasks that have not ended hold of it."""
    created_at: Time
    """When it was given."""
    expires_at: Time | None
    """When what is left and not reserved expires, within half a minute; null if it never does. What is reserved can
    still be charged."""


class CreditLotList(ListBody[CreditLotBody], frozen=True):
    """A page of the account's lots of credit, newest first."""


_KIND: Final = filter_by("kind", "Only lots of this kind.", get_args(LotKind))
_STATUS: Final = filter_by("status", "Only lots of which something is left, or nothing.", ("open", "closed"))
FILTERS: Final = (_KIND, _STATUS, *PAGE)


@route(
    "GET",
    "/v2/control/credit-lots",
    summary="List the account's lots of credit; with what is left of each",
    auth=Auth.SESSION_OR_KEY,
    scope=ACCOUNT_READ,
    reply=CreditLotList,
    parameters=FILTERS,
)
async def list_credit_lots(call: Call) -> Outcome:
    """Lots of which nothing is left are listed too."""
    return await list_of_account(call, lot_entries, credit_lot_body, position_of_lot)


def credit_lot_body(lot: LotRecord) -> CreditLotBody:
    """Render a lot."""
    return render(CreditLotBody, lot)


def position_of_lot(lot: LotRecord) -> Position:
    """Return a lot's position in a list of lots; its id is the lot's number."""
    return Position(lot.created_at, str(lot.number))


def lot_entries(
    rows: Connection, account_id: str, /, *, after: Position | None, filters: Mapping[str, str], **options: Any
) -> list[LotRecord] | Refusal:
    """Read a page of an account's lots."""
    before = number_of(after)
    if isinstance(before, Refusal):
        return before
    status = filters.get("status")
    return lots_of_account(
        rows,
        account_id,
        before_number=before,
        kind=filters.get("kind"),
        is_open=None if status is None else status == "open",
        **options,
    )
