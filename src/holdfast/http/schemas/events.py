"""The response bodies of events and of the secret that signs them."""

from __future__ import annotations

import msgspec

from holdfast.http.schemas.rendering import render
from holdfast.ledger.public_types import Time
from holdfast.ledger.tasks.webhook_secrets import Signing, webhook_secret
from holdfast.persistence.queries.events import EventRecord


class AttemptBody(msgspec.Struct, frozen=True):
    """One delivery attempt: the receiver's status, or in ``error`` why there is none."""

    number: int
    at: Time
    status_code: int | None
    error: str | None
    duration_ms: int


class EventBody(msgspec.Struct, frozen=True):
    """An event and its newest attempts, newest first. ``event_id`` is the ``webhook-id`` of every attempt.

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
    """The secret that signs the account's events. Until ``previous_valid_until`` the previous one signs as well."""

    secret: str
    rotated_at: Time | None
    previous_valid_until: Time | None


def event_body(event: EventRecord) -> EventBody:
    """Render an event as its owner sees it."""
    attempts = [render(AttemptBody, attempt) for attempt in event.attempts]
    return render(EventBody, event, type=event.kind, next_attempt_at=event.due_at, attempts=attempts)


def webhook_secret_body(webhook_key: bytes, account_id: str, found: Signing) -> WebhookSecretBody:
    """Render an account's newest secret."""
    secret = webhook_secret(webhook_key, account_id, found.generations[0])
    return render(WebhookSecretBody, found, secret=secret, previous_valid_until=found.alone_from)
