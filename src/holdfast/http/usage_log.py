"""The usage log: one line per task, newest first."""

from __future__ import annotations

from sqlalchemy import Connection

from holdfast.http.calls import Call
from holdfast.http.listing import Position, read_cursor, read_window, write_cursor
from holdfast.http.parameters import CURSOR, FROM, LIMIT, MODEL, STATUS, TO
from holdfast.http.routes import Auth, Outcome, RouteTable
from holdfast.http.task_shapes import UsageList, usage_body
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks import UsageEntry
from holdfast.persistence.queries.sessions import SessionRecord
from holdfast.persistence.queries.usage import usage_of_account

route = RouteTable("Usage")


@route(
    "GET",
    "/v2/usage/logs",
    summary="The account's usage, newest first",
    auth=Auth.SESSION,
    reply=UsageList,
    parameters=(FROM, TO, CURSOR, LIMIT, STATUS, MODEL),
    errors=("invalid_parameter", "invalid_cursor"),
)
async def list_usage(call: Call) -> Outcome:
    """One read: the session and a page, with one row more than asked to know whether another page follows."""
    window = read_window(call.query(), kind="usage", filters=(STATUS, MODEL))
    if isinstance(window, Refusal):
        return window

    def read(rows: Connection, session: SessionRecord) -> tuple[str, list[UsageEntry]] | Refusal:
        position = read_cursor(session.account_id, window)
        if isinstance(position, Refusal):
            return position
        return session.account_id, usage_of_account(
            rows,
            session.account_id,
            limit=window.limit + 1,
            since=window.since,
            until=window.until,
            after=position,
            filters=window.filters,
        )

    found = await call.read_as_session(read)
    if isinstance(found, Refusal):
        return found
    account_id, entries = found
    next_cursor = None
    if len(entries) > window.limit:
        entries = entries[: window.limit]
        last = Position(entries[-1].ts, entries[-1].request_id)
        next_cursor = write_cursor(last, account_id, window)
    return UsageList(data=[usage_body(entry) for entry in entries], next_cursor=next_cursor)
