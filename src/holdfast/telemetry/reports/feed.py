"""The feed: all reports of all members as they are emitted, for any reader in this process.

This process's own reports are passed on at once, also while the database is away; those of others when they are
found in the table, which is followed by position while there are readers. A reader has a bounded queue; one that
does not keep up loses the oldest in it, and learns how many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import structlog
import trio

from holdfast.telemetry.reports.causes import describe
from holdfast.telemetry.reports.report import Report, ReportsAfter
from holdfast.telemetry.reports.reporter import Reporter

log = structlog.get_logger(__name__)

T = TypeVar("T")

POLL_S = 0.5
READERS_MAX = 100
READERS_PER_OPERATOR_MAX = 20
QUEUE_MAX = 256
PAGE_MAX = 200
LOCAL_MAX = 20_000
"""How many reports may be passed on that are not found in the table yet; more than a process stores late."""


class ReportRows(Protocol):
    """The table of reports. Both methods may raise: the feed then tries again later."""

    async def after(self, position: int, limit: int) -> ReportsAfter:
        """Return up to ``limit`` reports that were written after ``position``."""
        ...

    async def newest_position(self) -> int:
        """Return the position that was written last."""
        ...


class FeedItem(NamedTuple):
    """A report, and the position from which to follow without missing what comes after it; None if not known."""

    report: Report
    position: int | None


class FeedItems(NamedTuple):
    """The next reports of a reader, and how many it has lost before them."""

    found: Sequence[FeedItem]
    skipped_count: int = 0


class ReportReader:
    """One reader: first what was stored after ``after``, if given, then everything new.

    ``local_before`` is the number of local reports that were passed on before it came.
    """

    def __init__(self, feed: ReportFeed, after: int | None, queue_max: int, local_before: int) -> None:
        self.local_before = local_before
        self._feed = feed
        self._queue: deque[FeedItem] = deque(maxlen=queue_max)
        self._skipped_count = 0
        self._woken = trio.Event()
        self._is_ended = False
        self._replayed_to = after
        self._replay_until: int | None = None

    async def next(self) -> FeedItems | None:
        """Wait for reports, and return them oldest first; None when the feed has ended this reader."""
        while True:
            if self._replayed_to is not None and (found := await self._replay(self._replayed_to)):
                return FeedItems(found)
            if self._queue or self._skipped_count:
                taken = FeedItems(tuple(self._queue), self._skipped_count)
                self._queue.clear()
                self._skipped_count = 0
                return taken
            if self._is_ended:
                return None
            self._woken = trio.Event()
            with trio.move_on_after(self._feed.poll_s if self._replayed_to is not None else float("inf")):
                await self._woken.wait()

    def put(self, item: FeedItem) -> None:
        """Add a report; the oldest that waits is dropped if there is no room."""
        self._skipped_count += len(self._queue) == self._queue.maxlen
        self._queue.append(item)
        self._woken.set()

    def follow_from(self, position: int) -> None:
        """From now on everything stored after ``position`` is put."""
        if self._replay_until is None:
            self._replay_until = position

    def end(self) -> None:
        """Let :meth:`next` return None once what waits is taken."""
        self._is_ended = True
        self._woken.set()

    async def _replay(self, after: int) -> list[FeedItem]:
        """Return the next stored reports before those that are put; none if the table cannot be read now."""
        if self._replay_until is None or self._is_ended:
            return []
        page = await self._feed.read_after(after)
        if page is None:
            return []
        until = self._replay_until
        found = [FeedItem(report, position) for position, report in page.found if position <= until]
        is_done = page.position == after or page.position >= until
        self._replayed_to = None if is_done else page.position
        return found


class ReportFeed:
    """The feed of one process; :meth:`run` follows the table, and local reports need nothing to run."""

    def __init__(
        self, reporter: Reporter, rows: ReportRows, *, readers_max: int = READERS_MAX, poll_s: float = POLL_S
    ) -> None:
        self.poll_s = poll_s
        self.readers_max = readers_max
        self._rows = rows
        self._reporter = reporter
        self._readers: dict[ReportReader, str] = {}
        self._position: int | None = None
        self._local: dict[str, int] = {}
        self._local_count = 0
        self._has_readers = trio.Event()
        reporter.listen(self._pass_on_local)

    @property
    def position(self) -> int | None:
        """The position up to which the table has been followed; None if it is not."""
        return self._position

    def recent(self) -> tuple[Report, ...]:
        """Return the newest reports of this process, newest first, which are in memory."""
        return self._reporter.recent()

    @property
    def is_full(self) -> bool:
        """Whether there are as many readers as allowed."""
        return len(self._readers) >= self.readers_max

    def is_full_for(self, operator: str) -> bool:
        """Whether there are as many readers of one operator as allowed."""
        return sum(each == operator for each in self._readers.values()) >= READERS_PER_OPERATOR_MAX

    def open(self, after: int | None = None, *, operator: str = "", queue_max: int = QUEUE_MAX) -> ReportReader:
        """Return a new reader of an operator, which must be closed; without room it has ended."""
        reader = ReportReader(self, after, queue_max, self._local_count)
        if self.is_full or self.is_full_for(operator):
            reader.end()
            return reader
        if self._position is not None:
            reader.follow_from(self._position)
        self._readers[reader] = operator
        self._has_readers.set()
        return reader

    def close(self, reader: ReportReader) -> None:
        """Remove a reader. Without readers the table is not followed."""
        self._readers.pop(reader, None)
        if not self._readers:
            self._has_readers = trio.Event()
            self._position = None
            self._local.clear()

    def end_readers(self) -> None:
        """End all present readers: the process stops, and they continue elsewhere."""
        for reader in tuple(self._readers):
            reader.end()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Follow the table until cancelled."""
        task_status.started()
        while True:
            await self._has_readers.wait()
            await self._advance()
            await trio.sleep(self.poll_s)

    async def read_after(self, position: int) -> ReportsAfter | None:
        """Return the next page of the table; None if it cannot be read now."""
        return await self._attempt(lambda: self._rows.after(position, PAGE_MAX))

    async def _advance(self) -> None:
        if self._position is None:
            newest = await self._attempt(self._rows.newest_position)
            if newest is not None and self._readers:
                self._position = newest
                for reader in self._readers:
                    reader.follow_from(newest)
            return
        is_more = True
        while is_more:
            page = await self.read_after(self._position)
            if page is None or self._position is None:
                return
            for position, report in page.found:
                # A local one is new only to readers that came after it was passed on.
                self._put(FeedItem(report, position), self._local.pop(report.report_id or "", 0))
            self._position = page.position
            is_more = len(page.found) == PAGE_MAX

    async def _attempt(self, read: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await read()
        except Exception as fault:
            # Whatever it is: it must not end the service, and the next attempt may succeed.
            log.debug("reports cannot be followed", reason=describe(fault).reason)
            return None

    def _pass_on_local(self, report: Report) -> None:
        if not self._readers or report.report_id is None:
            return
        self._local_count += 1
        self._local[report.report_id] = self._local_count
        if len(self._local) > LOCAL_MAX:
            del self._local[next(iter(self._local))]
        self._put(FeedItem(report, self._position))

    def _put(self, item: FeedItem, local_number: int = 0) -> None:
        for reader in self._readers:
            if reader.local_before >= local_number:
                reader.put(item)
