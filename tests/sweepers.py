"""A sweeper of rows, with settings of its own."""

from __future__ import annotations

from typing import Any

from holdfast.actors.workers.sweeper import Sweeper
from holdfast.ledger.values import utc_now
from holdfast.persistence.server.database import Database

DAY_S = 86_400


def sweeper_of(database: Database, **changed: Any) -> Sweeper:
    """Return a sweeper that keeps all for a day; ``changed`` replaces its settings."""
    usual: dict[str, Any] = {
        "now": utc_now,
        "idempotency_ttl_s": DAY_S,
        "revoked_keys_retention_s": DAY_S,
        "reports_retention_s": DAY_S,
        "reports_max": 1_000,
    }
    return Sweeper(database=database, **usual | changed)
