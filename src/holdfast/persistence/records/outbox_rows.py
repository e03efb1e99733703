"""The rows of events for customers; they are written like all :mod:`holdfast.persistence.records.rows`."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple


class OutboxRow(NamedTuple):
    """A new event. ``snapshot`` is the task as it was, as JSON text; ``attempts`` counts all deliveries begun.

    A round starts with the event, and again each time it is resent; ``tries`` counts the deliveries of a round.
    """

    account_id: str
    event_id: str
    request_id: str
    kind: str
    url: str
    created_at: datetime
    due_at: datetime | None
    status: str
    attempts: int
    round_at: datetime
    tries: int
    snapshot: str


class OutboxOutcomeRow(NamedTuple):
    """An event after attempt number ``attempts``; void if another attempt or round has begun since."""

    account_id: str
    event_id: str
    attempts: int
    round_at: datetime
    due_at: datetime | None
    status: str
    done_at: datetime | None
    reason: str | None


class OutboxResendRow(NamedTuple):
    """An event to be resent: a new round, due at once."""

    account_id: str
    event_id: str
    due_at: datetime | None
    status: str
    round_at: datetime
    tries: int
    done_at: datetime | None
    reason: str | None


class OutboxAttemptRow(NamedTuple):
    """One delivery and its outcome: the receiver's status, or in ``error`` why there was none."""

    account_id: str
    event_id: str
    number: int
    at: datetime
    status_code: int | None
    error: str | None
    duration_ms: int


class WebhookSecretRow(NamedTuple):
    """The next generation of an account's webhook secret."""

    account_id: str
    generation: int
    rotated_at: datetime
