"""The events of a task that are logged: submitted, in review, ended. Its account's actor logs its creation."""

from __future__ import annotations

from holdfast.actors.runtime.turns import LogEvent
from holdfast.ledger.tasks.task import Task
from holdfast.telemetry.scrubbing import scrub


def log_event_of(before: Task, after: Task) -> LogEvent | None:
    """Return the event to log for a change of a task, or None if the change is not logged."""
    if after.is_terminal and not before.is_terminal:
        return _event(
            f"task {after.status}",
            after,
            attempt=after.state.attempt or None,
            charge_micro=after.state.cost_micro,
            latency_ms=after.latency_ms,
            # It may quote a provider's own words.
            error=after.state.error and scrub(after.state.error),
        )
    if after.status == "review" and before.status != "review":
        review = after.state.review
        return _event("task in review", after, reason=None if review is None else review.reason)
    was_acked = before.state.dispatch == "acked" and before.state.attempt == after.state.attempt
    if after.state.dispatch == "acked" and not was_acked:
        return _event("task submitted", after, attempt=after.state.attempt)
    return None


def _event(event: str, task: Task, **fields: str | int | None) -> LogEvent:
    about = {"task_id": task.request_id, "account_id": task.account_id, "provider": task.provider}
    return LogEvent(event, {**about, **fields})
