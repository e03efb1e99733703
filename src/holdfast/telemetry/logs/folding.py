"""Folding of repeated lines: the first is written at once, its repetitions later as one line with a count.

A report is never held, so that what a supervisor and an operator did is read in the order in which it happened;
:class:`~holdfast.telemetry.reports.reporter.Reporter` limits their number. Messages that were not handled may be
very many.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from holdfast.telemetry.logs.lines import Fields
from holdfast.telemetry.reports.report import REPORT_KINDS

PERIOD_S: Final = 10.0
PERIOD_MAX_S: Final = 600.0
"""While a line repeats, each period is twice as long as the one before it."""
ALIKE_MAX: Final = 3
"""How many lines that differ only in their ids are written before the others are counted."""
KINDS_MAX: Final = 500
"""How many kinds of line are remembered; beyond that the oldest is forgotten, and written when it comes again."""

NEVER_HELD: Final = frozenset(REPORT_KINDS) - {"dead_letter"}
"""The kinds of report whose lines are each written at once."""

_IDS: Final = frozenset({"key", "task_id", "account_id", "order_id", "event_id", "batch_id"})
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_NOT_COMPARED: Final = _IDS | {"time", "trace_id", "request_id"}

Texts: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Repeated:
    """Lines of one kind until ``until_s``: the ids of those written, and the count and the last of the others."""

    until_s: float
    period_s: float = PERIOD_S
    written: set[Texts] = field(default_factory=set)
    count: int = 0
    last: Fields | None = None

    def folded(self) -> Fields | None:
        """Return the line for those that were not written."""
        if self.last is None:
            return None
        return self.last if self.count == 1 else self.last | {"folded": self.count}


class Folding:
    """Decides which lines are written, by those of late. ``clock`` counts seconds. Not safe for threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[Texts, _Repeated] = {}
        self._forgotten: list[Fields] = []

    def admit(self, fields: Fields) -> bool:
        """Whether to write this line now; otherwise it is counted."""
        if "path" in fields and fields["event"] in NEVER_HELD:
            return True
        now_s = self._clock()
        kind = tuple((name, text) for name, text in _texts(fields) if name not in _NOT_COMPARED)
        found = self._kinds.get(kind)
        if found is None or (now_s >= found.until_s and not found.count):
            # New, or without a repetition in its last period.
            self._make_room()
            found = self._kinds[kind] = _Repeated(now_s + PERIOD_S)
        ids = tuple((name, text) for name, text in _texts(fields) if name in _IDS)
        if not found.count and ids not in found.written and len(found.written) < ALIKE_MAX:
            found.written.add(ids)
            return True
        found.count += 1
        found.last = fields
        return False

    def due(self, *, at_once: bool = False) -> list[Fields]:
        """Return the last of each repeated line whose period has passed, with the count ``folded``."""
        now_s = self._clock()
        lines, self._forgotten = self._forgotten, []
        for kind, found in list(self._kinds.items()):
            if now_s < found.until_s and not at_once:
                continue
            line = found.folded()
            if line is None:
                del self._kinds[kind]
                continue
            lines.append(line)
            found.period_s = min(found.period_s * 2, PERIOD_MAX_S)
            found.until_s, found.count, found.last = now_s + found.period_s, 0, None
        return lines

    def _make_room(self) -> None:
        while len(self._kinds) >= KINDS_MAX:
            line = self._kinds.pop(next(iter(self._kinds))).folded()
            if line is not None:
                self._forgotten.append(line)


def _texts(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the texts of a line. Numbers differ each time, also those in the words of a report."""
    return [
        (name, _NUMBER.sub("#", value) if name == "text" else value)
        for name, value in fields.items()
        if isinstance(value, str)
    ]
