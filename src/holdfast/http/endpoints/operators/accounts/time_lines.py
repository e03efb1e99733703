"""The time line of one account or one task: everything that is known of it, merged by time.

Rows come from the database, the messages that its actor handled from the memory of all processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, get_args

import msgspec

from holdfast.http.endpoints.operators.accounts.account import account_not_found
from holdfast.http.endpoints.operators.supervision.messages import Gathered, messages_of
from holdfast.http.endpoints.tasks.media_tasks import task_not_found
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import Position, Window, cut_page, read_asked
from holdfast.http.kit.parameters import PAGE, filter_by
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.rendering import render
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.time_lines import (
    RowSource,
    TimeLineEntry,
    time_line_of_account,
    time_line_of_task,
)
from holdfast.supervision.control.messages import KeptMessages, MessageView

route = RouteTable("Operators")

Source = Literal[RowSource, "message"]
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
    """A page of a time line, newest first.

    Messages are internal, and listed only with `source=message`. They are in the memory of each process alone:
    `messages_kept` says since when its record has them all, and `unreachable` names the processes that did not
    answer.
    """

    data: list[TimeLineEntryBody]
    next_cursor: str | None
    messages_kept: list[KeptMessages]
    unreachable: list[str]


@route(
    "GET",
    "/ops/api/accounts/{account_id}/timeline",
    summary="List all that happened to an account: operations, tasks, orders, messages, sign-ins, actions, reports",
    auth=Auth.OPERATOR_READ,
    reply=TimeLine,
    parameters=(_SOURCE, *PAGE),
    errors=("account_not_found",),
)
async def read_account_time_line(call: Call) -> Outcome:
    """One read, and a question to each process."""
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
    return await _time_line(call, "accounts", account_id, found, window=window, after=after)


@route(
    "GET",
    "/ops/api/tasks/{request_id}/timeline",
    summary="List all that happened to a task: progress, callbacks, messages, operations, deliveries, reports",
    auth=Auth.OPERATOR_READ,
    reply=TimeLine,
    parameters=(_SOURCE, *PAGE),
    errors=("task_not_found",),
)
async def read_task_time_line(call: Call) -> Outcome:
    """One read of all entries, of which the page is a part, and a question to each process."""
    task_id = call.path["request_id"]
    asked = read_asked(call, task_id, kind="time line", filters=(_SOURCE,))
    if isinstance(asked, Refusal):
        return asked
    window, after = asked
    found = await call.deps.database.read(lambda rows: time_line_of_task(rows, task_id))
    if found is None:
        return task_not_found(task_id)
    wanted = [entry for entry in found if _is_within(entry, window, after)]
    return await _time_line(call, "tasks", task_id, wanted, window=window, after=after)


def _is_within(entry: TimeLineEntry, window: Window, after: Position | None) -> bool:
    return (
        window.filters.get("source") in (None, entry.source)
        and (window.since is None or entry.at >= window.since)
        and (window.until is None or entry.at < window.until)
        and (after is None or (entry.at, entry.id) < after)
    )


async def _time_line(
    call: Call, group: str, key: str, rows: Iterable[TimeLineEntry], *, window: Window, after: Position | None
) -> TimeLine:
    """Merge entries of rows with the messages that the actor of a key handled, and return the page."""
    handled = Gathered([], [], [])
    if window.filters.get("source") == "message":
        handled = await messages_of(call, group, key, window, after)
    found = [(Position(entry.at, entry.id), render(TimeLineEntryBody, entry)) for entry in rows]
    found += [(position, _message_body(message, f"{group}/{key}")) for position, message in handled.messages]
    found.sort(key=lambda each: each[0], reverse=True)
    page = cut_page(found, key, window, lambda each: each[0])
    return TimeLine(
        data=[body for _, body in page.entries],
        next_cursor=page.next_cursor,
        messages_kept=handled.kept,
        unreachable=handled.unreachable,
    )


def _message_body(message: MessageView, actor: str) -> TimeLineEntryBody:
    times = f"waited {_ms(message.waited_s)}, turn {_ms(message.turn_s)}, outcome after {_ms(message.total_s)}"
    trace = "" if message.trace_id is None else f", request {message.trace_id}"
    return TimeLineEntryBody(
        at=message.at,
        id=message.id,
        source="message",
        what=f"{message.message_type} {message.outcome}",
        subject=actor,
        text=f"{times}; incarnation {message.incarnation} in {message.member_id}{trace}",
        amount=None,
        balance=None,
    )


def _ms(seconds: float) -> str:
    ms = seconds * 1000
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.2g} ms"
