"""Reports as operators see them: bodies of the list, and events of the stream."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from holdfast.http.schemas.rendering import render
from holdfast.ledger.public_types import Time
from holdfast.reports.report import Context, Decision, Level, Report, ReportKind
from holdfast.reports.words import in_words


class ReportBody(msgspec.Struct, frozen=True):
    """One event that an operator should know of.

    ``text`` says it in words. ``path`` names the child in the supervisor tree of ``member_id``, on ``host`` and
    there in the worker process ``worker``; ``key`` the actor. ``number`` counts the reports of a process.
    ``restarts`` of ``budget`` led to ``decision``; ``delay_s`` is the time to the restart, or that of a quarantine.
    ``count`` events in ``duration_s`` are summed up in one report.
    """

    report_id: str
    at: Time
    kind: ReportKind
    level: Level
    text: str
    path: str
    number: int
    member_id: str | None
    host: str | None
    worker: int | None
    child_id: str | None
    key: str | None
    account_id: str | None
    task_id: str | None
    provider: str | None
    operator: str | None
    incarnation: int | None
    context: Context | None
    reason_type: str | None
    reason: str | None
    location: str | None
    last_message_type: str | None
    mailbox_depth: int | None
    oldest_age_s: float | None
    restarts: int | None
    budget: int | None
    decision: Decision
    delay_s: float | None
    count: int | None
    duration_s: float | None
    trace_id: str | None


class ReportList(msgspec.Struct, frozen=True):
    """A page of reports, newest first. From ``position`` on the stream misses nothing that is not on this page."""

    data: list[ReportBody]
    next_cursor: str | None
    position: int


def report_body(report: Report) -> ReportBody:
    """Render a report."""
    return render(ReportBody, report, text=in_words(report))


@lru_cache(maxsize=256)
def report_event(report: Report) -> bytes:
    """Return a report as lines of a server-sent event, without its id. Many readers get the same report."""
    return b"event: %b\ndata: %b\n" % (report.kind.encode(), msgspec.json.encode(report_body(report)))
