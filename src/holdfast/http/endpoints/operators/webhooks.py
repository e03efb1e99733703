"""Events whose delivery to an account's server fails, and another try of one, or of all of an account or a host."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import PAGE, Position, StoredListBody, filter_by, list_for_operators
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.values import shown
from holdfast.http.schemas.events import EventBody, WebhookId, event_body
from holdfast.http.schemas.operators import ActionRequest
from holdfast.ledger.public_types import AccountId, TaskId
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import is_id
from holdfast.persistence.queries.events import (
    EventRecord,
    WebhookSummary,
    event_of_account,
    failed_event_addresses,
    failed_events,
    failure_counts,
)

route = OperatorRoutes("Webhooks")

FILTERS: Final = (
    filter_by(
        "status",
        "`given_up`: no attempt is left. `pending`: an attempt failed, and the next is due.",
        ("pending", "given_up"),
    ),
    filter_by("account_id", "Only events of this account."),
    filter_by(
        "host",
        "Only events for this host, in lower case, with its port unless that is the usual one; `mail` for mail.",
    ),
)
RETRIED_MAX: Final = 500
"""How many events one call retries."""


class FailedEventBody(msgspec.Struct, frozen=True):
    """An event that its account's server has not accepted, with the newest attempts."""

    account_id: AccountId
    request_id: TaskId | None
    """The task; null for an event of the account itself."""
    webhook_id: WebhookId | None
    """The account's webhook; null for a task's own `webhook_url`, and for mail."""
    event: EventBody
    """The event and its newest attempts."""


class FailedEventList(StoredListBody[FailedEventBody], frozen=True):
    """A page of events, newest first."""


@route.read(
    "/ops/api/webhooks",
    "List the events of all accounts whose delivery fails; newest first",
    FailedEventList,
    parameters=(*FILTERS, *PAGE),
)
async def list_failed_events(call: Call) -> Outcome:
    """An event fails if it was given up, or if an attempt failed and the next is due."""
    return await list_for_operators(
        call, failed_events, _body, lambda each: Position(each.created_at, each.event_id)
    )


class EventsRetried(msgspec.Struct, frozen=True):
    """How many events became due."""

    retried: int
    """How many events became due."""
    has_more: bool
    """Whether there are more than one call retries, so call again."""


@route.read("/ops/api/webhooks/summary", "Count the events whose delivery fails, by host", WebhookSummary)
async def summarise_webhooks(call: Call) -> Outcome:
    """Names the twenty hosts with most of these events."""
    return await call.deps.database.read(failure_counts)


_on_failing: Final = route.below("/ops/api/webhooks", errors=("event_not_found",))


@_on_failing.action(
    "/{account_id}/retry", "Deliver the failed events of an account again now", name="retry_account_webhooks"
)
async def retry_of_account(run: ActionRun, _: ActionRequest, account_id: str) -> EventsRetried | Refusal:
    """Up to 500 events become due, the oldest first, also those that were given up."""
    return await _retry_all(run, account_id=account_id)


@_on_failing.action(
    "/hosts/{host}/retry", "Deliver the failed events for a host again now", name="retry_host_webhooks"
)
async def retry_of_host(run: ActionRun, _: ActionRequest, host: str) -> EventsRetried | Refusal:
    """As for an account, for events of any accounts."""
    return await _retry_all(run, host=host)


async def _retry_all(
    run: ActionRun, *, account_id: str | None = None, host: str | None = None
) -> EventsRetried | Refusal:
    now = run.deps.now()
    found = await run.deps.database.read(
        partial(failed_event_addresses, now=now, most=RETRIED_MAX, account_id=account_id, host=host)
    )
    if not found:
        name = shown(account_id or host or "")
        return Refusal(code="event_not_found", message=f"No delivery fails for {name}, besides those due now.")
    await run.deps.sending.events.resend(found)
    run.note(retried=str(len(found)))
    return EventsRetried(len(found), has_more=len(found) == RETRIED_MAX)


@_on_failing.action(
    "/{account_id}/{event_id}/retry", "Deliver an event again now, under the same id", name="retry_webhook"
)
async def retry_event(
    run: ActionRun, _: ActionRequest, account_id: str, event_id: str
) -> FailedEventBody | Refusal:
    """It becomes due at once; the response still has its earlier attempts."""
    not_found = Refusal(code="event_not_found", message=f"There is no event {shown(event_id)} of this account.")
    if not is_id(account_id) or not is_id(event_id):
        return not_found

    def read(rows: Connection) -> EventRecord | None:
        return event_of_account(rows, account_id, event_id)

    before = await run.deps.database.read(read)
    if before is None:
        return not_found
    await run.deps.sending.events.resend([before.address])
    found = await run.deps.database.read(read)
    return not_found if found is None else _body(found)


def _body(event: EventRecord) -> FailedEventBody:
    return FailedEventBody(event.account_id, event.request_id, event.webhook_id, event_body(event))
