"""The time line of one account or one task: everything that is known of it, merged by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

import msgspec

from holdfast.http.endpoints.operators.accounts.account import account_not_found
from holdfast.http.endpoints.tasks.media_tasks import task_not_found
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import Position, Window, cut_page, read_asked
from holdfast.http.kit.parameters import PAGE, filter_by
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.rendering import render
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.time_lines import (
    Source,
    TimeLineEntry,
    time_line_of_account,
    time_line_of_task,
)

route = RouteTable("Operators")

SOURCES: Final[tuple[str, ...]] = get_args(Source)
_SOURCE: Final = filter_by("source", "Only entries of this kind.", SOURCES)


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
    parameters=(_SOURCE, *PAGE),
    errors=("account_not_found",),
)
async def read_account_time_line(call: Call) -> Outcome:
    """One read."""
    account_id = call.path["account_id"]
    asked = read_asked(call, account_id, kind="time line", filters=(_SOURCE,))
    if isinstance(asked, Refusal):
        return asked
    window, after = asked
    found = await call.deps.database.read(
        lambda rows: time_line_of_account(rows, account_id, **window.options(after))
    )
    if found is None:
        return account_not_found(account_id)
    return _time_line(account_id, found, window)


@route(
    "GET",
    "/ops/api/tasks/{request_id}/timeline",
    summary="List all that happened to a task: progress, callbacks, operations, deliveries, reports",
    auth=Auth.OPERATOR_READ,
    reply=TimeLine,
    parameters=(_SOURCE, *PAGE),
    errors=("task_not_found",),
)
async def read_task_time_line(call: Call) -> Outcome:
    """One read of all entries, of which the page is a part."""
    task_id = call.path["request_id"]
    asked = read_asked(call, task_id, kind="time line", filters=(_SOURCE,))
    if isinstance(asked, Refusal):
        return asked
    window, after = asked
    found = await call.deps.database.read(lambda rows: time_line_of_task(rows, task_id))
    if found is None:
        return task_not_found(task_id)
    wanted = [entry for entry in found if _is_within(entry, window, after)]
    return _time_line(task_id, wanted, window)


def _is_within(entry: TimeLineEntry, window: Window, after: Position | None) -> bool:
    return (
        window.filters.get("source") in (None, entry.source)
        and (window.since is None or entry.at >= window.since)
        and (window.until is None or entry.at < window.until)
        and (after is None or (entry.at, entry.id) < after)
    )


def _time_line(key: str, found: Sequence[TimeLineEntry], window: Window) -> TimeLine:
    page = cut_page(found, key, window, lambda entry: Position(entry.at, entry.id))
    return TimeLine(data=[render(TimeLineEntryBody, entry) for entry in page.entries], next_cursor=page.next_cursor)
