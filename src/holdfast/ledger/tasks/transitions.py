"""The table of a task's status transitions, and the functions that create its next version.

Every change of the public status is made by :func:`transition`, which reads the cause from :data:`TRANSITIONS`: so
a terminal status is never left, and each is reached with exactly one settlement. Changes within a status are made
by :func:`changed`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.ledger.refusals import StepVerdict
from holdfast.ledger.tasks.progress import with_note
from holdfast.ledger.tasks.provider_update import Output
from holdfast.ledger.tasks.task import (
    TERMINAL,
    HostingState,
    Progress,
    Review,
    ReviewReason,
    StatusEntry,
    Task,
    TaskState,
    TaskStatus,
)

SettlementKind = Literal["capture", "release"]
Cause = Literal[
    "provider_running", "provider_succeeded", "passed_through", "outputs_stored", "outputs_partly_stored",
    "outputs_unstorable", "output_flagged", "provider_conflict", "usage_mismatch", "review_approved",
    "review_rejected", "review_lapsed", "user_canceled", "provider_failed", "provider_canceled", "job_lost",
    "submit_rejected", "deadline_passed", "never_sent", "submit_unresolved", "provider_removed",
    "deadline_exceeded",
]  # fmt: skip


class Transition(NamedTuple):
    """The statuses from which a cause leads to ``target``, and what it does to the hold."""

    sources: frozenset[TaskStatus]
    target: TaskStatus
    settles: SettlementKind | None = None


_QUEUED: frozenset[TaskStatus] = frozenset({"queued"})
_PROCESSING: frozenset[TaskStatus] = frozenset({"processing"})
_REVIEW: frozenset[TaskStatus] = frozenset({"review"})
_RUNNING: frozenset[TaskStatus] = _QUEUED | _PROCESSING
_OPEN: frozenset[TaskStatus] = _RUNNING | _REVIEW

TRANSITIONS: Mapping[Cause, Transition] = {
    "provider_running": Transition(_QUEUED, "processing"),
    "provider_succeeded": Transition(_RUNNING, "processing"),
    "passed_through": Transition(_RUNNING, "succeeded", "capture"),
    "outputs_stored": Transition(_PROCESSING, "succeeded", "capture"),
    "outputs_partly_stored": Transition(_PROCESSING, "succeeded", "capture"),
    "outputs_unstorable": Transition(_PROCESSING, "review"),
    "output_flagged": Transition(_RUNNING, "review"),
    "provider_conflict": Transition(_RUNNING, "review"),
    "usage_mismatch": Transition(_RUNNING, "review"),
    "review_approved": Transition(_REVIEW, "succeeded", "capture"),
    "review_rejected": Transition(_REVIEW, "failed", "release"),
    "review_lapsed": Transition(_REVIEW, "failed", "release"),
    "user_canceled": Transition(_OPEN, "canceled", "release"),
    "deadline_exceeded": Transition(_OPEN, "canceled", "release"),
    "provider_failed": Transition(_RUNNING, "failed", "release"),
    "provider_canceled": Transition(_RUNNING, "failed", "release"),
    "job_lost": Transition(_RUNNING, "failed", "release"),
    "submit_rejected": Transition(_RUNNING, "failed", "release"),
    "deadline_passed": Transition(_RUNNING, "failed", "release"),
    "never_sent": Transition(_RUNNING, "failed", "release"),
    "submit_unresolved": Transition(_RUNNING, "failed", "release"),
    "provider_removed": Transition(_RUNNING, "failed", "release"),
}
"""Every change of the public status. A task whose job was lost is dispatched again while it stays ``processing``,
so the causes of a failed dispatch start there too."""


class ProviderTraits(msgspec.Struct, frozen=True):
    """What a provider supports, as far as decisions depend on it.

    ``idempotent_submit``: jobs have the names that we give them, so submitting an attempt again starts no second
    job, and a job whose submit was never answered can be polled. ``listed``: whether the catalog names the
    provider; recently if its grace period has not ended.
    """

    idempotent_submit: bool
    polls: bool
    cancels: bool
    listed: Literal["yes", "recently", "no"] = "yes"


class Context(NamedTuple):
    """What a decision takes from outside: the time, an id for its settlement, and a random number from 0 to 1."""

    now: datetime
    operation_id: str | None = None
    jitter: float = 0.0


class Settlement(msgspec.Struct, frozen=True):
    """The settlement of the task's hold, in the same unit of work as the task's new version.

    ``charge_micro`` is 0 for a release.
    """

    kind: SettlementKind
    hold_id: str
    charge_micro: int
    operation_id: str
    reason: str
    at: datetime


class SubmitJob(msgspec.Struct, frozen=True):
    """Submit the job to its provider; answered by ``on_submitted`` or ``on_submit_failed``."""

    request_id: str
    attempt: int


class PollJob(msgspec.Struct, frozen=True, tag=True):
    """Poll the job; answered by ``on_poll`` or not at all. No poll follows the ``last``.

    Without a ``provider_ref`` it is polled by our own name for the job.
    """

    request_id: str
    attempt: int
    provider_ref: str | None
    last: bool = False


class CancelJob(msgspec.Struct, frozen=True, tag=True):
    """Cancel this attempt's job at the provider; best effort."""

    request_id: str
    attempt: int
    provider_ref: str


