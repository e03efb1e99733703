"""The sweeper: removes what has expired. Several processes may sweep at once; every sweep is repeatable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
import trio
from sqlalchemy import Connection, text

from holdfast.actors.workers.worker import Worker, WorkerAddress
from holdfast.ledger.tasks.webhook_secrets import OVERLAP_S
from holdfast.persistence.journal.journal import MARKS_KEPT_S
from holdfast.persistence.server.database import Database, DatabaseAway

log = structlog.get_logger(__name__)

SWEEP_S = 60.0
ROWS_MAX = 5_000
ROUNDS_MAX = 20
"""How often in a row a sweep goes on with a table that has more to remove than one statement takes."""
SIGN_INS_KEPT_S = 25 * 3600
SESSIONS_KEPT_S = 30 * 24 * 3600
EVENTS_KEPT_S = 90 * 24 * 3600
OUTBOX_KEPT_S = 30 * 24 * 3600

_EXPIRED = {
    "idempotency_records": (
        "delete from idempotency_records where ctid = any(array(select ctid from idempotency_records "
        "where created_at < now() - make_interval(secs => :kept_s) limit :most))"
    ),
    # The limits look back a day at the most; a row untouched for longer counts for nothing any more, unless it
    # knows where its account signs in from (for sign_in_codes.PROVEN_FOR).
    "sign_ins": (
        "delete from sign_ins where ctid = any(array(select ctid from sign_ins "
        "where updated_at < now() - make_interval(secs => :kept_s) and (state -> 'proven' is null "
        "or updated_at < now() - make_interval(days => 30)) "
        "order by updated_at limit :most for update skip locked))"
    ),
    "sessions": (
        "delete from sessions where ctid = any(array(select ctid from sessions "
        "where expires_at < now() - make_interval(secs => :kept_s) limit :most))"
    ),
    # Events of no order: of others who share our account at the provider, or of orders that never were.
    "payment_events": (
        "delete from payment_events where ctid = any(array(select ctid from payment_events "
        "where order_id is null and received_at < now() - make_interval(secs => :kept_s) limit :most))"
    ),
    # Events to customers that are delivered or given up, with their attempts.
    "outbox": (
        "with gone as (delete from outbox where ctid = any(array(select ctid from outbox "
        "where done_at < now() - make_interval(secs => :kept_s) limit :most)) returning account_id, event_id), "
        "tried as (delete from outbox_attempts a using gone "
        "where a.account_id = gone.account_id and a.event_id = gone.event_id) select from gone"
    ),
    # The newest generation says who signs; those before it, only until they no longer do.
    "webhook_secrets": (
        "delete from webhook_secrets where ctid = any(array(select s.ctid from webhook_secrets s "
        "where s.rotated_at < now() - make_interval(secs => :kept_s) and exists (select from webhook_secrets n "
        "where n.account_id = s.account_id and n.generation > s.generation) limit :most))"
    ),
    # By the database's clock, which also wrote them: a service's own may be wrong.
    "journal_batches": (
        "delete from journal_batches where ctid = any(array(select ctid from journal_batches "
        "where at < now() - make_interval(secs => :kept_s) limit :most))"
    ),
}


class Sweeper(Worker):
    """Sweeps once a minute, a bounded number of rows at a time."""

    def __init__(self, post: WorkerAddress, *, database: Database, idempotency_ttl_s: int) -> None:
        super().__init__(post)
        self._database = database
        self._kept_s = {
            "idempotency_records": idempotency_ttl_s,
            "sign_ins": SIGN_INS_KEPT_S,
            "sessions": SESSIONS_KEPT_S,
            "payment_events": EVENTS_KEPT_S,
            "outbox": OUTBOX_KEPT_S,
            "webhook_secrets": OVERLAP_S,
            "journal_batches": MARKS_KEPT_S,
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
        for table, statement in _EXPIRED.items():
            parameters = {"kept_s": self._kept_s[table], "most": ROWS_MAX}

            def remove(
                connection: Connection, statement: str = statement, parameters: dict[str, int] = parameters
            ) -> int:
                return connection.execute(text(statement), parameters).rowcount

            removed[table] = 0
            for _ in range(ROUNDS_MAX):
                count = await self._database.work(remove)
                removed[table] += count
                if count < ROWS_MAX:
                    break
        if any(removed.values()):
            log.info("swept", **removed)
        return removed
