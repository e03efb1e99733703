"""The report: its kinds, its fields, its level, and its text in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Generic, Literal, NamedTuple, TypeVar, get_args

import msgspec

from holdfast.ledger.public_types import counted

AtT = TypeVar("AtT", datetime, str)

ReportKind = Literal[
    "start", "stop", "crash", "crash_loop", "restart", "quarantine", "release", "pause", "resume", "escalation",
    "drain", "roll", "stuck", "poison", "dead_letter", "outage", "recovery", "refusal", "lockout", "difference",
    "action", "loss",
]  # fmt: skip
"""What happened. docs/runbook.md has a section for each."""

REPORT_KINDS: tuple[ReportKind, ...] = get_args(ReportKind)

Level = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From mild to loud."""
Context = Literal["start_error", "child_terminated", "shutdown_error", "shutdown", "killed", "stuck"]
Decision = Literal["restart", "backoff", "quarantine", "pause", "stop", "escalate", "none"]

_LEVEL_AND_WORDS: Final[dict[ReportKind, tuple[Level, str]]] = {
    "start": ("info", "started"),
    "stop": ("info", "stopped"),
    "crash": ("error", "crashed"),
    "crash_loop": ("critical", "keeps crashing"),
    "restart": ("info", "started again"),
    "quarantine": ("error", "quarantined"),
    "release": ("info", "released from quarantine"),
    "pause": ("warning", "paused"),
    "resume": ("info", "resumed"),
    "escalation": ("critical", "gave up"),
    "drain": ("info", "stopped in order"),
    "roll": ("info", "replaced"),
    "stuck": ("error", "takes too long"),
    "poison": ("error", "a message crashes its actor"),
    "dead_letter": ("warning", "not handled"),
    "outage": ("warning", "away"),
    "recovery": ("info", "back"),
    "refusal": ("warning", "refused"),
    "lockout": ("warning", "locked out"),
    "difference": ("critical", "the ledger differs"),
    "action": ("info", "an operator's action"),
    "loss": ("warning", "reports were lost"),
}
"""The level of each kind, and what happened in words."""

_CONDITIONS: Final[frozenset[ReportKind]] = frozenset({"crash_loop", "outage", "recovery", "refusal", "lockout"})
_ALARMING: Final[frozenset[Context]] = frozenset({"shutdown_error", "killed", "stuck"})

MILD_FAILURES = 2
"""So many failures of a child in a row are warnings; later ones are errors."""

REASON_SHOWN_CHARS: Final = 200
"""How much of the reason is in words, before what was decided and the advice; its field has all of it."""
_MINUTES_FROM_S: Final = 300
_HOURS_FROM_S: Final = 3 * 3600
UNDATED: Final = datetime.max.replace(tzinfo=UTC)
"""Stands for a time that the emitter left out."""


class ReportFields(msgspec.Struct, Generic[AtT], frozen=True, kw_only=True):
    """What a report says, with its time as a value or as text. The reporter fills in who emitted it; it also sets
    ``report_id``, the reason of a fault, and where the emitter left them out ``at`` and, by the kind, ``level``.
    """

    kind: ReportKind
    """What happened."""
    at: AtT
    """When it happened."""
    path: str
    """The child in the supervisor tree that it concerns, such as `holdfast/workers/hosting`."""
    level: Level | None = None
    """How loud it is; by the kind if not given."""
    report_id: str | None = None
    """The report's id, `rep_…`."""
    number: int = 0
    """Counts the reports of a process from 1."""
    member_id: str | None = None
    """The process that emitted it; null if it is no member."""
    host: str | None = None
    """The name of that process's machine; null if it is not known."""
    worker: int | None = None
    """The slot of that process below its parent; null without a parent."""
    child_id: str | None = None
    """The child's name below its supervisor; null if it is about no child."""
    key: str | None = None
    """The actor's key; null if it is about no actor."""
    account_id: str | None = None
    """The account that it concerns; null if it concerns none."""
    task_id: str | None = None
    """The task that it concerns; null if it concerns none."""
    provider: str | None = None
    """The provider that it concerns; null if it concerns none."""
    operator: str | None = None
    """The operator who acted; null if none did."""
    incarnation: int | None = None
    """The incarnation that it is about; null if it is about none."""
    context: Context | None = None
    """When in a child's life it happened; null if it is about no child."""
    reason_type: str | None = None
    """The type of the exception; null without one."""
    reason: str | None = None
    """Why, in words; null if there is nothing to say."""
    location: str | None = None
    """`module:line` of the leaf exception; null without one."""
    last_message_type: str | None = None
    """The type of the message that was handled last; null if there was none."""
    mailbox_depth: int | None = None
    """How many messages waited; null if it is about no actor."""
    oldest_age_s: float | None = None
    """The age of the oldest of them, in seconds; null if none waited."""
    restarts: int | None = None
    """How many restarts of the budget were used; null if it is about none."""
    budget: int | None = None
    """How many restarts the period allows; null if it is about none."""
    decision: Decision = "none"
    """What was decided."""
    delay_s: float | None = None
    """The time to the restart, or that of a quarantine, in seconds; null without one."""
    count: int | None = None
    """How many events this report sums up; null if it is one."""
    duration_s: float | None = None
    """The time in which they happened, in seconds; null if it is one."""
    trace_id: str | None = None
    """The trace that it belongs to; null without one."""


class Report(ReportFields[datetime], frozen=True, kw_only=True, omit_defaults=True):
    """One event that an operator should know of."""

    at: datetime = UNDATED


