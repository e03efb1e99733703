"""Submit a job to its provider without ever starting it twice.

The intent to submit is committed before the call is made, so after a crash it is known that a call may have
happened. If submits are idempotent at the provider, the attempt is submitted again; otherwise an unanswered submit
is left alone until an update about the job arrives or the dispatch deadline passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.ledger.tasks.progress import clean_word, error_text, system_note
from holdfast.ledger.tasks.task import ErrorCode, Task
from holdfast.ledger.tasks.transitions import (
    CancelJob,
    Context,
    Effect,
    Step,
    SubmitJob,
    after,
    changed,
    transition,
    unchanged,
)

SUBMIT_LEASE_S = 15
"""How long a submit may stay unanswered before it counts as lost."""
SUBMIT_BACKOFF_S = 1
SUBMIT_BACKOFF_MAX_S = 15
PROVIDER_REF_MAX_CHARS = 255
ATTEMPTS_MAX_COUNT = 3
"""The most jobs that are submitted for one task if the provider loses them."""

SubmitOutcome = Literal["not_sent", "rejected", "ambiguous", "busy"]
RejectionCode = Literal["provider_error", "invalid_upstream_input", "content_policy"]


def submit(task: Task, ctx: Context, *, new_attempt: bool) -> Step:
    """Record the intent to submit, as a new attempt or as the same one again."""
    state = task.state
    changes: dict[str, Any] = {
        "dispatch": "intent",
        "submit_tries": state.submit_tries + 1,
        "due_at": after(ctx.now, SUBMIT_LEASE_S, ctx.jitter),
        "dispatch_started_at": state.dispatch_started_at or ctx.now,
    }
    attempt = state.attempt
    if new_attempt:
        attempt += 1
        changes |= {
            "attempt": attempt,
            "submit_tries": 1,
            "dispatch_started_at": ctx.now,
            "maybe_sent": False,
            "provider_ref": None,
            "run_deadline_at": None,
            "last_sequence": None,
        }
    elif state.dispatch == "intent":
        # The earlier intent was never answered: its call may have been made.
        changes["maybe_sent"] = True
    return changed(task, ctx.now, SubmitJob(task.request_id, attempt), **changes)


def submit_at_once(task: Task, ctx: Context) -> Step:
    """Record the intent to submit in the first version of a task, which is written when the task is created."""
    step = submit(task, ctx, new_attempt=True)
    assert step.task is not None
    return msgspec.structs.replace(step, task=msgspec.structs.replace(step.task, version=task.version))


def leave_unresolved(task: Task, now: datetime) -> Step:
    """Stop submitting an attempt that may have been sent; an update or the deadline decides."""
    note = system_note("queued", "submit", now, stage="dispatch", message="the provider has not answered")
    return changed(task, now, note=note, dispatch="ambiguous", maybe_sent=True, due_at=None)


def acknowledged(task: Task, provider_ref: str | None, now: datetime) -> dict[str, Any]:
    """Return the state changes that record that the provider has the attempt; none if that was known."""
    state = task.state
    changes: dict[str, Any] = {}
    if state.provider_ref is None and provider_ref is not None:
        changes["provider_ref"] = clean_word(provider_ref, chars_max=PROVIDER_REF_MAX_CHARS)
    if state.dispatch != "acked":
        changes |= {
            "dispatch": "acked",
            "maybe_sent": True,
            "run_deadline_at": now + timedelta(seconds=task.request.terms.deadlines.run_s),
            "due_at": after(now, task.request.terms.deadlines.silence_s),
        }
    return changes


def on_submitted(task: Task, attempt: int, provider_ref: str | None, now: datetime) -> Step:
    """Record that the provider accepted a job.

    The verdict is ``stale`` for the job of an earlier attempt and ``late`` if the task has ended; then the job is
    canceled. It is ``duplicate`` if the job was known.
    """
    state = task.state
    ref = clean_word(provider_ref, chars_max=PROVIDER_REF_MAX_CHARS)
    if attempt != state.attempt or attempt == 0:
        stray = () if ref is None else (CancelJob(task.request_id, attempt, ref),)
        return unchanged("stale", *stray)
    if task.is_terminal:
        if ref is None or state.provider_ref is not None:
            return unchanged("late")
        late = system_note(
            "late", "submit", now, stage="dispatch", message="the job was accepted after the task had ended"
        )
        return changed(
            task, now, CancelJob(task.request_id, attempt, ref), verdict="late", note=late, provider_ref=ref
        )
    changes = acknowledged(task, ref, now)
    if not changes:
        return unchanged("duplicate")
    note = system_note("submitted", "submit", now, stage="dispatch") if "dispatch" in changes else None
    return changed(task, now, note=note, **changes)


def on_submit_failed(
    task: Task,
    attempt: int,
    outcome: SubmitOutcome,
    message: str,
    ctx: Context,
    *,
    error_code: RejectionCode = "provider_error",
) -> Step:
    """Record that a submit failed.

    ``not_sent`` and ``busy`` are retried until the dispatch deadline; ``ambiguous`` may have arrived; ``rejected``
    was refused by the provider and fails the task with ``error_code``.
    """
    state = task.state
    if task.is_terminal:
        return unchanged("late")
    if attempt != state.attempt:
        return unchanged("stale")
    if state.dispatch not in {"intent", "ambiguous"}:
        return unchanged("ignored")
    if outcome == "rejected":
        return fail(task, "submit_rejected", message, ctx, code=error_code)
    # An attempt that may have arrived once stays in doubt, even if later tries have a definite result.
    in_doubt = outcome == "ambiguous" or state.maybe_sent
    pause_s = min(SUBMIT_BACKOFF_MAX_S, SUBMIT_BACKOFF_S * 2 ** max(0, min(10, state.submit_tries - 1)))
    return changed(
        task,
        ctx.now,
        note=system_note("queued", "submit", ctx.now, stage="dispatch", message=message),
        dispatch="ambiguous" if in_doubt else "none",
        maybe_sent=in_doubt,
        due_at=after(ctx.now, pause_s, ctx.jitter),
    )


class Failure(NamedTuple):
    """How a cause fails a task: the error code, the ``source_ref`` in its progress, whether the job is canceled."""

    code: ErrorCode
    what: str
    cancel: bool


FailureCause = Literal[
    "submit_rejected", "deadline_passed", "never_sent", "submit_unresolved", "job_lost", "provider_removed"
]
_FAILURES: Mapping[FailureCause, Failure] = {
    "submit_rejected": Failure("provider_error", "submit", cancel=False),
    "deadline_passed": Failure("provider_timeout", "deadline", cancel=True),
    "never_sent": Failure("provider_unavailable", "deadline", cancel=False),
    "submit_unresolved": Failure("submit_ambiguous", "deadline", cancel=True),
    "job_lost": Failure("provider_error", "poll", cancel=False),
    "provider_removed": Failure("provider_removed", "catalog", cancel=True),
}


def fail(
    task: Task,
    cause: FailureCause,
    text: str,
    ctx: Context,
    *,
    code: ErrorCode | None = None,
    what: str | None = None,
) -> Step:
    """Fail the task, release its hold, and cancel the provider's job where the cause requires it."""
    state, failure = task.state, _FAILURES[cause]
    effects: tuple[Effect, ...] = ()
    if failure.cancel and state.provider_ref is not None:
        effects = (CancelJob(task.request_id, state.attempt, state.provider_ref),)
    note = system_note("failed", what or failure.what, ctx.now, message=text)
    error = error_text(code or failure.code, text)
    return transition(task, cause, ctx, *effects, error=error, note=note)


