"""Hosting: from the provider's success to stored outputs and the capture of their charge.

A round of hosting stores every output that is still wanted; what failed is retried in a few more rounds. Then
stored outputs are charged, in part if some are lost, and a task without any goes to review. While our own storage
fails, rounds are repeated until the task's deadline. A round that is never answered (after a crash) is repeated
until its own deadline. Rounds are numbered, so that a late result of one is not taken for the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.ledger.tasks.charge import UNITS_MAX, charge_of
from holdfast.ledger.tasks.events import ASSETS_READY, is_subscribed
from holdfast.ledger.tasks.progress import clean_message, clean_word, error_text, system_note
from holdfast.ledger.tasks.provider_update import Output, ReportedUsage
from holdfast.ledger.tasks.task import HostingState, OutputItem, Progress, Task
from holdfast.ledger.tasks.transitions import (
    Context,
    HostingFailure,
    HostOutputs,
    Step,
    after,
    changed,
    freeze_for_review,
    transition,
    unchanged,
)

OUTPUTS_MAX_COUNT = 64
HOSTING_TRIES_MAX_COUNT = 5
HOSTING_LEASE_S = 60
"""How long a round may stay unanswered before it is repeated."""
HOSTING_BACKOFF_S = 2
HOSTING_BACKOFF_MAX_S = 60
URL_MAX_CHARS = 4096


def numbered(outputs: Sequence[Output]) -> tuple[Output, ...]:
    """Return a provider's outputs in order, ``index`` set to the position, without values JSON cannot store."""
    ordered = sorted(outputs, key=lambda output: output.index)[:OUTPUTS_MAX_COUNT]
    return tuple(
        msgspec.structs.replace(
            output,
            index=position,
            bytes=_valid_count(output.bytes),
            width=_valid_count(output.width),
            height=_valid_count(output.height),
            duration_s=finite_length(output.duration_s),
            url=clean_word(output.url, chars_max=URL_MAX_CHARS),
            data=None if output.data is None else output.data.replace("\x00", ""),
            content_type=clean_word(output.content_type),
            sha256=clean_word(output.sha256),
        )
        for position, output in enumerate(ordered)
    )


def expected_count(task: Task, outputs: Sequence[Output]) -> int:
    """Return how many outputs the customer may expect: those reported, or more if more were ordered."""
    terms = task.request.terms
    ordered = terms.smallest.units if terms.rate.mode == "per_image" else 0
    return max(len(outputs), ordered)


def hosting_of(task: Task, outputs: tuple[Output, ...], all_outputs: Sequence[Output]) -> HostingState:
    """Return the hosting state of newly reported outputs, before the first round."""
    return msgspec.structs.replace(
        task.state.hosting, mode="rehost", wanted=outputs, expected=expected_count(task, all_outputs)
    )


def can_pass_through(task: Task, outputs: Sequence[Output]) -> bool:
    """Whether the terms pass the provider's URLs through and every output has an http or https URL."""
    return task.request.terms.hosting.mode == "passthrough" and all(
        output.url is not None and output.url.startswith(("https://", "http://")) for output in outputs
    )


def begin_round(task: Task, hosting: HostingState, now: datetime) -> tuple[dict[str, Any], HostOutputs]:
    """Return the state changes and the effect of a new round for all wanted outputs."""
    limit_s = task.request.terms.deadlines.hosting_s * max(1, len(hosting.wanted))
    state: dict[str, Any] = {
        "due_at": after(now, HOSTING_LEASE_S),
        "hosting": msgspec.structs.replace(
            hosting, status="transferring", round=hosting.round + 1, deadline_at=after(now, limit_s)
        ),
    }
    return state, HostOutputs(task.request_id, task.state.attempt, hosting.round + 1, hosting.wanted)


def wake_hosting(task: Task, ctx: Context, *, recovering: bool = False) -> Step:
    """Do what is due while outputs are being stored: end a round, begin the next, or repeat the same."""
    state, hosting = task.state, task.state.hosting
    assert hosting.status == "transferring"
    if task.status == "processing" and ctx.now >= task.overall_deadline_at:
        return _give_up(task, hosting, state.output, ctx, trouble="the time for storing is over")
    if hosting.deadline_at is not None and ctx.now >= hosting.deadline_at:
        return _round_failed(task, hosting, state.output, ctx, trouble="storing took too long")
    was_under_way = recovering and hosting.deadline_at is not None
    if not was_under_way and (state.due_at is None or ctx.now < state.due_at):
        return unchanged("ignored")
    if hosting.deadline_at is None:
        changes, effect = begin_round(task, hosting, ctx.now)
        return changed(task, ctx.now, effect, **changes)
    effect = HostOutputs(task.request_id, state.attempt, hosting.round, hosting.wanted)
    return changed(task, ctx.now, effect, due_at=after(ctx.now, HOSTING_LEASE_S, ctx.jitter))


