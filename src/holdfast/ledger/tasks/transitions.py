"""How a task may move: the table of transitions, the value a decision returns, and the one writer of both.

Every change of a public status goes through :func:`transition`, which looks the cause up in
:data:`TRANSITIONS`; so a terminal state is never left and each one is reached with exactly one settlement.
Changes inside a status go through :func:`changed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec

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
Verdict = Literal["applied", "duplicate", "stale", "late", "ignored"]
Cause = Literal[
    "provider_running", "provider_succeeded", "passed_through", "outputs_stored", "outputs_partly_stored",
    "outputs_unstorable", "output_flagged", "provider_conflict", "usage_mismatch", "review_approved",
    "review_rejected", "review_lapsed", "user_canceled", "provider_failed", "provider_canceled", "job_lost",
    "submit_rejected", "deadline_passed", "never_sent", "submit_unresolved", "provider_removed",
]  # fmt: skip


class Rule(NamedTuple):
    """From which states a cause leads to ``target``, and what it does to the hold."""

    sources: frozenset[TaskStatus]
    target: TaskStatus
    settles: SettlementKind | None = None


_QUEUED: frozenset[TaskStatus] = frozenset({"queued"})
_PROCESSING: frozenset[TaskStatus] = frozenset({"processing"})
_REVIEW: frozenset[TaskStatus] = frozenset({"review"})
_RUNNING: frozenset[TaskStatus] = _QUEUED | _PROCESSING
_OPEN: frozenset[TaskStatus] = _RUNNING | _REVIEW

TRANSITIONS: Mapping[Cause, Rule] = {
    "provider_running": Rule(_QUEUED, "processing"),
    "provider_succeeded": Rule(_RUNNING, "processing"),
    "passed_through": Rule(_RUNNING, "succeeded", "capture"),
    "outputs_stored": Rule(_PROCESSING, "succeeded", "capture"),
    "outputs_partly_stored": Rule(_PROCESSING, "succeeded", "capture"),
    "outputs_unstorable": Rule(_PROCESSING, "review"),
    "output_flagged": Rule(_RUNNING, "review"),
    "provider_conflict": Rule(_RUNNING, "review"),
    "usage_mismatch": Rule(_RUNNING, "review"),
    "review_approved": Rule(_REVIEW, "succeeded", "capture"),
    "review_rejected": Rule(_REVIEW, "failed", "release"),
    "review_lapsed": Rule(_REVIEW, "failed", "release"),
    "user_canceled": Rule(_OPEN, "canceled", "release"),
    "provider_failed": Rule(_RUNNING, "failed", "release"),
    "provider_canceled": Rule(_RUNNING, "failed", "release"),
    "job_lost": Rule(_RUNNING, "failed", "release"),
    "submit_rejected": Rule(_RUNNING, "failed", "release"),
    "deadline_passed": Rule(_RUNNING, "failed", "release"),
    "never_sent": Rule(_RUNNING, "failed", "release"),
    "submit_unresolved": Rule(_RUNNING, "failed", "release"),
    "provider_removed": Rule(_RUNNING, "failed", "release"),
}
"""Every way the public status may change. A running task whose job was lost is dispatched anew while it stays
``processing``, so the causes of a failed dispatch start there too."""


@dataclass(frozen=True, slots=True)
class ProviderTraits:
    """What a provider can do, as far as decisions depend on it.

    ``idempotent_submit``: jobs bear our names there, so that the same attempt handed in again starts no second
    one, and a job whose submission was never answered can be asked for. ``listed``: whether the catalog names it,
    did so until lately, or has not for longer than the grace that lasts.
    """

    idempotent_submit: bool
    polls: bool
    cancels: bool
    listed: Literal["yes", "lately", "no"] = "yes"


@dataclass(frozen=True, slots=True)
class Settlement:
    """What becomes of the task's hold, in the same unit of work as the task's new version."""

    kind: SettlementKind
    hold_id: str
    charge_micro: int
    operation_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SubmitJob:
    """Hand the job to its provider; answered by ``on_submitted`` or ``on_submit_failed``."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class PollJob:
    """Ask the provider how the job stands; answered by ``on_poll`` or not at all. No poll follows the ``last``.

    Without a ``provider_ref`` it is asked under our own name for the job.
    """

    request_id: str
    attempt: int
    provider_ref: str | None
    last: bool = False


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Tell the provider to stop this attempt's job; best effort."""

    request_id: str
    attempt: int
    provider_ref: str


@dataclass(frozen=True, slots=True)
class HostOutputs:
    """Store these outputs; answered by ``on_hosted`` under the same ``round``.

    Repeating it is harmless: assets are keyed by content.
    """

    request_id: str
    attempt: int
    round: int
    outputs: tuple[Output, ...]


Effect = SubmitJob | PollJob | CancelJob | HostOutputs


@dataclass(frozen=True, slots=True)
class HostedOutput:
    """An output that is stored for good; ``position`` is the ``index`` of the output asked for.

    ``size_claimed`` and ``duration_claimed`` as :class:`~holdfast.ledger.tasks.task.OutputItem` has them.
    """

    position: int
    asset_id: str
    sha256: str
    bytes: int
    content_type: str
    expires_at: datetime
    width: int | None = None
    height: int | None = None
    duration_s: float | None = None
    size_claimed: bool = False
    duration_claimed: bool = False


@dataclass(frozen=True, slots=True)
class HostingFailure:
    """An output that could not be stored; ``final`` where trying again cannot help."""

    position: int
    message: str
    final: bool


