"""Bursts of reports: the first pass one by one, the rest as one sum, and none is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from holdfast.telemetry.reports.report import Report, in_words
from holdfast.telemetry.reports.reporter import ALONE_MAX, PERIOD_S, Reporter

SILENT = structlog.wrap_logger(structlog.ReturnLogger(), wrapper_class=structlog.make_filtering_bound_logger(50))


class Stage:
    def __init__(self) -> None:
        self.at = datetime(2026, 11, 22, tzinfo=UTC)
        self.reporter = Reporter(now=lambda: self.at, logger=SILENT, ring_records=100_000)

    def report(self, **fields: Any) -> None:
        given = {"kind": "crash", "path": "holdfast/accounts", "level": "error", **fields}
        self.reporter.report(Report(at=self.at, **given))

    def wait(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)

    def counts(self) -> list[int | None]:
        return [report.count for report in reversed(self.reporter.recent())]


def test_ten_thousand_crashes_are_a_hundred_reports_and_a_sum() -> None:
    stage = Stage()
    for number in range(10_000):
        stage.report(key=f"acct_{number}", reason="no")
    assert stage.counts() == [None] * ALONE_MAX
    stage.wait(PERIOD_S)
    stage.reporter.report_sums()
    assert stage.counts() == [*[None] * ALONE_MAX, 9_900]
    (total,) = stage.reporter.recent(1)
    assert (total.kind, total.level, total.key, total.account_id) == ("crash", "error", None, None)
    assert in_words(total).startswith("crashed 9900 times in 10 s: more of the same, the last on acct_9999: no")
    stage.wait(PERIOD_S)
    stage.reporter.report_sums()
    assert len(stage.counts()) == ALONE_MAX + 1


def test_the_next_report_brings_the_sum_before_itself() -> None:
    stage = Stage()
    for number in range(ALONE_MAX + 5):
        stage.report(key=f"acct_{number}")
    stage.wait(PERIOD_S)
    stage.report(key="acct_next")
    assert stage.counts()[-2:] == [5, None]


def test_a_sum_has_no_secret_of_what_it_sums_up() -> None:
    stage = Stage()
    for _ in range(ALONE_MAX + 1):
        stage.report(key="email:ada@example.org", reason="Bearer abc.def.ghi")
    stage.wait(PERIOD_S)
    stage.reporter.report_sums()
    assert "ada@" not in str(stage.reporter.recent(1))
    assert "abc.def" not in str(stage.reporter.recent(1))


def test_kinds_paths_the_tree_and_operators_are_apart() -> None:
    stage = Stage()
    for number in range(ALONE_MAX):
        stage.report(key=f"acct_{number}")
    stage.report(key="acct_1", kind="restart")
    stage.report(key="task_1", path="holdfast/tasks")
    stage.report()
    stage.report(key="acct_1", operator="ada@example.org")
    assert len(stage.counts()) == ALONE_MAX + 4


def test_a_clock_that_is_set_back_holds_no_sum_back() -> None:
    stage = Stage()
    for number in range(ALONE_MAX + 5):
        stage.report(key=f"acct_{number}")
    stage.wait(-3600)
    stage.reporter.report_sums()
    assert stage.counts()[-1] == 5
