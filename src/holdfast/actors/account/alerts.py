"""An account's webhooks and alerts: what each command changes of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_never

import msgspec

from holdfast.actors.account.messages import (
    AlertCommand,
    AllowMail,
    DeleteWebhook,
    PutWebhook,
    SetAlerts,
    StopMail,
)
from holdfast.actors.account.units import AccountUnits
from holdfast.actors.runtime.journaled import Turn
from holdfast.actors.runtime.messages import Command
from holdfast.ledger.alerts.account_events import scopes_to_read
from holdfast.ledger.alerts.alerts import Alerts
from holdfast.ledger.api_keys import has_scope, lacking_scope
from holdfast.ledger.public_types import counted
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.event_rows import AlertsRow, WebhookDeletedRow, WebhookRow

NOT_FOUND = Refusal(code="webhook_not_found", message="This account has no such webhook.")


def decide_alerts(
    command: AlertCommand,
    units: AccountUnits,
    now: datetime,
    *,
    webhooks_max: int,
    scopes: tuple[str, ...] | None,
) -> Turn[Any]:
    """Decide a command.

    Refuses: 1. ``webhook_limit_reached``; 2. ``webhook_not_found``; 3. ``insufficient_scope``, of a calling key
    with these ``scopes``: a webhook gets nothing that the key may not read. None: no key calls.
    """
    match command:
        case PutWebhook():
            return _put_webhook(command, units, now, webhooks_max, scopes)
        case DeleteWebhook(webhook_id=webhook_id):
            if units.webhooks.pop(webhook_id, None) is None:
                return units.refuse(command, NOT_FOUND)
            row = WebhookDeletedRow(units.state.account_id, webhook_id)
            return units.change(command, row, rows=(row, *units.noted(command, "webhook_deleted", webhook_id)))
        case SetAlerts():
            return _set_alerts(command, units)
        case StopMail(why=why):
            # An address that was refused stays so, although its owner unsubscribes.
            if units.alerts.mail_stopped in ("bounced", why):
                return units.confirm(units.alerts)
            stopped = msgspec.structs.replace(units.alerts, mail_stopped=why, mail_stopped_at=now)
            return _change_alerts(command, units, stopped)
        case AllowMail():
            if units.alerts.mail_stopped is None:
                return units.confirm(units.alerts)
            return _change_alerts(command, units, _mail_allowed(units.alerts))
        case _:
            assert_never(command)


def _put_webhook(
    command: PutWebhook, units: AccountUnits, now: datetime, webhooks_max: int, scopes: tuple[str, ...] | None
) -> Turn[WebhookRow]:
    before = units.webhooks.get(command.webhook_id)
    if command.is_new and before is None:
        if len(units.webhooks) >= webhooks_max:
            refusal = Refusal(
                code="webhook_limit_reached",
                message=f"This account has {counted(len(units.webhooks), 'webhook')}, the most allowed.",
                final=True,
            )
            return units.refuse(command, refusal)
        assert command.url is not None
        assert command.events is not None
        before = WebhookRow(units.state.account_id, command.webhook_id, command.url, command.events, True, now, now)
    if before is None:
        return units.refuse(command, NOT_FOUND)
    after = msgspec.structs.replace(
        before,
        url=before.url if command.url is None else command.url,
        events=before.events if command.events is None else command.events,
        enabled=before.enabled if command.enabled is None else command.enabled,
        updated_at=now,
    )
    missing = None if scopes is None or not after.enabled else _missing_scope(after, scopes)
    if missing is not None:
        return units.refuse(command, missing)
    units.webhooks[after.webhook_id] = after
    noted = units.noted(command, "webhook_created" if command.is_new else "webhook_changed", after.webhook_id)
    return units.change(command, after, rows=(after, *noted))


def _missing_scope(webhook: WebhookRow, scopes: tuple[str, ...]) -> Refusal | None:
    """Refuse a webhook that gets what a key with these scopes may not read."""
    needed = {scope for each in webhook.events for scope in scopes_to_read(each)}
    missing = sorted(scope for scope in needed if not has_scope(scopes, scope))
    return lacking_scope(missing[0]) if missing else None


def _set_alerts(command: SetAlerts, units: AccountUnits) -> Turn[Alerts]:
    """Set the alerts. One about the balance is announced at once if less is available already."""
    alerts = msgspec.structs.replace(
        units.alerts,
        balance_below_micro=command.balance_below_micro,
        limit_share=command.limit_share,
        email=command.email,
    )
    if command.email and alerts.mail_stopped == "unsubscribed":
        alerts = _mail_allowed(alerts)
    return _change_alerts(command, units, alerts)


def _change_alerts(command: Command[Any], units: AccountUnits, alerts: Alerts) -> Turn[Alerts]:
    units.alerts = alerts
    rows = units.balance_rows() or (AlertsRow(units.state.account_id, alerts),)
    return units.change(command, units.alerts, rows=rows)


def _mail_allowed(alerts: Alerts) -> Alerts:
    return msgspec.structs.replace(alerts, mail_stopped=None, mail_stopped_at=None)
