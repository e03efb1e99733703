"""Where verified events of a payment provider are kept that no order takes in.

They are no part of any account's decision, so they are written without a fence; telling one again keeps the first.
"""

from __future__ import annotations

from holdfast.actors.faults import OutcomeUnknown, Unavailable
from holdfast.ledger.clock import Now
from holdfast.persistence.journal import Journal
from holdfast.persistence.rows import UnappliedPaymentEventRow
from holdfast.persistence.units import Committed, Unit, Unknown


class PaymentInbox:
    """Keeps one provider's events over the journal."""

    def __init__(self, provider: str, journal: Journal, now: Now) -> None:
        self._provider = provider
        self._journal = journal
        self._now = now

    async def keep(self, event_id: str, kind: str, verdict: str, body: bytes) -> None:
        """Write an event of type ``kind`` down as received, durably.

        Raises :class:`Unavailable` where it was not written, :class:`OutcomeUnknown` where nobody can say.
        """
        row = UnappliedPaymentEventRow(self._provider, event_id, None, None, kind, self._now(), verdict, body)
        settled = await self._journal.write(Unit(rows=(row,)))
        if isinstance(settled, Unknown):
            raise OutcomeUnknown("nobody can say whether the event was kept")
        if not isinstance(settled, Committed):
            raise Unavailable("the event could not be kept")
