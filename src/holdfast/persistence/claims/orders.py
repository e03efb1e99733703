"""Claims of payment orders that are due: the claimer checks the order.

A claim postpones ``wake_at`` under ``SKIP LOCKED``, so several processes share the work, and the claim of a process
that dies expires. ``now`` is service time.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

LEASE_S = 180
"""Longer than any check takes: three calls to the provider and as many to the account."""

_EXPIRED = "(expires_at <= :now and status in ('pending', 'failed'))"
_CLAIM = (
    "with due as (select account_id, order_id from orders where wake_at <= :now and {which} "
    "order by wake_at limit :most for update skip locked) "
    "update orders o set wake_at = :now + make_interval(secs => :lease_s) from due "
    "where o.account_id = due.account_id and o.order_id = due.order_id returning o.order_id"
)
_CLAIM_EXPIRED = text(_CLAIM.format(which=_EXPIRED))
_CLAIM_UNRECONCILED = text(_CLAIM.format(which=f"provider = 'cardprovider' and not {_EXPIRED}"))

_EXPECT = text(
    "update orders set wake_at = least(wake_at, cast(:at as timestamptz)) "
    "where account_id = :account_id and order_id = :order_id"
)


def expect_change(rows: Connection, account_id: str, order_id: str, *, at: datetime) -> None:
    """Have the order checked at ``at``, or earlier: a change of it at the provider is about to be requested."""
    rows.execute(_EXPECT, {"account_id": account_id, "order_id": order_id, "at": at})


def claim_expired_orders(rows: Connection, *, most: int, now: datetime) -> list[str]:
    """Claim unpaid orders that have expired."""
    return list(rows.execute(_CLAIM_EXPIRED, {"most": most, "lease_s": LEASE_S, "now": now}).scalars())


def claim_unreconciled_orders(rows: Connection, *, most: int, now: datetime) -> list[str]:
    """Claim card orders that are due to be compared with their provider."""
    return list(rows.execute(_CLAIM_UNRECONCILED, {"most": most, "lease_s": LEASE_S, "now": now}).scalars())
