"""An auditor's own model of limits: what was spent in each window, added up from the holds and captures of rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

WINDOWS: dict[str, Callable[[datetime], Hashable]] = {
    "day": lambda at: at.date(),
    "week": lambda at: at.isocalendar()[:2],
    "month": lambda at: (at.year, at.month),
    "total": lambda _: None,
}
"""What the times of one window have in common."""


class Bound(NamedTuple):
    """A limit that held from the first operation to the last; of a key, a group, or the whole account (no id)."""

    limited_id: str
    window: str
    most_micro: int


@dataclass
class SpentHold:
    """A hold and what it counts: its amount, from its end on the charge."""

    key_id: str
    at: datetime
    counted_micro: int


class LimitModel:
    """All holds of an account. ``groups`` has the group of each key that is in one."""

    def __init__(self, groups: Mapping[str, str]) -> None:
        self.holds: dict[str, SpentHold] = {}
        self.groups = groups

    def counts(self, limited_id: str, key_id: str) -> bool:
        """Whether what a key spends counts for a limit of that key, group or account."""
        return limited_id in ("", key_id, self.groups.get(key_id))

    def spent(self, limited_id: str, window: str, at: datetime) -> int:
        """What counts in the window that ``at`` is in."""
        name = WINDOWS[window]
        return sum(
            hold.counted_micro
            for hold in self.holds.values()
            if self.counts(limited_id, hold.key_id) and name(hold.at.astimezone(UTC)) == name(at.astimezone(UTC))
        )


_STEPS = text(
    """
    select o.kind, o.amount_micro, o.at, o.hold_id, t.request ->> 'api_key_id' as key_id
    from operations o left join tasks t on t.request_id = o.reference
    where o.account_id = :account_id and o.kind in ('hold', 'capture', 'release') order by o.number
    """
)


def spending_replayed(
    rows: Connection, account_id: str, bounds: list[Bound], groups: Mapping[str, str]
) -> LimitModel:
    """Replay the holds and their ends, and check that no hold exceeded a bound when it was made."""
    model = LimitModel(groups)
    for row in rows.execute(_STEPS, {"account_id": account_id}):
        if row.kind != "hold":
            model.holds[row.hold_id].counted_micro = row.amount_micro if row.kind == "capture" else 0
            continue
        for bound in bounds:
            if row.amount_micro and model.counts(bound.limited_id, row.key_id):
                spent = model.spent(bound.limited_id, bound.window, row.at)
                assert spent + row.amount_micro <= bound.most_micro, (row, bound)
        model.holds[row.hold_id] = SpentHold(row.key_id, row.at, row.amount_micro)
    return model
