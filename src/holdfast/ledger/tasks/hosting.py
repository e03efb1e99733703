"""Keeping the outputs: from the provider's success to stored assets and the capture that stands on them.

A round of hosting asks for every output still wanted. What is stored stays stored; what failed is asked for
again, a few rounds long. Then what is there decides: all of it is charged, a part of it in part, nothing of it
goes to review. A round nobody answers (a crash) is repeated, and bounded by a deadline of its own. Rounds are
numbered: the late end of one says nothing about the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.ledger.tasks.charge import UNITS_MAX, charge_of
from holdfast.ledger.tasks.events import ASSETS_READY, listens_to
from holdfast.ledger.tasks.progress import clean_message, clean_word, error_text, system_note
from holdfast.ledger.tasks.provider_update import Output, ReportedUsage
from holdfast.ledger.tasks.task import HostingState, OutputItem, Progress, Task
from holdfast.ledger.tasks.transitions import (
    HostedOutput,
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
"""How long a round may stay unanswered before it is asked for again."""
HOSTING_BACKOFF_S = 2
HOSTING_BACKOFF_MAX_S = 60
URL_MAX_CHARS = 4096


def numbered(outputs: Sequence[Output]) -> tuple[Output, ...]:
    """A provider's outputs in its order, ``index`` made the position, without what cannot be stored in JSON."""
    ordered = sorted(outputs, key=lambda output: output.index)[:OUTPUTS_MAX_COUNT]
    return tuple(
        msgspec.structs.replace(
            output,
            index=position,
            bytes=_sane(output.bytes),
            width=_sane(output.width),
            height=_sane(output.height),
            duration_s=sane_length(output.duration_s),
            url=clean_word(output.url, chars_max=URL_MAX_CHARS),
            data=None if output.data is None else output.data.replace("\x00", ""),
            content_type=clean_word(output.content_type),
            sha256=clean_word(output.sha256),
        )
        for position, output in enumerate(ordered)
    )


def expected_count(task: Task, outputs: Sequence[Output]) -> int:
    """How many outputs the customer may expect: what the provider made, or more where more were ordered."""
    terms = task.request.terms
    ordered = terms.smallest.units if terms.rate.mode == "per_image" else 0
    return max(len(outputs), ordered)


def hosting_of(task: Task, outputs: tuple[Output, ...], all_outputs: Sequence[Output]) -> HostingState:
    """The hosting of freshly reported outputs, not begun yet."""
    return msgspec.structs.replace(
        task.state.hosting, mode="rehost", wanted=outputs, expected=expected_count(task, all_outputs)
    )


def can_pass_through(task: Task, outputs: Sequence[Output]) -> bool:
    """The terms hand on the provider's URLs and every output has one a browser may open."""
    return task.request.terms.hosting.mode == "passthrough" and all(
        output.url is not None and output.url.startswith(("https://", "http://")) for output in outputs
    )


def begin_round(task: Task, hosting: HostingState, now: datetime) -> tuple[dict[str, Any], HostOutputs]:
    """The state changes and the effect of a new round for everything wanted."""
    limit_s = task.request.terms.deadlines.hosting_s * max(1, len(hosting.wanted))
    state: dict[str, Any] = {
        "due_at": after(now, HOSTING_LEASE_S),
        "hosting": msgspec.structs.replace(
            hosting, status="transferring", round=hosting.round + 1, deadline_at=after(now, limit_s)
        ),
    }
    return state, HostOutputs(task.request_id, task.state.attempt, hosting.round + 1, hosting.wanted)