def on_hosted(
    task: Task, attempt: int, round_number: int, results: tuple[OutputItem | HostingFailure, ...], ctx: Context
) -> Step:
    """Record the results of a round of hosting. A round without results has failed.

    ``late``: the task has ended. ``stale``: this is not the newest round, or no round of this attempt is in
    progress. ``duplicate``: no output in it was still wanted.
    """
    if task.is_terminal:
        return unchanged("late")
    hosting = task.state.hosting
    if (attempt, round_number) != (task.state.attempt, hosting.round) or hosting.status != "transferring":
        return unchanged("stale")
    wanted = {output.index: output for output in hosting.wanted}
    by_position = ((each.index if isinstance(each, OutputItem) else each.position, each) for each in results)
    answered = {position: each for position, each in by_position if position in wanted}
    if results and not answered:
        return unchanged("duplicate")
    items, lost, trouble = list(task.state.output), list(hosting.lost), "no answer from the store"
    by_store = False
    for position, result in answered.items():
        if isinstance(result, OutputItem):
            del wanted[position]
            items.append(msgspec.structs.replace(result, duration_s=finite_length(result.duration_s)))
        else:
            trouble = result.message
            by_store |= result.by_store
            if result.final:
                lost.append(wanted.pop(position))
    stored = tuple(sorted(items, key=lambda item: item.index))
    left = msgspec.structs.replace(
        hosting,
        wanted=tuple(wanted.values()),
        lost=tuple(lost),
        error=error_text("hosting_failed", trouble) if len(lost) > len(hosting.lost) else hosting.error,
    )
    if left.wanted and hosting.deadline_at is None:
        # The round has timed out and was counted as a try; what it has stored is used all the same.
        return changed(task, ctx.now, output=stored, hosting=left)
    if left.wanted:
        return _round_failed(task, left, stored, ctx, trouble=trouble, by_store=by_store)
    if not stored:
        return _give_up(task, left, stored, ctx, trouble=trouble)
    return deliver(task, left, stored, ctx, usage=task.state.usage)


def deliver(
    task: Task,
    hosting: HostingState,
    stored: tuple[OutputItem, ...],
    ctx: Context,
    *,
    usage: ReportedUsage | None,
    note: Progress | None = None,
) -> Step:
    """Succeed with the ``stored`` outputs and capture their charge.

    If the provider's report differs from the measurement beyond the tolerance, and the terms require a review, the
    task is frozen for review instead. The retention of all stored outputs begins here, also of those that were
    stored before a review or by an early round.
    """
    assert stored
    expires_at = ctx.now + timedelta(seconds=task.request.terms.hosting.retention_s)
    stored = tuple(
        item if item.asset_id is None else msgspec.structs.replace(item, expires_at=expires_at) for item in stored
    )
    total = max(hosting.expected, len(stored))
    lost_count = total - len(stored)
    units, charge_micro, mismatch = charge_of(
        task.request.terms, task.request.hold_micro, usage, stored, lost_count
    )
    note = note or system_note("succeeded", "hosting", ctx.now, stage="hosting")
    if mismatch is not None:
        text = mismatch if note.message is None else f"{note.message}; {mismatch}"
        note = msgspec.structs.replace(note, message=clean_message(text))
    if mismatch is not None and task.request.terms.on_mismatch == "review" and task.status != "review":
        return _freeze_mismatch(task, hosting, stored, ctx, usage=usage, note=note, mismatch=mismatch)
    passthrough = hosting.mode == "passthrough"
    announced = not passthrough and is_subscribed(task.request, ASSETS_READY)
    cause: Literal["passed_through", "review_approved", "outputs_partly_stored", "outputs_stored"]
    if task.status == "review":
        cause = "review_approved"
    elif passthrough:
        cause = "passed_through"
    else:
        cause = "outputs_partly_stored" if lost_count else "outputs_stored"
    step = transition(
        task,
        cause,
        ctx,
        charge_micro=charge_micro,
        note=note,
        error=error_text("partial", f"{len(stored)} of {total}") if lost_count else None,
        hosting=msgspec.structs.replace(
            hosting,
            status="skipped" if passthrough else "ready",
            final_url_ready=True,
            assets_ready_event="pending" if announced else "skipped",
            error=hosting.error if lost_count else None,
            wanted=(),
            lost=(),
            deadline_at=None,
        ),
        output=stored,
        usage=usage,
        billable_units=units.units,
        tokens_in=units.tokens_in,
        tokens_out=units.tokens_out,
    )
    return msgspec.structs.replace(step, mismatch=mismatch)


