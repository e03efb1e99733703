"""Claims of payment orders that are due: the claimer checks the order.

A claim postpones ``wake_at`` under ``SKIP LOCKED``, so several processes share the work, and the claim of a process
that dies expires. ``now`` is service time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, TypeAlias

from sqlalchemy import Connection, TextClause, text

LEASE_S = 180
"""Longer than any check takes: three calls to the provider and as many to the account."""

_TOP_UP = "(origin = 'top_up' and status = 'pending')"
_EXPIRED = "(expires_at <= :now and status in ('pending', 'failed') and origin <> 'top_up')"
_CLAIM = (
    "with due as (select account_id, order_id from orders where wake_at <= :now and {which} "
    "order by wake_at limit :most for update skip locked) "
    "update orders o set wake_at = :now + make_interval(secs => :lease_s) from due "
    "where o.account_id = due.account_id and o.order_id = due.order_id returning o.order_id"
)
_CLAIM_RESUMING = (
    "with due as (select account_id from auto_top_ups where wake_at <= :now "
    "order by wake_at limit :most for update skip locked) "
    "update auto_top_ups t set wake_at = :now + make_interval(secs => :lease_s) from due "
    "where t.account_id = due.account_id returning t.account_id"
)

Due: TypeAlias = Literal["expired_orders", "unreconciled_orders", "top_ups", "resuming_accounts"]
"""What is due: unpaid orders that have expired, card orders that are to be compared with their provider, automatic
top-ups that are to be charged or whose outcome is not known, or accounts whose next top-up the limits of a day or
month have prevented until now."""

_CLAIMS: Final[dict[Due, TextClause]] = {
    "expired_orders": text(_CLAIM.format(which=_EXPIRED)),
    "unreconciled_orders": text(
        _CLAIM.format(which=f"provider = 'cardprovider' and not {_EXPIRED} and not {_TOP_UP}")
    ),
    "top_ups": text(_CLAIM.format(which=_TOP_UP)),
    "resuming_accounts": text(_CLAIM_RESUMING),
}

_EXPECT = text(
    "update orders set wake_at = least(wake_at, cast(:at as timestamptz)) "
    "where account_id = :account_id and order_id = :order_id"
)


def expect_change(rows: Connection, account_id: str, order_id: str, *, at: datetime) -> None:
    """Have the order checked at ``at``, or earlier: a change of it at the provider is about to be requested."""
    rows.execute(_EXPECT, {"account_id": account_id, "order_id": order_id, "at": at})


def claim_due(rows: Connection, which: Due, *, most: int, now: datetime) -> list[str]:
    """Claim orders or accounts that are due, and return their ids."""
    return list(rows.execute(_CLAIMS[which], {"most": most, "lease_s": LEASE_S, "now": now}).scalars())
