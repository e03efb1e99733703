"""The rows of accounts' events, of the webhooks that get them, and of alerts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from holdfast.ledger.alerts.account_events import AccountEventData, kind_of, receives
from holdfast.ledger.alerts.alerts import Alerts
from holdfast.persistence.records.rows import JournaledRow, OutboxRow

MAIL_URL: Final = "mailto:owner"
"""The URL of an event for the account's owner by mail, whose address is looked up for each attempt."""
MAILTO: Final = "mailto:"
"""What the URL of an event that is sent by mail begins with; an address may follow, which gets it in any case."""


class WebhookRow(JournaledRow, frozen=True):
    """A webhook of an account, new or changed: an endpoint that gets the account's and its tasks' events."""

    account_id: str
    webhook_id: str
    url: str
    events: tuple[str, ...]
    enabled: bool
    created_at: datetime
    updated_at: datetime


class WebhookDeletedRow(JournaledRow, frozen=True):
    """The deletion of a webhook. Its events are ended when they are claimed, if not before."""

    account_id: str
    webhook_id: str


class AlertsRow(JournaledRow, frozen=True):
    """The alerts of an account; no row: it has set none, and none was announced."""

    account_id: str
    alerts: Alerts


def account_event_rows(
    account_id: str,
    webhooks: Iterable[WebhookRow],
    data: AccountEventData,
    at: datetime,
    *,
    is_mailed: bool,
    mail_url: str = MAIL_URL,
) -> tuple[OutboxRow, ...]:
    """Return an event of an account, due immediately: for each webhook that receives it, and if so by mail."""
    kind = kind_of(data)
    receivers = [
        (each.webhook_id, each.webhook_id, each.url)
        for each in webhooks
        if each.enabled and receives(each.events, kind)
    ]
    mail = [(None, f"mail:{account_id}", mail_url)] if is_mailed else []
    return tuple(
        OutboxRow(
            account_id=account_id,
            webhook_id=webhook_id,
            receiver=receiver,
            kind=kind,
            url=url,
            created_at=at,
            due_at=at,
            round_at=at,
            snapshot=data,
        )
        for webhook_id, receiver, url in (*receivers, *mail)
    )
