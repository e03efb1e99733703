"""Retention of task inputs: a small input is stored as long as its task, a large one for a limited time.

After a task has ended its input is needed only for a retry. A large input (such as an image inside the request)
is deleted :data:`INPUT_RETENTION_S` after the end, and with the cancellation if the task is canceled: otherwise
creating and canceling tasks would fill the database at no cost.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.ledger.tasks.task import HostingState, Task, TaskRequest
from holdfast.ledger.tasks.transitions import Step, changed, unchanged

INPUT_SMALL_BYTES_MAX = 64 * 1024
"""Up to this size, as JSON, an input is stored as long as its task."""
INPUT_RETENTION_S = 7 * 24 * 3600


def input_until(task: Task) -> datetime | None:
    """Return when the task's input is to be deleted; None if never, or if the task has not ended."""
    if not task.is_terminal or task.ended_at is None or not _is_large(task):
        return None
    return task.ended_at + timedelta(seconds=INPUT_RETENTION_S)


def without_large_input(task: Task) -> Task:
    """Return the task without its input if that is large."""
    if not _is_large(task):
        return task
    request = msgspec.structs.replace(task.request, input={}, input_dropped=True)
    return msgspec.structs.replace(task, request=request)


def without_content(task: Task) -> Task:
    """Return an ended task without what its owner or its provider said: of an account that is closed.

    What it cost, and when it changed its status, stays. The same task if that was done.
    """
    assert task.is_terminal
    request, state, hosting = task.request, task.state, task.state.hosting
    erased = msgspec.structs.replace(
        task,
        request=TaskRequest(
            terms=request.terms,
            quote_id=request.quote_id,
            api_key_id=request.api_key_id,
            hold_id=request.hold_id,
            hold_micro=request.hold_micro,
            retry_of=request.retry_of,
            input_dropped=True,
        ),
        state=msgspec.structs.replace(
            state,
            status_history=tuple(msgspec.structs.replace(each, error=None) for each in state.status_history),
            provider_ref=None,
            hosting=HostingState(
                mode=hosting.mode,
                status="expired" if task.status == "succeeded" else hosting.status,
                source=hosting.source,
                assets_ready_event=hosting.assets_ready_event,
                round=hosting.round,
                tries=hosting.tries,
                expected=hosting.expected,
            ),
            output=(),
            progress=(),
            usage=None,
            error=None,
            review=None,
        ),
    )
    return task if erased == task else msgspec.structs.replace(erased, version=task.version + 1)


def on_input_expired(task: Task, now: datetime) -> Step:
    """Delete an input whose retention is over; ``ignored`` if it is not."""
    until = input_until(task)
    if until is None or now < until:
        return unchanged("ignored")
    return changed(without_large_input(task), now)


def _is_large(task: Task) -> bool:
    return len(msgspec.json.encode(task.request.input)) > INPUT_SMALL_BYTES_MAX
