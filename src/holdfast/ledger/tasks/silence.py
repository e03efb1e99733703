"""Tasks of a provider that does not answer: how long they wait for it, and what their errors say.

A task that waits for a place is not yet the provider's. While the provider takes no submission at all it waits no
longer than a submission may; while the provider takes jobs and tells nothing of them, no longer than a job may run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from holdfast.ledger.tasks.dispatch import fail
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.tasks.transitions import Step, unchanged

Asked = Literal["submissions", "news"]


@dataclass(frozen=True, slots=True)
class Silence:
    """What a provider does not answer, and for how long it has not."""

    of: Asked
    seconds: float


def on_silence(task: Task, silence: Silence, now: datetime, *, operation_id: str) -> Step:
    """End the waiting of a task whose provider has been silent for as long as the task may wait for it."""
    deadlines = task.request.terms.deadlines
    limit_s = deadlines.dispatch_s if silence.of == "submissions" else deadlines.run_s
    waited_s = min(silence.seconds, (now - task.created_at).total_seconds())
    if task.is_terminal or task.state.dispatch != "none" or task.state.attempt or waited_s < limit_s:
        return unchanged("ignored")
    return fail(
        task,
        "never_sent",
        "provider_unavailable" if silence.of == "submissions" else "provider_timeout",
        f"the provider has answered no {_ASKED[silence.of]} for {silence.seconds:.0f} s",
        now,
        operation_id=operation_id,
        what="silence",
        cancel=False,
    )


_ASKED = {"submissions": "submission", "news": "question about a job"}


def overdue_text(task: Task, now: datetime) -> str:
    """Why a job that the provider took is given up."""
    state, deadlines = task.state, task.request.terms.deadlines
    told_at = state.last_news_at
    if told_at is not None and (now - told_at).total_seconds() <= 2 * deadlines.silence_s:
        return "the job was not finished in time"
    if told_at is None:
        return f"the job was not finished in time; no news of it within {deadlines.run_s} s"
    return f"the job was not finished in time; no news of it for {(now - told_at).total_seconds():.0f} s"


def never_taken_text(task: Task) -> str:
    """Why a job that was never sent is given up."""
    if not task.state.attempt:
        return "the provider could not be reached in time: no place came free"
    limit_s = task.request.terms.deadlines.dispatch_s
    return f"the provider could not be reached in time: no submission was taken within {limit_s} s"


def unresolved_text(task: Task) -> str:
    """Why a job that may have been sent is given up."""
    limit_s = task.request.terms.deadlines.dispatch_s
    return f"it is not known whether the provider took the job: no answer within {limit_s} s"
