"""The time line of one account or one task: everything that is known of it, merged by time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, Unpack, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.http.endpoints.operators.accounts import account_not_found
from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import (
    PAGE,
    Entries,
    ListBody,
    ListOptions,
    Position,
    filter_by,
    is_asked_for,
    list_for_operators,
)
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.common import render
from holdfast.http.services.tasks import task_not_found
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.time_lines import Source, TimeLineEntry, time_line_of_account, time_line_of_task

route = OperatorRoutes("Time lines")

_SOURCE: Final = filter_by("source", "Only entries of this kind.", get_args(Source))


class TimeLineEntryBody(msgspec.Struct, frozen=True):
    """One entry of a time line."""

    at: Time
    """When it happened."""
    id: str
    """Tells entries of the same time apart."""
    source: Source
    """What kind of entry it is."""
    what: str
    """What happened, in a word or two."""
    subject: str
    """What it happened to, such as a task's or an order's id."""
    text: str | None
    """More about it; null without any."""
    amount: Amount | None
    """The operation's amount; null if it is no operation."""
    balance: Amount | None
    """The balance after the operation; null if it is no operation."""


class TimeLine(ListBody[TimeLineEntryBody], frozen=True):
    """A page of a time line, newest first."""


@route.read(
    "/ops/api/accounts/{account_id}/timeline",
    "List all that happened to an account: operations, tasks, orders, sign-ins, actions, reports",
    TimeLine,
    parameters=(_SOURCE, *PAGE),
    errors=("account_not_found",),
)
async def read_account_time_line(call: Call) -> Outcome:
    """The page is found by one read."""
    account_id = call.path["account_id"]

    def entries(rows: Connection, /, **options: Unpack[ListOptions]) -> Sequence[TimeLineEntry] | Refusal:
        found = time_line_of_account(rows, account_id, **options)
        return account_not_found(account_id) if found is None else found

    return await _time_line(call, account_id, entries)


@route.read(
    "/ops/api/tasks/{request_id}/timeline",
    "List all that happened to a task: progress, callbacks, operations, deliveries, reports",
    TimeLine,
    parameters=(_SOURCE, *PAGE),
    errors=("task_not_found",),
)
async def read_task_time_line(call: Call) -> Outcome:
    """One read finds all entries; the page is cut from them."""
    task_id = call.path["request_id"]

    def entries(rows: Connection, /, **options: Unpack[ListOptions]) -> Sequence[TimeLineEntry] | Refusal:
        found, source = time_line_of_task(rows, task_id), options["filters"].get("source")
        if found is None:
            return task_not_found(task_id)
        return [
            entry
            for entry in found
            if source in (None, entry.source) and is_asked_for(Position(entry.at, entry.id), options)
        ]

    return await _time_line(call, task_id, entries)


async def _time_line(call: Call, key: str, entries: Entries[TimeLineEntry]) -> Outcome:
    return await list_for_operators(
        call,
        entries,
        partial(render, TimeLineEntryBody),
        lambda entry: Position(entry.at, entry.id),
        owner=key,
    )
