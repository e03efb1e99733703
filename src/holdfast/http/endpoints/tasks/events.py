"""A task's events and their deliveries, sending one again, and the secret that signs them."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import Connection

from holdfast.http.endpoints.tasks.media_tasks import TASK_NOT_FOUND, valid_task_id
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import TASKS_READ, TASKS_WRITE
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.events import EventBody, EventList, WebhookSecretBody, event_body, webhook_secret_body
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.webhook_secrets import Rotation, signing
from holdfast.persistence.claims.outbox import rotations_of
from holdfast.persistence.queries.events import EventRecord, events_of_task
from holdfast.persistence.queries.sessions import SessionRecord
from holdfast.persistence.queries.tasks import task_of_account
from holdfast.persistence.records.accounts import ApiKeyRecord

route = RouteTable("Events")

EVENT_NOT_FOUND: Final = Refusal(code="event_not_found", message="The task has no such event.")

_EVENT_ID = re.compile(r"[a-z0-9_]{1,80}", re.ASCII)


@route(
    "GET",
    "/v2/task/{request_id}/events",
    summary="A task's events, newest first, with the attempts to deliver them",
    auth=Auth.API_KEY,
    scope=TASKS_READ,
    reply=EventList,
    errors=("task_not_found",),
)
async def list_events(call: Call) -> Outcome:
    """One read: the key, the task and its events."""
    request_id = call.path["request_id"]

    def read(rows: Connection, key: ApiKeyRecord) -> list[EventRecord] | Refusal:
        if not valid_task_id(request_id) or task_of_account(rows, key.account_id, request_id) is None:
            return TASK_NOT_FOUND
        return events_of_task(rows, key.account_id, request_id)

    found = await call.read_as_key(read)
    return found if isinstance(found, Refusal) else EventList(data=[event_body(event) for event in found])


@route(
    "POST",
    "/v2/task/{request_id}/events/{event_id}/resend",
    summary="Deliver an event again, under the same id, however its delivery has ended",
    auth=Auth.API_KEY,
    scope=TASKS_WRITE,
    reply=EventBody,
    errors=("task_not_found", "event_not_found"),
)
async def resend_event(call: Call) -> Outcome:
    """Its row is made due; the delivery follows."""
    request_id, event_id = call.path["request_id"], call.path["event_id"]

    def read(rows: Connection, key: ApiKeyRecord) -> str | Refusal:
        if not valid_task_id(request_id) or task_of_account(rows, key.account_id, request_id) is None:
            return TASK_NOT_FOUND
        if not _EVENT_ID.fullmatch(event_id):
            return EVENT_NOT_FOUND
        found = events_of_task(rows, key.account_id, request_id, event_id=event_id)
        return key.account_id if found else EVENT_NOT_FOUND

    account_id = await call.read_as_key(read)
    if isinstance(account_id, Refusal):
        return account_id
    await call.deps.events.send_again(account_id, event_id)
    found = await call.deps.database.read(
        lambda rows: events_of_task(rows, account_id, request_id, event_id=event_id)
    )
    return event_body(found[0]) if found else EVENT_NOT_FOUND


@route(
    "GET",
    "/v2/control/webhook-secret",
    summary="The secret that the account's events are signed with",
    auth=Auth.SESSION,
    reply=WebhookSecretBody,
)
async def read_webhook_secret(call: Call) -> Outcome:
    """One read: the session and how often the secret was replaced."""
    found = await _rotations(call)
    if isinstance(found, Refusal):
        return found
    account_id, rotations = found
    return webhook_secret_body(call.deps.webhook_key, account_id, signing(rotations, call.deps.now()))


@route(
    "POST",
    "/v2/control/webhook-secret/rotate",
    summary="Replace the secret; the one before signs beside it for a day",
    auth=Auth.SESSION,
    reply=WebhookSecretBody,
)
async def rotate_webhook_secret(call: Call) -> Outcome:
    """Two calls at once make one new secret."""
    found = await _rotations(call)
    if isinstance(found, Refusal):
        return found
    account_id, rotations = found
    newest = max((rotation.generation for rotation in rotations), default=0)
    rotation = await call.deps.events.rotate_secret(account_id, newest + 1)
    return webhook_secret_body(call.deps.webhook_key, account_id, signing((*rotations, rotation), call.deps.now()))


async def _rotations(call: Call) -> tuple[str, tuple[Rotation, ...]] | Refusal:
    def read(rows: Connection, session: SessionRecord) -> tuple[str, tuple[Rotation, ...]]:
        account_id = session.account_id
        return account_id, rotations_of(rows, account_id).get(account_id, ())

    return await call.read_as_session(read)
