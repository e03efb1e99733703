"""Write one row, durably and without a fence."""

from __future__ import annotations

from holdfast.actors.runtime.faults import OutcomeUnknown, Unavailable
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Committed, Unit, Unknown
from holdfast.persistence.records.rows import Row


async def write_unfenced(journal: Journal, row: Row) -> None:
    """Commit a row.

    Raises :class:`Unavailable` if it was not written, :class:`OutcomeUnknown` if that is not known.
    """
    result = await journal.write(Unit(rows=(row,)))
    if isinstance(result, Unknown):
        raise OutcomeUnknown("whether the row was committed is not known")
    if not isinstance(result, Committed):
        raise Unavailable("the row could not be written")
