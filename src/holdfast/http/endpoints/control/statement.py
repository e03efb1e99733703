"""The account's statement: every operation on its credit with the totals after it, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import INVALID_CURSOR, Position, list_of_account
from holdfast.http.kit.parameters import PAGE, filter_by
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.statement import Statement, statement_entry_body
from holdfast.ledger.credit.operations import Operation, OperationKind
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.ledger import statement_of_account

route = RouteTable("Account")

NUMBER_MAX: Final = 2**63 - 1

_KIND: Final = filter_by("kind", "Only operations of this kind.", [kind.value for kind in OperationKind])


@route(
    "GET",
    "/v2/control/ledger",
    summary="List the account's operations with their postings and the totals after each, newest first",
    auth=Auth.SESSION,
    reply=Statement,
    parameters=(_KIND, *PAGE),
)
async def read_statement(call: Call) -> Outcome:
    """One read: the session and a page. Operations are numbered without gaps, and a cursor holds a number."""
    return await list_of_account(
        call,
        Statement,
        _entries,
        statement_entry_body,
        lambda entry: Position(entry.at, str(entry.number)),
        kind="statement",
        filters=(_KIND,),
    )


def _entries(
    rows: Connection, account_id: str, /, *, after: Position | None, filters: Mapping[str, str], **options: Any
) -> list[Operation] | Refusal:
    """The id of a position is an operation's number."""
    if after is not None and not (after.id.isdigit() and int(after.id) <= NUMBER_MAX):
        return INVALID_CURSOR
    before = None if after is None else int(after.id)
    return statement_of_account(rows, account_id, before_number=before, kind=filters.get("kind"), **options)
