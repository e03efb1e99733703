"""What an account's owner may do about events: have one sent again, and replace the secret that signs them.

Neither is part of any account's decision, so they are written without a fence; repeating either does no harm.
"""

from __future__ import annotations

from holdfast.actors.event_messages import EventsDue
from holdfast.actors.faults import OutcomeUnknown, Unavailable
from holdfast.actors.turns import Teller
from holdfast.ledger.clock import Now
from holdfast.ledger.webhook_secrets import Rotation
from holdfast.persistence.journal import Journal
from holdfast.persistence.outbox_rows import OutboxResendRow, WebhookSecretRow
from holdfast.persistence.rows import Row
from holdfast.persistence.units import Committed, Unit, Unknown


class EventDesk:
    """Writes over the journal. Both methods raise :class:`Unavailable` where nothing was written, and
    :class:`OutcomeUnknown` where nobody can say.
    """

    def __init__(self, journal: Journal, outbox: Teller, now: Now) -> None:
        self._journal = journal
        self._outbox = outbox
        self._now = now

    async def send_again(self, account_id: str, event_id: str) -> None:
        """Make an event due at once, under its own id, however its delivery ended; its attempts begin anew."""
        at = self._now()
        row = OutboxResendRow(
            account_id=account_id,
            event_id=event_id,
            due_at=at,
            status="pending",
            round_at=at,
            tries=0,
            done_at=None,
            reason=None,
        )
        await self._write(row)
        self._outbox.tell(event_id, EventsDue())

    async def rotate_secret(self, account_id: str, generation: int) -> Rotation:
        """Let ``generation`` take over; asked twice for the same one, the first time stands."""
        rotation = Rotation(generation, self._now())
        await self._write(WebhookSecretRow(account_id, *rotation))
        return rotation

    async def _write(self, row: Row) -> None:
        verdict = await self._journal.write(Unit(rows=(row,)))
        if isinstance(verdict, Unknown):
            raise OutcomeUnknown("nobody can say whether it was written")
        if not isinstance(verdict, Committed):
            raise Unavailable("it could not be written")
