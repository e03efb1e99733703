"""What the rows may have for the workers to do, found for all of them by one query.

Each worker's own query finds and claims its work. An idle service would run a dozen of them every few seconds,
each in a transaction, and find nothing. So one query asks, by an index for each kind of work, whether there may be
any. It may say so of work that is not due yet, or that another process has; it never says that there is none while
there is.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias, cast, get_args

from sqlalchemy import Connection, text

from holdfast.persistence.claims.archives import TRIES_MAX
from holdfast.persistence.claims.coupons import CLAIM_OVERDUE_S
from holdfast.persistence.server.repeated_queries import RepeatedQuery

DueKind: TypeAlias = Literal[
    "tasks",
    "other_processes",
    "orders",
    "resuming_accounts",
    "money",
    "events",
    "stored",
    "lots",
    "coupon_claims",
    "closings",
    "archives",
    "overrides",
    "bulk_actions",
]
"""Unfinished tasks; processes that may have ended; orders and accounts with a top-up that are due; money of orders
that moved lately, which may have no receipt; events that are not delivered; stored contents, files and inputs; lots
that have expired; claims of coupons that have not ended; accounts to close or to delete; archives to make;
overrides that this process has not read; operators' bulk actions that go on."""

KINDS: Final[frozenset[DueKind]] = frozenset(get_args(DueKind))
MONEY_MOVED_WITHIN: Final = timedelta(seconds=60)
BULK_ACTIONS_GO_ON: Final = timedelta(days=1)
"""How long after its start a bulk action goes on, so that few rows are looked at for one."""

_CONDITIONS: Final[dict[DueKind, str]] = {
    "tasks": (
        "exists (select from tasks where wake_at is not null and not dispatched) "
        "or exists (select from tasks where wake_at is not null and dispatched)"
    ),
    "other_processes": "exists (select from processes where process_id <> :me)",
    "orders": "exists (select from orders where wake_at <= :now)",
    "resuming_accounts": "exists (select from auto_top_ups where wake_at <= :now)",
    "money": (
        "exists (select from operations where kind in ('credit', 'reversal') "
        "and starts_with(reference, 'ord_') and at > :moved_after)"
    ),
    "events": "exists (select from outbox where due_at is not null)",
    "stored": (
        "exists (select from contents) or exists (select from files) or exists (select from file_uses) "
        "or exists (select from tasks where input_until <= :now)"
    ),
    "lots": "exists (select from credit_lots where closed_number is null and expires_at <= :now)",
    "coupon_claims": "exists (select from coupon_uses where granted_at is null and claimed_at <= :claimed_by)",
    "closings": "exists (select from accounts where closes_at <= :now and erased_at is null)",
    "archives": (
        "exists (select from archives where made_at is null and claimed_until <= :now "
        f"and tries < {TRIES_MAX})"
    ),
    "overrides": "(select coalesce(sum(version), 0) from overrides) <> :overrides_seen",
    "bulk_actions": (
        "exists (select from operator_actions where at > :bulk_after "
        "and action in ('act_on_all', 'continue_bulk_action') and result is null)"
    ),
}  # fmt: skip
_QUERY: Final = RepeatedQuery(
    text(" union all ".join(f"select '{kind}' as kind where {found}" for kind, found in _CONDITIONS.items()))
)


def find_due(rows: Connection, now: datetime, *, me: str, overrides_seen: int) -> frozenset[DueKind]:
    """Return the kinds of which there may be work at ``now`` for the process ``me``.

    ``overrides_seen`` is the sum of the versions of the overrides that it knows.
    """
    found = _QUERY.rows(
        rows,
        {
            "now": now,
            "me": me,
            "overrides_seen": overrides_seen,
            "moved_after": now - MONEY_MOVED_WITHIN,
            "bulk_after": now - BULK_ACTIONS_GO_ON,
            "claimed_by": now - timedelta(seconds=CLAIM_OVERDUE_S),
        },
    )
    return frozenset(cast("DueKind", row.kind) for row in found)
