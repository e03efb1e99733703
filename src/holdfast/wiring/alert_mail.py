"""Mail about accounts: one attempt to send an event to its account's owner."""

from __future__ import annotations

from typing import Final, cast

from holdfast.actors.account.messages import StopMail
from holdfast.actors.runtime.faults import AskFault
from holdfast.actors.runtime.refs import Directory
from holdfast.ledger.alerts.account_events import AccountEventKind, data_of
from holdfast.ledger.alerts.alerts import mail_text
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.tasks.events import DeliveryResponse
from holdfast.persistence.claims.outbox import DueEvent
from holdfast.persistence.queries.webhooks import mail_recipient
from holdfast.persistence.records.event_rows import MAIL_URL, MAILTO
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.providers.mail.base import Alert, Mailer, MailFault

ACCEPTED: Final = 250
"""SMTP's status of a message that was accepted."""
STOP_DEADLINE_S: Final = 10.0


class AlertMail:
    """Sends alerts. Whether an account wants mail is read for each attempt: it may have changed since the event."""

    def __init__(self, database: Database, accounts: Directory, mailer: Mailer, urls: PublicUrls) -> None:
        self._database = database
        self._accounts = accounts
        self._mailer = mailer
        self._urls = urls

    async def send(self, event: DueEvent) -> DeliveryResponse:
        """Send an event to its account's owner, once; one that names an address, to that in any case."""
        if event.url != MAIL_URL:
            return await self._send_notice(event, event.url.removeprefix(MAILTO))
        try:
            recipient = await self._database.read(mail_recipient, event.account_id)
        except DatabaseAway:
            return DeliveryResponse(None, error="the database was away")
        if recipient is None or not recipient.alerts.sends_mail:
            why = "is turned off" if recipient is None else recipient.alerts.mail_stopped or "is turned off"
            return DeliveryResponse(None, error=f"the account's mail: {why}", is_final=True)
        subject, text = mail_text(data_of(cast(AccountEventKind, event.kind), event.snapshot))
        alert = Alert(event.event_id, subject, text, self._urls.unsubscribe_url(event.account_id))
        try:
            await self._mailer.send_alert(recipient.email, alert)
        except MailFault as fault:
            return await self._refused(event, fault)
        return DeliveryResponse(ACCEPTED)

    async def _send_notice(self, event: DueEvent, address: str) -> DeliveryResponse:
        subject, text = mail_text(data_of(cast(AccountEventKind, event.kind), event.snapshot))
        try:
            await self._mailer.send_alert(address, Alert(event.event_id, subject, text, None))
        except MailFault as fault:
            return DeliveryResponse(None, error=str(fault), is_final=fault.is_refused)
        return DeliveryResponse(ACCEPTED)

    async def _refused(self, event: DueEvent, fault: MailFault) -> DeliveryResponse:
        """Return the outcome of a message that was not accepted; an address that was refused for good is noted."""
        if fault.is_refused:
            stop = StopMail("bounced")
            try:
                await self._accounts.ref(event.account_id).ask(stop, deadline_s=STOP_DEADLINE_S)
            except AskFault as exc:
                return DeliveryResponse(None, error=f"{fault}, which could not be noted: {exc}")
        return DeliveryResponse(None, error=str(fault), is_final=fault.is_refused)
