"""Webhooks: where the account's events are sent, and what became of each delivery."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.tasks.events import WebhookSecretBody, read_webhook_secret, rotate_webhook_secret
from holdfast.http.endpoints.webhooks import (
    change_webhook,
    create_webhook,
    delete_webhook,
    list_deliveries,
    list_webhooks,
    read_webhook,
    resend_delivery,
    test_webhook,
)
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.events import WebhookBody, WebhookList
from holdfast.ledger.alerts.account_events import SUBSCRIPTIONS
from holdfast.ledger.refusals import Refusal
from holdfast_console.forms import Message
from holdfast_console.rendering import Html, Redirect
from holdfast_console.views import ViewResult, ViewTable, Visit

WEBHOOKS: Final = "/account/webhooks"
ONE: Final = f"{WEBHOOKS}/{{webhook_id}}"
USUAL: Final = "*"
"""The subscription that a new webhook's form begins with."""

view = ViewTable(Auth.SESSION)


@view(WEBHOOKS)
async def webhooks(visit: Visit) -> ViewResult:
    """All webhooks, the form for another, and the secret that signs."""
    values = {
        "found": await visit.read(list_webhooks, WebhookList),
        "secret": await visit.read(read_webhook_secret, WebhookSecretBody),
        "subscriptions": SUBSCRIPTIONS,
        "usual": USUAL,
    }
    return Html("webhooks.html", values)


@view(f"{WEBHOOKS}/create", method="POST")
async def create(visit: Visit) -> ViewResult:
    """Create a webhook, and show it."""
    fields = {"url": visit.form.get("url", ""), "events": _chosen(visit)}
    created = await visit.submit(create_webhook, WebhookBody, fields, path={})
    if isinstance(created, Refusal):
        return created
    done = Message("The webhook is created. Send a test event to it.")
    return Redirect(f"{WEBHOOKS}/{created.webhook_id}", done)


@view(f"{WEBHOOKS}/rotate-secret", method="POST")
async def rotate(visit: Visit) -> ViewResult:
    """Make a new signing secret; the one of before signs too for a day."""
    text = "The secret is new. The one of before signs too for a day."
    return await visit.act(rotate_webhook_secret, WEBHOOKS, text, path={})


@view(ONE)
async def webhook(visit: Visit) -> ViewResult:
    """One webhook with its deliveries."""
    found = await visit.read(read_webhook, WebhookBody, path=visit.path)
    if isinstance(found, Refusal):
        return found
    deliveries = await visit.read_list(list_deliveries)
    values = {"webhook": found, "deliveries": deliveries, "subscriptions": SUBSCRIPTIONS}
    return Html("webhook.html", values, is_live=True)


@view(f"{ONE}/change", method="POST")
async def change(visit: Visit) -> ViewResult:
    """Change where events are sent, and which."""
    fields = {"url": visit.form.get("url", ""), "events": _chosen(visit)}
    return await visit.act(change_webhook, _address(visit), "The webhook is changed.", fields)


@view(f"{ONE}/enable", method="POST")
async def enable(visit: Visit) -> ViewResult:
    """Enable a webhook, or disable it, which gives up the events that wait."""
    enabled = visit.form.get("enabled") == "true"
    text = "Events are sent from now on." if enabled else "No event is sent any more."
    return await visit.act(change_webhook, _address(visit), text, {"enabled": enabled})


@view(f"{ONE}/test", method="POST")
async def test(visit: Visit) -> ViewResult:
    """Send a test event."""
    text = "A test event is on its way; see what came of it below."
    return await visit.act(test_webhook, _address(visit), text)


@view(f"{ONE}/deliveries/{{event_id}}/resend", method="POST")
async def resend(visit: Visit) -> ViewResult:
    """Deliver an event again."""
    text = "The event is on its way again, under the same id."
    return await visit.act(resend_delivery, _address(visit), text)


@view(f"{ONE}/delete", method="POST")
async def delete(visit: Visit) -> ViewResult:
    """Delete a webhook."""
    return await visit.act(delete_webhook, WEBHOOKS, "The webhook is deleted.")


def _chosen(visit: Visit) -> list[str]:
    return [each for each in SUBSCRIPTIONS if f"event.{each}" in visit.form]


def _address(visit: Visit) -> str:
    return f"{WEBHOOKS}/{visit.path['webhook_id']}"
