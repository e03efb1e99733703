"""Verified events of a payment provider that match no order, stored as received."""

from __future__ import annotations

from holdfast.actors.unfenced.write import write_unfenced
from holdfast.ledger.clock import Now
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.records.orders import UnappliedPaymentEventRow


class UnmatchedEventStore:
    """Stores one provider's unmatched events; storing an event again keeps the first row."""

    def __init__(self, provider: str, journal: Journal, now: Now) -> None:
        self._provider = provider
        self._journal = journal
        self._now = now

    async def store(self, event_id: str, kind: str, verdict: str, body: bytes) -> None:
        """Store an event of type ``kind``. Raises as :func:`write_unfenced` does."""
        at = self._now()
        row = UnappliedPaymentEventRow(self._provider, event_id, None, None, kind, at, verdict, body)
        await write_unfenced(self._journal, row)
