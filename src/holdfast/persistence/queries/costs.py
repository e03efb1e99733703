"""Whose credit is held and spent most: sums over all accounts, of the totals that are stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple, get_args

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


_LARGEST: Final = " union all ".join(
    f"(select cast('{of}' as text) as of, cast({of} as text) as name, cast(sum(micro) as bigint) as micro, "
    f"cast(sum(sum(micro)) over () as bigint) as total_micro from credit where {of} <> '' "
    f"group by {of} having sum(micro) > 0 order by micro desc, name limit :most)"
    for of in get_args(CreditOf)
)
_HELD: Final = text(
    "with credit as materialized (select h.account_id as account, t.model, t.provider, "
    "coalesce(t.request ->> 'api_key_id', '') as key, h.amount_micro as micro "
    f"from holds h join tasks t on t.request_id = h.reference where h.settled_number is null) {_LARGEST}"
)
_SPENT: Final = text(
    "with credit as materialized ("
    "select u.account_id as account, u.model, u.api_key_id as key, m.provider, sum(u.cost_micro) as micro "
    "from usage_totals u left join unnest(cast(:models as text[]), cast(:providers as text[])) "
    "as m (model, provider) on m.model = u.model where u.end_user_by = '' and u.span_s = :span_s "
    f"and u.start_at > :after and u.cost_micro > 0 group by 1, 2, 3, 4) {_LARGEST}"
)
_SPENT_IN: Final[dict[CreditTime, tuple[int, timedelta]]] = {
    "minutes": (900, timedelta(minutes=30)),
    "day": (3600, timedelta(hours=24)),
}


def credit_costs(rows: Connection, now: datetime, *, providers: Mapping[str, str], most: int) -> list[CreditLine]:
    """Return the largest sums, largest first. ``providers`` are those of the catalog's models.

    Reads the open holds, and all stored usage totals.
    """
    found = [CreditLine("now", *row) for row in rows.execute(_HELD, {"most": most})]
    of_models = {"models": [*providers], "providers": [*providers.values()], "most": most}
    for time, (span_s, ago) in _SPENT_IN.items():
        asked = {**of_models, "span_s": span_s, "after": now - ago}
        found += [CreditLine(time, *row) for row in rows.execute(_SPENT, asked)]
    return found
