"""Hearing from the provider: callbacks that come late, twice, or in the wrong order, and answers to polls.

News ranks by what it tells: queued, then processing, then an end. News of a lower rank than what is known, or
behind it in sequence, adds a line of progress at most. News of another attempt is fenced off. Once a task has
ended, no news moves it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from holdfast.ledger.tasks.charge import UNITS_MAX
from holdfast.ledger.tasks.dispatch import ATTEMPTS_MAX_COUNT, PROVIDER_REF_MAX_CHARS, acknowledged, fail, submit
from holdfast.ledger.tasks.hosting import begin_round, can_pass_through, deliver, hosting_of, numbered
from holdfast.ledger.tasks.progress import callback_ref, clean_word, error_text, note_of, raised_percent
from holdfast.ledger.tasks.provider_update import Output, ProviderUpdate, ReportedUsage, UpdateStatus
from holdfast.ledger.tasks.silence import overdue_text
from holdfast.ledger.tasks.task import ErrorCode, HostingState, OutputItem, Progress, Task
from holdfast.ledger.tasks.transitions import (
    CancelJob,
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


def on_update(task: Task, news: ProviderUpdate, now: datetime, *, operation_id: str) -> Step:
    """Hear verified news of a task. ``operation_id`` names the settlement, if the news brings one.

    ``ignored``: it is about another task or job, or from another provider. ``duplicate``: this event was heard
    before. ``stale``: it is about another attempt. ``late``: something later is known already. The last two are
    kept as progress.
    """
    if news.request_id != task.request_id or news.provider != task.provider:
        return unchanged("ignored")
    source_ref = callback_ref(news.event_id) if news.source == "callback" else f"poll:{task.state.poll_count}"
    if news.source == "callback" and any(note.source_ref == source_ref for note in task.state.progress):
        return unchanged("duplicate")
    if news.attempt != task.state.attempt or task.state.attempt == 0:
        return _apply_stale(task, news, source_ref, now)
    if _is_of_another_job(task, news):
        return unchanged("ignored")
    if task.is_terminal:
        return _apply_late(task, news, source_ref, now)
    if task.status == "review":
        return _noted(task, news, source_ref, now)
    if task.state.hosting.status == "transferring":
        if news.status in {"failed", "canceled"}:
            return _contradicted(task, news, source_ref, now)
        return _noted(task, news, source_ref, now)
    match news.status:
        case "queued" | "processing":
            return _apply_running(task, news, source_ref, now)
        case "succeeded":
            return _apply_success(task, news, source_ref, now, operation_id)
        case "failed" | "canceled":
            return _apply_failure(task, news, source_ref, now, operation_id)


def on_poll(
    task: Task,
    news: ProviderUpdate | None,
    now: datetime,
    *,
    attempt: int,
    traits: ProviderTraits,
    operation_id: str,
    jitter: float = 0.0,
) -> Step:
    """Hear the answer to a poll of ``attempt``; None: the provider does not know the job.

    A lost job is given anew, as a new attempt, where a submit is idempotent; elsewhere the deadline decides. The
    answer to the last poll decides for good.
    """
    state = task.state
    if task.is_terminal or task.status == "review" or state.hosting.status == "transferring":
        return unchanged("late")
    if attempt != state.attempt or state.dispatch != "acked":
        return unchanged("stale")
    if news is not None:
        step = on_update(task, news, now, operation_id=operation_id)
        if not state.final_poll or _is_decided(step.task):
            return step
    if state.final_poll:
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
    if not traits.idempotent_submit:
        return unchanged("ignored")
    if state.attempt >= ATTEMPTS_MAX_COUNT:
        text = "the provider lost the job"
        return fail(
            task, "job_lost", "provider_error", text, now, operation_id=operation_id, what="poll", cancel=False
        )
    return submit(task, now, new_attempt=True, jitter=jitter)


def poll(task: Task, provider_ref: str | None, now: datetime, *, jitter: float = 0.0, last: bool = False) -> Step:
    """Ask the provider how the job stands, and again after a while should no answer come."""
    state = task.state
    ask = PollJob(task.request_id, state.attempt, provider_ref, last=last)
    due_at = after(now, task.request.terms.deadlines.silence_s, jitter)
    return changed(task, now, ask, poll_count=state.poll_count + 1, due_at=due_at, final_poll=last)


def _is_decided(task: Task | None) -> bool:
    """The step ended the task, froze it, or found its outputs."""
    return task is not None and (
        task.is_terminal or task.status == "review" or task.state.hosting.status == "transferring"
    )


def _apply_stale(task: Task, news: ProviderUpdate, source_ref: str, now: datetime) -> Step:
    """An earlier attempt speaks. If its job still runs it is a stray, and is stopped."""
    effects: tuple[Effect, ...] = ()
    if news.provider_ref and news.attempt < task.state.attempt and _RANK[news.status] < _RANK["succeeded"]:
        effects = (CancelJob(task.request_id, news.attempt, news.provider_ref),)
    note = note_of(news, status="stale", source_ref=source_ref, percent=None, at=now)
    return changed(task, now, *effects, verdict="stale", note=note)


def _apply_late(task: Task, news: ProviderUpdate, source_ref: str, now: datetime) -> Step:
    """The task has ended. A running job that was unknown until now is stopped, once."""
    changes: dict[str, Any] = {}
    effects: tuple[Effect, ...] = ()
    ref = clean_word(news.provider_ref, chars_max=PROVIDER_REF_MAX_CHARS)
    if ref is not None and task.state.provider_ref is None and _RANK[news.status] < _RANK["succeeded"]:
        changes["provider_ref"] = ref
        effects = (CancelJob(task.request_id, news.attempt, ref),)
    note = note_of(news, status="late", source_ref=source_ref, percent=None, at=now)
    return changed(task, now, *effects, verdict="late", note=note, **changes)


def _noted(task: Task, news: ProviderUpdate, source_ref: str, now: datetime, **changes: Any) -> Step:
    note = note_of(news, status="late", source_ref=source_ref, percent=None, at=now)
    return changed(task, now, verdict="late", note=note, **changes)


def _apply_running(task: Task, news: ProviderUpdate, source_ref: str, now: datetime) -> Step:
    state = task.state
    arrived = acknowledged(task, news.provider_ref, now)
    known_rank = _RANK["processing"] if task.status == "processing" else _RANK["queued"]
    rank = _RANK[news.status]
    overtaken = (
        news.sequence is not None and state.last_sequence is not None and news.sequence <= state.last_sequence
    )
    if rank < known_rank or (rank == known_rank and overtaken):
        return _noted(task, news, source_ref, now, **arrived)
    percent = raised_percent(state.percent, news.percent)
    note = note_of(
        news,
        status="processing" if news.status == "processing" else "queued",
        source_ref=source_ref,
        percent=None if news.percent is None else percent,
        at=now,
    )
    if news.source == "poll" and not arrived and rank == known_rank and _changes_nothing(state.progress, note):
        return unchanged("duplicate")
    changes = arrived | {
        "last_news_at": now,
        "percent": percent,
        "flagged": state.flagged or _is_flagged(news),
        "last_sequence": _later(state.last_sequence, news.sequence),
    }
    if not state.final_poll:
        changes["due_at"] = after(now, task.request.terms.deadlines.silence_s)
    if news.status == "processing" and task.status == "queued":
        return transition(task, "provider_running", now, note=note, **changes)
    return changed(task, now, note=note, **changes)


def _apply_success(task: Task, news: ProviderUpdate, source_ref: str, now: datetime, operation_id: str) -> Step:
    state = task.state
    flagged = state.flagged or _is_flagged(news)
    outputs = numbered(news.outputs)
    percent = raised_percent(state.percent, news.percent)
    note = note_of(
        news, status="succeeded", source_ref=source_ref, percent=None if news.percent is None else percent, at=now
    )
    arrived = acknowledged(task, news.provider_ref, now)
    if not outputs and not flagged:
        ref = arrived.get("provider_ref", state.provider_ref)
        if news.source == "callback" and isinstance(ref, str):
            # A callback is a hint: the outputs may be had by asking.
            ask = PollJob(task.request_id, state.attempt, ref, last=state.final_poll)
            return changed(
                task,
                now,
                ask,
                note=note,
                **(arrived | {"poll_count": state.poll_count + 1, "last_news_at": now, "percent": percent}),
            )
        error = error_text("provider_error", "the provider finished without any output")
        return transition(task, "provider_failed", now, operation_id=operation_id, error=error, note=note)
    changes = arrived | {
        "percent": percent,
        "last_news_at": now,
        "flagged": flagged,
        "last_sequence": _later(state.last_sequence, news.sequence),
        "provider_done_at": now,
        "usage": _clean_usage(news.usage),
        "final_poll": False,
    }
    hosting = hosting_of(task, outputs, news.outputs)
    if flagged:
        error = _flag_error(news)
        if not outputs:
            return transition(task, "provider_failed", now, operation_id=operation_id, error=error, note=note)
        del changes["final_poll"]
        changes.pop("due_at", None)
        return freeze_for_review(
            task, "output_flagged", "content_flagged", now, error=error, note=note, hosting=hosting, **changes
        )
    if can_pass_through(task, outputs):
        heard = msgspec.structs.replace(task, state=msgspec.structs.replace(state, **changes))
        return deliver(
            heard,
            msgspec.structs.replace(hosting, mode="passthrough"),
            passed_through(outputs),
            now,
            operation_id=operation_id,
            usage=heard.state.usage,
            note=note,
        )
    round_changes, effect = begin_round(task, hosting, now)
    return transition(task, "provider_succeeded", now, effect, note=note, **(changes | round_changes))


def passed_through(outputs: tuple[Output, ...]) -> tuple[OutputItem, ...]:
    """The provider's own outputs as the task's, with the provider's claims about them."""
    return tuple(
        OutputItem(
            position=output.index,
            url=output.url,
            sha256=output.sha256,
            bytes=output.bytes,
            content_type=output.content_type,
            width=output.width,
            height=output.height,
            duration_s=output.duration_s,
            size_claimed=True,
            duration_claimed=True,
        )
        for output in outputs
    )