class HostOutputs(msgspec.Struct, frozen=True):
    """Store these outputs; answered by ``on_hosted`` with the same ``round``.

    Repeating it is harmless: assets are keyed by content.
    """

    request_id: str
    attempt: int
    round: int
    outputs: tuple[Output, ...]


Effect = SubmitJob | PollJob | CancelJob | HostOutputs


class HostingFailure(NamedTuple):
    """An output that could not be stored; ``final`` if a retry cannot succeed.

    ``by_store``: our own storage failed or was busy, which says nothing of the output.
    """

    position: int
    message: str
    final: bool
    by_store: bool = False


class Step(msgspec.Struct, frozen=True):
    """The result of a decision: the task's new version, or None if nothing changes, and what goes with it.

    ``settle`` belongs to the same commit as ``task``; ``effects`` are carried out after it. ``mismatch`` describes
    a difference between the provider's report and the measurement beyond the tolerance.
    """

    task: Task | None
    verdict: StepVerdict
    settle: Settlement | None = None
    effects: tuple[Effect, ...] = ()
    mismatch: str | None = None


def unchanged(verdict: StepVerdict, *effects: Effect) -> Step:
    """Return a step that leaves the task as it is."""
    return Step(task=None, verdict=verdict, effects=effects)


def after(now: datetime, seconds: float, jitter: float = 0.0) -> datetime:
    """Return the time ``seconds`` from now, lengthened by up to a quarter as ``jitter`` goes from 0 to 1."""
    assert 0.0 <= jitter <= 1.0
    return now + timedelta(seconds=seconds * (1 + jitter / 4))


def changed(
    task: Task,
    now: datetime,
    *effects: Effect,
    verdict: StepVerdict = "applied",
    note: Progress | None = None,
    **state: Any,
) -> Step:
    """Return a step within the same public status; ``state`` names the changed fields of :class:`TaskState`."""
    return Step(task=_next_version(task, task.status, now, note, state), verdict=verdict, effects=effects)


def transition(
    task: Task,
    cause: Cause,
    ctx: Context,
    *effects: Effect,
    charge_micro: int = 0,
    error: str | None = None,
    note: Progress | None = None,
    **state: Any,
) -> Step:
    """Change the public status as :data:`TRANSITIONS` says for ``cause``, settle the hold and extend the history.

    ``charge_micro`` is what a capture charges. Success clears an earlier ``error``.
    """
    rule = TRANSITIONS[cause]
    assert task.status in rule.sources, f"{cause} cannot happen to a task that is {task.status}"
    settle = None
    cost_micro = 0
    if rule.settles is not None:
        assert ctx.operation_id is not None
        assert 0 <= charge_micro <= task.request.hold_micro
        cost_micro = charge_micro if rule.settles == "capture" else 0
        settle = Settlement(
            kind=rule.settles,
            hold_id=task.request.hold_id,
            charge_micro=cost_micro,
            operation_id=ctx.operation_id,
            reason=cause.replace("_", " "),
            at=ctx.now,
        )
        state |= {"operation_id": ctx.operation_id, "cost_micro": cost_micro, "due_at": None, "final_poll": False}
        state["canceled_at" if rule.target == "canceled" else "completed_at"] = ctx.now
        if rule.settles == "release":
            state |= _nothing_delivered(state.get("hosting", task.state.hosting))
    if error is not None or rule.target == "succeeded":
        state["error"] = error
    if rule.target != task.status:
        entry = StatusEntry(status=rule.target, ts=ctx.now, cost_micro=cost_micro, error=state.get("error"))
        state["status_history"] = (*task.state.status_history, entry)
        if rule.target == "processing":
            state["run_started_at"] = ctx.now
    next_version = _next_version(task, rule.target, ctx.now, note, state)
    return Step(task=next_version, verdict="applied", settle=settle, effects=effects)


