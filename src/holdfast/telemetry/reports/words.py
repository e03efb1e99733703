"""A report in words: the text of its log line, of the command line and of the operators' page."""

from __future__ import annotations

from typing import Final

from holdfast.telemetry.reports.report import Report, ReportKind

_HAPPENED: Final[dict[ReportKind, str]] = {
    "start": "started",
    "stop": "stopped",
    "crash": "crashed",
    "crash_loop": "keeps crashing",
    "restart": "up again",
    "quarantine": "quarantined",
    "release": "released from quarantine",
    "pause": "paused",
    "resume": "resumed",
    "escalation": "gave up",
    "drain": "stopped in order",
    "roll": "replaced",
    "stuck": "takes too long",
    "poison": "a message crashes its actor",
    "dead_letter": "not handled",
    "outage": "away",
    "recovery": "back",
    "refusal": "refused",
    "lockout": "locked out",
    "difference": "the ledger differs",
    "action": "an operator's action",
    "loss": "reports were lost",
}

_CONDITIONS: Final[frozenset[ReportKind]] = frozenset({"crash_loop", "outage", "recovery", "refusal", "lockout"})
_MINUTES_FROM_S: Final = 300
_HOURS_FROM_S: Final = 3 * 3600


def in_words(report: Report) -> str:
    """Return what happened, why, and what was decided, in one line."""
    return "; ".join(part for part in (_what(report), _decided(report)) if part)


def _what(report: Report) -> str:
    if report.kind in _CONDITIONS:
        return _condition(report)
    if report.kind == "action":
        # Not "operator-token: …": the log masks what follows "token:", like the value of any token.
        return f"by {report.operator or 'an operator'}, {_one_line(report.reason)}"
    happened = _happened(report) + _how_often(report)
    why = ": ".join(part for part in (report.reason_type, _one_line(report.reason)) if part)
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
    return _HAPPENED[report.kind]


def _how_often(report: Report) -> str:
    times = "" if report.count is None else " once" if report.count == 1 else f" {report.count} times"
    lasting = "" if report.duration_s is None else f" {_lasting(report.duration_s)}"
    if report.kind == "poison":
        return "" if report.count in (None, 1) else f" again, now{times}"
    if report.kind == "stuck":
        return f"{times},{lasting} so far" if lasting else times
    return f"{times} in{lasting}" if times and lasting else f"{times} after{lasting}" if lasting else times


def _condition(report: Report) -> str:
    """Return the condition, and how long it has lasted with how many failures."""
    text = _one_line(report.reason) or _HAPPENED[report.kind]
    if report.duration_s is None:
        return text
    lasted = "lasted" if report.kind == "recovery" else "lasts for"
    failures = "" if report.count is None else ", 1 failure" if report.count == 1 else f", {report.count} failures"
    return f"{text}; {lasted} {_lasting(report.duration_s)}{failures}"


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
            return f"restarts in {report.delay_s or 0:.3g} s{used}"
        case "pause":
            return "its group pauses"
        case "escalate":
            return f"its supervisor gives up{used}"
        case "none":
            return "not restarted"
        case _:
            return ""


def _lasting(duration_s: float) -> str:
    """Return a duration in the unit that it is easily read in."""
    if duration_s < _MINUTES_FROM_S:
        return f"{duration_s:.6g} s"
    return f"{duration_s / 60:.3g} min" if duration_s < _HOURS_FROM_S else f"{duration_s / 3600:.3g} h"


def _one_line(text: str | None) -> str | None:
    return " ".join(text.split()) if text else text