def wake_hosting(task: Task, now: datetime, *, operation_id: str, jitter: float, recovering: bool = False) -> Step:
    """What is due while outputs are being stored: the end of a round, the next round, or the same one again."""
    state, hosting = task.state, task.state.hosting
    assert hosting.status == "transferring"
    if task.status == "processing" and now >= state.overall_deadline_at:
        return _give_up(
            task, hosting, state.output, now, operation_id=operation_id, trouble="the time for storing is over"
        )
    if hosting.deadline_at is not None and now >= hosting.deadline_at:
        return _round_failed(
            task,
            hosting,
            state.output,
            now,
            operation_id=operation_id,
            jitter=jitter,
            trouble="storing took too long",
        )
    was_under_way = recovering and hosting.deadline_at is not None
    if not was_under_way and (state.due_at is None or now < state.due_at):
        return unchanged("ignored")
    if hosting.deadline_at is None:
        changes, effect = begin_round(task, hosting, now)
        return changed(task, now, effect, **changes)
    effect = HostOutputs(task.request_id, state.attempt, hosting.round, hosting.wanted)
    return changed(task, now, effect, due_at=after(now, HOSTING_LEASE_S, jitter))


def on_hosted(
    task: Task,
    attempt: int,
    round_number: int,
    results: tuple[HostedOutput | HostingFailure, ...],
    now: datetime,
    *,
    operation_id: str,
    jitter: float = 0.0,
) -> Step:
    """Hear how a round of hosting went. No results at all count as a round that failed.

    ``late``: the task has ended. ``stale``: this round is not the newest one, or none of this attempt is under way.
    ``duplicate``: nothing in it was still wanted.
    """
    if task.is_terminal:
        return unchanged("late")
    hosting = task.state.hosting
    if (attempt, round_number) != (task.state.attempt, hosting.round) or hosting.status != "transferring":
        return unchanged("stale")
    wanted = {output.index: output for output in hosting.wanted}
    if results and not any(result.position in wanted for result in results):
        return unchanged("duplicate")
    items, lost, trouble = list(task.state.output), list(hosting.lost), "no answer from the store"
    for result in results:
        if result.position not in wanted:
            continue
        if isinstance(result, HostedOutput):
            del wanted[result.position]
            items.append(_item(result))
        else:
            trouble = result.message
            if result.final:
                lost.append(wanted.pop(result.position))
    stored = tuple(sorted(items, key=lambda item: item.position))
    left = msgspec.structs.replace(
        hosting,
        wanted=tuple(wanted.values()),
        lost=tuple(lost),
        error=error_text("hosting_failed", trouble) if len(lost) > len(hosting.lost) else hosting.error,
    )
    if left.wanted and hosting.deadline_at is None:
        # The round was given up for its time, and has counted as a try; what it brought after all is kept.
        return changed(task, now, output=stored, hosting=left)
    if left.wanted:
        return _round_failed(task, left, stored, now, operation_id=operation_id, jitter=jitter, trouble=trouble)
    if not stored:
        return _give_up(task, left, stored, now, operation_id=operation_id, trouble=trouble)
    return deliver(task, left, stored, now, operation_id=operation_id, usage=task.state.usage)


def deliver(
    task: Task,
    hosting: HostingState,
    stored: tuple[OutputItem, ...],
    now: datetime,
    *,
    operation_id: str,
    usage: ReportedUsage | None,
    note: Progress | None = None,
) -> Step:
    """End the task as succeeded with ``stored``, and capture what they cost.

    Where the provider's report differs widely from what was measured, and the terms want a person to look at it,
    the task is frozen for review instead.

    The time that stored results are kept begins here: what was stored long ago, before a review or by an early
    round, is paid for now and can be fetched as long as the rest.
    """
    assert stored
    kept_until = now + timedelta(seconds=task.request.terms.hosting.retention_s)
    stored = tuple(
        item if item.asset_id is None else msgspec.structs.replace(item, expires_at=kept_until) for item in stored
    )
    total = max(hosting.expected, len(stored))
    lost_count = total - len(stored)
    units, charge_micro, mismatch = charge_of(
        task.request.terms, task.request.hold_micro, usage, stored, lost_count
    )
    note = note or system_note("succeeded", "hosting", now, stage="hosting")
    if mismatch is not None:
        said = mismatch if note.message is None else f"{note.message}; {mismatch}"
        note = msgspec.structs.replace(note, message=clean_message(said))
    if mismatch is not None and task.request.terms.on_mismatch == "review" and task.status != "review":
        return _disputed(task, hosting, stored, now, usage=usage, note=note, mismatch=mismatch)
    passthrough = hosting.mode == "passthrough"
    announced = not passthrough and listens_to(task.request, ASSETS_READY)
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
        now,
        operation_id=operation_id,
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
    return replace(step, mismatch=mismatch)