def level_of(report: Report) -> Level:
    """Return the level that the emitter chose, else that of the kind and context."""
    if report.level is not None:
        return report.level
    return "error" if report.context in _ALARMING else _LEVEL_AND_WORDS[report.kind][0]


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


def in_words(report: Report) -> str:
    """Return what happened, why, what was decided, and what an operator may do, in one line."""
    return "; ".join(part for part in (_what(report), _decided(report), _advice(report)) if part)


def _what(report: Report) -> str:
    if report.kind in _CONDITIONS:
        return _condition(report)
    if report.kind == "action":
        # Not "operator-token: …": the log masks what follows "token:", like the value of any token.
        return f"by {report.operator or 'an operator'}, {_one_line(report.reason)}"
    happened = _happened(report) + _which(report) + _how_often(report)
    named = None if report.kind == "escalation" else report.reason_type  # its reason has the type of the last crash
    why = ": ".join(part for part in (named, _one_line(report.reason)) if part)
    where = f" ({report.location})" if report.location and report.kind != "stuck" else ""
    return f"{happened}: {why}{where}" if why else happened


def _happened(report: Report) -> str:
    if report.kind == "crash" and report.context == "start_error":
        return "did not start"
    if report.kind == "roll" and report.level == "error":
        return "roll abandoned"
    if report.kind == "drain" and report.context in ("killed", "stuck", "shutdown_error"):
        return "did not stop in order"
    if report.kind == "poison" and report.last_message_type is not None:
        return f"{report.last_message_type} crashes its actor"
    if report.kind == "quarantine" and report.delay_s is not None:
        return f"quarantined for {_lasting(report.delay_s)}"
    return _LEVEL_AND_WORDS[report.kind][1]


def _which(report: Report) -> str:
    """Return which incarnation ended or began, and the last message that it handled."""
    if report.kind not in ("crash", "quarantine", "restart") or report.incarnation is None:
        return ""
    message = f", last message {report.last_message_type}" if report.last_message_type else ""
    return f" (incarnation {report.incarnation}{message})"


def _how_often(report: Report) -> str:
    if report.kind == "poison" and report.count in (None, 1):
        return ""
    times = ""
    if report.count is not None:
        times = " once" if report.count == 1 else f" {report.count} times"
    if report.kind == "poison":
        return f" again, now{times}"
    if report.duration_s is None:
        return times
    lasting = _lasting(report.duration_s)
    if report.kind == "stuck" and not times:
        return f", {lasting} so far"
    return f"{times} in {lasting}" if times else f" after {lasting}"


def _condition(report: Report) -> str:
    """Return the condition, and how long it has lasted with how many failures."""
    text = _one_line(report.reason) or _LEVEL_AND_WORDS[report.kind][1]
    if report.duration_s is None:
        return text
    lasted = "lasted" if report.kind == "recovery" else "lasts for"
    lasting = f"{lasted} {_lasting(report.duration_s)}" if report.duration_s else None
    failures = None if report.count is None else counted(report.count, "failure")
    return "; ".join(filter(None, (text, ", ".join(filter(None, (lasting, failures))))))


def _decided(report: Report) -> str:
    used = f" ({report.restarts} of {report.budget} restarts)" if report.restarts and report.budget else ""
    if report.kind == "quarantine" and report.restarts and report.budget and report.restarts > report.budget:
        return f"after {report.restarts} crashes"
    if report.kind != "crash":
        return ""
    match report.decision:
        case "restart":
            return f"restarts at once{used}"
        case "backoff":
            delay = f"{report.delay_s or 0:.3g} s"
            # An actor without messages is not started for nothing.
            idle = report.key is not None and report.mailbox_depth == 0
            return f"restarts {f'with its next message, after {delay}' if idle else f'in {delay}'}{used}"
        case "pause":
            return "its group pauses"
        case "escalate":
            return f"its supervisor gives up{used}"
        case "none":
            return "not restarted"
        case _:
            return ""


def _advice(report: Report) -> str:
    """Return what an operator may do; docs/runbook.md has more."""
    match report.kind:
        case "crash" if "exit code" in (report.reason or "") and report.reason_type == "ProcessEnded":
            return "its own lines before it name the cause"
        case "crash" if report.decision in ("restart", "backoff"):
            if level_of(report) != "error" or report.reason_type == "EndedByOperator":
                return "nothing to do"
            is_killed = "SIGKILL" in (report.reason or "")
            return "see whether the machine has memory left" if is_killed else "look at what was deployed last"
        case "crash" if report.decision == "none":
            return "start it on the page of its process"
        case "crash_loop":
            return "look at what was deployed last"
        case "quarantine":
            return "remove the cause, then release it on its page; it is tried again by itself"
        case "escalation":
            return "the crashes before it name the cause"
        case "poison":
            return "remove the cause, then replay or discard the message on its page"
        case "roll" if report.level == "error":
            return "remove the cause, then roll again"
        case "stuck" if report.path.startswith("processes/"):
            return "it is replaced if that lasts"
        case "stuck":
            return "it may be restarted on its page, unless it waits for the database"
        case _:
            return ""


def _lasting(duration_s: float) -> str:
    """Return a duration in the unit that it is easily read in."""
    if duration_s < _MINUTES_FROM_S:
        return f"{duration_s:.3g} s"
    return f"{duration_s / 60:.3g} min" if duration_s < _HOURS_FROM_S else f"{duration_s / 3600:.3g} h"


def _one_line(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= REASON_SHOWN_CHARS else f"{line[: REASON_SHOWN_CHARS - 1]}…"
