"""Reports are stored in order, also after an outage; what is too much or too old goes, and is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import structlog
import trio
from tests.sweepers import sweeper_of

from holdfast.actors.workers import report_writer
from holdfast.actors.workers.newest_queue import NewestQueue
from holdfast.actors.workers.report_writer import BATCH_MAX, ReportWriter, store_last_reports
from holdfast.ledger.values import utc_now
from holdfast.persistence.claims.reports import write_reports
from holdfast.persistence.queries.reports import newest_position, reports_after, reports_page
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast.persistence.server.database import Database
from holdfast.telemetry.reports.report import EVERY_REPORT, Report, ReportFilter, StoredReport
from holdfast.telemetry.reports.reporter import Reporter

SILENT = structlog.wrap_logger(structlog.ReturnLogger(), wrapper_class=structlog.make_filtering_bound_logger(50))
SECRET = "whsec_MfKQ9r8GKYqrTwjU"


class Stage:
    """A reporter whose reports are queued for the table of a real database."""

    def __init__(self, database: Database, *, most: int = 10_000) -> None:
        self.database = database
        self.reporter = Reporter(logger=SILENT, member_id="proc_1", host="db7")
        self.queue = NewestQueue[Report](most)
        self.reporter.listen(self.queue.put)

    def report(self, **fields: Any) -> None:
        given = {"kind": "crash", "at": self.reporter.now(), "path": "holdfast/accounts", **fields}
        self.reporter.report(Report(**given))

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            writer = ReportWriter(self.queue, database=self.database, reporter=self.reporter)
            await nursery.start(lambda *, task_status: writer.run(task_status=task_status))
            yield
            nursery.cancel_scope.cancel()

    async def stored(self, count: int = 0, wanted: ReportFilter = EVERY_REPORT) -> list[StoredReport]:
        """Wait until ``count`` are stored; return them in their order."""
        with trio.fail_after(60):
            while True:
                found = await self.database.read(reports_after, 0, limit=20_000, wanted=wanted)
                if len(found.found) >= count and not len(self.queue):
                    return found.found
                await trio.sleep(0.005)

    async def numbers(self, count: int = 0) -> list[int]:
        return [each.report.number for each in await self.stored(count)]


@pytest.fixture
async def stage(database: Database) -> Stage:
    return Stage(database)


async def test_reports_are_stored_whole_and_in_order(stage: Stage) -> None:
    async with stage.writing():
        stage.report(key="acct_1", reason="first", delay_s=0.5, level="warning")
        for _ in range(BATCH_MAX + 10):
            stage.report(kind="restart")
        assert await stage.numbers(BATCH_MAX + 11) == list(range(1, BATCH_MAX + 12))
    first = (await stage.stored())[0].report
    assert first == stage.reporter.recent()[-1]
    assert (first.member_id, first.host, first.account_id) == ("proc_1", "db7", "acct_1")


async def test_an_outage_delays_reports_and_keeps_their_order(stage: Stage) -> None:
    async with stage.writing():
        stage.report()
        await stage.stored(1)
        stage.database.gate.close("The database is gone.")
        for _ in range(1_500):
            stage.report()
        await trio.sleep(0.05)
        assert len(stage.queue) == 1_500
        stage.database.gate.open()
        assert await stage.numbers(1_501) == list(range(1, 1_502))


async def test_of_too_many_the_newest_are_stored_and_the_loss_reported(database: Database) -> None:
    stage = Stage(database, most=20)
    stage.database.gate.close("The database is gone.")
    for _ in range(50):
        stage.report()
    async with stage.writing():
        stage.database.gate.open()
        *kept, loss = [each.report for each in await stage.stored(21)]
    assert [report.number for report in kept] == list(range(31, 51))
    assert (loss.kind, loss.count, loss.level) == ("loss", 30, "warning")


async def test_what_overflows_while_it_is_written_is_not_lost(stage: Stage) -> None:
    queue = NewestQueue[Report](3)
    stage.reporter.listen(queue.put)
    for _ in range(3):
        stage.report()
    batch = queue.first(2)
    stage.report()  # drops the first of the batch
    queue.remove(batch)
    assert (len(queue), queue.take_lost()) == (2, 0)


async def test_a_report_stored_twice_is_one_row(stage: Stage) -> None:
    stage.report()
    batch = stage.queue.first(1)
    assert await stage.database.work(write_reports, batch)
    assert await stage.database.work(write_reports, batch)
    stage.queue.remove(batch)
    assert await stage.numbers() == [1]


async def test_writers_take_turns(stage: Stage, database_url: str) -> None:
    stage.report()
    with psycopg.connect(database_url) as other:
        other.execute("select pg_advisory_xact_lock(hashtext('holdfast reports'))")
        async with stage.writing():
            await trio.sleep(0.2)
            assert await stage.database.read(newest_position) == 0
            other.rollback()
            assert await stage.numbers(1) == [1]


async def test_a_report_that_cannot_be_stored_harms_no_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(rows: Any, found: Any) -> bool:
        if any(report.key == "poison" for report in found):
            raise TypeError("not a row")
        return write_reports(rows, found)

    monkeypatch.setattr(report_writer, "write_reports", refuse)
    for key in ("a", "b", "poison", "c", "d"):
        stage.report(key=key)
    async with stage.writing():
        found = [each.report for each in await stage.stored(5)]
    assert [report.key for report in found] == ["a", "b", "c", "d", None]
    assert (found[-1].kind, found[-1].count) == ("loss", 1)


async def test_no_secret_and_no_odd_character_reaches_a_row(stage: Stage, database_url: str) -> None:
    async with stage.writing():
        stage.report(key=f"email:ada@example.org {SECRET}", reason=f"Bearer {SECRET} \0\udc80")
        (row,) = await stage.stored(1)
    assert row.report.reason == "Bearer *** ??"
    with psycopg.connect(database_url) as connection:
        text = str(connection.execute("select * from reports").fetchall())
    assert SECRET not in text
    assert SECRET[6:] not in text
    assert "ada@" not in text


async def test_what_is_left_at_the_end_is_stored(stage: Stage, database_url: str) -> None:
    for _ in range(3):
        stage.report(kind="drain")
    stage.database.close()
    await store_last_reports(stage.queue, database_url)
    assert len(stage.queue) == 0
    await stage.database.open()
    assert await stage.numbers() == [1, 2, 3]


async def test_the_end_does_not_wait_for_a_database_that_is_away(stage: Stage) -> None:
    stage.report()
    await store_last_reports(stage.queue, "postgresql://127.0.0.1:1/nowhere")
    assert len(stage.queue) == 1


async def test_old_reports_and_too_many_are_swept(stage: Stage) -> None:
    now = utc_now()
    for age_s in (200, 90, 80, 70, 10):
        stage.report(at=now - timedelta(seconds=age_s), key=str(age_s))
    await stage.database.work(write_reports, stage.queue.first(9))
    sweeper = sweeper_of(stage.database, reports_retention_s=100, reports_max=2)
    removed = await sweeper.sweep()
    assert removed["reports"] == 3
    found = await stage.database.read(reports_after, 0, limit=9)
    assert [each.report.key for each in found.found] == ["70", "10"]
    assert (await sweeper.sweep())["reports"] == 0


async def test_reports_are_found_by_what_they_say(stage: Stage) -> None:
    stage.report(kind="start", path="holdfast/accounts-of-others", level="debug")
    stage.report(kind="crash", key="acct_1", trace_id="req_1", level="warning")
    stage.report(kind="quarantine", path="holdfast/accounts/x", key="acct_1", provider="studio")
    await stage.database.work(write_reports, stage.queue.first(9))

    async def kinds(**wanted: Any) -> list[str]:
        found = await stage.database.read(reports_page, ReportFilter(**wanted), limit=9)
        return [each.kind for each in found if not isinstance(each, UnreadableEntry)]

    assert await kinds() == ["quarantine", "crash", "start"]
    assert await kinds(kind="crash") == ["crash"]
    assert await kinds(path="holdfast/accounts") == ["quarantine", "crash"]
    assert await kinds(key="acct_1") == ["quarantine", "crash"]
    assert await kinds(account_id="acct_1", kind="quarantine") == ["quarantine"]
    assert await kinds(trace_id="req_1") == ["crash"]
    assert await kinds(level="warning") == ["quarantine", "crash"]
    assert await kinds(level="error") == ["quarantine"]
    assert await kinds(provider="studio") == ["quarantine"]
    assert await kinds(member_id="proc_1") == ["quarantine", "crash", "start"]
    assert await kinds(member_id="proc_2") == []


async def test_a_row_of_an_unknown_kind_harms_no_other(stage: Stage, database_url: str) -> None:
    for key in ("a", "b", "c"):
        stage.report(key=key)
    await stage.database.work(write_reports, stage.queue.first(9))
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "update reports set report = jsonb_set(report::jsonb, '{kind}', '\"novel\"')::json where key = 'b'"
        )
    found = await stage.database.read(reports_after, 0, limit=9)
    assert [each.report.key for each in found.found] == ["a", "c"]
    assert found.position == await stage.database.read(newest_position)
    page = await stage.database.read(reports_page, ReportFilter(), limit=9)
    assert [type(each) for each in page] == [Report, UnreadableEntry, Report]
