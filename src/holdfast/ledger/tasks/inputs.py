"""How long the input of an ended task is kept: as long as the task where it is small, else for a while.

A task's input is needed until the task has ended, and afterwards only to run it again. Small inputs cost next to
nothing and stay. A large one (a picture sent inside the request, say) is kept for :data:`INPUT_KEPT_S`; that of a
canceled task goes in the same step, because whoever creates and cancels would otherwise fill the database for
nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.ledger.tasks.task import Task
from holdfast.ledger.tasks.transitions import Step, changed, unchanged

INPUT_SMALL_BYTES_MAX = 64 * 1024
"""Up to this size, as JSON, an input is kept as long as its task."""
INPUT_KEPT_S = 7 * 24 * 3600


def input_until(task: Task) -> datetime | None:
    """When the task's input is to be dropped; None where it is not, or not known yet."""
    ended_at = task.state.completed_at or task.state.canceled_at
    if not task.is_terminal or ended_at is None or not _is_large(task):
        return None
    return ended_at + timedelta(seconds=INPUT_KEPT_S)


def without_large_input(task: Task) -> Task:
    """The task without its input, where that is large."""
    if not _is_large(task):
        return task
    request = msgspec.structs.replace(task.request, input={}, input_dropped=True)
    return msgspec.structs.replace(task, request=request)


def on_input_expired(task: Task, now: datetime) -> Step:
    """Drop an input whose time is over; ``ignored`` where nothing is to be dropped yet."""
    until = input_until(task)
    if until is None or now < until:
        return unchanged("ignored")
    return changed(without_large_input(task), now)


def _is_large(task: Task) -> bool:
    return len(msgspec.json.encode(task.request.input)) > INPUT_SMALL_BYTES_MAX
