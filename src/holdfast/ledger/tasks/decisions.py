"""The decisions about a task: each takes the task and what happened, and returns what follows.

All of them are pure and return a :class:`Step`: the task's next version and its settlement, which are one commit,
and the effects to carry out after that commit. What they take from outside is in their :class:`Context`.

What is due at a wake-up is decided by the times in the task's state, never by ``wake_at``, which a claim moves. An
effect that is never answered becomes due again, so a crash between a commit and its effects loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.dispatch import (
    fail,
    leave_unresolved,
    never_taken_text,
    overdue_text,
    submit,
    unresolved_text,
)
from holdfast.ledger.tasks.hosting import begin_round, can_pass_through, deliver, wake_hosting
from holdfast.ledger.tasks.inputs import without_large_input
from holdfast.ledger.tasks.progress import error_text, system_note
from holdfast.ledger.tasks.provider_update import CancelOutcome
from holdfast.ledger.tasks.provider_updates import passed_through, poll
from holdfast.ledger.tasks.task import ReviewDecision, Task, TaskStatus
from holdfast.ledger.tasks.transitions import (
    CancelJob,
    Context,
    Effect,
    ProviderTraits,
    Step,
    after,
    changed,
    dispatch_deadline,
    transition,
    unchanged,
)

_BY_DECISION: Mapping[ReviewDecision, tuple[TaskStatus, ...]] = {
    "capture_approved": ("review", "succeeded"),
    "release_approved": ("failed",),
}
"""The statuses of a task whose review was decided so; any other was reached in another way."""


def on_wake(
    task: Task, ctx: Context, *, traits: ProviderTraits, recovering: bool = False, submitting: bool = False
) -> Step:
    """Do what is due; ``ignored`` if nothing is. A deadline is applied before the work that it ends.

    ``recovering``: the process that worked on this task has ended, so what waits for an answer is repeated at once.
    ``submitting``: the submission of the current attempt is still in progress, so its answer is awaited.
    """
    if task.is_terminal:
        return unchanged("ignored")
    state = task.state
    if task.deadline_at is not None and ctx.now >= task.deadline_at:
        text = f"the task had not ended {task.request.deadline_s} s after it was created"
        return _cancel(task, "deadline_exceeded", ctx, what="deadline", text=text)
    if state.hosting.status == "transferring":
        return wake_hosting(task, ctx, recovering=recovering)
    if task.status == "review":
        return _wake_review(task, ctx)
    if traits.listed == "no":
        text = "the provider is no longer in the catalog"
        return fail(task, "provider_removed", text, ctx)
    if _deadline_passed(task, ctx.now):
        return _wake_overdue(task, ctx, traits)
    waits_for_answer = recovering and state.dispatch != "none"
    if not waits_for_answer and (state.due_at is None or ctx.now < state.due_at):
        return unchanged("ignored")
    if submitting and state.dispatch == "intent":
        return unchanged("ignored")
    return _call_provider(task, ctx, traits)


def on_cancel(task: Task, ctx: Context) -> Step | Refusal:
    """Cancel the task for its owner and release the hold, whether or not the provider stops the job.

    A second cancel is a ``duplicate``. Refuses: ``task_already_terminal`` (succeeded or failed).
    """
    if task.status == "canceled":
        return unchanged("duplicate")
    if task.is_terminal:
        return Refusal(
            code="task_already_terminal",
            message=f"The task '{task.request_id}' has already {task.status}.",
            final=True,
        )
    return _cancel(task, "user_canceled", ctx, what="cancel")


def _cancel(
    task: Task,
    cause: Literal["user_canceled", "deadline_exceeded"],
    ctx: Context,
    *,
    what: str,
    text: str | None = None,
) -> Step:
    """Cancel a task that has not ended, and its job. ``text`` is why, if it was not its owner who asked for it."""
    state = task.state
    effects: tuple[Effect, ...] = ()
    still_running = task.status != "review" and state.hosting.status == "pending"
    if still_running and state.provider_ref is not None:
        effects = (CancelJob(task.request_id, state.attempt, state.provider_ref),)
    error = None if text is None else error_text("deadline_exceeded", text)
    step = transition(
        task, cause, ctx, *effects, error=error, note=system_note("canceled", what, ctx.now, message=text)
    )
    assert step.task is not None
    return msgspec.structs.replace(step, task=without_large_input(step.task))


def on_cancel_answered(task: Task, attempt: int, outcome: CancelOutcome, now: datetime) -> Step:
    """Record the provider's answer to a cancel as progress; nothing else changes."""
    if not task.is_terminal or attempt != task.state.attempt:
        return unchanged("ignored")
    note = system_note("late", "cancel", now, message=f"provider cancel {outcome}".replace("_", " "))
    return changed(task, now, note=note)


