"""Sums of the usage log, entry by entry: what totals of usage have to be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from itertools import combinations
from typing import Any, get_args

from holdfast.ledger.tasks.usage_totals import UsageGroup

GROUPS: tuple[UsageGroup, ...] = get_args(UsageGroup)
GROUPINGS: tuple[tuple[UsageGroup, ...], ...] = (*((name,) for name in GROUPS), *combinations(GROUPS, 2))
"""One group, or any two."""

Sums = dict[tuple[str | None, ...], tuple[int, Any]]
"""How many entries there are, and what they cost, by the values of their groups."""


def sums_of(
    entries: Iterable[Mapping[str, Any]],
    groups: Sequence[UsageGroup],
    zone: tzinfo,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    filters: Mapping[str, str] | None = None,
) -> Sums:
    """Sum entries, which have ``ts`` and ``cost``, by ``groups``, those that have the values of ``filters``."""
    sums: Sums = defaultdict(lambda: (0, 0))
    for entry in entries:
        at: datetime = entry["ts"]
        is_selected = all(entry[name] == value for name, value in (filters or {}).items())
        if is_selected and (since is None or at >= since) and (until is None or at < until):
            values = {**entry, "day": at.astimezone(zone).date().isoformat()}
            group = tuple(values[name] for name in groups)
            count, cost = sums[group]
            sums[group] = count + 1, cost + entry["cost"]
    return dict(sums)