def freeze_for_review(
    task: Task,
    cause: Literal["outputs_unstorable", "output_flagged", "provider_conflict", "usage_mismatch"],
    reason: ReviewReason,
    ctx: Context,
    *,
    error: str,
    note: Progress | None = None,
    **state: Any,
) -> Step:
    """Freeze the hold and the outputs until an operator decides or the review's deadline passes."""
    review = Review(
        case_id=review_case_of(task.request_id),
        reason=reason,
        decision="capture_blocked",
        deadline_at=ctx.now + timedelta(seconds=task.request.terms.deadlines.review_s),
    )
    return transition(
        task, cause, ctx, error=error, note=note, review=review, due_at=None, final_poll=False, **state
    )


def review_case_of(request_id: str) -> str:
    """Return the id of a task's review, derived from the task's: a task is reviewed at most once."""
    return "rev_" + request_id.partition("_")[2]


def task_of_review_case(case_id: str) -> str:
    """Return the task of a review's id; the inverse of :func:`review_case_of`."""
    return "task_" + case_id.partition("_")[2]


def task_of_attempt(name: str) -> str:
    """Return the task of an attempt that is named by it and a number; any other id is returned as it is."""
    return re.sub(r"\.\d+$", "", name)


def dispatch_deadline(task: Task) -> datetime | None:
    """Return when an unanswered dispatch is given up; None before it begins and once it is acknowledged."""
    state = task.state
    if state.dispatch == "acked" or state.dispatch_started_at is None:
        return None
    return state.dispatch_started_at + timedelta(seconds=task.request.terms.deadlines.dispatch_s)


def _nothing_delivered(hosting: HostingState) -> dict[str, Any]:
    """Return the state changes of a released task: it delivers nothing, even if outputs were stored."""
    return {
        "output": (),
        "billable_units": 0,
        "tokens_in": 0,
        "tokens_out": 0,
        "hosting": msgspec.structs.replace(
            hosting,
            status="failed" if hosting.error is not None else "skipped",
            final_url_ready=False,
            assets_ready_event="skipped",
            wanted=(),
            lost=(),
            deadline_at=None,
        ),
    }


def _next_version(
    task: Task, status: TaskStatus, now: datetime, note: Progress | None, state: dict[str, Any]
) -> Task:
    if note is not None:
        state["progress"] = with_note(task.state.progress, note)
    new_state: TaskState = msgspec.structs.replace(task.state, **state)
    unwoken = msgspec.structs.replace(
        task,
        version=task.version + 1,
        status=status,
        updated_at=now,
        dispatched=new_state.dispatch != "none",
        state=new_state,
        wake_at=None,
    )
    return msgspec.structs.replace(unwoken, wake_at=_wake_of(unwoken))


def _wake_of(task: Task) -> datetime | None:
    """Return when the task's next timer is due in its current phase."""
    state = task.state
    times: tuple[datetime | None, ...]
    if task.status in TERMINAL:
        return None
    if task.status == "review":
        assert state.review is not None
        times = (
            (state.due_at, state.hosting.deadline_at)
            if state.hosting.status == "transferring"
            else (state.review.deadline_at,)
        )
    elif state.final_poll:
        # The service's own deadlines have passed; only the answer to the last poll is awaited.
        times = (state.due_at,)
    elif state.hosting.status == "transferring":
        times = (state.due_at, state.hosting.deadline_at, task.overall_deadline_at)
    else:
        times = (state.due_at, dispatch_deadline(task), state.run_deadline_at, task.overall_deadline_at)
    times = (*times, task.deadline_at)
    return min(at for at in times if at is not None)
