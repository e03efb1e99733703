"""Where verified payment events are kept that no account takes in: their order is unknown, or they were refused.

They are no part of anybody's decision, so they are written without a fence; telling one again keeps the first.
"""

from __future__ import annotations

from holdfast.ledger.clock import Now
from holdfast.persistence.journal import Journal
from holdfast.persistence.rows import PaymentEventKeptRow
from holdfast.persistence.units import Committed, Unit


class NotKept(Exception):
    """The event could not be written down; the sender should tell it again."""


class PaymentInbox:
    """Keeps events over the journal."""

    def __init__(self, journal: Journal, now: Now) -> None:
        self._journal = journal
        self._now = now

    async def keep(self, provider: str, event_id: str, *, event_type: str, verdict: str, body: bytes) -> None:
        """Write an event down as received, durably. Raises :class:`NotKept`."""
        row = PaymentEventKeptRow(provider, event_id, None, None, event_type, self._now(), verdict, body)
        settled = await self._journal.write(Unit(rows=(row,)))
        if not isinstance(settled, Committed):
            raise NotKept(event_type)
