"""What calls about events answer, and what an event's own body says."""

from __future__ import annotations

import msgspec

from holdfast.ledger.clock import format_time
from holdfast.ledger.public_types import Time, time_or_none
from holdfast.ledger.tasks.webhook_secrets import Signing, webhook_secret
from holdfast.persistence.queries.events import EventRecord


class AttemptBody(msgspec.Struct, frozen=True):
    """One delivery: the receiver's status, or in ``error`` why there was none."""

    number: int
    at: Time
    status_code: int | None
    error: str | None
    duration_ms: int


class EventBody(msgspec.Struct, frozen=True):
    """An event and its newest attempts, newest first. ``event_id`` is the ``webhook-id`` of each of them.

    ``status`` is ``pending`` until ``delivered`` or ``given_up``; ``reason`` says why it was given up.
    """

    event_id: str
    type: str
    status: str
    url: str
    created_at: Time
    next_attempt_at: Time | None
    done_at: Time | None
    reason: str | None
    attempts: list[AttemptBody]


class EventList(msgspec.Struct, frozen=True):
    """A task's events, newest first."""

    data: list[EventBody]


class WebhookSecretBody(msgspec.Struct, frozen=True):
    """What the account's events are signed with. Until ``previous_valid_until`` the one before signs as well."""

    secret: str
    rotated_at: Time | None
    previous_valid_until: Time | None


def event_body(event: EventRecord) -> EventBody:
    """Write an event as its owner sees it."""
    return EventBody(
        event_id=event.event_id,
        type=event.kind,
        status=event.status,
        url=event.url,
        created_at=format_time(event.created_at),
        next_attempt_at=time_or_none(event.due_at),
        done_at=time_or_none(event.done_at),
        reason=event.reason,
        attempts=[
            AttemptBody(
                number=attempt.number,
                at=format_time(attempt.at),
                status_code=attempt.status_code,
                error=attempt.error,
                duration_ms=attempt.duration_ms,
            )
            for attempt in event.attempts
        ],
    )


def webhook_secret_body(webhook_key: bytes, account_id: str, found: Signing) -> WebhookSecretBody:
    """Write an account's newest secret."""
    return WebhookSecretBody(
        secret=webhook_secret(webhook_key, account_id, found.generations[0]),
        rotated_at=time_or_none(found.rotated_at),
        previous_valid_until=time_or_none(found.alone_from),
    )
