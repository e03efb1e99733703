"""The report: its kinds, its fields and its level."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

import msgspec

AtT = TypeVar("AtT", datetime, str)

ReportKind = Literal[
    "start",
    "stop",
    "crash",
    "crash_loop",
    "restart",
    "quarantine",
    "release",
    "pause",
    "resume",
    "escalation",
    "drain",
    "roll",
    "stuck",
    "poison",
    "dead_letter",
    "outage",
    "recovery",
    "refusal",
    "lockout",
    "difference",
    "action",
    "loss",
]
"""What happened. docs/runbook.md has a section for each."""

KINDS: tuple[ReportKind, ...] = get_args(ReportKind)

Level = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From mild to loud."""
Context = Literal["start_error", "child_terminated", "shutdown_error", "shutdown", "killed", "stuck"]
Decision = Literal["restart", "backoff", "quarantine", "pause", "stop", "escalate", "none"]

MILD_FAILURES = 2
"""So many failures of a child in a row are warnings; later ones are errors."""

_LEVELS: dict[ReportKind, Level] = {
    "start": "info",
    "stop": "info",
    "crash": "error",
    "crash_loop": "critical",
    "restart": "info",
    "quarantine": "error",
    "release": "info",
    "pause": "warning",
    "resume": "info",
    "escalation": "critical",
    "drain": "info",
    "roll": "info",
    "stuck": "error",
    "poison": "error",
    "dead_letter": "warning",
    "outage": "warning",
    "recovery": "info",
    "refusal": "warning",
    "lockout": "warning",
    "difference": "critical",
    "action": "info",
    "loss": "warning",
}
_ALARMING: frozenset[Context] = frozenset({"shutdown_error", "killed", "stuck"})


class ReportFields(msgspec.Struct, Generic[AtT], frozen=True, kw_only=True):
    """What a report says, with its time as a value or as text.

    ``path`` names the child in the tree that it concerns (``holdfast/workers/hosting``), ``key`` the virtual actor.
    ``reason`` says why, in words; ``location`` is ``module:line`` of the leaf exception. ``restarts`` of ``budget``
    were used in the window that led to ``decision``; ``delay_s`` is the backoff, or how long a quarantine lasts.
    ``count`` events in ``duration_s`` are summed up in one report. ``operator`` is who acted.

    The reporter fills in who emitted it: ``number`` counts the reports of a process from 1, ``member_id`` is its id
    in the cluster, ``host`` its machine's name, ``worker`` its slot at the parent. It also sets ``report_id``, and
    ``level`` where the emitter left it to the kind.
    """

    kind: ReportKind
    at: AtT
    path: str
    level: Level | None = None
    report_id: str | None = None
    number: int = 0
    member_id: str | None = None
    host: str | None = None
    worker: int | None = None
    child_id: str | None = None
    key: str | None = None
    account_id: str | None = None
    task_id: str | None = None
    provider: str | None = None
    operator: str | None = None
    incarnation: int | None = None
    context: Context | None = None
    reason_type: str | None = None
    reason: str | None = None
    location: str | None = None
    last_message_type: str | None = None
    mailbox_depth: int | None = None
    oldest_age_s: float | None = None
    restarts: int | None = None
    budget: int | None = None
    decision: Decision = "none"
    delay_s: float | None = None
    count: int | None = None
    duration_s: float | None = None
    trace_id: str | None = None


class Report(ReportFields[datetime], frozen=True, kw_only=True, omit_defaults=True):
    """One event that an operator should know of."""


def level_of(report: Report) -> Level:
    """Return the level that the emitter chose, else that of the kind and context."""
    if report.level is not None:
        return report.level
    return "error" if report.context in _ALARMING else _LEVELS[report.kind]


def level_of_failure(failures_in_row: int) -> Level:
    """Return the level of a child's failure: mild at first, as most end with the restart."""
    return "warning" if failures_in_row <= MILD_FAILURES else "error"


class StoredReport(NamedTuple):
    """A report and its position in the table: later ones have higher positions, with gaps."""

    position: int
    report: Report


class ReportsAfter(NamedTuple):
    """The reports after a position, oldest first, and the last position read."""

    found: list[StoredReport]
    position: int


class ReportFilter(NamedTuple):
    """Which reports are wanted: exact matches, except ``path`` with all below it and ``level`` with all louder."""

    kind: ReportKind | None = None
    level: Level | None = None
    path: str | None = None
    key: str | None = None
    account_id: str | None = None
    task_id: str | None = None
    provider: str | None = None
    member_id: str | None = None
    trace_id: str | None = None

    def takes(self, report: Report) -> bool:
        """Whether a report, which the reporter has completed, is wanted."""
        exact = ("kind", "key", "account_id", "task_id", "provider", "member_id", "trace_id")
        return (
            all(getattr(self, name) in (None, getattr(report, name)) for name in exact)
            and (self.path is None or f"{report.path}/".startswith(f"{self.path}/"))
            and (self.level is None or LEVELS.index(level_of(report)) >= LEVELS.index(self.level))
        )


EVERY_REPORT = ReportFilter()
