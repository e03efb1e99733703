"""Whose credit is held and spent most: sums over all accounts, of the totals that are stored."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from sqlalchemy import Connection, text

CreditOf = Literal["account", "key", "model", "provider"]
CreditTime = Literal["now", "minutes", "day"]
"""Held now; spent in a quarter of an hour or two, and in a day: by tasks that were created since and have ended."""


class CreditLine(NamedTuple):
    """The credit of one name, and of all that it is one of."""

    time: CreditTime
    of: CreditOf
    name: str
    micro: int
    total_micro: int


_LARGEST: Final = (
    "(select cast('{of}' as text) as of, cast({name} as text) as name, cast(sum(micro) as bigint) as micro, "
    "cast(sum(sum(micro)) over () as bigint) as total_micro from credit where {name} <> '' "
    "group by {name} having sum(micro) > 0 order by micro desc, name limit :most)"
)


def _largest(names: Sequence[tuple[CreditOf, str]]) -> str:
    return " union all ".join(_LARGEST.format(of=of, name=name) for of, name in names)


_HELD: Final = text(
    "with credit as materialized (select h.account_id, t.model, t.provider, "
    "coalesce(t.request ->> 'api_key_id', '') as key, h.amount_micro as micro "
    "from holds h join tasks t on t.request_id = h.reference where h.settled_number is null) "
    + _largest([("account", "account_id"), ("key", "key"), ("model", "model"), ("provider", "provider")])
)
_SPENT: Final = text(
    "with credit as materialized ("
    "select u.account_id, u.model, u.api_key_id, m.provider, sum(u.cost_micro) as micro from usage_totals u "
    "left join unnest(cast(:models as text[]), cast(:providers as text[])) as m (model, provider) "
    "on m.model = u.model where u.end_user_by = '' and u.span_s = :span_s and u.start_at > :after "
    "and u.cost_micro > 0 group by 1, 2, 3, 4) "
    + _largest([("account", "account_id"), ("key", "api_key_id"), ("model", "model"), ("provider", "provider")])
)


def credit_costs(
    rows: Connection, now: datetime, *, providers: Sequence[tuple[str, str]], most: int
) -> list[CreditLine]:
    """Return the largest sums, largest first. ``providers`` are the models of the catalog, each with its provider.

    Reads the open holds, and all stored usage totals.
    """
    found = [CreditLine("now", *row) for row in rows.execute(_HELD, {"most": most})]
    spans: list[tuple[CreditTime, int, timedelta]] = [
        ("minutes", 900, timedelta(minutes=30)),
        ("day", 3600, timedelta(hours=24)),
    ]
    for of_time, span_s, ago in spans:
        asked = {
            "span_s": span_s,
            "after": now - ago,
            "most": most,
            "models": [model for model, _ in providers],
            "providers": [provider for _, provider in providers],
        }
        found += [CreditLine(of_time, *row) for row in rows.execute(_SPENT, asked)]
    return found
