"""Events: what is sent to the ``webhook_url`` of a task, and which changes of the task cause which event.

An event shows the task as it was when it happened; :func:`public_snapshot` is what is stored for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

import msgspec

from holdfast.ledger.tasks.task import EventKind, Task, TaskRequest

EVENT_KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)
"""All kinds, in the order in which they can happen to a task."""

CHOSEN_BY_DEFAULT: Final[tuple[EventKind, ...]] = tuple(kind for kind in EVENT_KINDS if kind != "task.processing")
"""The kinds that are sent unless the request names others."""

ASSETS_READY: Final[EventKind] = "task.assets_ready"

_BY_STATUS: Final[dict[str, EventKind]] = {
    kind.partition(".")[2]: kind for kind in EVENT_KINDS if kind != ASSETS_READY
}


def chosen_kinds(wanted: Sequence[str]) -> tuple[EventKind, ...] | None:
    """Return the kinds named in ``wanted``, each once and in order; None if one is unknown or none is named."""
    if not wanted or not set(wanted) <= set(EVENT_KINDS):
        return None
    return tuple(kind for kind in EVENT_KINDS if kind in wanted)


def is_subscribed(request: TaskRequest, kind: EventKind) -> bool:
    """Whether events of this kind are sent for the task."""
    if request.webhook_url is None:
        return False
    chosen = CHOSEN_BY_DEFAULT if request.webhook_events is None else request.webhook_events
    return kind in chosen


def events_of(before: Task, after: Task) -> tuple[EventKind, ...]:
    """Return the events caused by the change from ``before`` to ``after``."""
    if after.status == before.status:
        return ()
    kinds = [_BY_STATUS[after.status]]
    if after.status == "succeeded" and after.state.hosting.assets_ready_event == "pending":
        kinds.append(ASSETS_READY)
    return tuple(kind for kind in kinds if is_subscribed(after.request, kind))


def public_snapshot(task: Task) -> Task:
    """Return the task without what its public form does not show: input, progress and provider outputs."""
    hosting = msgspec.structs.replace(task.state.hosting, wanted=(), lost=())
    return msgspec.structs.replace(
        task,
        request=msgspec.structs.replace(task.request, input={}),
        state=msgspec.structs.replace(task.state, progress=(), hosting=hosting),
    )
