"""Durable writes that depend on no actor's state: they have no fence, and may be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from holdfast.actors.runtime.faults import OutcomeUnknown, Unavailable
from holdfast.actors.runtime.refs import TellRef
from holdfast.actors.task.messages import EventsDue
from holdfast.ledger.alerts.account_events import TEST, WebhookTest
from holdfast.ledger.tasks.webhook_secrets import Rotation
from holdfast.ledger.values import Now
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Committed, Unit, Unknown
from holdfast.persistence.queries.events import EventAddress
from holdfast.persistence.records.event_rows import WebhookRow
from holdfast.persistence.records.rows import (
    OutboxResendRow,
    OutboxRow,
    PaymentEventRow,
    Row,
    WebhookSecretRow,
)


async def write_unfenced(journal: Journal, *rows: Row) -> None:
    """Commit rows, all or none.

    Raises :class:`Unavailable` if they were not written, :class:`OutcomeUnknown` if that is not known.
    """
    result = await journal.write(Unit(rows=rows))
    if isinstance(result, Unknown):
        raise OutcomeUnknown("whether the rows were committed is not known")
    if not isinstance(result, Committed):
        raise Unavailable("the rows could not be written")


class EventCommands:
    """What an account's owner does with events. The methods raise as :func:`write_unfenced` does."""

    def __init__(self, journal: Journal, outbox: TellRef, now: Now) -> None:
        self._journal = journal
        self._outbox = outbox
        self._now = now

    async def resend(self, events: Sequence[EventAddress], *, unless_since: datetime | None = None) -> None:
        """Make events due now under the same ids, in any delivery status, with no attempts made, in one commit.

        One whose round of attempts began since ``unless_since`` stays as it is.
        """
        at = self._now()
        again = (OutboxResendRow(each.account_id, each.event_id, at, unless_since) for each in events)
        await write_unfenced(self._journal, *again)
        for receiver in {each.receiver for each in events}:
            self._outbox.tell(EventsDue(receiver))

    async def send_test(self, webhook: WebhookRow) -> OutboxRow:
        """Send a test event to a webhook now, whatever that subscribes to."""
        at, webhook_id = self._now(), webhook.webhook_id
        row = OutboxRow(
            account_id=webhook.account_id,
            webhook_id=webhook_id,
            receiver=webhook_id,
            kind=TEST,
            url=webhook.url,
            created_at=at,
            due_at=at,
            round_at=at,
            snapshot=WebhookTest(webhook.account_id, webhook_id),
        )
        await write_unfenced(self._journal, row)
        self._outbox.tell(EventsDue(webhook_id))
        return row

    async def rotate_secret(self, account_id: str, generation: int) -> Rotation:
        """Start signing with ``generation``. A repeat for the same generation keeps the first time."""
        rotation = Rotation(generation, self._now())
        await write_unfenced(self._journal, WebhookSecretRow(account_id, *rotation))
        return rotation


class UnmatchedEventStore:
    """Stores one provider's verified events that match no order; storing one again keeps the first row."""

    def __init__(self, provider: str, journal: Journal, now: Now) -> None:
        self._provider = provider
        self._journal = journal
        self._now = now

    async def store(self, event_id: str, kind: str, verdict: str, body: bytes) -> None:
        """Store an event of type ``kind``. Raises as :func:`write_unfenced` does."""
        at = self._now()
        row = PaymentEventRow(self._provider, event_id, None, None, kind, at, verdict, body)
        await write_unfenced(self._journal, row)
