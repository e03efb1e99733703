"""Events of tasks: which changes of a task cause which event, and what its ``webhook_url`` and webhooks are sent.

An event shows the task as it was when it happened; :func:`public_snapshot` is what is stored for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, get_args

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


def kinds_of(before: Task, after: Task) -> tuple[EventKind, ...]:
    """Return the events that the change from ``before`` to ``after`` is, whether or not they are sent."""
    if after.status == before.status:
        return ()
    kind = _BY_STATUS[after.status]
    # Outputs that are passed through are not stored.
    is_stored = after.status == "succeeded" and after.state.hosting.status == "ready"
    return (kind, ASSETS_READY) if is_stored else (kind,)


def events_of(before: Task, after: Task) -> tuple[EventKind, ...]:
    """Return the events of the change from ``before`` to ``after`` that are sent to the task's ``webhook_url``."""
    return tuple(kind for kind in kinds_of(before, after) if is_subscribed(after.request, kind))


def public_snapshot(task: Task) -> Task:
    """Return the task without what its public form does not show: input, progress and provider outputs."""
    hosting = msgspec.structs.replace(task.state.hosting, wanted=(), lost=())
    return msgspec.structs.replace(
        task,
        request=task.request.without_input,
        state=msgspec.structs.replace(task.state, progress=(), hosting=hosting),
    )


# Delivery of events by webhook: what a receiver's response means, and when the next attempt is due. Attempts are
# made at growing intervals for as long as the operator allows; the last one is made when that time ends.

DeliveryStatus = Literal["pending", "delivered", "given_up"]

PAUSES_S: Final = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""The pause after each failed attempt: from seconds, for a server that restarts, to a day."""

RETRY_AFTER_MAX_S: Final = 86_400
GONE: Final = 410


class DeliveryResponse(msgspec.Struct, frozen=True):
    """The receiver's status and its ``Retry-After``, or why there was no response.

    ``is_final``: no further attempt can succeed, for the reason in ``error``.
    """

    status_code: int | None
    error: str | None = None
    retry_after_s: float | None = None
    is_final: bool = False

    @property
    def is_success(self) -> bool:
        """Whether the receiver accepted the event; a redirect is a failure."""
        return self.status_code is not None and 200 <= self.status_code < 300


class DeliveryState(msgspec.Struct, frozen=True):
    """An event's status after an attempt. ``due_at`` is the next attempt, None exactly if there is none."""

    status: DeliveryStatus
    due_at: datetime | None = None
    reason: str | None = None


def after_attempt(
    response: DeliveryResponse, now: datetime, *, tries: int, round_at: datetime, give_up_s: float, jitter: float
) -> DeliveryState:
    """Return the state after the ``tries``-th attempt (from 1) of a round of attempts that began at ``round_at``.

    ``jitter`` (0 to 1) lengthens the pause by up to a quarter, so that retries after an outage are spread.
    """
    assert tries >= 1
    assert 0.0 <= jitter <= 1.0
    if response.is_success:
        return DeliveryState("delivered")
    if response.status_code == GONE:
        return DeliveryState("given_up", reason="the receiver answered 410 (Gone)")
    if response.is_final:
        return DeliveryState("given_up", reason=response.error)
    end = round_at + timedelta(seconds=give_up_s)
    if now >= end:
        return DeliveryState("given_up", reason="not delivered in time")
    pause_s = pause_after(tries) * (1 + jitter / 4)
    if response.retry_after_s is not None:
        pause_s = max(pause_s, min(response.retry_after_s, RETRY_AFTER_MAX_S))
    return DeliveryState("pending", due_at=min(now + timedelta(seconds=pause_s), end))


def pause_after(tries: int) -> int:
    """Return the pause after the ``tries``-th attempt (from 1) in seconds."""
    return PAUSES_S[min(tries, len(PAUSES_S)) - 1]
