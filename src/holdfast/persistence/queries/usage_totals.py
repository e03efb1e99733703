"""Totals of an account's usage, from those that are stored with each task that ends.

Tasks that have not ended are few, however many there were: they are found by their open holds, and counted at each
read. One statement reads everything, so that totals are of one moment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache
from typing import Final, Literal

import msgspec
from sqlalchemy import Connection, text

from holdfast.ledger.tasks.task import TERMINAL, TaskStatus
from holdfast.ledger.tasks.usage_totals import UsageGroup, pieces_of
from holdfast.persistence.server.repeated_queries import RepeatedQuery

GROUPS_MAX: Final = 5_000
"""How many groups one read returns at most."""
STORED_MAX: Final = 200_000
"""How many stored totals, entries and open tasks one read sums at most."""


class UsageTotal(msgspec.Struct, frozen=True):
    """How many tasks a group has, and what was charged for them. What the group is not of is None."""

    part: int
    model: str | None
    api_key_id: str | None
    status: TaskStatus | None
    end_user: str | None
    count: int
    cost_micro: int


# The subqueries with an offset are run for each piece, so that each is read by the keys alone, whatever the plan.
_QUERY = """
with pieces as (
    select * from unnest(
        cast(:spans_s as integer[]), cast(:sinces as timestamptz[]), cast(:untils as timestamptz[]),
        cast(:added_to as integer[]), cast(:taken_from as integer[])
    ) as p (span_s, since, until, added_to, taken_from)
), summed as materialized (
    select added_to, taken_from, is_of_end_user, {columns},
           sum(count) as count, sum(cost_micro) as cost_micro, count(*) as stored
    from (
        select p.added_to, p.taken_from, t.end_user_by <> '' as is_of_end_user, t.model, t.api_key_id, t.status,
               t.end_user, t.count, t.cost_micro
        from pieces p cross join lateral (
            select * from usage_totals u
            where u.account_id = :account_id and u.end_user_by = any(cast(:end_user_bys as text[]))
              and u.span_s = p.span_s and u.start_at >= p.since and u.start_at < p.until
            offset 0
        ) t where p.span_s > 0
        union all
        select p.added_to, p.taken_from, false, e.model, coalesce(e.api_key_id, ''), e.status,
               coalesce(e.end_user, ''), 1, e.cost_micro
        from pieces p cross join lateral (
            select * from usage_entries u
            where u.account_id = :account_id and u.ts >= p.since and u.ts < p.until
              and u.status = any(cast(:ended as text[]))
            offset 0
        ) e where p.span_s = 0
        union all
        select width_bucket(e.ts, cast(:bounds as timestamptz[])), 0, false, e.model, coalesce(e.api_key_id, ''),
               e.status, coalesce(e.end_user, ''), 1, e.cost_micro
        from holds h cross join lateral (
            select created_at from tasks k where k.request_id = h.reference offset 0
        ) k cross join lateral (
            select * from usage_entries u
            where u.account_id = :account_id and u.ts = k.created_at and u.request_id = h.reference
            offset 0
        ) e
        where h.account_id = :account_id and h.settled_number is null and e.ts >= :since and e.ts < :until
        limit :stored_max
    ) found group by 1, 2, 3, 4, 5, 6, 7
)
select t.part, is_of_end_user, model, api_key_id, status, end_user,
       cast(sum(t.sign * count) as bigint) as count, cast(sum(t.sign * cost_micro) as bigint) as cost_micro,
       (select sum(stored) from summed) as stored
from summed s cross join lateral (values (s.added_to, 1), (s.taken_from, -1)) as t (part, sign)
where t.part > 0
group by 1, 2, 3, 4, 5, 6 having sum(t.sign * count) <> 0 limit :groups_max
"""


@cache
def _query(columns: tuple[str, ...]) -> RepeatedQuery:
    return RepeatedQuery(text(_QUERY.format(columns=", ".join(columns))))


def usage_totals(
    rows: Connection, account_id: str, groups: Collection[UsageGroup], bounds: Sequence[datetime]
) -> list[UsageTotal] | None:
    """Sum the account's usage between the first and the last of ``bounds``; each two enclose one part.

    Returns a total for each part and group that has any usage, in no order; None if there are too many.
    """
    columns = tuple(
        name if name in groups else f"'' as {name}" for name in ("model", "api_key_id", "status", "end_user")
    )
    by_end_user = next((name for name in ("model", "api_key_id", "status") if name in groups), "status")
    spans_s, sinces, untils, added_to, taken_from = zip(*pieces_of(bounds), strict=True)
    found = _query(columns).rows(
        rows,
        {
            "account_id": account_id,
            "spans_s": list(spans_s),
            "sinces": list(sinces),
            "untils": list(untils),
            "added_to": list(added_to),
            "taken_from": list(taken_from),
            "end_user_bys": ["", by_end_user] if "end_user" in groups else [""],
            "ended": list(TERMINAL),
            "bounds": list(bounds),
            "since": bounds[0],
            "until": bounds[-1],
            "stored_max": STORED_MAX + 1,
            # An end user has one of stored totals, and one of what was counted here.
            "groups_max": 2 * GROUPS_MAX + 1,
        },
    )
    if found and (found[0].stored > STORED_MAX or len(found) > 2 * GROUPS_MAX):
        return None
    sums: dict[tuple[int, str, str, TaskStatus | Literal[""], str], tuple[int, int]] = {}
    for row in found:
        group = row.part, row.model, row.api_key_id, row.status, row.end_user
        count, cost_micro = sums.get(group, (0, 0))
        sums[group] = count + row.count, cost_micro + row.cost_micro
        if row.is_of_end_user:
            # The totals of all tasks have counted it as one without an end user.
            group = *group[:-1], ""
            count, cost_micro = sums.get(group, (0, 0))
            sums[group] = count - row.count, cost_micro - row.cost_micro
    totals = [
        UsageTotal(part, model or None, key or None, status or None, end_user or None, count, cost_micro)
        for (part, model, key, status, end_user), (count, cost_micro) in sums.items()
        if count
    ]
    return totals if len(totals) <= GROUPS_MAX else None
