"""Webhook commands of an account's owner: resend an event, rotate the signing secret."""

from __future__ import annotations

from holdfast.actors.runtime.refs import TrioActorRef
from holdfast.actors.task.worker_messages import EventsDue
from holdfast.actors.unfenced.write import write_unfenced
from holdfast.ledger.clock import Now
from holdfast.ledger.tasks.webhook_secrets import Rotation
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.records.outbox import OutboxResendRow
from holdfast.persistence.records.row_types import WebhookSecretRow


class EventCommands:
    """Both methods raise as :func:`write_unfenced` does."""

    def __init__(self, journal: Journal, outbox: TrioActorRef, now: Now) -> None:
        self._journal = journal
        self._outbox = outbox
        self._now = now

    async def resend(self, account_id: str, event_id: str) -> None:
        """Make an event due now under the same id, in any delivery status, with no attempts made."""
        at = self._now()
        await write_unfenced(self._journal, OutboxResendRow(account_id, event_id, due_at=at, round_at=at))
        self._outbox.tell(EventsDue())

    async def rotate_secret(self, account_id: str, generation: int) -> Rotation:
        """Start signing with ``generation``. A repeat for the same generation keeps the first time."""
        rotation = Rotation(generation, self._now())
        await write_unfenced(self._journal, WebhookSecretRow(account_id, *rotation))
        return rotation
