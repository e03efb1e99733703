"""Reports of all members: a list, and a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Final

import msgspec
import trio
from sqlalchemy import Connection

from holdfast.actors.runtime.faults import AskFault
from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import (
    OPERATORS,
    PAGE,
    ListBody,
    ListOptions,
    Position,
    cut_page,
    filter_by,
    is_asked_for,
    read_cursor,
    read_window,
    write_cursor,
)
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.waiting import LAST_EVENT_ID, RETRY_MS, read_last_event_id, stream_media, stream_response
from holdfast.http.schemas.common import render
from holdfast.http.services.following import StreamClock
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.reports import newest_position, reports_page
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry.reports.feed import READERS_PER_OPERATOR_MAX, ReportFeed, ReportReader
from holdfast.telemetry.reports.report import (
    LEVELS,
    REPORT_KINDS,
    Level,
    Report,
    ReportFields,
    ReportFilter,
    in_words,
)


class ReportBody(ReportFields[Time], frozen=True, kw_only=True):
    """One event that an operator should know of."""

    text: str
    """The report in words."""
    report_id: str
    """The report's id, `rep_…`."""
    level: Level
    """How loud it is."""


class ReportList(ListBody[ReportBody], frozen=True):
    """A page of reports, newest first."""

    position: int | None
    """Where to follow the stream from so as to miss nothing that is not on this page; null while the database is
    away.
    """
    from_memory: bool
    """Whether the database is away and these are the newest reports of this process."""


def report_body(report: Report) -> ReportBody:
    """Render a report."""
    return render(ReportBody, report, text=in_words(report))


@lru_cache(maxsize=256)
def report_event(report: Report) -> bytes:
    """Return a report as lines of a server-sent event, without its id. Many readers get the same report."""
    return b"event: %b\ndata: %b\n" % (report.kind.encode(), msgspec.json.encode(report_body(report)))


route = OperatorRoutes("Reports")

CHECK_S: Final = 5.0
"""How often the credential of a stream is checked again; a silent stream then has a comment."""

_FILTERS: Final = (
    filter_by("kind", "Only reports of this kind.", REPORT_KINDS),
    filter_by("level", "Only reports of this level and louder ones.", LEVELS),
    filter_by("path", "Only reports on this child of the tree and on those below it."),
    filter_by("key", "Only reports on the actor with this key."),
    filter_by("account_id", "Only reports that concern this account."),
    filter_by("task_id", "Only reports that concern this task."),
    filter_by("provider", "Only reports that concern this provider."),
    filter_by("member_id", "Only reports of this process."),
    filter_by("trace_id", "Only reports on this request, by its trace's id or its `X-Request-Id`."),
)


@route.read(
    "/ops/api/reports", "List the reports of all processes; newest first", ReportList, parameters=(*_FILTERS, *PAGE)
)
async def list_reports(call: Call) -> Outcome:
    """The position is read before the page, so that the stream from there misses nothing.

    While the database is away, the answer is what this process has in memory.
    """
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    after = read_cursor(OPERATORS, window)
    if isinstance(after, Refusal):
        return after
    options = window.options(after, window.limit)
    # A request without a traceparent begins a trace whose id is the digits of the request's own.
    filters = {name: value.removeprefix("req_") for name, value in window.filters.items()}
    wanted = ReportFilter(**filters)  # type: ignore[arg-type]  # kind and level are checked by their enums

    def read(rows: Connection) -> tuple[int, list[Report | UnreadableEntry]]:
        return newest_position(rows), reports_page(
            rows, wanted, limit=options["limit"], since=options["since"], until=options["until"], after=after
        )

    position: int | None = None
    found: list[Report | UnreadableEntry] = []
    try:
        position, found = await call.deps.database.read(read)
    except DatabaseAway:
        found.extend(_in_memory(call.deps.operating.reports, wanted, options))
    page = cut_page(found, window.limit, _position_of)
    return ReportList(
        data=[report_body(report) for report in page.entries],
        next_cursor=write_cursor(page.after, OPERATORS, window),
        position=position,
        from_memory=position is None,
    )


def _in_memory(feed: ReportFeed, wanted: ReportFilter, options: ListOptions) -> list[Report]:
    found = [
        report for report in feed.recent() if wanted.takes(report) and is_asked_for(_position_of(report), options)
    ]
    return sorted(found, key=_position_of, reverse=True)[: options["limit"]]


@route(
    "GET",
    "/ops/api/reports/stream",
    summary="Follow the reports of all processes",
    auth=Auth.OPERATOR_READ,
    media=(
        stream_media(
            "`event` is the kind, `data` a report of the list, `id` the position to resume from. An event "
            "`skipped` says how many reports a slow reader has lost."
        ),
    ),
    parameters=(
        replace(
            LAST_EVENT_ID,
            description="Begin after this position, of an earlier stream or a list; without it, with what is new.",
        ),
        replace(
            LAST_EVENT_ID,
            name="after",
            location="query",
            description="The same, for clients that cannot set the header of their first request.",
        ),
    ),
    errors=("rate_limit_exceeded",),
)
async def stream_reports(call: Call) -> Outcome:
    """A report may come twice, before and after a new connection: its ``report_id`` is the same."""
    # A browser that reconnects sends the header, which is newer than the query.
    header = call.request.headers.get(LAST_EVENT_ID.name)
    after = read_last_event_id(header) if header else read_last_event_id(call.request.args.get("after"), "after")
    if isinstance(after, Refusal):
        return after
    feed = call.deps.operating.reports
    if feed.is_full:
        return Refusal(
            code="overloaded", message=f"{feed.readers_max} streams of reports are open; try again later."
        )
    assert call.operator is not None
    if feed.is_full_for(call.operator.name):
        return Refusal(
            code="rate_limit_exceeded",
            message=f"This operator has {READERS_PER_OPERATOR_MAX} streams of reports open; close one first.",
        )
    return stream_response(event_stream(call, after))


def _position_of(report: Report) -> Position:
    assert report.report_id is not None
    return Position(report.at, report.report_id)


@asynccontextmanager
async def event_stream(call: Call, after: int | None) -> AsyncIterator[AsyncIterator[bytes]]:
    """Open the body of a stream.

    It ends in order when the process stops or the credential is no longer valid; cancelled with its connection.
    """
    assert call.operator is not None
    feed = call.deps.operating.reports
    reader = feed.open(after, operator=call.operator.name)
    try:
        async with aclosing(_events(call, reader)) as events:
            yield events
    finally:
        feed.close(reader)


async def _events(call: Call, reader: ReportReader) -> AsyncGenerator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MS
    clock = StreamClock(CHECK_S)
    while True:
        if clock.is_check_due() and (trio.current_time() >= clock.ends_at or not await _is_allowed(call)):
            return
        taken = None
        with trio.move_on_at(clock.check_at) as waiting:
            taken = await reader.next()
        if waiting.cancelled_caught:
            # A comment; the id moves on with reports that came here directly and have been stored since.
            yield b": idle\n" + _id(reader.position if reader.has_all else None) + b"\n"
            continue
        if taken is None:
            return
        if taken.skipped_count:
            yield b'event: skipped\ndata: {"count": %d}\n\n' % taken.skipped_count
        for report, position in taken.found:
            yield _id(position) + report_event(report) + b"\n"


async def _is_allowed(call: Call) -> bool:
    """Whether the credential is still valid; yes while that is not known, as in an outage."""
    try:
        return await call.identify_operator() is None
    except (DatabaseAway, AskFault):
        return True


def _id(position: int | None) -> bytes:
    return b"" if position is None else b"id: %d\n" % position
