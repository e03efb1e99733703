"""Apply a provider's updates: callbacks that arrive late, twice or out of order, and answers to polls.

Updates rank by status: queued, then processing, then an end. An update of a lower rank than what is known, or
earlier in sequence, adds a progress entry at most. An update of another attempt changes nothing else, and neither
does any update after the task has ended.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from holdfast.ledger.tasks.charge import UNITS_MAX
from holdfast.ledger.tasks.dispatch import (
    ATTEMPTS_MAX_COUNT,
    PROVIDER_REF_MAX_CHARS,
    acknowledged,
    fail,
    overdue_text,
    submit,
)
from holdfast.ledger.tasks.hosting import begin_round, can_pass_through, deliver, hosting_of, numbered
from holdfast.ledger.tasks.progress import callback_ref, clean_word, error_text, highest_percent, note_of
from holdfast.ledger.tasks.provider_update import Output, ProviderUpdate, ReportedUsage, UpdateStatus
from holdfast.ledger.tasks.task import ErrorCode, HostingState, OutputItem, Progress, Task
from holdfast.ledger.tasks.transitions import (
    CancelJob,
    Context,
    Effect,
    PollJob,
    ProviderTraits,
    Step,
    after,
    changed,
    freeze_for_review,
    transition,
    unchanged,
)

_RANK: Final[dict[UpdateStatus, int]] = {"queued": 0, "processing": 1, "succeeded": 2, "failed": 2, "canceled": 2}
_CONTENT_CODES: Final = frozenset(
    {"content_policy", "content_policy_violation", "content_flagged", "moderation", "nsfw"}
)
_INPUT_CODES: Final = frozenset({"invalid_input", "invalid_upstream_input", "invalid_request", "validation_error"})


def on_update(task: Task, update: ProviderUpdate, ctx: Context) -> Step:
    """Apply a verified update to a task.

    ``ignored``: it is about another task or job, or from another provider. ``duplicate``: the event was applied
    before. ``stale``: it is about another attempt. ``late``: something later is known. The last two are recorded as
    progress.
    """
    if update.request_id != task.request_id or update.provider != task.provider:
        return unchanged("ignored")
    source_ref = callback_ref(update.event_id) if update.source == "callback" else f"poll:{task.state.poll_count}"
    if update.source == "callback" and any(note.source_ref == source_ref for note in task.state.progress):
        return unchanged("duplicate")
    if update.attempt != task.state.attempt or task.state.attempt == 0:
        return _apply_stale(task, update, source_ref, ctx.now)
    if _is_of_another_job(task, update):
        return unchanged("ignored")
    if task.is_terminal:
        return _apply_late(task, update, source_ref, ctx.now)
    if task.status == "review":
        return _noted(task, update, source_ref, ctx.now)
    if task.state.hosting.status == "transferring":
        if update.status in {"failed", "canceled"}:
            return _contradicted(task, update, source_ref, ctx)
        return _noted(task, update, source_ref, ctx.now)
    match update.status:
        case "queued" | "processing":
            return _apply_running(task, update, source_ref, ctx)
        case "succeeded":
            return _apply_success(task, update, source_ref, ctx)
        case "failed" | "canceled":
            return _apply_failure(task, update, source_ref, ctx)


def on_poll(
    task: Task, update: ProviderUpdate | None, ctx: Context, *, attempt: int, traits: ProviderTraits
) -> Step:
    """Apply the answer to a poll of ``attempt``; None: the provider does not know the job.

    A lost job is submitted as a new attempt if submits are idempotent; otherwise the deadline decides. The answer
    to the last poll is final.
    """
    state = task.state
    if task.is_terminal or task.status == "review" or state.hosting.status == "transferring":
        return unchanged("late")
    if attempt != state.attempt or state.dispatch != "acked":
        return unchanged("stale")
    if update is not None:
        step = on_update(task, update, ctx)
        if not state.final_poll or _is_decided(step.task):
            return step
    if state.final_poll:
        return fail(task, "deadline_passed", overdue_text(task, ctx.now), ctx)
    if not traits.idempotent_submit:
        return unchanged("ignored")
    if state.attempt >= ATTEMPTS_MAX_COUNT:
        return fail(task, "job_lost", "the provider lost the job", ctx)
    return submit(task, ctx, new_attempt=True)


def poll(task: Task, provider_ref: str | None, ctx: Context, *, last: bool = False) -> Step:
    """Poll the job, and again later if no answer arrives."""
    state = task.state
    polling = PollJob(task.request_id, state.attempt, provider_ref, last=last)
    due_at = after(ctx.now, task.request.terms.deadlines.silence_s, ctx.jitter)
    return changed(task, ctx.now, polling, poll_count=state.poll_count + 1, due_at=due_at, final_poll=last)


def _is_decided(task: Task | None) -> bool:
    """Whether the step ended the task, froze it, or found its outputs."""
    return task is not None and (
        task.is_terminal or task.status == "review" or task.state.hosting.status == "transferring"
    )


def _apply_stale(task: Task, update: ProviderUpdate, source_ref: str, now: datetime) -> Step:
    """Record an update of an earlier attempt, and cancel its job if that still runs."""
    effects: tuple[Effect, ...] = ()
    if update.provider_ref and update.attempt < task.state.attempt and _RANK[update.status] < _RANK["succeeded"]:
        effects = (CancelJob(task.request_id, update.attempt, update.provider_ref),)
    note = note_of(update, status="stale", source_ref=source_ref, percent=None, at=now)
    return changed(task, now, *effects, verdict="stale", note=note)


def _apply_late(task: Task, update: ProviderUpdate, source_ref: str, now: datetime) -> Step:
    """Record an update of a task that has ended; a running job that was unknown until now is canceled."""
    changes: dict[str, Any] = {}
    effects: tuple[Effect, ...] = ()
    ref = clean_word(update.provider_ref, chars_max=PROVIDER_REF_MAX_CHARS)
    if ref is not None and task.state.provider_ref is None and _RANK[update.status] < _RANK["succeeded"]:
        changes["provider_ref"] = ref
        effects = (CancelJob(task.request_id, update.attempt, ref),)
    note = note_of(update, status="late", source_ref=source_ref, percent=None, at=now)
    return changed(task, now, *effects, verdict="late", note=note, **changes)


def _noted(task: Task, update: ProviderUpdate, source_ref: str, now: datetime, **changes: Any) -> Step:
    note = note_of(update, status="late", source_ref=source_ref, percent=None, at=now)
    return changed(task, now, verdict="late", note=note, **changes)


def _apply_running(task: Task, update: ProviderUpdate, source_ref: str, ctx: Context) -> Step:
    state = task.state
    arrived = acknowledged(task, update.provider_ref, ctx.now)
    known_rank = _RANK["processing"] if task.status == "processing" else _RANK["queued"]
    rank = _RANK[update.status]
    overtaken = (
        update.sequence is not None and state.last_sequence is not None and update.sequence <= state.last_sequence
    )
    if rank < known_rank or (rank == known_rank and overtaken):
        return _noted(task, update, source_ref, ctx.now, **arrived)
    percent = highest_percent(state.percent, update.percent)
    note = note_of(
        update,
        status="processing" if update.status == "processing" else "queued",
        source_ref=source_ref,
        percent=None if update.percent is None else percent,
        at=ctx.now,
    )
    if update.source == "poll" and not arrived and rank == known_rank and _changes_nothing(state.progress, note):
        return unchanged("duplicate")
    changes = arrived | {
        "last_update_at": ctx.now,
        "percent": percent,
        "flagged": state.flagged or _is_flagged(update),
        "last_sequence": _later(state.last_sequence, update.sequence),
    }
    if not state.final_poll:
        changes["due_at"] = after(ctx.now, task.request.terms.deadlines.silence_s)
    if update.status == "processing" and task.status == "queued":
        return transition(task, "provider_running", ctx, note=note, **changes)
    return changed(task, ctx.now, note=note, **changes)


def _apply_success(task: Task, update: ProviderUpdate, source_ref: str, ctx: Context) -> Step:
    state = task.state
    flagged = state.flagged or _is_flagged(update)
    outputs = numbered(update.outputs)
    percent = highest_percent(state.percent, update.percent)
    note = note_of(
        update,
        status="succeeded",
        source_ref=source_ref,
        percent=None if update.percent is None else percent,
        at=ctx.now,
    )
    arrived = acknowledged(task, update.provider_ref, ctx.now)
    if not outputs and not flagged:
        ref = arrived.get("provider_ref", state.provider_ref)
        if update.source == "callback" and isinstance(ref, str):
            # The outputs may be in the answer to a poll.
            polling = PollJob(task.request_id, state.attempt, ref, last=state.final_poll)
            return changed(
                task,
                ctx.now,
                polling,
                note=note,
                **(arrived | {"poll_count": state.poll_count + 1, "last_update_at": ctx.now, "percent": percent}),
            )
        error = error_text("provider_error", "the provider finished without any output")
        return transition(task, "provider_failed", ctx, error=error, note=note, **arrived)
    changes = arrived | {
        "percent": percent,
        "last_update_at": ctx.now,
        "flagged": flagged,
        "last_sequence": _later(state.last_sequence, update.sequence),
        "provider_done_at": ctx.now,
        "usage": _clean_usage(update.usage),
        "final_poll": False,
    }
    hosting = hosting_of(task, outputs, update.outputs)
    if flagged:
        error = _flag_error(update)
        if not outputs:
            return transition(task, "provider_failed", ctx, error=error, note=note, **arrived)
        del changes["final_poll"]
        changes.pop("due_at", None)
        return freeze_for_review(
            task, "output_flagged", "content_flagged", ctx, error=error, note=note, hosting=hosting, **changes
        )
    if can_pass_through(task, outputs):
        updated = msgspec.structs.replace(task, state=msgspec.structs.replace(state, **changes))
        return deliver(
            updated,
            msgspec.structs.replace(hosting, mode="passthrough"),
            passed_through(outputs),
            ctx,
            usage=updated.state.usage,
            note=note,
        )
    round_changes, effect = begin_round(task, hosting, ctx.now)
    return transition(task, "provider_succeeded", ctx, effect, note=note, **(changes | round_changes))


def passed_through(outputs: tuple[Output, ...]) -> tuple[OutputItem, ...]:
    """Return the provider's outputs as the task's, with the sizes and durations that the provider states."""
    claimed = {"data": None, "size_claimed": True, "duration_claimed": True}
    return tuple(OutputItem(**(msgspec.structs.asdict(output) | claimed)) for output in outputs)


def _apply_failure(task: Task, update: ProviderUpdate, source_ref: str, ctx: Context) -> Step:
    reported = update.error
    text = None if reported is None else reported.message or reported.code
    code: ErrorCode
    if update.status == "canceled":
        code = "canceled_by_provider"
    elif task.state.flagged or _is_flagged(update) or (reported is not None and reported.code in _CONTENT_CODES):
        code = "content_policy"
    elif reported is not None and reported.code in _INPUT_CODES:
        code = "invalid_upstream_input"
    else:
        code = "provider_error"
    return transition(
        task,
        "provider_canceled" if update.status == "canceled" else "provider_failed",
        ctx,
        error=error_text(code, text or update.message),
        note=note_of(
            update,
            status="canceled" if update.status == "canceled" else "failed",
            source_ref=source_ref,
            percent=None,
            at=ctx.now,
        ),
        last_update_at=ctx.now,
        provider_done_at=ctx.now,
        **acknowledged(task, update.provider_ref, ctx.now),
    )


def _contradicted(task: Task, update: ProviderUpdate, source_ref: str, ctx: Context) -> Step:
    """Freeze the task for review: the provider reported success before, and failure now."""
    hosting: HostingState = msgspec.structs.replace(task.state.hosting, status="pending", deadline_at=None)
    note = note_of(update, status="late", source_ref=source_ref, percent=None, at=ctx.now)
    error = error_text("provider_error", f"the provider reported success, and then the job as {update.status}")
    return freeze_for_review(
        task, "provider_conflict", "provider_conflict", ctx, error=error, note=note, hosting=hosting
    )


def _is_of_another_job(task: Task, update: ProviderUpdate) -> bool:
    """Whether a callback names another job than the known one of this attempt."""
    named = clean_word(update.provider_ref, chars_max=PROVIDER_REF_MAX_CHARS)
    known = task.state.provider_ref
    return update.source == "callback" and known is not None and named is not None and named != known


def _is_flagged(update: ProviderUpdate) -> bool:
    return update.moderation is not None and update.moderation.flagged


def _flag_error(update: ProviderUpdate) -> str:
    categories = () if update.moderation is None else update.moderation.categories[:8]
    return error_text("content_policy", "the output was flagged" + "".join(f", {name}" for name in categories))


def _later(known: int | None, reported: int | None) -> int | None:
    if known is None or reported is None:
        return known if reported is None else reported
    return max(known, reported)


def _changes_nothing(progress: tuple[Progress, ...], note: Progress) -> bool:
    if not progress:
        return False
    last = progress[-1]
    return msgspec.structs.replace(note, ts=last.ts, source_ref=last.source_ref) == last


def _clean_usage(usage: ReportedUsage | None) -> ReportedUsage | None:
    """Return the reported usage without values that are impossible or cannot be stored."""
    if usage is None:
        return None

    def count(number: int | None) -> int | None:
        return None if number is None or number < 0 else min(number, UNITS_MAX)

    return ReportedUsage(
        units=count(usage.units),
        unit=clean_word(usage.unit),
        tokens_in=count(usage.tokens_in),
        tokens_out=count(usage.tokens_out),
        provider_cost=clean_word(usage.provider_cost),
        provider_ms=count(usage.provider_ms),
    )
