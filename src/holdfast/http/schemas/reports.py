"""Reports as operators see them: bodies of the list, and events of the stream."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from holdfast.http.kit.listing import ListBody
from holdfast.http.schemas.rendering import render
from holdfast.ledger.public_types import Time
from holdfast.telemetry.reports.report import Level, Report, ReportFields, in_words


class ReportBody(ReportFields[Time], frozen=True, kw_only=True):
    """One event that an operator should know of.

    ``text`` says it in words. ``path`` names the child in the supervisor tree of ``member_id``, on ``host`` and
    there in the worker process ``worker``; ``key`` the actor. ``number`` counts the reports of a process.
    ``restarts`` of ``budget`` led to ``decision``; ``delay_s`` is the time to the restart, or that of a quarantine.
    ``count`` events in ``duration_s`` are summed up in one report.
    """

    text: str
    report_id: str
    level: Level


class ReportList(ListBody[ReportBody], frozen=True):
    """A page of reports, newest first. From ``position`` on the stream misses nothing that is not on this page.

    While the database is away, they are the newest of this process, ``from_memory``, and ``position`` is null.
    """

    position: int | None
    from_memory: bool


def report_body(report: Report) -> ReportBody:
    """Render a report."""
    return render(ReportBody, report, text=in_words(report))


@lru_cache(maxsize=256)
def report_event(report: Report) -> bytes:
    """Return a report as lines of a server-sent event, without its id. Many readers get the same report."""
    return b"event: %b\ndata: %b\n" % (report.kind.encode(), msgspec.json.encode(report_body(report)))
