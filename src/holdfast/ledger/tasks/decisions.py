"""The decisions about a task: each takes the task and what happened, and says what follows.

All of them are pure and answer with a :class:`Step`: the task's next version, the settlement that belongs to it
(both go into one commit), and the work to do outside once that commit stands. The caller brings the time, the
randomness (``jitter``, 0 to 1) and an ``operation_id`` for the settlement, in case there is one.

What is due at a wake-up follows from the times kept in the task's state, never from ``wake_at``: whoever claims
a due task may have moved that column. An effect that is never answered is found due again, so a crash between
a commit and its effects costs time, not truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Literal

import msgspec

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.dispatch import fail, leave_unresolved, on_submit_failed, on_submitted, submit
from holdfast.ledger.tasks.hosting import begin_round, can_pass_through, deliver, on_hosted, wake_hosting
from holdfast.ledger.tasks.inputs import on_input_expired, without_large_input
from holdfast.ledger.tasks.progress import system_note
from holdfast.ledger.tasks.provider_updates import on_poll, on_update, passed_through, poll
from holdfast.ledger.tasks.silence import never_taken_text, overdue_text, unresolved_text
from holdfast.ledger.tasks.task import ReviewDecision, Task, TaskStatus, accept_task, usage_of
from holdfast.ledger.tasks.transitions import (
    TRANSITIONS,
    CancelJob,
    Effect,
    HostedOutput,
    HostingFailure,
    HostOutputs,
    PollJob,
    ProviderTraits,
    Settlement,
    Step,
    SubmitJob,
    after,
    changed,
    dispatch_deadline,
    transition,
    unchanged,
)

__all__ = [
    "TRANSITIONS",
    "CancelJob",
    "Effect",
    "HostOutputs",
    "HostedOutput",
    "HostingFailure",
    "PollJob",
    "ProviderTraits",
    "Settlement",
    "Step",
    "SubmitJob",
    "accept_task",
    "on_assets_announced",
    "on_assets_expired",
    "on_cancel",
    "on_cancel_answered",
    "on_hosted",
    "on_input_expired",
    "on_poll",
    "on_review",
    "on_submit_failed",
    "on_submitted",
    "on_update",
    "on_wake",
    "usage_of",
]  # fmt: skip

_BY_DECISION: Mapping[ReviewDecision, tuple[TaskStatus, ...]] = {
    "capture_approved": ("review", "succeeded"),
    "release_approved": ("failed",),
}
"""Where a task stands whose review was decided so; elsewhere something else came in between."""

CancelOutcome = Literal["requested", "confirmed", "too_late", "unsupported"]


def on_wake(
    task: Task,
    now: datetime,
    *,
    traits: ProviderTraits,
    operation_id: str,
    jitter: float = 0.0,
    recovering: bool = False,
    submitting: bool = False,
) -> Step:
    """Do what is due; ``ignored`` where nothing is. Deadlines come before the work they end.

    ``recovering``: whoever was at work on this task is gone, so what waits for an answer is taken up at once.
    ``submitting``: the submission of the present attempt is still under way, so its answer is waited for.
    """
    if task.is_terminal:
        return unchanged("ignored")
    state = task.state
    if state.hosting.status == "transferring":
        return wake_hosting(task, now, operation_id=operation_id, jitter=jitter, recovering=recovering)
    if task.status == "review":
        return _wake_review(task, now, operation_id)
    if traits.listed == "no":
        text = "the provider is no longer in the catalog"
        return fail(
            task,
            "provider_removed",
            "provider_removed",
            text,
            now,
            operation_id=operation_id,
            what="catalog",
            cancel=True,
        )
    if _deadline_passed(task, now):
        return _wake_overdue(task, now, traits, operation_id, jitter)
    waits_for_answer = recovering and state.dispatch != "none"
    if not waits_for_answer and (state.due_at is None or now < state.due_at):
        return unchanged("ignored")
    if submitting and state.dispatch == "intent":
        return unchanged("ignored")
    return _call_provider(task, now, traits, jitter)


def on_cancel(task: Task, now: datetime, *, operation_id: str) -> Step | Refusal:
    """Cancel at the owner's word: the hold is released with it, whatever the provider makes of it later.

    A canceled task stays so (``duplicate``). Refuses: ``task_already_terminal`` (succeeded or failed).
    """
    state = task.state
    if task.status == "canceled":
        return unchanged("duplicate")
    if task.is_terminal:
        return Refusal(code="task_already_terminal", message=f"The task has already {task.status}.", final=True)
    effects: tuple[Effect, ...] = ()
    still_running = task.status != "review" and state.hosting.status == "pending"
    if still_running and state.provider_ref is not None:
        effects = (CancelJob(task.request_id, state.attempt, state.provider_ref),)
    note = system_note("canceled", "cancel", now)
    step = transition(task, "user_canceled", now, *effects, operation_id=operation_id, note=note)
    assert step.task is not None
    return replace(step, task=without_large_input(step.task))


def on_cancel_answered(task: Task, attempt: int, outcome: CancelOutcome, now: datetime) -> Step:
    """Keep what the provider made of a cancel; it changes nothing else."""
    if not task.is_terminal or attempt != task.state.attempt:
        return unchanged("ignored")
    note = system_note("late", "cancel", now, message=f"provider cancel {outcome}".replace("_", " "))
    return changed(task, now, note=note)


def on_review(
    task: Task, approve: bool, now: datetime, *, operation_id: str, note: str | None = None
) -> Step | Refusal:
    """Decide a review: approve (store what is not stored yet, then capture) or reject (fail and release).

    ``note`` is the operator's word on it, kept as progress. The same decision again is a ``duplicate``, also once
    the task has ended by it. An approval may be taken back for as long as outputs are still being stored.
    Refuses: ``review_not_open`` (the task is not in review, or was decided otherwise).
    """
    state, review = task.state, task.state.review
    decision: ReviewDecision = "capture_approved" if approve else "release_approved"
    if review is not None and review.decision == decision and task.status in _BY_DECISION[decision]:
        return unchanged("duplicate")
    if task.status != "review" or review is None:
        return Refusal(
            code="review_not_open",
            message=f"The task is not in review; it is {task.status}.",
            final=task.is_terminal,
        )
    decided = msgspec.structs.replace(review, decision=decision)
    if not approve:
        return transition(
            task,
            "review_rejected",
            now,
            operation_id=operation_id,
            error=state.error,
            note=system_note("failed", "review", now, stage="review", message=_said("rejected", note)),
            review=decided,
        )
    said = _said("approved", note)
    if not state.output and can_pass_through(task, state.hosting.wanted):
        return deliver(
            msgspec.structs.replace(task, state=msgspec.structs.replace(state, review=decided)),
            msgspec.structs.replace(state.hosting, mode="passthrough"),
            passed_through(state.hosting.wanted),
            now,
            operation_id=operation_id,
            usage=state.usage,
            note=system_note("succeeded", "review", now, stage="review", message=said),
        )
    if state.output and not state.hosting.wanted:
        decided_task = msgspec.structs.replace(task, state=msgspec.structs.replace(state, review=decided))
        step_note = system_note("succeeded", "review", now, stage="review", message=said)
        return deliver(
            decided_task,
            state.hosting,
            state.output,
            now,
            operation_id=operation_id,
            usage=state.usage,
            note=step_note,
        )
    changes, effect = begin_round(task, msgspec.structs.replace(state.hosting, tries=0), now)
    storing = system_note("processing", "review", now, stage="review", message=said)
    return changed(task, now, effect, note=storing, **(changes | {"review": decided}))


def on_assets_announced(task: Task, delivered: bool, now: datetime) -> Step:
    """Keep whether the word that the assets are ready reached its listener, or was given up.

    Sent again after it was given up, it may still arrive; once it has arrived, nothing undoes that.
    """
    hosting = task.state.hosting
    undecided = ("pending", "failed") if delivered else ("pending",)
    if task.status != "succeeded" or hosting.assets_ready_event not in undecided:
        return unchanged("ignored")
    told = msgspec.structs.replace(hosting, assets_ready_event="sent" if delivered else "failed")
    return changed(task, now, hosting=told)


def on_assets_expired(task: Task, now: datetime) -> Step:
    """Note that the stored outputs are no longer kept; what was charged stands."""
    hosting = task.state.hosting
    if task.status != "succeeded" or hosting.status != "ready":
        return unchanged("ignored")
    return changed(task, now, hosting=msgspec.structs.replace(hosting, status="expired", final_url_ready=False))


def _said(decision: str, note: str | None) -> str:
    return decision if note is None else f"{decision}: {note}"


def _call_provider(task: Task, now: datetime, traits: ProviderTraits, jitter: float) -> Step:
    """Submit or poll, whatever the task is at; where neither can help, wait for news or the deadline."""
    state = task.state
    match state.dispatch:
        case "none":
            return submit(task, now, new_attempt=state.attempt == 0, jitter=jitter)
        case "intent" | "ambiguous":
            if traits.idempotent_submit:
                return submit(task, now, new_attempt=False, jitter=jitter)
            return leave_unresolved(task, now)
        case "acked":
            if _can_be_asked(task, traits):
                return poll(task, state.provider_ref, now, jitter=jitter)
            if traits.listed == "lately":
                # It comes back, or its grace ends.
                return changed(task, now, due_at=after(now, task.request.terms.deadlines.silence_s, jitter))
            return changed(task, now, due_at=None)


def _can_be_asked(task: Task, traits: ProviderTraits) -> bool:
    """Whether the provider can be asked for the job. A callback may have told of it before it had a name there."""
    return traits.polls and (task.state.provider_ref is not None or traits.idempotent_submit)


def _wake_review(task: Task, now: datetime, operation_id: str) -> Step:
    review = task.state.review
    assert review is not None
    if now < review.deadline_at:
        return unchanged("ignored")
    lapsed = msgspec.structs.replace(review, decision="released_by_timeout")
    note = system_note("failed", "review", now, stage="review", message="nobody decided in time")
    return transition(
        task, "review_lapsed", now, operation_id=operation_id, error=task.state.error, note=note, review=lapsed
    )


def _deadline_passed(task: Task, now: datetime) -> bool:
    state = task.state
    limits = (dispatch_deadline(task), state.run_deadline_at, state.overall_deadline_at)
    return any(limit is not None and now >= limit for limit in limits)


def _wake_overdue(task: Task, now: datetime, traits: ProviderTraits, operation_id: str, jitter: float) -> Step:
    """A deadline is behind us: ask the provider once more where that can help, else fail and release."""
    state = task.state
    if state.dispatch == "acked":
        if not state.final_poll and _can_be_asked(task, traits):
            return poll(task, state.provider_ref, now, jitter=jitter, last=True)
        if state.final_poll and state.due_at is not None and now < state.due_at:
            return unchanged("ignored")
        text = overdue_text(task, now)
        return fail(
            task,
            "deadline_passed",
            "provider_timeout",
            text,
            now,
            operation_id=operation_id,
            what="deadline",
            cancel=True,
        )
    if state.dispatch == "none" and not state.maybe_sent:
        text = never_taken_text(task)
        return fail(
            task,
            "never_sent",
            "provider_unavailable",
            text,
            now,
            operation_id=operation_id,
            what="deadline",
            cancel=False,
        )
    text = unresolved_text(task)
    return fail(
        task,
        "submit_unresolved",
        "submit_ambiguous",
        text,
        now,
        operation_id=operation_id,
        what="deadline",
        cancel=True,
    )
