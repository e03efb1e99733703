"""The time line of one account or one task: everything that is known of it, merged by time."""

from __future__ import annotations

import msgspec

from holdfast.http.endpoints.operators.accounts.account import account_not_found
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import Page, Position, Window, cut_page, read_cursor, read_window
from holdfast.http.kit.parameters import PAGE
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.shown import shown
from holdfast.http.schemas.rendering import render
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.time_lines import (
    Source,
    TimeLineEntry,
    time_line_of_account,
    time_line_of_task,
)

route = RouteTable("Operators")


class TimeLineEntryBody(msgspec.Struct, frozen=True):
    """One entry: what happened to ``subject``, in words. Operations have an amount and the balance after it."""

    at: Time
    id: str
    source: Source
    what: str
    subject: str
    text: str | None
    amount: Amount | None
    balance: Amount | None


class TimeLine(msgspec.Struct, frozen=True):
    """A page of a time line, newest first."""

    data: list[TimeLineEntryBody]
    next_cursor: str | None


@route(
    "GET",
    "/ops/api/accounts/{account_id}/timeline",
    summary="List all that happened to an account: operations, tasks, orders, sign-ins, actions, reports",
    auth=Auth.OPERATOR_READ,
    reply=TimeLine,
    parameters=PAGE,
    errors=("account_not_found",),
)
async def read_account_time_line(call: Call) -> Outcome:
    """One read. An account without entries does not exist, since a sign-in has created it."""
    account_id = call.path["account_id"]
    window = read_window(call.query(), kind="time line")
    if isinstance(window, Refusal):
        return window
    after = read_cursor(account_id, window)
    if isinstance(after, Refusal):
        return after
    found = await call.deps.database.read(
        lambda rows: time_line_of_account(
            rows, account_id, limit=window.read_max, since=window.since, until=window.until, after=after
        )
    )
    if not found and after is None and window.since is None and window.until is None:
        return account_not_found(account_id)
    return _time_line(cut_page(found, account_id, window, _position))


@route(
    "GET",
    "/ops/api/tasks/{request_id}/timeline",
    summary="List all that happened to a task: progress, callbacks, operations, deliveries, actions, reports",
    auth=Auth.OPERATOR_READ,
    reply=TimeLine,
    parameters=PAGE,
    errors=("task_not_found",),
)
async def read_task_time_line(call: Call) -> Outcome:
    """One read of all entries, of which the page is a part."""
    task_id = call.path["request_id"]
    window = read_window(call.query(), kind="time line")
    if isinstance(window, Refusal):
        return window
    after = read_cursor(task_id, window)
    if isinstance(after, Refusal):
        return after
    found = await call.deps.database.read(lambda rows: time_line_of_task(rows, task_id))
    if found is None:
        return Refusal(code="task_not_found", message=f"The task {shown(task_id)} does not exist.")
    wanted = [entry for entry in found if _is_within(entry, window, after)]
    return _time_line(cut_page(wanted, task_id, window, _position))


def _is_within(entry: TimeLineEntry, window: Window, after: Position | None) -> bool:
    return (
        (window.since is None or entry.at >= window.since)
        and (window.until is None or entry.at < window.until)
        and (after is None or (entry.at, entry.id) < after)
    )


def _position(entry: TimeLineEntry) -> Position:
    return Position(entry.at, entry.id)


def _time_line(page: Page[TimeLineEntry]) -> TimeLine:
    return TimeLine(data=[_body(entry) for entry in page.entries], next_cursor=page.next_cursor)


def _body(entry: TimeLineEntry) -> TimeLineEntryBody:
    amount_micro, balance_micro = entry.amount_micro, entry.balance_micro
    return render(
        TimeLineEntryBody,
        entry,
        amount=None if amount_micro is None else format_amount(amount_micro),
        balance=None if balance_micro is None else format_amount(balance_micro),
    )
