"""Retention of task inputs: a small input is stored as long as its task, a large one for a limited time.

After a task has ended its input is needed only for a retry. A large input (such as an image inside the request)
is deleted :data:`INPUT_RETENTION_S` after the end, and with the cancellation if the task is canceled: otherwise
creating and canceling tasks would fill the database at no cost.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.ledger.tasks.task import Task
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


def on_input_expired(task: Task, now: datetime) -> Step:
    """Delete an input whose retention is over; ``ignored`` if it is not."""
    until = input_until(task)
    if until is None or now < until:
        return unchanged("ignored")
    return changed(without_large_input(task), now)


def _is_large(task: Task) -> bool:
    return len(msgspec.json.encode(task.request.input)) > INPUT_SMALL_BYTES_MAX
