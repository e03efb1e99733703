"""The sweeper: removes what has expired. Several processes may sweep at once; every sweep is repeatable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
import trio

from holdfast.actors.workers.worker import Worker, WorkerRef
from holdfast.ledger.tasks.webhook_secrets import OVERLAP_S
from holdfast.persistence.claims.expired import delete_expired
from holdfast.persistence.journal.journal import MARKER_RETENTION_S
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway

log = structlog.get_logger(__name__)

SWEEP_S = 60.0
ROWS_MAX = 5_000
ROUNDS_MAX = 20
"""How often in a row a sweep goes on with a table that has more to remove than one statement takes."""
SIGN_INS_KEPT_S = 25 * 3600
SESSIONS_KEPT_S = 30 * 24 * 3600
EVENTS_KEPT_S = 90 * 24 * 3600
OUTBOX_KEPT_S = 30 * 24 * 3600


class Sweeper(Worker):
    """Sweeps once a minute, a bounded number of rows at a time."""

    def __init__(self, post: WorkerRef, *, database: Database, idempotency_ttl_s: int) -> None:
        super().__init__(post)
        self._database = database
        self._kept_s = {
            "idempotency_records": idempotency_ttl_s,
            "sign_ins": SIGN_INS_KEPT_S,
            "sessions": SESSIONS_KEPT_S,
            "payment_events": EVENTS_KEPT_S,
            "outbox": OUTBOX_KEPT_S,
            "webhook_secrets": OVERLAP_S,
            "journal_batches": MARKER_RETENTION_S,
        }

    def background_loops(self) -> tuple[Callable[[], Any], ...]:
        """Sweep once a minute."""
        return (self._sweep_loop,)

    async def _sweep_loop(self) -> None:
        while True:
            await trio.sleep(SWEEP_S)
            try:
                await self.sweep()
            except DatabaseAway as away:
                log.info("sweep put off", reason=str(away))

    async def sweep(self) -> dict[str, int]:
        """Remove what has expired; how many rows of each table. Raises :class:`DatabaseAway`."""
        removed: dict[str, int] = {}
        for table, retention_s in self._kept_s.items():
            removed[table] = 0
            for _ in range(ROUNDS_MAX):
                count = await self._database.work(delete_expired, table, retention_s=retention_s, most=ROWS_MAX)
                removed[table] += count
                if count < ROWS_MAX:
                    break
        if any(removed.values()):
            log.info("swept", **removed)
        return removed
