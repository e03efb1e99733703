"""The account's statement: every operation on its credit with the totals after it, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import INVALID_CURSOR, Position, read_page, read_window
from holdfast.http.kit.parameters import CURSOR, FROM, LIMIT, TO
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.schemas.statement import Statement, statement_entry_body
from holdfast.ledger.credit.operations import Operation, OperationKind
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.ledger import statement_of_account

route = RouteTable("Account")

NUMBER_MAX: Final = 2**63 - 1

_KIND: Final = Parameter(
    name="kind",
    place="query",
    description="Only operations of this kind.",
    schema=(("type", "string"), ("enum", [kind.value for kind in OperationKind])),
)


@route(
    "GET",
    "/v2/control/ledger",
    summary="List the account's operations with their postings and the totals after each, newest first",
    auth=Auth.SESSION,
    reply=Statement,
    parameters=(_KIND, FROM, TO, CURSOR, LIMIT),
    errors=("invalid_parameter", "invalid_cursor"),
)
async def read_statement(call: Call) -> Outcome:
    """One read: the session and a page. Operations are numbered without gaps, and a cursor holds a number."""
    window = read_window(call.query(), kind="statement", filters=(_KIND,))
    if isinstance(window, Refusal):
        return window
    page = await read_page(call, window, _entries, lambda entry: Position(entry.at, str(entry.number)))
    if isinstance(page, Refusal):
        return page
    return Statement(data=[statement_entry_body(entry) for entry in page.entries], next_cursor=page.next_cursor)


def _entries(
    rows: Connection,
    account_id: str,
    *,
    limit: int,
    since: datetime | None,
    until: datetime | None,
    after: Position | None,
    filters: Mapping[str, str],
) -> list[Operation] | Refusal:
    """The id of a position is an operation's number."""
    if after is not None and not (after.id.isdigit() and int(after.id) <= NUMBER_MAX):
        return INVALID_CURSOR
    return statement_of_account(
        rows,
        account_id,
        limit=limit,
        since=since,
        until=until,
        before_number=None if after is None else int(after.id),
        kind=filters.get("kind"),
    )
