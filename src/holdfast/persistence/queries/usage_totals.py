"""Totals of an account's usage, from those that are stored with each task that ends.

Tasks that have not ended are few, however many there were: they are found by their open holds, and counted at each
read. One statement reads everything, so that totals are of one moment.

What no total is stored by is summed from the entries themselves: those of one end user, those that other metadata
selects, and end users by two other columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, text

from holdfast.ledger.tasks.task import TERMINAL, TaskStatus
from holdfast.ledger.tasks.usage_totals import UsageGroup, pieces_of
from holdfast.persistence.queries.filtered_usage import METADATA_SCANNED_MAX, TASKS, matches_of, parameters_of
from holdfast.persistence.queries.paging import PAGE_SHAPES_MAX
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
           sum(count) filter (where {matches}) as count, sum(cost_micro) filter (where {matches}) as cost_micro,
           count(*) as stored
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
    ) u group by 1, 2, 3, 4, 5, 6, 7
)
select g.*, n.stored from (select coalesce(sum(stored), 0) as stored from summed) n left join (
    select t.part, is_of_end_user, model, api_key_id, status, end_user,
           cast(sum(t.sign * count) as bigint) as count, cast(sum(t.sign * cost_micro) as bigint) as cost_micro
    from summed s cross join lateral (values (s.added_to, 1), (s.taken_from, -1)) as t (part, sign)
    where t.part > 0
    group by 1, 2, 3, 4, 5, 6 having sum(t.sign * count) <> 0 limit :groups_max
) g on true
"""


# The entries are counted before they are compared: so many are read, whatever is selected of them.
_ENTRIES = """
with scanned as materialized (
    select * from usage_entries
    where account_id = :account_id and ts >= :since and ts < :until{of_end_user} limit :stored_max
)
select g.*, n.stored from (select count(*) as stored from scanned) n left join (
    select width_bucket(u.ts, cast(:bounds as timestamptz[])) as part, {columns},
           count(*) as count, cast(sum(u.cost_micro) as bigint) as cost_micro
    from scanned u{tasks} where {matches} group by 1, 2, 3, 4, 5 limit :groups_max
) g on true
"""


@lru_cache(maxsize=PAGE_SHAPES_MAX)
def _query(sql: str, columns: tuple[str, ...], names: tuple[str, ...]) -> RepeatedQuery:
    return RepeatedQuery(
        text(
            sql.format(
                columns=", ".join(columns),
                matches=matches_of(names),
                of_end_user=" and end_user = :end_user" if "end_user" in names else "",
                tasks=TASKS if "key_0" in names else "",
            )
        )
    )


def usage_totals(
    rows: Connection,
    account_id: str,
    groups: Collection[UsageGroup],
    bounds: Sequence[datetime],
    filters: Mapping[str, str] | None = None,
) -> list[UsageTotal] | None:
    """Sum the account's usage between the first and the last of ``bounds``; each two enclose one part.

    ``filters`` are those of :func:`~holdfast.persistence.queries.tasks.tasks_of_account`.

    Returns a total for each part and group that has any usage, in no order; None if there are too many.
    """
    given = parameters_of(filters or {})
    columns = tuple(
        f"u.{name}" if name in groups else f"'' as {name}" for name in ("model", "api_key_id", "status", "end_user")
    )
    used = [name for name in ("model", "api_key_id", "status") if name in groups or name in given]
    if "end_user" in given or "key_0" in given or ("end_user" in groups and len(used) > 1):
        return _summed_entries(rows, account_id, columns, bounds, given)
    by_end_user = used[0] if used else "status"
    spans_s, sinces, untils, added_to, taken_from = zip(*pieces_of(bounds), strict=True)
    found = _query(_QUERY, columns, tuple(given)).rows(
        rows,
        {
            **given,
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
    if found[0].stored > STORED_MAX or len(found) > 2 * GROUPS_MAX:
        return None
    sums: _Sums = {}
    for row in found if found[0].part else ():
        group = row.part, row.model, row.api_key_id, row.status, row.end_user
        count, cost_micro = sums.get(group, (0, 0))
        sums[group] = count + row.count, cost_micro + row.cost_micro
        if row.is_of_end_user:
            # The totals of all tasks have counted it as one without an end user.
            group = *group[:-1], ""
            count, cost_micro = sums.get(group, (0, 0))
            sums[group] = count - row.count, cost_micro - row.cost_micro
    return _totals(sums)


_Sums: TypeAlias = dict[tuple[int, str, str, TaskStatus | Literal[""], str], tuple[int, int]]


def _totals(sums: _Sums) -> list[UsageTotal] | None:
    totals = [
        UsageTotal(part, model or None, key or None, status or None, end_user or None, count, cost_micro)
        for (part, model, key, status, end_user), (count, cost_micro) in sums.items()
        if count
    ]
    return totals if len(totals) <= GROUPS_MAX else None


def _summed_entries(
    rows: Connection,
    account_id: str,
    columns: tuple[str, ...],
    bounds: Sequence[datetime],
    given: Mapping[str, Any],
) -> list[UsageTotal] | None:
    """Sum single entries, of which fewer are read if each task's metadata is compared."""
    most = METADATA_SCANNED_MAX if "key_0" in given else STORED_MAX
    found = _query(_ENTRIES, columns, tuple(given)).rows(
        rows,
        {
            **given,
            "account_id": account_id,
            "bounds": list(bounds),
            "since": bounds[0],
            "until": bounds[-1],
            "stored_max": most + 1,
            "groups_max": GROUPS_MAX + 1,
        },
    )
    if found[0].stored > most:
        return None
    return _totals(
        {
            (row.part, row.model, row.api_key_id or "", row.status, row.end_user or ""): (row.count, row.cost_micro)
            for row in (found if found[0].part else ())
        }
    )
