"""Tasks of a provider that does not answer: how long they wait for it, and the texts of their errors.

While the provider answers no submission, a task that was not yet submitted waits as long as a submission may take;
while it accepts jobs but sends no update about them, as long as a job may run.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from holdfast.ledger.tasks.dispatch import fail
from holdfast.ledger.tasks.task import ErrorCode, Task
from holdfast.ledger.tasks.transitions import Context, Step, unchanged

Unanswered = Literal["submissions", "updates"]


class Silence(msgspec.Struct, frozen=True):
    """A kind of request that a provider does not answer, and for how many seconds it has not."""

    of: Unanswered
    seconds: float


def on_silence(task: Task, silence: Silence, ctx: Context) -> Step:
    """Fail a task that was not yet submitted if its provider has been silent for as long as the task may wait."""
    deadlines = task.request.terms.deadlines
    limit_s = deadlines.dispatch_s if silence.of == "submissions" else deadlines.run_s
    waited_s = min(silence.seconds, (ctx.now - task.created_at).total_seconds())
    if task.is_terminal or task.state.dispatch != "none" or task.state.attempt or waited_s < limit_s:
        return unchanged("ignored")
    text = f"the provider has answered no {_UNANSWERED[silence.of]} for {silence.seconds:.0f} s"
    code: ErrorCode = "provider_unavailable" if silence.of == "submissions" else "provider_timeout"
    return fail(task, "never_sent", text, ctx, code=code, what="silence")


_UNANSWERED = {"submissions": "submission", "updates": "poll of a job"}


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