@dataclass(frozen=True, slots=True)
class Step:
    """What a decision comes to: the task's new version, or None where nothing changes, and what goes with it.

    ``settle`` belongs into the commit of ``task``; ``effects`` are carried out once it stands.

    ``verdict``: ``duplicate`` was known before, ``stale`` belongs to an earlier attempt, ``late`` comes after what
    it tells was decided, ``ignored`` needs nothing.

    ``mismatch``: how the provider's report of the work differs from what counts, where it does widely.
    """

    task: Task | None
    verdict: Verdict
    settle: Settlement | None = None
    effects: tuple[Effect, ...] = ()
    mismatch: str | None = None


def unchanged(verdict: Verdict, *effects: Effect) -> Step:
    """A step that leaves the task as it is."""
    return Step(task=None, verdict=verdict, effects=effects)


def after(now: datetime, seconds: float, jitter: float = 0.0) -> datetime:
    """The moment ``seconds`` from now, lengthened by up to a quarter as ``jitter`` goes from 0 to 1."""
    assert 0.0 <= jitter <= 1.0
    return now + timedelta(seconds=seconds * (1 + jitter / 4))


def changed(
    task: Task,
    now: datetime,
    *effects: Effect,
    verdict: Verdict = "applied",
    note: Progress | None = None,
    **state: Any,
) -> Step:
    """A step inside the same public status: ``state`` names the fields of :class:`TaskState` that change."""
    return Step(task=_next_version(task, task.status, now, note, state), verdict=verdict, effects=effects)


def transition(
    task: Task,
    cause: Cause,
    now: datetime,
    *effects: Effect,
    operation_id: str | None = None,
    charge_micro: int = 0,
    error: str | None = None,
    note: Progress | None = None,
    **state: Any,
) -> Step:
    """Move the public status as ``cause`` says, settle the hold where the rule says so, and keep the history.

    ``charge_micro`` is what a capture charges. An earlier ``error`` does not outlast success. Breaking the
    table or the hold's limit is a bug.
    """
    rule = TRANSITIONS[cause]
    assert task.status in rule.sources, f"{cause} cannot happen to a task that is {task.status}"
    settle = None
    cost_micro = 0
    if rule.settles is not None:
        assert operation_id is not None
        assert 0 <= charge_micro <= task.request.hold_micro
        cost_micro = charge_micro if rule.settles == "capture" else 0
        settle = Settlement(
            kind=rule.settles,
            hold_id=task.request.hold_id,
            charge_micro=cost_micro,
            operation_id=operation_id,
            reason=cause.replace("_", " "),
        )
        state |= {"operation_id": operation_id, "cost_micro": cost_micro, "due_at": None, "final_poll": False}
        state["canceled_at" if rule.target == "canceled" else "completed_at"] = now
        if rule.settles == "release":
            state |= _nothing_delivered(state.get("hosting", task.state.hosting))
    if error is not None or rule.target == "succeeded":
        state["error"] = error
    if rule.target != task.status:
        entry = StatusEntry(status=rule.target, ts=now, cost_micro=cost_micro, error=state.get("error"))
        state["status_history"] = (*task.state.status_history, entry)
        if rule.target == "processing":
            state["run_started_at"] = now
    moved = _next_version(task, rule.target, now, note, state)
    return Step(task=moved, verdict="applied", settle=settle, effects=effects)


def freeze_for_review(
    task: Task,
    cause: Literal["outputs_unstorable", "output_flagged", "provider_conflict", "usage_mismatch"],
    reason: ReviewReason,
    now: datetime,
    *,
    error: str,
    note: Progress | None = None,
    **state: Any,
) -> Step:
    """Freeze money and outputs until an operator decides or the review's time is over. The hold stays open."""
    review = Review(
        case_id=review_case_of(task.request_id),
        reason=reason,
        decision="capture_blocked",
        deadline_at=now + timedelta(seconds=task.request.terms.deadlines.review_s),
    )
    return transition(
        task, cause, now, error=error, note=note, review=review, due_at=None, final_poll=False, **state
    )


def review_case_of(request_id: str) -> str:
    """The id of a task's review. A task is reviewed at most once, so its own id tells it."""
    return "rev_" + request_id.partition("_")[2]


def task_of_review_case(case_id: str) -> str:
    """The task that a review's id is about; the reverse of :func:`review_case_of`."""
    return "task_" + case_id.partition("_")[2]


def dispatch_deadline(task: Task) -> datetime | None:
    """When an unanswered dispatch is given up; None while none has begun or once it is acknowledged."""
    state = task.state
    if state.dispatch == "acked" or state.dispatch_started_at is None:
        return None
    return state.dispatch_started_at + timedelta(seconds=task.request.terms.deadlines.dispatch_s)


def _nothing_delivered(hosting: HostingState) -> dict[str, Any]:
    """A released task delivers nothing, whatever had been stored of it."""
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
    moved: TaskState = msgspec.structs.replace(task.state, **state)
    unwoken = msgspec.structs.replace(
        task,
        version=task.version + 1,
        status=status,
        updated_at=now,
        dispatched=moved.dispatch != "none",
        state=moved,
        wake_at=None,
    )
    return msgspec.structs.replace(unwoken, wake_at=_wake_of(unwoken))


def _wake_of(task: Task) -> datetime | None:
    """The first moment at which the task wants attention, by the phase it is in."""
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
        # The deadlines lie behind; only the last poll's answer is waited for.
        times = (state.due_at,)
    elif state.hosting.status == "transferring":
        times = (state.due_at, state.hosting.deadline_at, state.overall_deadline_at)
    else:
        times = (state.due_at, dispatch_deadline(task), state.run_deadline_at, state.overall_deadline_at)
    return min(at for at in times if at is not None)
