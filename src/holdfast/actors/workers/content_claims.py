"""Claims of contents for the hosting worker: those requested during one transaction share the next."""

from __future__ import annotations

import trio

from holdfast.ledger.clock import Now
from holdfast.persistence.claims.contents import Content, claim_contents
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway


class _Batch:
    """Contents to claim together, and the result: those that were claimed, or why none was."""

    def __init__(self) -> None:
        self.contents: set[Content] = set()
        self.result: frozenset[Content] | DatabaseAway | None = None


class ContentClaims:
    """Claims contents, one transaction at a time. There is no timer: a claim without others waits for none."""

    def __init__(self, database: Database, now: Now) -> None:
        self._database = database
        self._now = now
        self._next = _Batch()
        self._turn = trio.Lock()

    async def claim(self, content: Content) -> bool:
        """Protect a content from deletion, from before this call; False while it is being deleted.

        Raises :class:`DatabaseAway`.
        """
        batch = self._next
        batch.contents.add(content)
        async with self._turn:
            if batch.result is None:
                self._next = _Batch()
                # Others wait for this transaction too, so the first caller's cancellation must not end it.
                with trio.CancelScope(shield=True):
                    batch.result = await self._result_of(batch)
        if isinstance(batch.result, DatabaseAway):
            raise batch.result
        assert batch.result is not None
        return content in batch.result

    async def _result_of(self, batch: _Batch) -> frozenset[Content] | DatabaseAway:
        try:
            return await self._database.work(claim_contents, batch.contents, self._now())
        except DatabaseAway as away:
            return away
