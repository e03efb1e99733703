"""Events whose delivery to an account's server fails."""

from __future__ import annotations

from holdfast.http.endpoints.operators.accounts.webhooks import (
    WebhookSummary,
    list_failed_events,
    summarise_webhooks,
)
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit

view = ViewTable()


@view("/ops/webhooks")
async def failed_webhooks(visit: Visit) -> ViewResult:
    """The events that the filters select, newest first."""
    values = {
        "events": await visit.read_list(list_failed_events),
        "summary": await visit.read(summarise_webhooks, WebhookSummary),
    }
    return Html("webhooks.html", values, is_live=True)
