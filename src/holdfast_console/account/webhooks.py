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
    created, _ = await visit.submit(create_webhook, fields=fields, path={})
    if isinstance(created, Refusal):
        return created
    assert isinstance(created, WebhookBody)
    return Redirect(f"{WEBHOOKS}/{created.webhook_id}", _done("The webhook is created. Send a test event to it."))


@view(f"{WEBHOOKS}/rotate-secret", method="POST")
async def rotate(visit: Visit) -> ViewResult:
    """Make a new signing secret; the one of before signs too for a day."""
    rotated, _ = await visit.submit(rotate_webhook_secret, fields={}, path={})
    if isinstance(rotated, Refusal):
        return rotated
    return Redirect(WEBHOOKS, _done("The secret is new. The one of before signs too for a day."))


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
    changed, _ = await visit.submit(change_webhook, fields=fields)
    return changed if isinstance(changed, Refusal) else _back(visit, "The webhook is changed.")


@view(f"{ONE}/enable", method="POST")
async def enable(visit: Visit) -> ViewResult:
    """Enable a webhook, or disable it, which gives up the events that wait."""
    enabled = visit.form.get("enabled") == "true"
    changed, _ = await visit.submit(change_webhook, fields={"enabled": enabled})
    if isinstance(changed, Refusal):
        return changed
    return _back(visit, "Events are sent from now on." if enabled else "No event is sent any more.")


@view(f"{ONE}/test", method="POST")
async def test(visit: Visit) -> ViewResult:
    """Send a test event."""
    sent, _ = await visit.submit(test_webhook, fields={})
    return (
        sent
        if isinstance(sent, Refusal)
        else _back(visit, "A test event is on its way; see what came of it below.")
    )


@view(f"{ONE}/deliveries/{{event_id}}/resend", method="POST")
async def resend(visit: Visit) -> ViewResult:
    """Deliver an event again."""
    sent, _ = await visit.submit(resend_delivery, fields={})
    return sent if isinstance(sent, Refusal) else _back(visit, "The event is on its way again, under the same id.")


@view(f"{ONE}/delete", method="POST")
async def delete(visit: Visit) -> ViewResult:
    """Delete a webhook."""
    deleted, _ = await visit.submit(delete_webhook, fields={})
    return deleted if isinstance(deleted, Refusal) else Redirect(WEBHOOKS, _done("The webhook is deleted."))


def _chosen(visit: Visit) -> list[str]:
    return [each for each in SUBSCRIPTIONS if f"event.{each}" in visit.form]


def _back(visit: Visit, text: str) -> Redirect:
    return Redirect(f"{WEBHOOKS}/{visit.path['webhook_id']}", _done(text))


def _done(text: str) -> Message:
    return Message(text, is_failure=False)
