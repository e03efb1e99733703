"""Whether a decision made now can be written: the database answers, and the journal runs."""

from __future__ import annotations

from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.server.database_gate import DatabaseGate


class WritePath:
    """The gate for callers that write. Reads need the database alone, and use its own gate."""

    def __init__(self, database: DatabaseGate, journal: Journal) -> None:
        self._database = database
        self._journal = journal

    @property
    def is_open(self) -> bool:
        """Whether a decision made now can be written."""
        return self._database.is_open and self._journal.is_accepting

    @property
    def reason(self) -> str:
        """Why it is closed."""
        return self._database.reason or "the journal is starting"

    @property
    def retry_after_s(self) -> float:
        """How long to wait before a retry while it is closed."""
        return self._database.retry_after_s

    async def wait_open(self) -> None:
        """Return once it is open."""
        while not self.is_open:
            await self._database.wait_open()
            await self._journal.wait_accepting()
