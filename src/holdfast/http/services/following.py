"""Streams of a task's changes, and what all streams share.

A stream sends what a read would return now, so a slow reader gets the newest state and no backlog.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Final, NamedTuple

import trio
from quart import Response

from holdfast.actors.runtime.faults import AskFault
from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import EVENT_STREAM, Outcome
from holdfast.http.kit.waiting import CHECK_S, RETRY_MS, STREAM_S, stream_response
from holdfast.http.services.tasks import own_task
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task, TaskStatus
from holdfast.persistence.journal.changes import Extent, Watch
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway

PAUSE_S: Final = 0.25
"""Between two events of a task that differ in its progress only."""
RETRY_S: Final = 1.0
"""How soon a row is read again that could not be read."""


async def follow_task(call: Call, after: int | None, events_of: Callable[[Task], bytes]) -> Outcome:
    """Return the stream of the task of the path. ``events_of`` renders it as it is, now and after each change.

    A reader that has seen the version ``after`` is sent nothing before the next one.
    """
    with ExitStack() as opened:
        # Watched before the first read, so that no later change is missed.
        watch = opened.enter_context(call.deps.following.changes.watch(call.path["request_id"]))
        task = await own_task(call)
        if isinstance(task, Refusal):
            return task
        if task.is_terminal and task.version == after:
            return Response(b"", status=204)
        if call.request.method == "HEAD":
            return Response(b"", content_type=EVENT_STREAM)
        wait = opened.enter_context(call.deps.following.waiting.counted(task.account_id, call.origin()))
        if isinstance(wait, Refusal):
            return wait
        wait.end_with(watch)
        return stream_response(sent(_task_events(call, task, after, watch, events_of), opened.pop_all()))


@asynccontextmanager
async def sent(events: AsyncGenerator[bytes], opened: ExitStack) -> AsyncIterator[AsyncIterator[bytes]]:
    """Send the events, and close what was opened for them when that ends."""
    with opened:
        async with aclosing(events):
            yield events


class StreamClock:
    """When a stream checks its credential again, each time after ``check_s``, and when it ends."""

    def __init__(self, check_s: float) -> None:
        self._check_s = check_s
        self.ends_at = trio.current_time() + STREAM_S
        self.check_at = trio.current_time() + check_s

    def is_check_due(self) -> bool:
        """Whether the time of a check has come; the next one is ``check_s`` later."""
        now = trio.current_time()
        if now < self.check_at:
            return False
        self.check_at = now + self._check_s
        return True


async def _task_events(
    call: Call, task: Task, after: int | None, watch: Watch, events_of: Callable[[Task], bytes]
) -> AsyncGenerator[bytes]:
    """Each round reads the task and checks the credential. Nothing of the task is kept that may be large."""
    clock = StreamClock(CHECK_S)
    call.read_shares, call.request.is_settled = call.deps.following.stream_shares, True
    sent = _shown(task) if task.version == after else None
    sent_at = -math.inf
    yield b"retry: %d\n\n" % RETRY_MS
    while True:
        shown = _shown(task)
        if shown != sent:
            yield events_of(task)
            sent, sent_at = shown, trio.current_time()
        elif clock.is_check_due():
            yield b": idle\n\n"
        if task.is_terminal or trio.current_time() >= clock.ends_at:
            return
        del task
        while True:
            if watch.is_ending:
                return
            await watch.wait(sent_at + PAUSE_S, Extent.STATUS)
            await watch.wait(min(clock.check_at, clock.ends_at))
            watch.take()
            try:
                found = await own_task(call)
            except UnreadableRow:
                return
            except (DatabaseAway, AskFault):
                await trio.sleep(RETRY_S)
                watch.note(None)
            else:
                break
        if isinstance(found, Refusal):
            return
        task = found
        del found


class _Shown(NamedTuple):
    """What a reader sees of a task that changes; other changes concern only how the service drives it."""

    status: TaskStatus
    rest: tuple[object, ...]


def _shown(task: Task) -> _Shown:
    state = task.state
    return _Shown(task.status, (state.progress, state.hosting, state.output, state.review, state.error))
