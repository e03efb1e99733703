"""A report in words: the text of its log line, of the command line and of the operators' page."""

from __future__ import annotations

from holdfast.reports.report import Report, ReportKind

_HAPPENED: dict[ReportKind, str] = {
    "start": "up",
    "stop": "stopped",
    "crash": "crashed",
    "crash_loop": "keeps crashing",
    "restart": "up again",
    "quarantine": "quarantined",
    "release": "released from quarantine",
    "pause": "paused",
    "resume": "resumed",
    "escalation": "gave up",
    "drain": "drained",
    "roll": "replaced",
    "stuck": "takes too long",
    "poison": "message set aside",
    "dead_letter": "message not handled",
    "outage": "away",
    "recovery": "back",
    "refusal": "refused",
    "lockout": "locked out",
    "difference": "the ledger differs",
    "action": "operator's action",
    "loss": "reports lost",
}

_CONDITIONS: frozenset[ReportKind] = frozenset({"crash_loop", "outage", "recovery", "refusal", "lockout"})


def in_words(report: Report) -> str:
    """Return what happened, why, and what was decided, in one line."""
    return "; ".join(part for part in (_what(report), _decided(report)) if part)


def _what(report: Report) -> str:
    if report.kind in _CONDITIONS:
        return _condition(report)
    happened = _HAPPENED[report.kind]
    if report.kind == "crash" and report.context == "start_error":
        happened = "did not start"
    if report.kind == "roll" and report.level == "error":
        happened = "roll abandoned"
    if report.kind == "drain" and report.context in ("killed", "stuck", "shutdown_error"):
        happened = "did not stop in order"
    if report.operator is not None:
        # In parentheses: the log masks what follows "operator-token:", like the value of any token.
        happened += f" (by {report.operator})"
    if report.count is not None:
        happened += f" {report.count} times"
    if report.duration_s is not None:
        happened += (
            f" in {report.duration_s:g} s" if report.count is not None else f" after {report.duration_s:g} s"
        )
    why = ": ".join(part for part in (report.reason_type, _one_line(report.reason)) if part)
    where = f" ({report.location})" if report.location else ""
    return f"{happened}: {why}{where}" if why else happened


def _condition(report: Report) -> str:
    """Return the condition, and how long it has lasted with how many failures."""
    text = _one_line(report.reason) or _HAPPENED[report.kind]
    if report.duration_s is None:
        return text
    lasted = "lasted" if report.kind == "recovery" else "for"
    times = "" if report.count is None else f", counted {report.count} times"
    return f"{text}; {lasted} {report.duration_s:g} s{times}"


def _decided(report: Report) -> str:
    used = f" ({report.restarts} of {report.budget})" if report.restarts is not None and report.budget else ""
    if report.decision == "restart" and report.kind == "crash":
        return f"restarts at once{used}"
    if report.decision == "backoff":
        return f"restarts in {report.delay_s or 0:.3g} s{used}"
    if report.decision == "quarantine":
        return f"for {report.delay_s or 0:.6g} s{used}"
    if report.decision == "pause" and report.kind == "crash":
        return "its group pauses"
    if report.decision == "escalate" and report.kind == "crash":
        return f"its supervisor gives up{used}"
    if report.decision == "none" and report.kind == "crash":
        return "not restarted"
    return ""


def _one_line(text: str | None) -> str | None:
    return " ".join(text.split()) if text else text
