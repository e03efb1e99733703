"""Events: what a customer's own server is told of a task, and which steps announce what.

Only tasks with a ``webhook_url`` announce anything, and of that only the kinds their owner chose. An event shows
the task as it stood when it happened; :func:`public_snapshot` is what is kept for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

import msgspec

from holdfast.ledger.tasks.task import EventKind, Task, TaskRequest

EVENT_KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)
"""All kinds, in the order a task may come by them."""

CHOSEN_BY_DEFAULT: Final[tuple[EventKind, ...]] = tuple(kind for kind in EVENT_KINDS if kind != "task.processing")
"""What is told unless somebody chooses: that work has begun is rarely news."""

ASSETS_READY: Final[EventKind] = "task.assets_ready"

_BY_STATUS: Final[dict[str, EventKind]] = {
    kind.partition(".")[2]: kind for kind in EVENT_KINDS if kind != ASSETS_READY
}


def chosen_kinds(wanted: Sequence[str]) -> tuple[EventKind, ...] | None:
    """The kinds that ``wanted`` names, each once and in our order; None where it names none or an unknown one."""
    if not wanted or not set(wanted) <= set(EVENT_KINDS):
        return None
    return tuple(kind for kind in EVENT_KINDS if kind in wanted)


def listens_to(request: TaskRequest, kind: EventKind) -> bool:
    """Whether the task's owner wants to be told of this kind."""
    if request.webhook_url is None:
        return False
    chosen = CHOSEN_BY_DEFAULT if request.webhook_events is None else request.webhook_events
    return kind in chosen


def events_of(before: Task, after: Task) -> tuple[EventKind, ...]:
    """What the step from ``before`` to ``after`` announces to the task's owner."""
    if after.status == before.status:
        return ()
    kinds = [_BY_STATUS[after.status]]
    if after.status == "succeeded" and after.state.hosting.assets_ready_event == "pending":
        kinds.append(ASSETS_READY)
    return tuple(kind for kind in kinds if listens_to(after.request, kind))


def public_snapshot(task: Task) -> Task:
    """The task with what its public picture shows, and without what may be large: input, progress, raw outputs."""
    hosting = msgspec.structs.replace(task.state.hosting, wanted=(), lost=())
    return msgspec.structs.replace(
        task,
        request=msgspec.structs.replace(task.request, input={}),
        state=msgspec.structs.replace(task.state, progress=(), hosting=hosting),
    )
