"""Reports of all members: a list, and a stream of server-sent events."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from functools import lru_cache
from types import TracebackType
from typing import Final

import msgspec
import trio
from quart import Response
from quart.wrappers.response import ResponseBody
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
from holdfast.http.kit.routes import Media, Outcome, Parameter
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.schemas.common import render
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


route = OperatorRoutes()

EVENT_STREAM: Final = "text/event-stream"
CHECK_S: Final = 5.0
"""How often the credential of a stream is checked again; a silent stream then has a comment."""
STREAM_S: Final = 900.0
"""After this long the stream ends, so that its reader connects to whichever process is there then."""
RETRY_MS: Final = 1_000

_POSITION: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_POSITION_SCHEMA: Final = {"type": "string", "pattern": "^[0-9]{1,18}$"}


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
    "/ops/api/reports", "List the reports of all processes, newest first", ReportList, parameters=(*_FILTERS, *PAGE)
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
        Media(
            status=200,
            content_types=(EVENT_STREAM,),
            description="Server-sent events: `event` is the kind, `data` a report of the list, `id` the position "
            "to resume from. An event `skipped` says how many reports a slow reader has lost.",
        ),
    ),
    parameters=(
        Parameter(
            name="Last-Event-ID",
            location="header",
            description="Begin after this position, of an earlier stream or a list; without it, with what is new.",
            schema=_POSITION_SCHEMA,
        ),
        Parameter(
            name="after",
            location="query",
            description="The same, for clients that cannot set the header of their first request.",
            schema=_POSITION_SCHEMA,
        ),
    ),
    errors=("rate_limit_exceeded",),
)
async def stream_reports(call: Call) -> Outcome:
    """A report may come twice, before and after a new connection: its ``report_id`` is the same."""
    after = read_position(call)
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
    response = Response(
        None, content_type=EVENT_STREAM, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
    response.response = EventStream(call, after)
    return response


def _position_of(report: Report) -> Position:
    assert report.report_id is not None
    return Position(report.at, report.report_id)


def read_position(call: Call) -> int | Refusal | None:
    """Return where to begin; the header, which a reconnecting browser sends, is newer than the query."""
    sent = call.request.headers.get("Last-Event-ID")
    name, given = ("Last-Event-ID", sent) if sent else ("after", call.request.args.get("after"))
    if not given:
        return None
    if not _POSITION.fullmatch(given):
        return invalid_parameter(name, "must be a position", given)
    return int(given)


class EventStream(ResponseBody):
    """The body of a stream.

    It ends in order when the process stops or the credential is no longer valid; cancelled with its connection.
    """

    def __init__(self, call: Call, after: int | None) -> None:
        self._call = call
        self._feed = call.deps.operating.reports
        self._after = after
        self._reader: ReportReader | None = None
        self._running: AsyncGenerator[bytes] | None = None

    async def __aenter__(self) -> AsyncIterator[bytes]:
        assert self._call.operator is not None
        self._reader = self._feed.open(self._after, operator=self._call.operator.name)
        self._running = self._events(self._reader)
        return self._running

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._reader is not None
        assert self._running is not None
        self._feed.close(self._reader)
        await self._running.aclose()

    async def _events(self, reader: ReportReader) -> AsyncGenerator[bytes]:
        yield b"retry: %d\n\n" % RETRY_MS
        until = trio.current_time() + STREAM_S
        check_at = trio.current_time() + CHECK_S
        while True:
            if trio.current_time() >= check_at:
                if check_at >= until or not await self._is_allowed():
                    return
                check_at = trio.current_time() + CHECK_S
            taken = None
            with trio.move_on_at(check_at) as waiting:
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

    async def _is_allowed(self) -> bool:
        """Whether the credential is still valid; yes while that is not known, as in an outage."""
        try:
            return await self._call.identify_operator() is None
        except (DatabaseAway, AskFault):
            return True


def _id(position: int | None) -> bytes:
    return b"" if position is None else b"id: %d\n" % position
