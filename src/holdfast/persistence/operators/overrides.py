"""What operators set at run time for a time, in place of the catalog and the settings.

It is rows, and in the memory of every process: a decision reads none. A process reads all rows again once any has
changed, which its look for due work finds within a second, or as soon as the process where it was set says so.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import Now, format_time
from holdfast.persistence.records.operator_tables import Override, OverrideKind
from holdfast.persistence.records.operator_tables import overrides as table

_ALL: Final = select(*(table.c[name] for name in Override._fields)).order_by(table.c.kind, table.c.subject)


def write_override(rows: Connection, override: Override) -> None:
    """Write an override in the place of the one of its kind and subject."""
    new = insert(table).values(override._asdict())
    changed = {name: new.excluded[name] for name in Override._fields[2:-1]}
    rows.execute(
        new.on_conflict_do_update(
            index_elements=[table.c.kind, table.c.subject], set_={**changed, "version": table.c.version + 1}
        )
    )


def find_overrides(rows: Connection) -> list[Override]:
    """Return all overrides, those that have ended too."""
    return [Override._make(row) for row in rows.execute(_ALL)]


class Overrides:
    """The overrides that this process knows. ``read`` reads all rows; before the first read there is none.

    Until then no job is started: one of a paused provider or model might be.
    """

    def __init__(self, read: Callable[[], Awaitable[Sequence[Override]]], now: Now) -> None:
        self._read = read
        self._now = now
        self._known: dict[tuple[OverrideKind, str], Override] = {}
        self.seen = -1
        """The sum of the versions of the rows that were read last."""

    async def reread(self) -> None:
        """Read the rows again. Raises :class:`DatabaseAway`, and what was known stays."""
        found = await self._read()
        seen = sum(each.version for each in found)
        # Two reads at once may end in the other order.
        if seen >= self.seen:
            self.seen, self._known = seen, {(each.kind, each.subject): each for each in found}

    def in_force(self) -> list[Override]:
        """Return those that have not ended, by kind and subject."""
        now = self._now()
        return [each for each in self._known.values() if each.ends_at > now]

    def find(self, kind: OverrideKind, subject: str) -> Override | None:
        """Return the one of a kind and subject, unless it has ended."""
        found = self._known.get((kind, subject))
        return None if found is None or found.ends_at <= self._now() else found

    def pause_of(self, model: str, provider: str) -> Override | None:
        """Return the pause of a model or of its provider; of two, one that refuses new tasks."""
        if not self._known:
            return None
        found = self.find("model_pause", model), self.find("provider_pause", provider)
        pauses = [each for each in found if each is not None]
        return next((each for each in pauses if each.new_tasks == "refuse"), next(iter(pauses), None))

    def refuse_new(self, model: str, provider: str) -> Refusal | None:
        """Refuse a new task of a model with ``model_paused`` while it or its provider refuses them."""
        pause = self.pause_of(model, provider)
        if pause is None or pause.new_tasks == "wait":
            return None
        note = f": {pause.note}" if pause.note else "."
        return Refusal(
            code="model_paused",
            message=f"The model '{model}' is paused until {format_time(pause.ends_at)}{note}",
            param="model",
            retry_after_s=max(1, math.ceil((pause.ends_at - self._now()).total_seconds())),
        )

    def slots(self, catalog: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many jobs each provider runs at once, by the catalog's numbers; a paused one starts none."""
        if self.seen < 0:
            return dict.fromkeys(catalog, 0)
        return {name: self._slots_of(name, slots) for name, slots in catalog.items()} if self._known else catalog

    def _slots_of(self, provider: str, slots: int) -> int:
        if self.find("provider_pause", provider) is not None:
            return 0
        found = self.find("provider_slots", provider)
        return slots if found is None or found.number is None else int(found.number)

    def paused_models(self) -> list[str]:
        """Return the models whose waiting tasks are not started."""
        return [each.subject for each in self.in_force() if each.kind == "model_pause"] if self._known else []
