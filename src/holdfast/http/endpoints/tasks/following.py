"""Streams of changes: of one task, and of all of an account, its totals, tasks and orders.

A stream sends what a read would return now, so a slow reader gets the newest state and no backlog. Its reader
resumes with ``Last-Event-ID``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final, TypeAlias

import msgspec
import trio
from quart import Response
from sqlalchemy import Connection

from holdfast.actors.runtime.faults import AskFault
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import ACCOUNT_READ, TASKS_READ, lacking_scope
from holdfast.http.kit.routes import EVENT_STREAM, Media, Outcome, RouteTable
from holdfast.http.kit.waiting import (
    LAST_EVENT_ID,
    RETRY_MS,
    event,
    read_last_event_id,
    stream_media,
    stream_response,
)
from holdfast.http.schemas.common import AccountBody, account_body
from holdfast.http.schemas.payments import PaymentOrderBody, payment_order_body
from holdfast.http.schemas.tasks import TaskBody, task_body
from holdfast.http.services.following import RETRY_S, StreamClock, follow_task, sent
from holdfast.ledger.orders.order import Order
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.journal.changes import Watch
from holdfast.persistence.queries.following import AccountPosition, account_position, find_orders, rows_after
from holdfast.persistence.queries.tasks import find_tasks
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway

ACCOUNT_PAUSE_S: Final = 1.0
"""Between two batches of an account's events."""
ROWS_AT_ONCE: Final = 16
"""How many changed rows are read at once: a task's may have megabytes."""

_Rows: TypeAlias = Mapping[str, tuple[str, Task | Order | UnreadableRow]]
"""Tasks and orders by their ids, each with its account's id."""

route = RouteTable("Tasks")


class Unreadable(msgspec.Struct, frozen=True):
    """A task or order that was changed and cannot be read now."""

    id: str


@route(
    "GET",
    "/v2/task/{request_id}/stream",
    summary="Follow a task until it has ended",
    auth=Auth.API_KEY,
    scope=TASKS_READ,
    media=(
        stream_media(
            "an event `task` with the task as it is, at once and after each change; changes of its progress "
            "alone at most four times a second. The stream ends after the task has.",
            {"task": TaskBody},
        ),
        Media(status=204, content_types=(), description="The task has ended, and the reader has its last event."),
    ),
    parameters=(LAST_EVENT_ID,),
    errors=("task_not_found", "rate_limit_exceeded", "overloaded"),
)
async def stream_task(call: Call) -> Outcome:
    """A reader that has the final event already gets 204, by which browsers stop connecting again."""
    after = read_last_event_id(call.request.headers.get("Last-Event-ID"))
    if isinstance(after, Refusal):
        return after
    return await follow_task(call, after, lambda task: event("task", task_body(call.deps, task), task.version))


@route(
    "GET",
    "/v2/control/stream",
    summary="Follow the account: its totals, its tasks and its orders",
    tag="Credit",
    auth=Auth.SESSION_OR_KEY,
    scope=ACCOUNT_READ,
    media=(
        stream_media(
            "at once, and at most once a second after changes: an event `task` or `order` for each task or "
            "order that was changed, as it is, then `account` with the totals and the `id` to resume from. A new "
            "stream begins with the tasks that have not ended, a resumed one with all that was changed. "
            "An event `unreadable` has the `id` of what cannot be read now.",
            {"task": TaskBody, "order": PaymentOrderBody, "account": AccountBody},
        ),
    ),
    parameters=(LAST_EVENT_ID,),
    errors=("rate_limit_exceeded", "overloaded"),
)
async def stream_account(call: Call) -> Outcome:
    """An API key needs the scope of tasks, too."""
    assert call.bearer is not None
    after = read_last_event_id(call.request.headers.get("Last-Event-ID"))
    if isinstance(after, Refusal):
        return after
    account_id = await _caller_of_all(call)
    if isinstance(account_id, Refusal):
        return account_id
    if call.request.method == "HEAD":
        return Response(b"", content_type=EVENT_STREAM)
    with ExitStack() as opened:
        watch = opened.enter_context(call.deps.following.changes.watch(account_id))
        wait = opened.enter_context(call.deps.following.waiting.counted(account_id, call.origin()))
        if isinstance(wait, Refusal):
            return wait
        wait.end_with(watch)
        return stream_response(sent(_account_events(call, account_id, after, watch), opened.pop_all()))


