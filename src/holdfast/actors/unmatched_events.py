"""Events of the card provider that no order took in: kept for whoever wants to know, without any effect."""

from __future__ import annotations

from typing import Final

import trio

from holdfast.actors.faults import OutcomeUnknown, Unavailable
from holdfast.ledger.clock import Now
from holdfast.persistence.journal import Journal
from holdfast.persistence.rows import PaymentEventKeptRow
from holdfast.persistence.units import Committed, Unit, Unknown

PROVIDER: Final = "cardprovider"


class UnmatchedEvents:
    """Writes such events through the journal, in units of their own that no fence holds up."""

    def __init__(self, journal: Journal, now: Now, *, deadline_s: float) -> None:
        self._journal = journal
        self._now = now
        self._deadline_s = deadline_s

    async def keep(self, event_id: str, kind: str, verdict: str, body: bytes) -> None:
        """Return once the event is durable; one that was kept before stays as it is.

        Raises :class:`Unavailable` where it was not written, :class:`OutcomeUnknown` where nobody can say.
        """
        row = PaymentEventKeptRow(PROVIDER, event_id, None, None, kind, self._now(), verdict, body)
        with trio.move_on_after(self._deadline_s):
            settled = await self._journal.write(Unit(rows=(row,)))
            if isinstance(settled, Committed):
                return
            if not isinstance(settled, Unknown):
                raise Unavailable("the event was not written")
        raise OutcomeUnknown("the event may have been written")
