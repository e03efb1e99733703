"""The account's statement: every operation of its ledger with the totals behind it, newest first."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection

from holdfast.http.calls import Auth, Call
from holdfast.http.control.statement_shapes import Statement, statement_entry_body
from holdfast.http.listing import INVALID_CURSOR, Position, cut_page, read_cursor, read_window
from holdfast.http.parameters import CURSOR, FROM, LIMIT, TO
from holdfast.http.routes import Outcome, Parameter, RouteTable
from holdfast.ledger.operations import OperationKind
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.ledger import StatementEntry, statement_of_account
from holdfast.persistence.queries.sessions import SessionRecord

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
    summary="The account's statement: its operations with their postings and the totals behind each",
    auth=Auth.SESSION,
    reply=Statement,
    parameters=(_KIND, FROM, TO, CURSOR, LIMIT),
    errors=("invalid_parameter", "invalid_cursor"),
)
async def read_statement(call: Call) -> Outcome:
    """One read: the session and a page. Operations are numbered without gaps, and pages go by their numbers."""
    window = read_window(call.query(), kind="statement", filters=(_KIND,))
    if isinstance(window, Refusal):
        return window

    def read(rows: Connection, session: SessionRecord) -> tuple[str, list[StatementEntry]] | Refusal:
        position = read_cursor(session.account_id, window)
        if isinstance(position, Refusal):
            return position
        if position is not None and not (position.id.isdigit() and int(position.id) <= NUMBER_MAX):
            return INVALID_CURSOR
        return session.account_id, statement_of_account(
            rows,
            session.account_id,
            limit=window.read_max,
            since=window.since,
            until=window.until,
            before_number=None if position is None else int(position.id),
            kind=window.filters.get("kind"),
        )

    found = await call.read_as_session(read)
    if isinstance(found, Refusal):
        return found
    account_id, entries = found
    page, next_cursor = cut_page(entries, account_id, window, lambda entry: Position(entry.at, str(entry.number)))
    return Statement(data=[statement_entry_body(entry) for entry in page], next_cursor=next_cursor)