async def _caller_of_all(call: Call) -> str | Refusal:
    assert call.bearer is not None
    if call.bearer.kind == "session":
        return await call.verify_caller()
    key = await call.verify_key()
    if isinstance(key, Refusal):
        return key
    return key.account_id if TASKS_READ in key.terms.scopes else lacking_scope(TASKS_READ)


async def _account_events(call: Call, account_id: str, after: int | None, watch: Watch) -> AsyncGenerator[bytes]:
    """Each round sends the rows that were changed, and then the account as it was before they were read.

    ``position`` is the last one sent. Rows are looked for from there if notices may have been missed, and first.
    """
    clock = StreamClock()
    call.read_shares = call.deps.following.stream_shares
    sent: AccountBody | None = None
    position, missed = after, True
    row_ids: list[str] = []
    yield b"retry: %d\n\n" % RETRY_MS
    while True:
        try:
            if clock.is_check_due():
                if isinstance(await _caller_of_all(call), Refusal):
                    return
                yield b": idle\n\n"
            found, row_ids, rows = await _changed_rows(call, account_id, row_ids, position, missed=missed)
            for start in range(0, len(row_ids), ROWS_AT_ONCE):
                part = row_ids[start : start + ROWS_AT_ONCE]
                rows = rows if start == 0 else await call.read(partial(_find_rows, row_ids=part))
                for row_id in part:
                    owner, row = rows.get(row_id, (None, None))
                    if owner == account_id:
                        yield _row_event(call, row_id, row)
        except (DatabaseAway, AskFault):
            if watch.is_ending:
                return
            await trio.sleep(RETRY_S)
            continue
        body = account_body(found.totals)
        if row_ids or sent != body or position != found.number:
            yield event("account", body, found.number)
            sent, position = body, found.number
        if watch.is_ending or trio.current_time() >= clock.ends_at:
            return
        await trio.sleep(ACCOUNT_PAUSE_S)
        await watch.wait(min(clock.check_at, clock.ends_at))
        row_ids, missed = watch.take()


async def _changed_rows(
    call: Call, account_id: str, row_ids: list[str], after: int | None, *, missed: bool
) -> tuple[AccountPosition, list[str], _Rows]:
    """Return the account as it is, then the ids of the rows to send, each once, and the first of these rows."""

    def read(rows: Connection) -> tuple[AccountPosition, list[str], _Rows]:
        found = account_position(rows, account_id)
        # Without a notice it was changed by a process that is no member, as a command.
        is_sought = missed or (not row_ids and found.number != after)
        others = rows_after(rows, account_id, after) if is_sought else []
        wanted = [each for each in dict.fromkeys((*row_ids, *others)) if each != account_id]
        return found, wanted, _find_rows(rows, wanted[:ROWS_AT_ONCE])

    return await call.read(read)


def _find_rows(rows: Connection, row_ids: list[str]) -> _Rows:
    tasks = [each for each in row_ids if each.startswith("task_")]
    orders = [each for each in row_ids if each.startswith("ord_")]
    return {**(find_tasks(rows, tasks) if tasks else {}), **(find_orders(rows, orders) if orders else {})}


def _row_event(call: Call, row_id: str, row: Task | Order | UnreadableRow | None) -> bytes:
    match row:
        case Task():
            return event("task", task_body(call.deps, row))
        case Order():
            return event("order", payment_order_body(row))
        case _:
            return event("unreadable", Unreadable(row_id))
