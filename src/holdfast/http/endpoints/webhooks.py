"""An account's webhooks: the endpoints of its owner that get events, and what was delivered to them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Unpack

from sqlalchemy import Connection

from holdfast.actors.account.messages import DeleteWebhook, PutWebhook
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import PAGE, ListOptions, Position, list_of_account
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.values import invalid_parameter, shown
from holdfast.http.schemas.events import (
    WebhookBody,
    WebhookChange,
    WebhookDeleted,
    WebhookEventBody,
    WebhookEventList,
    WebhookList,
    WebhookRequest,
    webhook_body,
    webhook_event_body,
)
from holdfast.ledger.alerts.account_events import SUBSCRIPTIONS, unknown_subscriptions
from holdfast.ledger.api_keys import WEBHOOKS_WRITE
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import is_id, new_id
from holdfast.persistence.claims.outbox import end_events
from holdfast.persistence.queries.events import EventAddress, EventRecord
from holdfast.persistence.queries.webhooks import (
    deliveries_of_webhook,
    delivery_of_webhook,
    webhook_of_account,
    webhooks_of_account,
)
from holdfast.persistence.records.event_rows import WebhookRow
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast.providers.outbound.webhook_post import URL_MAX_CHARS, can_be_posted_to

route = RouteTable("Webhooks", auth=Auth.SESSION_OR_KEY, scope=WEBHOOKS_WRITE)


@route(
    "POST",
    "/v2/control/webhooks",
    summary="Create a webhook: an address that gets the account's and its tasks' events",
    body=WebhookRequest,
    reply=WebhookBody,
    errors=("webhook_limit_reached",),
)
async def create_webhook(call: Call) -> Outcome:
    """It gets what happens from now on, also to tasks that run already. The account's webhook secret signs.

    An API key needs `tasks:read`, too, for events of tasks, and `account:read` for all others.
    """
    wanted = call.body(WebhookRequest)
    refusal = _refuse(call.deps, wanted.url, wanted.events)
    if refusal is not None:
        return refusal
    command = PutWebhook(new_id("wh"), is_new=True, url=wanted.url, events=_each_once(wanted.events))
    created = await call.act(command)
    return created if isinstance(created, Refusal) else webhook_body(created)


@route(
    "GET",
    "/v2/control/webhooks",
    summary="List the account's webhooks; newest first",
    reply=WebhookList,
)
async def list_webhooks(call: Call) -> Outcome:
    """Disabled ones are listed too."""
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    found = await call.read(partial(webhooks_of_account, account_id=account_id))
    return WebhookList([webhook_body(each) for each in found])


@route(
    "GET",
    "/v2/control/webhooks/{webhook_id}",
    summary="Retrieve a webhook",
    reply=WebhookBody,
    errors=("webhook_not_found",),
)
async def read_webhook(call: Call) -> Outcome:
    """Whether it is enabled, and what it subscribes to."""
    found = await _own_webhook(call)
    return found if isinstance(found, Refusal) else webhook_body(found)


@route(
    "POST",
    "/v2/control/webhooks/{webhook_id}/test",
    summary="Send a test event to a webhook now",
    reply=WebhookEventBody,
    errors=("webhook_not_found", "webhook_disabled", "rate_limit_exceeded"),
)
async def test_webhook(call: Call) -> Outcome:
    """The event is of the kind `webhook.test`, which needs no subscription. Its deliveries show what came of it."""
    webhook = await _own_webhook(call)
    if isinstance(webhook, Refusal):
        return webhook
    if not webhook.enabled:
        message = "The webhook is disabled; enable it to send it events."
        return Refusal(code="webhook_disabled", message=message, final=True)
    refusal = call.deps.sending.test_rate.refuse(webhook.account_id)
    if refusal is not None:
        return refusal
    refusal = await call.note("webhook_tested", webhook.webhook_id)
    if refusal is not None:
        return refusal
    sent = await call.deps.sending.events.send_test(webhook)
    return await _delivery(call, webhook, sent.event_id)


@route(
    "GET",
    "/v2/control/webhooks/{webhook_id}/deliveries",
    summary="List the events for a webhook with their delivery attempts; newest first",
    reply=WebhookEventList,
    parameters=PAGE,
    errors=("webhook_not_found",),
)
async def list_deliveries(call: Call) -> Outcome:
    """Events are retained for thirty days after they were delivered or given up."""
    webhook_id = call.path["webhook_id"]

    def entries(
        rows: Connection, account_id: str, **options: Unpack[ListOptions]
    ) -> Sequence[EventRecord | UnreadableEntry] | Refusal:
        if not is_id(webhook_id) or webhook_of_account(rows, account_id, webhook_id) is None:
            return _not_found(webhook_id)
        options["filters"] = {"webhook_id": webhook_id}
        return deliveries_of_webhook(rows, account_id, **options)

    return await list_of_account(
        call, entries, webhook_event_body, lambda each: Position(each.created_at, each.event_id)
    )


@route(
    "POST",
    "/v2/control/webhooks/{webhook_id}/deliveries/{event_id}/resend",
    summary="Deliver an event to a webhook again, under the same id",
    reply=WebhookEventBody,
    errors=("webhook_not_found", "event_not_found", "rate_limit_exceeded"),
)
async def resend_delivery(call: Call) -> Outcome:
    """It becomes due now, whatever its status; the response still has its earlier attempts."""
    webhook = await _own_webhook(call)
    if isinstance(webhook, Refusal):
        return webhook
    event_id = call.path["event_id"]
    found = await _delivery(call, webhook, event_id)
    if isinstance(found, Refusal):
        return found
    refusal = call.deps.sending.resend_rate.refuse(webhook.account_id)
    if refusal is not None:
        return refusal
    refusal = await call.note("event_resent", event_id)
    if refusal is not None:
        return refusal
    await call.deps.sending.events.resend([EventAddress(webhook.account_id, event_id, webhook.webhook_id)])
    return await _delivery(call, webhook, event_id)


@route(
    "PATCH",
    "/v2/control/webhooks/{webhook_id}",
    summary="Change a webhook: its address or events; disable it, or enable it again",
    body=WebhookChange,
    reply=WebhookBody,
    errors=("webhook_not_found",),
)
async def change_webhook(call: Call) -> Outcome:
    """What is null or omitted stays as it is. An API key needs the scopes of what an enabled one gets, too."""
    webhook_id, wanted = call.path["webhook_id"], call.body(WebhookChange)
    refusal = _refuse(call.deps, wanted.url, wanted.events)
    if refusal is not None:
        return refusal
    if not is_id(webhook_id):
        return _not_found(webhook_id)
    command = PutWebhook(
        webhook_id,
        is_new=False,
        url=wanted.url,
        events=None if wanted.events is None else _each_once(wanted.events),
        enabled=wanted.enabled,
    )
    changed = await call.act(command)
    if isinstance(changed, Refusal):
        return changed
    if not changed.enabled:
        await _end_events(call, webhook_id, "the webhook is disabled")
    return webhook_body(changed)


@route(
    "DELETE",
    "/v2/control/webhooks/{webhook_id}",
    summary="Delete a webhook; events that wait for it are given up",
    reply=WebhookDeleted,
    errors=("webhook_not_found",),
)
async def delete_webhook(call: Call) -> Outcome:
    """A delivery that is under way may still arrive."""
    webhook_id = call.path["webhook_id"]
    if not is_id(webhook_id):
        return _not_found(webhook_id)
    deleted = await call.act(DeleteWebhook(webhook_id))
    if isinstance(deleted, Refusal):
        return deleted
    await _end_events(call, webhook_id, "the webhook was deleted")
    return WebhookDeleted(webhook_id, deleted=True)


async def _own_webhook(call: Call) -> WebhookRow | Refusal:
    account_id, webhook_id = await call.verify_caller(), call.path["webhook_id"]
    if isinstance(account_id, Refusal):
        return account_id
    if not is_id(webhook_id):
        return _not_found(webhook_id)
    found = await call.read(lambda rows: webhook_of_account(rows, account_id, webhook_id))
    return found or _not_found(webhook_id)


async def _delivery(call: Call, webhook: WebhookRow, event_id: str) -> WebhookEventBody | Refusal:
    not_found = Refusal(code="event_not_found", message=f"The webhook has no event {shown(event_id)}.")
    if not is_id(event_id):
        return not_found
    account_id, webhook_id = webhook.account_id, webhook.webhook_id
    found = await call.read(lambda rows: delivery_of_webhook(rows, account_id, webhook_id, event_id))
    return not_found if found is None else webhook_event_body(found)


async def _end_events(call: Call, webhook_id: str, reason: str) -> None:
    """Give up the events that wait. If this is interrupted, the outbox does it when each is due."""
    now = call.deps.now()
    while await call.write(
        call.known_key.account_id, lambda rows: end_events(rows, webhook_id, now, reason=reason)
    ):
        pass


def _refuse(deps: Dependencies, url: str | None, events: Sequence[str] | None) -> Refusal | None:
    """Refuse an address that can never be called, and events that do not exist."""
    if url is not None and not can_be_posted_to(url, local_allowed=deps.settings.webhook_local_allowed):
        return invalid_parameter(
            "url", f"must be an https address of a public host, at most {URL_MAX_CHARS} characters"
        )
    unknown = unknown_subscriptions(events or ())
    if unknown:
        return invalid_parameter("events", f"must name one or more of {', '.join(SUBSCRIPTIONS)}", unknown[0])
    return None


def _each_once(events: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(events))


def _not_found(webhook_id: str) -> Refusal:
    return Refusal(code="webhook_not_found", message=f"The webhook {shown(webhook_id)} does not exist.")
