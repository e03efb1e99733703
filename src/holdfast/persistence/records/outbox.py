"""Rows of events for customers' webhooks, of their deliveries, and of the webhook secrets' rotations."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from holdfast.ledger.ids import new_id
from holdfast.ledger.tasks.events import events_of, public_snapshot
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.records import tables
from holdfast.persistence.records.mapping import fields_of
from holdfast.persistence.records.row_types import OutboxAttemptRow, WebhookSecretRow


class OutboxRow(msgspec.Struct, frozen=True, tag=True):
    """A new event. ``snapshot`` is the task at the time of the event.

    ``attempts`` counts all its delivery attempts, ``tries`` those since ``round_at``, when it was created or last
    resent.
    """

    account_id: str
    event_id: str
    request_id: str
    kind: str
    url: str
    created_at: datetime
    due_at: datetime | None
    round_at: datetime
    snapshot: Task
    status: str = "pending"
    attempts: int = 0
    tries: int = 0


class OutboxOutcomeRow(msgspec.Struct, frozen=True, tag=True):
    """The result of attempt number ``attempts``; void if another attempt or a resend has begun since."""

    account_id: str
    event_id: str
    attempts: int
    round_at: datetime
    due_at: datetime | None
    status: str
    done_at: datetime | None
    reason: str | None


class OutboxResendRow(NamedTuple):
    """An event to be resent, due immediately: ``tries`` starts again from zero."""

    account_id: str
    event_id: str
    due_at: datetime | None
    round_at: datetime
    status: str = "pending"
    tries: int = 0
    done_at: datetime | None = None
    reason: str | None = None


EVENTS = fields_of(tables.outbox, OutboxRow)
DELIVERY_OUTCOMES = fields_of(tables.outbox, OutboxOutcomeRow)
RESENT_EVENTS = fields_of(tables.outbox, OutboxResendRow)
DELIVERY_ATTEMPTS = fields_of(tables.outbox_attempts, OutboxAttemptRow)
WEBHOOK_SECRETS = fields_of(tables.webhook_secrets, WebhookSecretRow)


def new_event_rows(before: Task, after: Task) -> tuple[OutboxRow, ...]:
    """Return the events of a task's transition, due immediately. An event has the same id at every delivery."""
    kinds = events_of(before, after)
    if not kinds:
        return ()
    url, at = after.request.webhook_url, after.updated_at
    assert url is not None
    snapshot = public_snapshot(after)
    return tuple(
        OutboxRow(
            account_id=after.account_id,
            event_id=new_id("evt"),
            request_id=after.request_id,
            kind=kind,
            url=url,
            created_at=at,
            due_at=at,
            round_at=at,
            snapshot=snapshot,
        )
        for kind in kinds
    )
