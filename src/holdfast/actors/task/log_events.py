"""The events in a task's life that operators see in the log: submitted, in review, ended.

That it was created is an event of its account."""

from __future__ import annotations

from holdfast.actors.runtime.turns import LogEvent
from holdfast.ledger.tasks.task import Task


def log_event_of(before: Task, after: Task) -> LogEvent | None:
    """Return the event that a step is, if it is one."""
    if after.is_terminal and not before.is_terminal:
        return _event(
            f"task {after.status}",
            after,
            attempt=after.state.attempt or None,
            charge_micro=after.state.cost_micro,
            latency_ms=after.latency_ms,
            error=after.state.error,
        )
    if after.status == "review" != before.status:
        review = after.state.review
        return _event("task in review", after, reason=None if review is None else review.reason)
    if after.state.dispatch == "acked" and (before.state.dispatch, before.state.attempt) != (
        "acked",
        after.state.attempt,
    ):
        return _event("task submitted", after, attempt=after.state.attempt)
    return None


def _event(event: str, task: Task, **fields: str | int | None) -> LogEvent:
    about = {"task_id": task.request_id, "account_id": task.account_id, "provider": task.provider}
    return LogEvent(event, {**about, **fields})