# Tasks of a provider that does not answer: how long they wait for it, and the texts of their errors. While the
# provider answers no submission, a task that was not yet submitted waits as long as a submission may take; while
# it accepts jobs but sends no update about them, as long as a job may run.

Unanswered = Literal["submissions", "updates"]


class Silence(msgspec.Struct, frozen=True):
    """A kind of request that a provider does not answer, and for how many seconds it has not."""

    of: Unanswered
    seconds: float


def on_silence(task: Task, silence: Silence, ctx: Context) -> Step:
    """Fail a task that was not yet submitted if its provider has been silent for as long as the task may wait."""
    deadlines = task.request.terms.deadlines
    code: ErrorCode
    if silence.of == "submissions":
        unanswered, limit_s, code = "submission", deadlines.dispatch_s, "provider_unavailable"
    else:
        unanswered, limit_s, code = "poll of a job", deadlines.run_s, "provider_timeout"
    waited_s = min(silence.seconds, (ctx.now - task.created_at).total_seconds())
    if task.is_terminal or task.state.dispatch != "none" or task.state.attempt or waited_s < limit_s:
        return unchanged("ignored")
    text = f"the provider has answered no {unanswered} for {silence.seconds:.0f} s"
    return fail(task, "never_sent", text, ctx, code=code, what="silence")


def overdue_text(task: Task, now: datetime) -> str:
    """Return why a job that the provider accepted is given up."""
    state, deadlines = task.state, task.request.terms.deadlines
    updated_at = state.last_update_at
    if updated_at is not None and (now - updated_at).total_seconds() <= 2 * deadlines.silence_s:
        return "the job was not finished in time"
    if updated_at is None:
        return f"the job was not finished in time; no update within {deadlines.run_s} s"
    return f"the job was not finished in time; no update for {(now - updated_at).total_seconds():.0f} s"


def never_taken_text(task: Task) -> str:
    """Return why a job that was never submitted is given up."""
    if not task.state.attempt:
        return "the provider could not be reached in time: no slot became free"
    limit_s = task.request.terms.deadlines.dispatch_s
    return f"the provider could not be reached in time: no submission was accepted within {limit_s} s"


def unresolved_text(task: Task) -> str:
    """Return why a job that may have been submitted is given up."""
    limit_s = task.request.terms.deadlines.dispatch_s
    return f"it is unknown whether the provider accepted the job: no answer within {limit_s} s"
