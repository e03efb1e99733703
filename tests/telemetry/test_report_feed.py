"""The feed: local reports at once, others' from the table; resumed without a gap, slow readers bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from holdfast.ledger.values import utc_now
from holdfast.telemetry.reports.feed import PAGE_MAX, ReportFeed, ReportReader
from holdfast.telemetry.reports.report import Report, ReportsAfter, StoredReport
from holdfast.telemetry.reports.reporter import Reporter

SILENT = structlog.wrap_logger(structlog.ReturnLogger(), wrapper_class=structlog.make_filtering_bound_logger(50))


class Table:
    """The stored reports of all members, on which every read can fail."""

    def __init__(self) -> None:
        self.rows: list[StoredReport] = []
        self.is_away = False
        self.reads = 0

    def store(self, *reports: Report) -> None:
        for report in reports:
            self.rows.append(StoredReport(len(self.rows) * 10 + 10, report))

    async def after(self, position: int, limit: int) -> ReportsAfter:
        await self._answer()
        found = [row for row in self.rows if row.position > position][:limit]
        return ReportsAfter(found, found[-1].position if found else position)

    async def newest_position(self) -> int:
        await self._answer()
        return self.rows[-1].position if self.rows else 0

    async def _answer(self) -> None:
        await trio.lowlevel.checkpoint()
        self.reads += 1
        if self.is_away:
            raise ConnectionError("the table is away")


class Stage:
    """A process with a feed, and another one whose reports come by the table."""

    def __init__(self) -> None:
        self.table = Table()
        self.here = Reporter(logger=SILENT, member_id="proc_here")
        self.elsewhere = Reporter(logger=SILENT, member_id="proc_elsewhere")
        self.feed = ReportFeed(self.here, self.table, readers_max=2)

    @staticmethod
    def emit(reporter: Reporter, key: str) -> Report:
        reporter.report(Report(kind="crash", at=utc_now(), path=f"holdfast/{key}", key=key))
        return reporter.recent(1)[0]

    def emit_elsewhere(self, *keys: str) -> None:
        self.table.store(*(self.emit(self.elsewhere, key) for key in keys))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda *, task_status: self.feed.run(task_status=task_status))
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def take(reader: ReportReader, count: int = 1) -> list[str | None]:
    """Return the keys of the next reports."""
    keys: list[str | None] = []
    with trio.fail_after(60):
        while len(keys) < count:
            taken = await reader.next()
            assert taken is not None
            assert taken.skipped_count == 0
            keys += [item.report.key for item in taken.found]
    return keys


async def has_nothing(reader: ReportReader) -> bool:
    with trio.move_on_after(5) as scope:
        await reader.next()
    return scope.cancelled_caught


async def test_local_reports_come_at_once_and_once(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running():
        reader = stage.feed.open()
        await trio.sleep(2)
        at = trio.current_time()
        reports = [stage.emit(stage.here, key) for key in ("a", "b")]
        assert await take(reader, 2) == ["a", "b"]
        assert trio.current_time() == at
        stage.table.store(*reports)
        stage.emit_elsewhere("c")
        assert await take(reader) == ["c"]
        assert await has_nothing(reader)


async def test_others_reports_come_within_half_a_second(stage: Stage, autojump_clock: MockClock) -> None:
    stage.emit_elsewhere("before")
    async with stage.running():
        reader = stage.feed.open()
        await trio.sleep(2)
        stage.emit_elsewhere("a", "b")
        at = trio.current_time()
        assert await take(reader, 2) == ["a", "b"]
        assert trio.current_time() - at <= stage.feed.poll_s


async def test_the_table_is_read_only_while_there_are_readers(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running():
        await trio.sleep(60)
        assert stage.table.reads == 0
        reader = stage.feed.open()
        await trio.sleep(10)
        assert stage.table.reads == pytest.approx(20, abs=2)
        stage.feed.close(reader)
        await trio.sleep(1)
        reads = stage.table.reads
        await trio.sleep(60)
        assert stage.table.reads == reads


@pytest.mark.parametrize("others", [0, 1])
async def test_a_reader_resumes_without_a_gap(stage: Stage, autojump_clock: MockClock, others: int) -> None:
    keys = [str(number) for number in range(PAGE_MAX * 2 + 7)]
    stage.emit_elsewhere(*keys)
    async with stage.running():
        for _ in range(others):  # the table is followed already, or not yet
            stage.feed.open()
        await trio.sleep(1)
        reader = stage.feed.open(after=stage.table.rows[2].position)
        stage.emit_elsewhere("later")
        assert await take(reader, len(keys) - 2) == [*keys[3:], "later"]
        assert await has_nothing(reader)


async def test_every_position_given_is_one_to_resume_from(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running():
        first = stage.feed.open()
        await trio.sleep(1)
        local = stage.emit(stage.here, "local")
        stage.emit_elsewhere("other")  # stored before the local one
        taken = await first.next()
        assert taken is not None
        assert [item.report.key for item in taken.found] == ["local"]
        stage.table.store(local)
        second = stage.feed.open(after=taken.found[0].position)
        assert set(await take(second, 2)) == {"local", "other"}


async def test_an_outage_stops_neither_local_reports_nor_what_follows(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.emit_elsewhere("stored")
    stage.table.is_away = True
    async with stage.running():
        reader = stage.feed.open(after=0)
        await trio.sleep(5)
        local = stage.emit(stage.here, "local")
        taken = await reader.next()
        assert taken is not None
        assert [(each.report.key, each.position) for each in taken.found] == [("local", 0)]
        stage.table.is_away = False
        assert await take(reader) == ["stored"]
        stage.table.store(local)
        stage.emit_elsewhere("after")
        assert await take(reader) == ["after"]


async def test_a_slow_reader_skips_and_learns_how_many(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running():
        slow, quick = stage.feed.open(queue_max=3), stage.feed.open()
        for number in range(10):
            stage.emit(stage.here, str(number))
        assert await take(quick, 10) == [str(number) for number in range(10)]
        taken = await slow.next()
        assert taken is not None
        assert taken.skipped_count == 7
        assert [item.report.key for item in taken.found] == ["7", "8", "9"]
        stage.emit(stage.here, "next")
        assert await take(slow) == ["next"]


async def test_readers_are_limited_and_end_in_order(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running():
        readers = [stage.feed.open(), stage.feed.open()]
        assert stage.feed.is_full
        stage.emit(stage.here, "last")
        stage.feed.end_readers()
        for reader in readers:
            assert await take(reader) == ["last"]
            assert await reader.next() is None
            stage.feed.close(reader)
        assert not stage.feed.is_full


async def test_what_is_not_stored_for_long_is_remembered_within_bounds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr("holdfast.telemetry.reports.feed.LOCAL_MAX", 5)
    async with stage.running():
        reader = stage.feed.open(queue_max=100)
        await trio.sleep(1)
        reports = [stage.emit(stage.here, str(number)) for number in range(9)]
        assert await take(reader, 9) == [str(number) for number in range(9)]
        stage.table.store(*reports)
        # The oldest four come again: better twice than not at all.
        assert await take(reader, 4) == ["0", "1", "2", "3"]
        assert await has_nothing(reader)


async def test_a_parents_report_is_passed_on_unchanged(stage: Stage, autojump_clock: MockClock) -> None:
    parent = Reporter(logger=SILENT, host="db7")
    report = stage.emit(parent, "worker-1")
    async with stage.running():
        reader = stage.feed.open()
        stage.here.accept(report)
        taken: Any = await reader.next()
        assert taken.found[0].report == report
        assert stage.here.recent(1) == (report,)


async def test_a_slow_reader_loses_nothing_that_is_stored(stage: Stage, autojump_clock: MockClock) -> None:
    """It stays behind in the table while its queue is full, and reads on where it was."""
    keys = [str(number) for number in range(PAGE_MAX * 3)]
    async with stage.running():
        slow, quick = stage.feed.open(after=0), stage.feed.open(after=0)
        stage.emit_elsewhere(*keys)
        assert await take(quick, len(keys)) == keys
        assert await take(slow, len(keys)) == keys


async def test_a_reader_that_is_behind_is_given_page_after_page(stage: Stage, autojump_clock: MockClock) -> None:
    keys = [str(number) for number in range(PAGE_MAX * 5)]
    stage.emit_elsewhere(*keys)
    async with stage.running():
        begun = trio.current_time()
        assert await take(stage.feed.open(after=0), len(keys)) == keys
        assert trio.current_time() - begun <= stage.feed.poll_s
