"""An account's webhooks and their deliveries, its alerts, and where its mail goes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Unpack

import msgspec
from sqlalchemy import Connection, Text, bindparam, cast, select

from holdfast.ledger.alerts.alerts import DEFAULT_ALERTS, Alerts
from holdfast.persistence.queries.events import EVENT, EventRecord, listed_with_attempts, with_attempts
from holdfast.persistence.queries.paging import AccountPageOptions, page_of_account
from holdfast.persistence.records import tables
from holdfast.persistence.records.event_rows import WebhookRow
from holdfast.persistence.records.table_base import selected
from holdfast.persistence.records.unreadable import UnreadableEntry, read_row

_WEBHOOK: Final = selected(tables.webhooks, WebhookRow.__struct_fields__)
_OF_ACCOUNT: Final = _WEBHOOK.where(tables.webhooks.c.account_id == bindparam("account_id")).order_by(
    tables.webhooks.c.created_at.desc(), tables.webhooks.c.webhook_id.desc()
)
_ALERTS: Final = msgspec.json.Decoder(Alerts)


class MailRecipient(NamedTuple):
    """The e-mail address of an account's owner, and the account's alerts, which say whether it gets mail."""

    email: str
    alerts: Alerts


def webhooks_of_account(rows: Connection, account_id: str) -> list[WebhookRow]:
    """Return the account's webhooks, newest first; their number is limited."""
    return [_webhook_of(row) for row in rows.execute(_OF_ACCOUNT, {"account_id": account_id})]


def webhook_of_account(rows: Connection, account_id: str, webhook_id: str) -> WebhookRow | None:
    """Return a webhook of an account; None if it has no such webhook."""
    query = _OF_ACCOUNT.where(tables.webhooks.c.webhook_id == webhook_id)
    found = rows.execute(query, {"account_id": account_id}).one_or_none()
    return None if found is None else _webhook_of(found)


def _webhook_of(row: Any) -> WebhookRow:
    return WebhookRow(**{**row._asdict(), "events": tuple(row.events)})


def deliveries_of_webhook(
    rows: Connection, account_id: str, **options: Unpack[AccountPageOptions]
) -> list[EventRecord | UnreadableEntry]:
    """Return a page of the events for a webhook of an account, named by the filter ``webhook_id``."""
    order = (tables.outbox.c.created_at, tables.outbox.c.event_id)
    return listed_with_attempts(rows, page_of_account(rows, EVENT, order, account_id, **options))


def delivery_of_webhook(rows: Connection, account_id: str, webhook_id: str, event_id: str) -> EventRecord | None:
    """Return an event for a webhook; None if it has no such event."""
    columns = tables.outbox.c
    query = EVENT.where(
        columns.account_id == account_id, columns.webhook_id == webhook_id, columns.event_id == event_id
    )
    found = with_attempts(rows, rows.execute(query).all())
    return found[0] if found else None


def alerts_of_account(rows: Connection, account_id: str) -> Alerts:
    """Return the account's alerts."""
    table = tables.alerts
    stored = rows.scalar(select(cast(table.c.alerts, Text)).where(table.c.account_id == account_id))
    return read_alerts(stored, account_id)


def read_alerts(stored: str | None, account_id: str) -> Alerts:
    """Decode an account's alerts; None: it has set none. Raises ``UnreadableRow``."""
    return DEFAULT_ALERTS if stored is None else read_row(_ALERTS.decode, stored, "alerts.alerts", account_id)


def mail_recipient(rows: Connection, account_id: str) -> MailRecipient | None:
    """Return where an account's mail goes; None if the account does not exist."""
    email = rows.scalar(select(tables.accounts.c.email).where(tables.accounts.c.id == account_id))
    return None if email is None else MailRecipient(email, alerts_of_account(rows, account_id))