def _disputed(
    task: Task,
    hosting: HostingState,
    stored: tuple[OutputItem, ...],
    now: datetime,
    *,
    usage: ReportedUsage | None,
    note: Progress,
    mismatch: str,
) -> Step:
    """Everything is there, but report and measure are far apart: a person looks before anything is charged."""
    step = freeze_for_review(
        task,
        "usage_mismatch",
        "usage_mismatch",
        now,
        error=error_text("usage_mismatch", mismatch),
        note=note,
        # What is handed on is handed on again when it is approved.
        output=() if hosting.mode == "passthrough" else stored,
        hosting=msgspec.structs.replace(hosting, status="pending", deadline_at=None),
        usage=usage,
    )
    return replace(step, mismatch=mismatch)


def _round_failed(
    task: Task,
    hosting: HostingState,
    stored: tuple[OutputItem, ...],
    now: datetime,
    *,
    operation_id: str,
    jitter: float,
    trouble: str,
) -> Step:
    """Another round after a pause, or the end of trying."""
    tries = hosting.tries + 1
    hosting = msgspec.structs.replace(hosting, tries=tries)
    if tries >= HOSTING_TRIES_MAX_COUNT:
        return _give_up(task, hosting, stored, now, operation_id=operation_id, trouble=trouble)
    pause_s = min(HOSTING_BACKOFF_MAX_S, HOSTING_BACKOFF_S * 4 ** (tries - 1))
    return changed(
        task,
        now,
        note=system_note("processing", "hosting", now, stage="hosting", message=f"will try again: {trouble}"),
        due_at=after(now, pause_s, jitter),
        output=stored,
        hosting=msgspec.structs.replace(hosting, error=error_text("hosting_failed", trouble), deadline_at=None),
    )


def _give_up(
    task: Task,
    hosting: HostingState,
    stored: tuple[OutputItem, ...],
    now: datetime,
    *,
    operation_id: str,
    trouble: str,
) -> Step:
    """No more rounds: deliver what is stored, or have nothing stored looked at by a person."""
    error = error_text("hosting_failed", trouble)
    hosting = msgspec.structs.replace(hosting, error=error)
    if stored:
        return deliver(task, hosting, stored, now, operation_id=operation_id, usage=task.state.usage)
    # What was wanted is kept, so that an operator can have it tried once more.
    outputs = sorted((*hosting.wanted, *hosting.lost), key=lambda output: output.index)
    hosting = msgspec.structs.replace(
        hosting, status="failed", wanted=tuple(outputs), lost=(), tries=0, deadline_at=None
    )
    note = system_note("failed", "hosting", now, stage="review", message=trouble)
    if task.status == "review":
        assert task.state.review is not None
        review = msgspec.structs.replace(task.state.review, decision="capture_blocked")
        return changed(task, now, note=note, review=review, error=error, hosting=hosting, due_at=None)
    return freeze_for_review(
        task, "outputs_unstorable", "hosting_failed", now, error=error, note=note, hosting=hosting
    )


def sane_length(length_s: float | None) -> float | None:
    """A length in seconds, or None: JSON has no word for a number that is not finite."""
    return length_s if length_s is not None and math.isfinite(length_s) and length_s >= 0 else None


def _sane(number: int | None) -> int | None:
    return number if number is not None and 0 <= number <= UNITS_MAX else None


def _item(hosted: HostedOutput) -> OutputItem:
    return OutputItem(
        position=hosted.position,
        asset_id=hosted.asset_id,
        sha256=hosted.sha256,
        bytes=hosted.bytes,
        content_type=hosted.content_type,
        width=hosted.width,
        height=hosted.height,
        duration_s=sane_length(hosted.duration_s),
        expires_at=hosted.expires_at,
        size_claimed=hosted.size_claimed,
        duration_claimed=hosted.duration_claimed,
    )