def _freeze_mismatch(
    task: Task,
    hosting: HostingState,
    stored: tuple[OutputItem, ...],
    ctx: Context,
    *,
    usage: ReportedUsage | None,
    note: Progress,
    mismatch: str,
) -> Step:
    """Freeze a delivered task for review because report and measurement differ beyond the tolerance."""
    step = freeze_for_review(
        task,
        "usage_mismatch",
        "usage_mismatch",
        ctx,
        error=error_text("usage_mismatch", mismatch),
        note=note,
        # Outputs passed through are passed through again by an approval.
        output=() if hosting.mode == "passthrough" else stored,
        hosting=msgspec.structs.replace(hosting, status="pending", deadline_at=None),
        usage=usage,
    )
    return msgspec.structs.replace(step, mismatch=mismatch)


def _round_failed(
    task: Task,
    hosting: HostingState,
    stored: tuple[OutputItem, ...],
    ctx: Context,
    *,
    trouble: str,
    by_store: bool = False,
) -> Step:
    """Begin another round after a pause, or give up after the last.

    One that failed ``by_store`` is not counted, except in review, where an operator waits for the result.
    """
    is_counted = task.status == "review" or not by_store
    tries = hosting.tries + is_counted
    hosting = msgspec.structs.replace(hosting, tries=tries)
    if is_counted and tries >= HOSTING_TRIES_MAX_COUNT:
        return _give_up(task, hosting, stored, ctx, trouble=trouble)
    failures = tries if is_counted else min(hosting.round, HOSTING_TRIES_MAX_COUNT)
    pause_s = min(HOSTING_BACKOFF_MAX_S, HOSTING_BACKOFF_S * 4 ** (failures - 1))
    return changed(
        task,
        ctx.now,
        note=system_note("processing", "hosting", ctx.now, stage="hosting", message=f"will be retried: {trouble}"),
        due_at=after(ctx.now, pause_s, ctx.jitter),
        output=stored,
        hosting=msgspec.structs.replace(hosting, error=error_text("hosting_failed", trouble), deadline_at=None),
    )


def _give_up(
    task: Task, hosting: HostingState, stored: tuple[OutputItem, ...], ctx: Context, *, trouble: str
) -> Step:
    """Deliver what is stored; without any stored output freeze the task for review."""
    error = error_text("hosting_failed", trouble)
    hosting = msgspec.structs.replace(hosting, error=error)
    if stored:
        return deliver(task, hosting, stored, ctx, usage=task.state.usage)
    # The outputs stay wanted, so that an operator's approval can retry them.
    outputs = sorted((*hosting.wanted, *hosting.lost), key=lambda output: output.index)
    hosting = msgspec.structs.replace(
        hosting, status="failed", wanted=tuple(outputs), lost=(), tries=0, deadline_at=None
    )
    note = system_note("failed", "hosting", ctx.now, stage="review", message=trouble)
    if task.status == "review":
        assert task.state.review is not None
        review = msgspec.structs.replace(task.state.review, decision="capture_blocked")
        return changed(task, ctx.now, note=note, review=review, error=error, hosting=hosting, due_at=None)
    return freeze_for_review(
        task, "outputs_unstorable", "hosting_failed", ctx, error=error, note=note, hosting=hosting
    )


def finite_length(length_s: float | None) -> float | None:
    """Return a length in seconds, or None if JSON cannot represent it or it is negative."""
    return length_s if length_s is not None and math.isfinite(length_s) and length_s >= 0 else None


def _valid_count(number: int | None) -> int | None:
    return number if number is not None and 0 <= number <= UNITS_MAX else None