def on_review(task: Task, approve: bool, ctx: Context, *, note: str | None = None) -> Step | Refusal:
    """Decide a review: approve (store the remaining outputs, then capture) or reject (fail and release).

    ``note`` is the operator's comment, recorded as progress. The same decision again is a ``duplicate``, also after
    the task has ended. An approval may be changed to a rejection while outputs are still being stored. Refuses:
    ``review_not_open`` (the task is not in review, or was decided otherwise).
    """
    state, review = task.state, task.state.review
    decision: ReviewDecision = "capture_approved" if approve else "release_approved"
    if review is not None and review.decision == decision and task.status in _BY_DECISION[decision]:
        return unchanged("duplicate")
    if task.status != "review" or review is None:
        return Refusal(
            code="review_not_open",
            message=f"The task '{task.request_id}' is {task.status}, not in review.",
            final=task.is_terminal,
        )
    decided = msgspec.structs.replace(review, decision=decision)
    if not approve:
        return transition(
            task,
            "review_rejected",
            ctx,
            error=state.error,
            note=system_note("failed", "review", ctx.now, stage="review", message=_with_note("rejected", note)),
            review=decided,
        )
    text = _with_note("approved", note)
    hosting, output = state.hosting, state.output
    if not output and can_pass_through(task, hosting.wanted):
        output = passed_through(hosting.wanted)
        hosting = msgspec.structs.replace(hosting, mode="passthrough")
    elif not output or hosting.wanted:
        changes, effect = begin_round(task, msgspec.structs.replace(hosting, tries=0), ctx.now)
        storing = system_note("processing", "review", ctx.now, stage="review", message=text)
        return changed(task, ctx.now, effect, note=storing, **(changes | {"review": decided}))
    return deliver(
        msgspec.structs.replace(task, state=msgspec.structs.replace(state, review=decided)),
        hosting,
        output,
        ctx,
        usage=state.usage,
        note=system_note("succeeded", "review", ctx.now, stage="review", message=text),
    )


def on_assets_announced(task: Task, delivered: bool, now: datetime) -> Step:
    """Record whether the event that the assets are ready was delivered or given up.

    An event that was given up may be delivered later; one that was delivered stays so.
    """
    hosting = task.state.hosting
    undecided = ("pending", "failed") if delivered else ("pending",)
    if task.status != "succeeded" or hosting.assets_ready_event not in undecided:
        return unchanged("ignored")
    announced = msgspec.structs.replace(hosting, assets_ready_event="sent" if delivered else "failed")
    return changed(task, now, hosting=announced)


def on_assets_expired(task: Task, now: datetime) -> Step:
    """Record that the stored outputs have expired; the charge stays."""
    hosting = task.state.hosting
    if task.status != "succeeded" or hosting.status != "ready":
        return unchanged("ignored")
    return changed(task, now, hosting=msgspec.structs.replace(hosting, status="expired", final_url_ready=False))


def on_results_deleted(task: Task, now: datetime) -> Step:
    """Record that the owner has deleted the results; the charge stays. Of those that were stored the facts stay."""
    state = task.state
    output = tuple(each for each in state.output if each.asset_id is not None)
    if task.status != "succeeded" or (output == state.output and state.hosting.status == "expired"):
        return unchanged("ignored")
    hosting = msgspec.structs.replace(state.hosting, status="expired", final_url_ready=False)
    return changed(task, now, output=output, hosting=hosting)


def _with_note(decision: str, note: str | None) -> str:
    return decision if note is None else f"{decision}: {note}"


def _call_provider(task: Task, ctx: Context, traits: ProviderTraits) -> Step:
    """Submit or poll, as the task's dispatch requires; otherwise wait for an update or the deadline."""
    state = task.state
    match state.dispatch:
        case "none":
            return submit(task, ctx, new_attempt=state.attempt == 0)
        case "intent" | "ambiguous":
            if traits.idempotent_submit:
                return submit(task, ctx, new_attempt=False)
            return leave_unresolved(task, ctx.now)
        case "acked":
            if _can_be_polled(task, traits):
                return poll(task, state.provider_ref, ctx)
            if traits.listed == "recently":
                # The provider returns to the catalog, or its grace period ends.
                return changed(
                    task, ctx.now, due_at=after(ctx.now, task.request.terms.deadlines.silence_s, ctx.jitter)
                )
            return changed(task, ctx.now, due_at=None)


def _can_be_polled(task: Task, traits: ProviderTraits) -> bool:
    """Whether the job can be polled. A callback may acknowledge it before its name at the provider is known."""
    return traits.polls and (task.state.provider_ref is not None or traits.idempotent_submit)


def _wake_review(task: Task, ctx: Context) -> Step:
    review = task.state.review
    assert review is not None
    if ctx.now < review.deadline_at:
        return unchanged("ignored")
    lapsed = msgspec.structs.replace(review, decision="released_by_timeout")
    note = system_note("failed", "review", ctx.now, stage="review", message="no operator decided in time")
    return transition(task, "review_lapsed", ctx, error=task.state.error, note=note, review=lapsed)


def _deadline_passed(task: Task, now: datetime) -> bool:
    state = task.state
    limits = (dispatch_deadline(task), state.run_deadline_at, task.overall_deadline_at)
    return any(limit is not None and now >= limit for limit in limits)


def _wake_overdue(task: Task, ctx: Context, traits: ProviderTraits) -> Step:
    """A deadline has passed: poll the provider once more where possible, else fail and release."""
    state = task.state
    if state.dispatch == "acked":
        if not state.final_poll and _can_be_polled(task, traits):
            return poll(task, state.provider_ref, ctx, last=True)
        if state.final_poll and state.due_at is not None and ctx.now < state.due_at:
            return unchanged("ignored")
        return fail(task, "deadline_passed", overdue_text(task, ctx.now), ctx)
    if state.dispatch == "none" and not state.maybe_sent:
        return fail(task, "never_sent", never_taken_text(task), ctx)
    return fail(task, "submit_unresolved", unresolved_text(task), ctx)
