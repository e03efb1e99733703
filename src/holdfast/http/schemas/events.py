"""The request and response bodies of events and their deliveries, of webhooks, and of alerts."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from holdfast.http.kit.listing import StoredListBody
from holdfast.http.schemas.common import AmountGiven, render
from holdfast.ledger.alerts.account_events import SUBSCRIPTIONS, AnyEventKind
from holdfast.ledger.alerts.alerts import BALANCE, Alerts, MailStop
from holdfast.ledger.public_types import Amount, TaskId, Time
from holdfast.ledger.tasks.events import DeliveryStatus
from holdfast.persistence.queries.events import EventRecord
from holdfast.persistence.records.event_rows import WebhookRow

WebhookId: TypeAlias = Annotated[str, msgspec.Meta(description="The webhook's id, `wh_…`.")]
Subscription: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(SUBSCRIPTIONS)})]
WebhookUrl: TypeAlias = Annotated[str, msgspec.Meta(examples=["https://example.com/holdfast"])]
Subscriptions: TypeAlias = Annotated[
    list[Subscription], msgspec.Meta(min_length=1, examples=[["task.*", "balance.below"]])
]


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
    type: AnyEventKind
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


class WebhookRequest(msgspec.Struct, frozen=True):
    """The webhook to create."""

    url: WebhookUrl
    """Where to send the events: https with a public host, in development also another."""
    events: Subscriptions
    """The events to send: kinds, `task.*` for all of tasks, or `*` for all."""


class WebhookChange(msgspec.Struct, frozen=True):
    """What to change of a webhook."""

    url: WebhookUrl | None = None
    """Where to send the events from now on, also those that wait; null or omitted: as before."""
    events: Subscriptions | None = None
    """The events to send from now on; null or omitted: as before."""
    enabled: bool | None = None
    """Whether events are sent; false gives up those that wait. Null or omitted: as before."""


class WebhookBody(msgspec.Struct, frozen=True):
    """A webhook of the account."""

    webhook_id: WebhookId
    url: str
    """Where the events are sent."""
    events: list[Subscription]
    """The events that are sent."""
    enabled: bool
    """Whether events are sent."""
    created_at: Time
    """When it was created."""
    updated_at: Time
    """When it was changed last."""


class WebhookList(msgspec.Struct, frozen=True):
    """The account's webhooks, newest first."""

    data: list[WebhookBody]
    """The webhooks, newest first."""


class WebhookDeleted(msgspec.Struct, frozen=True):
    """The webhook is deleted."""

    webhook_id: WebhookId
    deleted: bool
    """Always true."""


class WebhookEventBody(EventBody, frozen=True):
    """An event for a webhook and its newest attempts."""

    request_id: TaskId | None
    """The task, `task_…`; null for an event of the account itself."""


class WebhookEventList(StoredListBody[WebhookEventBody], frozen=True):
    """A page of events, newest first."""


class AlertsRequest(msgspec.Struct, frozen=True):
    """What to announce."""

    balance_below: AmountGiven | None = None
    """Announce that less credit is available; null or omitted: never."""
    limit_share: Annotated[float, msgspec.Meta(gt=0, le=1, examples=[0.8])] = 1.0
    """The share of a limit at which it counts as reached."""
    email: bool = True
    """Whether to send mail to the account's address too. True ends an unsubscription."""


class AlertsBody(msgspec.Struct, frozen=True):
    """What is announced."""

    balance_below: Amount | None
    """Announced when less credit is available; null: never."""
    is_below: bool
    """Whether that was announced, and has not been crossed back since."""
    limit_share: float
    """The share of a limit at which it counts as reached."""
    email: bool
    """Whether mail is wanted."""
    email_stopped: MailStop | None
    """Why none is sent nevertheless: its receiver unsubscribed, or the address was refused; null if it is sent."""
    email_stopped_at: Time | None
    """Since when none is sent; null if it is sent."""


def event_body(event: EventRecord) -> EventBody:
    """Render an event as its owner sees it."""
    attempts = [render(AttemptBody, attempt) for attempt in event.attempts]
    return render(EventBody, event, type=event.kind, next_attempt_at=event.due_at, attempts=attempts)


def webhook_body(webhook: WebhookRow) -> WebhookBody:
    """Render a webhook."""
    return render(WebhookBody, webhook)


def webhook_event_body(event: EventRecord) -> WebhookEventBody:
    """Render an event for a webhook."""
    return render(WebhookEventBody, event_body(event), request_id=event.request_id)


def alerts_body(alerts: Alerts) -> AlertsBody:
    """Render an account's alerts."""
    return render(
        AlertsBody,
        alerts,
        is_below=BALANCE in alerts.announced,
        email_stopped=alerts.mail_stopped,
        email_stopped_at=alerts.mail_stopped_at,
    )
