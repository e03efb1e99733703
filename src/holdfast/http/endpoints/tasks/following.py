"""Streams of changes: of one task, and of all of an account, its totals, tasks and orders.

A stream sends what a read would return now, so a slow reader gets the newest state and no backlog. Its reader
resumes with ``Last-Event-ID``.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import Final, TypeAlias

import msgspec
import trio
from quart import Response

from holdfast.actors.runtime.faults import AskFault
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import EVENT_STREAM, Media, Outcome, RouteTable
from holdfast.http.kit.waiting import (
    CHECK_S,
    LAST_EVENT_ID,
    RETRY_MS,
    event,
    read_last_event_id,
    stream_media,
    stream_response,
)
from holdfast.http.kit.waiting_calls import Following
from holdfast.http.schemas.common import AccountBody, account_body
from holdfast.http.schemas.payments import PaymentOrderBody, payment_order_body
from holdfast.http.schemas.tasks import TaskBody, task_body
from holdfast.http.services.following import RETRY_S, StreamClock, follow_task, sent
from holdfast.ledger.api_keys import ACCOUNT_READ, TASKS_READ
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.orders.order import Order
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.journal.changes import VALUES_MAX, KeptRow, Value, Watch
from holdfast.persistence.queries.following import ROWS_AT_ONCE, Asked, find_changed, find_rows
from holdfast.persistence.records.rows import AccountHead
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.lookups import Lookup

ACCOUNT_PAUSE_S: Final = 1.0
"""Between two batches of an account's events."""
GROUP_S: Final = 0.1
"""Streams of accounts read what has changed at multiples of this, so that it is read for several at once."""

route = RouteTable("Tasks")


class Unreadable(msgspec.Struct, frozen=True):
    """A task or order that was changed and cannot be read now."""

    id: str


_Row: TypeAlias = Task | Order | UnreadableRow | KeptRow
_Rows: TypeAlias = Mapping[str, tuple[str, _Row]]
_Changed: TypeAlias = tuple[int, AccountTotals, list[str], _Rows]
"""As :class:`~holdfast.persistence.queries.following.Changed`, its rows read or kept."""


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
    returns_results=True,
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
    """What each event has is the same as in the responses of the calls that read it."""
    after = read_last_event_id(call.request.headers.get("Last-Event-ID"))
    if isinstance(after, Refusal):
        return after
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    if call.request.method == "HEAD":
        return Response(b"", content_type=EVENT_STREAM)
    with ExitStack() as opened:
        watch = opened.enter_context(call.deps.following.changes.watch(account_id, values_max=VALUES_MAX))
        wait = opened.enter_context(call.deps.following.waiting.counted(account_id, call.origin()))
        if isinstance(wait, Refusal):
            return wait
        wait.end_with(watch)
        return stream_response(sent(_account_events(call, account_id, after, watch), opened.pop_all()))


async def _account_events(call: Call, account_id: str, after: int | None, watch: Watch) -> AsyncGenerator[bytes]:
    """Each round sends the rows that were changed, and then the account as it was before they were read.

    If the notices have what was committed, nothing is read. Rows are looked for from ``position``, the last one
    sent, if notices may have been missed, and first.
    """
    clock = StreamClock(CHECK_S)
    following = call.deps.following
    call.read_shares, call.request.is_settled = following.stream_shares, True
    sent: AccountBody | None = None
    position, missed = after, True
    number, totals = 0, AccountTotals(account_id, 0, 0)
    noted: Mapping[str, KeptRow | None] = {}
    rows: _Rows
    yield b"retry: %d\n\n" % RETRY_MS
    while True:
        try:
            if clock.is_check_due():
                if isinstance(await call.verify_caller(), Refusal):
                    return
                yield b": idle\n\n"
            changed = None if missed else _committed(account_id, noted, number, totals)
            asked = Asked(account_id, tuple(noted), position, missed)
            changed = changed or await _read_changed(following, asked, watch)
            if changed is None:
                return
            number, totals, row_ids, rows = changed
            changed, events, at_once = None, b"", max(len(rows), ROWS_AT_ONCE)
            for start in range(0, len(row_ids), at_once):
                part = row_ids[start : start + at_once]
                if start:
                    if events:
                        yield events
                    rows = await call.read(partial(find_rows, row_ids=part))
                    watch.note_read()
                # A row may be large: while its events are sent, only they are in memory.
                events, rows = _row_events(call, account_id, part, rows), {}
        except (DatabaseAway, AskFault):
            if watch.is_ending:
                return
            await trio.sleep(RETRY_S)
            continue
        noted, body = {}, account_body(totals)
        if row_ids or sent != body or position != number:
            events += event("account", body, number)
            sent, position = body, number
        if events:
            yield events
            del events
        if watch.is_ending or trio.current_time() >= clock.ends_at:
            return
        noted, missed = await _next_notices(watch, until=min(clock.check_at, clock.ends_at))


async def _next_notices(watch: Watch, until: float) -> tuple[dict[str, KeptRow | None], bool]:
    await trio.sleep(ACCOUNT_PAUSE_S)
    await watch.wait(until)
    if watch.must_read:
        await trio.sleep_until(math.ceil(trio.current_time() / GROUP_S) * GROUP_S)
    return watch.take()


async def _read_changed(following: Following, asked: Asked, watch: Watch) -> _Changed | None:
    lookup = Lookup(find_changed, asked)
    await following.stream_shares.run(asked.account_id, partial(following.stream_lookups.run, lookup))
    watch.note_read()
    return lookup.found


def _committed(
    account_id: str, noted: Mapping[str, KeptRow | None], number: int, totals: AccountTotals
) -> _Changed | None:
    """Return what was committed since the account was as given; None if any of it, or all, has to be read."""
    rows: dict[str, tuple[str, _Row]] = {}
    for row_id, kept in noted.items():
        if kept is None:
            return None
        if isinstance(head := kept.value, AccountHead):
            number, totals = head.operation_count, AccountTotals(account_id, head.balance_micro, head.held_micro)
        else:
            rows[row_id] = account_id, kept
    return (number, totals, list(rows), rows) if noted else None


def _row_events(call: Call, account_id: str, row_ids: Sequence[str], rows: _Rows) -> bytes:
    found = [(row_id, *rows.get(row_id, (None, None))) for row_id in row_ids]
    now = call.deps.now()
    return b"".join(_row_event(call, row_id, row, now) for row_id, owner, row in found if owner == account_id)


def _row_event(call: Call, row_id: str, row: _Row | Value | None, now: datetime) -> bytes:
    match row:
        case KeptRow(value):
            made = row.event or _row_event(call, row_id, value, now)
            # Links to results work for a time only, so each stream signs its own.
            if not (isinstance(value, Task) and value.state.output):
                row.event = made
            return made
        case Task():
            return event("task", task_body(call.deps, row, now=now))
        case Order():
            return event("order", payment_order_body(row))
        case _:
            return event("unreadable", Unreadable(row_id))
