"""A task's events, their deliveries and redelivery, and the secret that signs them."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from holdfast.http.endpoints.tasks.media_tasks import own_task
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import TASKS_READ, TASKS_WRITE
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.values import shown
from holdfast.http.schemas.common import render
from holdfast.ledger.ids import is_id
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.events import DeliveryStatus
from holdfast.ledger.tasks.task import EventKind
from holdfast.ledger.tasks.webhook_secrets import SIGNING_MAX_COUNT, Rotation, Signing, signing_at, webhook_secret
from holdfast.persistence.claims.outbox import rotations_of
from holdfast.persistence.queries.events import EventRecord, events_of_task


class AttemptBody(msgspec.Struct, frozen=True):
    """One delivery attempt."""

    number: int
    """Counts the attempts from 1."""
    at: Time
    """When it began."""
    status_code: int | None
    """The receiver's HTTP status; null if there was none."""
    error: str | None
    """Why there was no status; null if there was one."""
    duration_ms: int
    """How long it took, in milliseconds."""


class EventBody(msgspec.Struct, frozen=True):
    """An event and its newest attempts."""

    event_id: str
    """The event's id, `evt_…`, the `webhook-id` of every attempt."""
    type: EventKind
    """What happened."""
    status: DeliveryStatus
    """`pending` while an attempt is due."""
    url: str
    """Where it is sent."""
    created_at: Time
    """When it happened."""
    next_attempt_at: Time | None
    """When the next attempt is due; null if none is."""
    done_at: Time | None
    """When it was delivered or given up; null before that."""
    reason: str | None
    """Why it was given up; null if it was not."""
    attempts: list[AttemptBody]
    """The newest attempts, newest first."""


class EventList(msgspec.Struct, frozen=True):
    """A task's events, newest first."""

    data: list[EventBody]
    """The events, newest first."""


class WebhookSecretBody(msgspec.Struct, frozen=True):
    """The secret that signs the account's events."""

    secret: str
    """The secret, `whsec_…`, by Standard Webhooks."""
    rotated_at: Time | None
    """When it replaced the previous one; null if there was none."""
    previous_valid_until: Time | None
    """Until when the previous secret signs as well; null if there was none."""


def event_body(event: EventRecord) -> EventBody:
    """Render an event as its owner sees it."""
    attempts = [render(AttemptBody, attempt) for attempt in event.attempts]
    return render(EventBody, event, type=event.kind, next_attempt_at=event.due_at, attempts=attempts)


def webhook_secret_body(webhook_key: bytes, account_id: str, found: Signing) -> WebhookSecretBody:
    """Render an account's newest secret."""
    secret = webhook_secret(webhook_key, account_id, found.generations[0])
    return render(WebhookSecretBody, found, secret=secret, previous_valid_until=found.alone_from)


route = RouteTable("Events")


@route(
    "GET",
    "/v2/task/{request_id}/events",
    summary="List a task's events with their delivery attempts, newest first",
    auth=Auth.API_KEY,
    scope=TASKS_READ,
    reply=EventList,
    errors=("task_not_found",),
)
async def list_events(call: Call) -> Outcome:
    """A task without a `webhook_url` has none."""
    found = await own_task(call)
    if isinstance(found, Refusal):
        return found
    task, _ = found
    events = await call.read(lambda rows: events_of_task(rows, task.account_id, task.request_id))
    return EventList(data=[event_body(event) for event in events])


@route(
    "POST",
    "/v2/task/{request_id}/events/{event_id}/resend",
    summary="Deliver an event again, under the same id",
    auth=Auth.API_KEY,
    scope=TASKS_WRITE,
    reply=EventBody,
    errors=("task_not_found", "event_not_found"),
)
async def resend_event(call: Call) -> Outcome:
    """It becomes due now, whatever its status; the response still has its earlier attempts."""
    request_id, event_id = call.path["request_id"], call.path["event_id"]
    not_found = Refusal(
        code="event_not_found", message=f"The task {shown(request_id)} has no event {shown(event_id)}."
    )

    found = await own_task(call)
    if isinstance(found, Refusal):
        return found
    account_id = found[0].account_id

    def read(rows: Connection) -> list[EventRecord]:
        return events_of_task(rows, account_id, request_id, event_id=event_id)

    if not is_id(event_id) or not await call.read(read):
        return not_found
    await call.deps.events.resend(account_id, event_id)
    events = await call.read(read)
    return event_body(events[0]) if events else not_found


@route(
    "GET",
    "/v2/control/webhook-secret",
    summary="Retrieve the secret that signs the account's events",
    auth=Auth.SESSION,
    reply=WebhookSecretBody,
)
async def read_webhook_secret(call: Call) -> Outcome:
    """The same for all events of the account."""
    found = await _rotations(call)
    if isinstance(found, Refusal):
        return found
    account_id, rotations = found
    return webhook_secret_body(call.deps.webhook_key, account_id, signing_at(rotations, call.deps.now()))


@route(
    "POST",
    "/v2/control/webhook-secret/rotate",
    summary="Rotate the secret; the previous one keeps signing for a day",
    auth=Auth.SESSION,
    reply=WebhookSecretBody,
    errors=("rate_limit_exceeded",),
)
async def rotate_webhook_secret(call: Call) -> Outcome:
    """Two simultaneous requests create one new secret."""
    found = await _rotations(call)
    if isinstance(found, Refusal):
        return found
    account_id, rotations = found
    signing = signing_at(rotations, call.deps.now()).generations
    if len(signing) >= SIGNING_MAX_COUNT:
        message = (
            f"{len(signing)} secrets sign now, the most allowed; rotate again when the oldest of them has ended."
        )
        return Refusal(code="rate_limit_exceeded", message=message)
    newest = max((rotation.generation for rotation in rotations), default=0)
    rotation = await call.deps.events.rotate_secret(account_id, newest + 1)
    return webhook_secret_body(
        call.deps.webhook_key, account_id, signing_at((*rotations, rotation), call.deps.now())
    )


async def _rotations(call: Call) -> tuple[str, tuple[Rotation, ...]] | Refusal:
    session = await call.verify_session()
    if isinstance(session, Refusal):
        return session
    account_id = session.account_id
    rotations = await call.read(lambda rows: rotations_of(rows, account_id))
    return account_id, rotations.get(account_id, ())