def _apply_failure(task: Task, news: ProviderUpdate, source_ref: str, now: datetime, operation_id: str) -> Step:
    told = news.error
    text = None if told is None else told.message or told.code
    code: ErrorCode
    if news.status == "canceled":
        code = "canceled_by_provider"
    elif task.state.flagged or _is_flagged(news) or (told is not None and told.code in _CONTENT_CODES):
        code = "content_policy"
    elif told is not None and told.code in _INPUT_CODES:
        code = "invalid_upstream_input"
    else:
        code = "provider_error"
    return transition(
        task,
        "provider_canceled" if news.status == "canceled" else "provider_failed",
        now,
        operation_id=operation_id,
        error=error_text(code, text or news.message),
        note=note_of(
            news,
            status="canceled" if news.status == "canceled" else "failed",
            source_ref=source_ref,
            percent=None,
            at=now,
        ),
        last_news_at=now,
        provider_done_at=now,
    )


def _contradicted(task: Task, news: ProviderUpdate, source_ref: str, now: datetime) -> Step:
    """First a success, now a failure: a person decides which to believe."""
    hosting: HostingState = msgspec.structs.replace(task.state.hosting, status="pending", deadline_at=None)
    note = note_of(news, status="late", source_ref=source_ref, percent=None, at=now)
    error = error_text("provider_error", f"the provider told of success and then that the job has {news.status}")
    return freeze_for_review(
        task, "provider_conflict", "provider_conflict", now, error=error, note=note, hosting=hosting
    )


def _is_of_another_job(task: Task, news: ProviderUpdate) -> bool:
    """A callback whose job is not the one that this attempt is known to be, however it came here."""
    told = clean_word(news.provider_ref, chars_max=PROVIDER_REF_MAX_CHARS)
    known = task.state.provider_ref
    return news.source == "callback" and known is not None and told is not None and told != known


def _is_flagged(news: ProviderUpdate) -> bool:
    return news.moderation is not None and news.moderation.flagged


def _flag_error(news: ProviderUpdate) -> str:
    categories = () if news.moderation is None else news.moderation.categories[:8]
    return error_text("content_policy", "the output was flagged" + "".join(f", {name}" for name in categories))


def _later(known: int | None, told: int | None) -> int | None:
    if known is None or told is None:
        return known if told is None else told
    return max(known, told)


def _changes_nothing(progress: tuple[Progress, ...], note: Progress) -> bool:
    if not progress:
        return False
    last = progress[-1]
    return msgspec.structs.replace(note, ts=last.ts, source_ref=last.source_ref) == last


def _clean_usage(usage: ReportedUsage | None) -> ReportedUsage | None:
    """The provider's measure without what cannot be true or cannot be stored."""
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
