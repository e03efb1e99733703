"""The log events of tasks contain no secret that a provider quotes."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace
from tests.persistence.values import make_task

from holdfast.actors.task.actor import log_event_of


def test_the_words_of_a_provider_are_scrubbed_before_they_are_logged() -> None:
    task = make_task("acct_1", "task_1", datetime(2026, 11, 20, tzinfo=UTC))
    said = "invalid_upstream_input: the provider answered 422: api_key=abcdef0123 of ann@example.com"
    failed = replace(task, status="failed", wake_at=None, state=replace(task.state, error=said))
    event = log_event_of(task, failed)
    assert event is not None
    assert event.fields["error"] == "invalid_upstream_input: the provider answered 422: api_key=*** of ***"
