"""Which lines are written at once, and which later as one line with a count.

A report is never held, so that what a supervisor and an operator did is read in the order in which it happened;
:class:`~holdfast.telemetry.reports.reporter.Reporter` limits their number. Messages that were not handled may be
very many. Events in the life of tasks have a line each until they are so many that only their counts are of use.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.telemetry.logs.lines import Fields
from holdfast.telemetry.repetitions import Repetitions
from holdfast.telemetry.reports.report import REPORT_KINDS

PERIODS_S: Final = (10, 20, 40, 80, 160, 320, 600)
"""While a line repeats, each period is longer than the one before it."""
ALIKE_MAX: Final = 3
"""How many lines that differ only in their ids are written before the others are counted."""

EVENTS_MAX: Final = 1_000
"""How many events of tasks are written in a period, and from how many a period on the next is only counted."""
EVENTS_OF_PROCESS_MIN: Final = 100
"""The least number that each process writes, however many processes there are."""
EVENT_PERIODS_S: Final = (10, 60)
"""The length of a period, and of one whose events are only counted."""

NEVER_HELD: Final = frozenset(REPORT_KINDS) - {"dead_letter"}
"""The kinds of report whose lines are each written at once."""

_IDS: Final = frozenset({"key", "task_id", "account_id", "order_id", "event_id", "batch_id"})
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_NOT_COMPARED: Final = _IDS | {"time", "trace_id", "request_id"}


class Folding:
    """Decides which lines of one of so many ``processes`` are written. ``clock`` counts seconds.

    Not safe for threads.
    """

    def __init__(self, clock: Callable[[], float], *, processes: int = 1) -> None:
        events_max = max(EVENTS_MAX // processes, EVENTS_OF_PROCESS_MIN)
        self._lines = Repetitions[Fields](clock, ALIKE_MAX, PERIODS_S)
        self._task_events = Repetitions[None](clock, events_max, EVENT_PERIODS_S, rest_max=events_max)
        self._counts: Counter[str] = Counter()

    def admit(self, fields: Fields) -> bool:
        """Whether to write this line now; otherwise it is counted."""
        if "path" in fields and fields["event"] in NEVER_HELD:
            return True
        texts = _texts(fields)
        kind = tuple((name, text) for name, text in texts if name not in _NOT_COMPARED)
        return self._lines.admit(kind, fields, name=tuple(each for each in texts if each[0] in _IDS))

    def admit_task_event(self, event: str) -> bool:
        """Whether to write a line of this event in the life of a task now; otherwise it is counted."""
        is_admitted = self._task_events.admit(None, None)
        if not is_admitted:
            self._counts[event] += 1
        return is_admitted

    def due(self, *, at_once: bool = False) -> list[Fields]:
        """Return the last of each repeated line whose period has passed, with the count ``folded``; and ``counts``
        of the events of tasks, without a time.
        """
        lines = [
            each.last if each.count == 1 else each.last | {"folded": each.count}
            for each in self._lines.due(at_once=at_once)
        ]
        for each in self._task_events.due(at_once=at_once):
            counts, self._counts = dict(self._counts), Counter()
            text = "too many for a line each"
            lines.append({"event": "task events", "text": text, "counts": counts, "seconds": round(each.lasted_s)})
        return lines


def _texts(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the texts of a line. Numbers differ each time, also those in the words of a report."""
    return [
        (name, _NUMBER.sub("#", value) if name == "text" else value)
        for name, value in fields.items()
        if isinstance(value, str)
    ]
