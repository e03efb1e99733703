"""The sweeper: deletes expired rows, in one process for all. Sweeps are idempotent."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from holdfast.actors.workers.passes import ALWAYS, Schedule, repeat
from holdfast.ledger.sign_in_codes import PROVEN_FOR
from holdfast.ledger.tasks.webhook_secrets import OVERLAP_S
from holdfast.ledger.values import Now
from holdfast.persistence.claims.coupons import WRONG_CODES_S
from holdfast.persistence.claims.expired import delete_expired, delete_surplus_keys
from holdfast.persistence.claims.reports import delete_old_reports
from holdfast.persistence.journal.journal import MARKER_RETENTION_S
from holdfast.persistence.server.database import Database

log = structlog.get_logger(__name__)

SWEEP_S = 60.0
SWEEP_BOUND_S = 300.0
ROWS_MAX = 1_000
"""How many rows one statement deletes: while it runs, leases and claims share one connection fewer."""
ROUNDS_MAX = 100
"""The maximum number of statements for one kind of row in one sweep."""
SIGN_INS_RETENTION_S = 25 * 3600
SESSIONS_RETENTION_S = 30 * 24 * 3600
CHANGES_RETENTION_S = 400 * 24 * 3600
"""How long the account's history has what its API keys did."""
CHECKS_RETENTION_S = 24 * 3600
EVENTS_RETENTION_S = 90 * 24 * 3600
OUTBOX_RETENTION_S = 30 * 24 * 3600
OVERRIDES_RETENTION_S = 30 * 24 * 3600
"""How long an override stays after its end."""


class Sweeper:
    """Sweeps once a minute, a bounded number of rows per statement."""

    def __init__(
        self,
        *,
        database: Database,
        now: Now,
        idempotency_ttl_s: int,
        revoked_keys_retention_s: int,
        reports_retention_s: int,
        reports_max: int,
        schedule: Schedule = ALWAYS,
    ) -> None:
        self._schedule = schedule
        self._database = database
        self._now = now
        self._retention_s = {
            "idempotency_records": idempotency_ttl_s,
            "sign_ins": SIGN_INS_RETENTION_S,
            "proven_sign_ins": int(PROVEN_FOR.total_seconds()),
            "api_keys": revoked_keys_retention_s,
            "sessions": SESSIONS_RETENTION_S,
            "operator_sessions": SESSIONS_RETENTION_S,
            "account_changes": CHANGES_RETENTION_S,
            "coupon_tries": WRONG_CODES_S,
            "check_callbacks": CHECKS_RETENTION_S,
            "payment_events": EVENTS_RETENTION_S,
            "outbox": OUTBOX_RETENTION_S,
            "overrides": OVERRIDES_RETENTION_S,
            "webhook_secrets": OVERLAP_S,
            "journal_batches": MARKER_RETENTION_S,
            "reports": reports_retention_s,
            "poison_messages": reports_retention_s,
        }
        self._reports_max = reports_max

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Sweep once a minute until cancelled, the first time a minute after the start."""
        task_status.started()
        await trio.sleep(SWEEP_S)
        await repeat(self.sweep, every_s=SWEEP_S, name="sweep", schedule=self._schedule, bound_s=SWEEP_BOUND_S)

    async def sweep(self) -> dict[str, int]:
        """Delete expired rows and return their number by kind. Raises ``DatabaseAway``."""
        now = self._now()
        removed = {
            what: await self._delete(delete_expired, what=what, retention_s=retention_s, now=now)
            for what, retention_s in self._retention_s.items()
        }
        removed["api_keys"] += await self._delete(delete_surplus_keys, now=now)
        removed["reports"] += await self._delete(delete_old_reports, kept=self._reports_max)
        if any(removed.values()):
            log.info("expired rows deleted", **removed)
        return removed

    async def _delete(self, delete: Callable[..., int], **which: object) -> int:
        removed = 0
        for _ in range(ROUNDS_MAX):
            count = await self._database.work(delete, most=ROWS_MAX, **which)
            removed += count
            if count < ROWS_MAX:
                break
        return removed
