"""A task's events, their deliveries and redelivery, and the secret that signs them."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.values import shown
from holdfast.http.schemas.common import render
from holdfast.http.schemas.events import EventBody, EventList, event_body
from holdfast.http.services.tasks import own_task
from holdfast.ledger.api_keys import TASKS_READ, TASKS_WRITE, WEBHOOKS_WRITE
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.webhook_secrets import SIGNING_MAX_COUNT, Rotation, Signing, signing_at, webhook_secret
from holdfast.ledger.values import is_id
from holdfast.persistence.claims.outbox import rotations_of
from holdfast.persistence.queries.events import EventRecord, events_of_task


class WebhookSecretBody(msgspec.Struct, frozen=True):
    """The secret that signs the account's events."""

    secret: str
    """The secret, `whsec_…`, by Standard Webhooks."""
    rotated_at: Time | None
    """When it replaced the previous one; null if there was none."""
    previous_valid_until: Time | None
    """Until when the previous secret signs as well; null if there was none."""


def webhook_secret_body(webhook_key: bytes, account_id: str, found: Signing) -> WebhookSecretBody:
    """Render an account's newest secret."""
    secret = webhook_secret(webhook_key, account_id, found.generations[0])
    return render(WebhookSecretBody, found, secret=secret, previous_valid_until=found.alone_from)


route = RouteTable("Tasks")


@route(
    "GET",
    "/v2/task/{request_id}/events",
    summary="List a task's events with their delivery attempts; newest first",
    auth=Auth.API_KEY,
    scope=TASKS_READ,
    reply=EventList,
    errors=("task_not_found",),
)
async def list_events(call: Call) -> Outcome:
    """A task without a `webhook_url` has none."""
    task = await own_task(call)
    if isinstance(task, Refusal):
        return task
    events = await call.read(lambda rows: events_of_task(rows, task.account_id, task.request_id))
    return EventList(data=[event_body(event) for event in events])


@route(
    "POST",
    "/v2/task/{request_id}/events/{event_id}/resend",
    summary="Deliver a task's event again, under the same id",
    auth=Auth.API_KEY,
    scope=TASKS_WRITE,
    reply=EventBody,
    errors=("task_not_found", "event_not_found", "rate_limit_exceeded"),
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
    account_id = found.account_id

    def read(rows: Connection) -> list[EventRecord]:
        return events_of_task(rows, account_id, request_id, event_id=event_id)

    before = await call.read(read) if is_id(event_id) else []
    if not before:
        return not_found
    refusal = call.deps.sending.resend_rate.refuse(account_id)
    if refusal is not None:
        return refusal
    await call.deps.sending.events.resend([before[0].address])
    events = await call.read(read)
    return event_body(events[0]) if events else not_found


@route(
    "GET",
    "/v2/control/webhook-secret",
    summary="Retrieve the secret that signs the account's events",
    tag="Webhooks",
    auth=Auth.SESSION_OR_KEY,
    scope=WEBHOOKS_WRITE,
    reply=WebhookSecretBody,
)
async def read_webhook_secret(call: Call) -> Outcome:
    """The same for all events of the account."""
    account_id = await call.verify_caller()
    return account_id if isinstance(account_id, Refusal) else await signing_secret(call, account_id)


@route(
    "POST",
    "/v2/control/webhook-secret/rotate",
    summary="Rotate the secret; the previous one keeps signing for a day",
    tag="Webhooks",
    auth=Auth.SESSION_OR_KEY,
    scope=WEBHOOKS_WRITE,
    reply=WebhookSecretBody,
    errors=("rate_limit_exceeded",),
)
async def rotate_webhook_secret(call: Call) -> Outcome:
    """Two simultaneous requests create one new secret."""
    account_id = call.known_key.account_id
    rotations = await _rotations(call, account_id)
    signing = signing_at(rotations, call.deps.now()).generations
    if len(signing) >= SIGNING_MAX_COUNT:
        message = (
            f"{len(signing)} secrets sign now, the most allowed; rotate again when the oldest of them has ended."
        )
        return Refusal(code="rate_limit_exceeded", message=message)
    newest = max((rotation.generation for rotation in rotations), default=0)
    noted = await call.note("webhook_secret_rotated", account_id)
    if noted is not None:
        return noted
    rotation = await call.deps.sending.events.rotate_secret(account_id, newest + 1)
    return webhook_secret_body(
        call.deps.settings.webhook_keys[0], account_id, signing_at((*rotations, rotation), call.deps.now())
    )


async def signing_secret(call: Call, account_id: str) -> WebhookSecretBody:
    """Return what signs an account's events now."""
    signing = signing_at(await _rotations(call, account_id), call.deps.now())
    return webhook_secret_body(call.deps.settings.webhook_keys[0], account_id, signing)


async def _rotations(call: Call, account_id: str) -> tuple[Rotation, ...]:
    return (await call.read(lambda rows: rotations_of(rows, account_id))).get(account_id, ())
