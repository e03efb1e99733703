"""The feed: all reports of all members as they are emitted, for any reader in this process.

This process's own reports are passed on at once, also while the database is away; those of others when they are
found in the table, which is followed by position while there are readers. A reader has a bounded queue; one that
does not keep up with local reports loses the oldest in it, and learns how many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from holdfast.telemetry.reports.causes import describe
from holdfast.telemetry.reports.report import Report, ReportsAfter
from holdfast.telemetry.reports.reporter import Reporter

log = structlog.get_logger(__name__)

POLL_S: Final = 0.5
READERS_MAX: Final = 100
READERS_PER_OPERATOR_MAX: Final = 20
QUEUE_MAX: Final = 256
PAGE_MAX = 200
LOCAL_MAX = 20_000
"""How many reports are known to have been passed on directly when they are found in the table."""


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
    """One reader. ``position`` is how far the table has been put into its queue; None: from now on.

    ``local_before`` is the number of local reports that were passed on before it came. ``on_room`` is called when a
    reader that ``is_behind`` the table has taken what it was given.
    """

    def __init__(
        self, position: int | None, queue_max: int, local_before: int, on_room: Callable[[], None]
    ) -> None:
        self.position = position
        self.is_behind = False
        self.local_before = local_before
        self._on_room = on_room
        self._queue: deque[FeedItem] = deque(maxlen=queue_max)
        self._skipped_count = 0
        self._woken = trio.Event()
        self._is_ended = False

    @property
    def has_all(self) -> bool:
        """Whether it has taken all that it was given."""
        return not self._queue

    async def next(self) -> FeedItems | None:
        """Wait for reports, and return them oldest first; None when the feed has ended this reader."""
        while self.has_all:
            if self._is_ended:
                return None
            if self.is_behind:
                self._on_room()
            self._woken = trio.Event()
            await self._woken.wait()
        taken = FeedItems(tuple(self._queue), self._skipped_count)
        self._queue.clear()
        self._skipped_count = 0
        return taken

    def put(self, item: FeedItem) -> None:
        """Add a report; the oldest that waits is dropped if there is no room."""
        self._skipped_count += len(self._queue) == self._queue.maxlen
        self._queue.append(item)
        self._woken.set()

    def end(self) -> None:
        """Let :meth:`next` return None once what waits is taken."""
        self._is_ended = True
        self._woken.set()


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
        self._local: dict[str, int] = {}
        self._local_count = 0
        self._has_readers = trio.Event()
        self._room = trio.Event()
        reporter.listen(self._pass_on_local)

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
        reader = ReportReader(after, queue_max, self._local_count, self._on_room)
        if self.is_full or self.is_full_for(operator):
            reader.end()
            return reader
        self._readers[reader] = operator
        self._has_readers.set()
        return reader

    def close(self, reader: ReportReader) -> None:
        """Remove a reader. Without readers the table is not followed."""
        self._readers.pop(reader, None)
        if not self._readers:
            self._has_readers = trio.Event()
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
            self._room = trio.Event()
            try:
                await self._advance()
            except Exception as fault:
                # Whatever it is: it must not end the service, and the next read may succeed.
                log.debug("reports cannot be followed", reason=describe(fault).reason)
            with trio.move_on_after(self.poll_s):
                await self._room.wait()

    def _on_room(self) -> None:
        self._room.set()

    async def _advance(self) -> None:
        """Give each reader that has taken all before the next page of the table; a slow one stays behind."""
        if None in {reader.position for reader in self._readers}:
            newest = await self._rows.newest_position()
            for reader in self._readers:
                if reader.position is None:
                    reader.position = newest
        at: dict[int, list[ReportReader]] = {}
        for reader in self._readers:
            if reader.has_all and reader.position is not None:
                at.setdefault(reader.position, []).append(reader)
        for position, readers in at.items():
            page = await self._rows.after(position, PAGE_MAX)
            for reader in readers:
                reader.position, reader.is_behind = page.position, len(page.found) == PAGE_MAX
                for stored_at, report in page.found:
                    # A local one is new only to readers that came after it was passed on.
                    if reader.local_before >= self._local.get(report.report_id or "", 0):
                        reader.put(FeedItem(report, stored_at))

    def _pass_on_local(self, report: Report) -> None:
        if not self._readers or report.report_id is None:
            return
        self._local_count += 1
        self._local[report.report_id] = self._local_count
        if len(self._local) > LOCAL_MAX:
            del self._local[next(iter(self._local))]
        for reader in self._readers:
            reader.put(FeedItem(report, reader.position))
