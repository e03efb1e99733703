"""Conditions that last: reported when they begin, while they last, and when they end."""

from __future__ import annotations

import pytest

from holdfast.telemetry import metrics
from holdfast.telemetry.reports.conditions import (
    CALLBACKS,
    COUNT_PAUSE_MAX_S,
    DATABASE,
    FIRST_COUNT_S,
    OTHERS,
    PROVIDER,
    SUBJECTS_MAX,
    WEBHOOKS,
    Conditions,
    LastingCondition,
)
from holdfast.telemetry.reports.report import in_words
from holdfast.telemetry.reports.reporter import Reporter


class Story:
    """Conditions at a time that the test sets, and what they report."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.reporter = Reporter()
        self.conditions = Conditions(self.reporter, lambda: self.now_s)

    @property
    def lines(self) -> list[str]:
        """The kinds and texts of all reports, the oldest first."""
        return [f"{report.kind}: {in_words(report)}" for report in reversed(self.reporter.recent())]

    def pass_time(self, seconds: int) -> None:
        """Let time pass, with a check every second."""
        for _ in range(seconds):
            self.now_s += 1
            self.conditions.check()


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_gauge_has_the_number_of_subjects_with_a_condition(story: Story) -> None:
    def lasting() -> float:
        return float(metrics.CONDITIONS.labels("provider")._value.get())

    for provider in ("box", "studio"):
        story.conditions.failed(PROVIDER, provider, "down: no answer")
    story.pass_time(1)
    assert lasting() == 2
    story.conditions.ended(PROVIDER, "box")
    story.pass_time(1)
    assert lasting() == 1
    story.conditions.ended(PROVIDER, "studio")
    story.pass_time(1)
    assert lasting() == 0


def test_an_outage_is_one_report_at_its_beginning_and_one_at_its_end(story: Story) -> None:
    for _ in range(100):
        story.conditions.failed(DATABASE, "", "away: connection refused")
    story.pass_time(30)
    story.conditions.ended(DATABASE)
    story.conditions.ended(DATABASE)
    assert story.lines == [
        "outage: the database is away: connection refused",
        "recovery: the database answers; lasted 30 s, 100 failures",
    ]


def test_what_alternates_is_one_condition_until_it_is_steady(story: Story) -> None:
    for _ in range(20):
        story.conditions.failed(DATABASE, "", "away: No space left on device")
        story.pass_time(1)
        story.conditions.ended(DATABASE)
        story.pass_time(1)
    assert len(story.conditions.lasting()) == 1
    story.pass_time(10)
    assert story.conditions.lasting() == []
    assert story.lines == [
        "outage: the database is away: No space left on device",
        "recovery: the database answers; lasted 1 s, 1 failure",
        "outage: the database is away: No space left on device",
        "recovery: the database answers; lasted 37 s, 19 failures",
    ]
    story.pass_time(10)
    story.conditions.failed(DATABASE, "", "away: connection refused")
    story.conditions.ended(DATABASE)
    assert story.conditions.lasting() == []


def test_what_lasts_can_be_read(story: Story) -> None:
    story.conditions.failed(WEBHOOKS, "shop.example", "refused")
    assert story.conditions.lasting() == []
    for _ in range(3):
        story.pass_time(2)
        story.conditions.failed(DATABASE, "", "away: password=hunter2")
    assert story.conditions.lasting() == [
        LastingCondition(
            name="database", subject="", text="the database is away: password=***", lasts_s=4.0, count=3
        )
    ]
    story.conditions.ended(DATABASE)
    assert story.conditions.lasting() == []


def test_while_it_lasts_its_count_is_reported_ever_more_rarely(story: Story) -> None:
    take_outcome = story.conditions.outcomes_of(PROVIDER, "studio", provider="studio")
    for _ in range(4 * 3600):
        take_outcome("down: ConnectError")
        story.pass_time(1)
    durations = [report.duration_s for report in reversed(story.reporter.recent())]
    assert durations == [None, 60, 180, 420, 900, 1860, 3780, 7380, 10980]
    assert COUNT_PAUSE_MAX_S == 10980 - 7380
    assert {report.provider for report in story.reporter.recent()} == {"studio"}
    assert story.reporter.recent(1)[0].count == 10980


def test_a_change_of_state_is_reported_unless_it_alternates(story: Story) -> None:
    take_outcome = story.conditions.outcomes_of(PROVIDER, "studio", provider="studio")
    for reason in ("silent: no updates", "down: refused", "silent: none"):
        take_outcome(reason)
    story.pass_time(10)
    for reason in ("silent: none", "down: refused", "down: timed out"):
        take_outcome(reason)
    take_outcome(None)
    assert [line.partition(";")[0] for line in story.lines] == [
        "outage: the provider is silent: no updates",
        "outage: the provider is down: refused",
        "recovery: the provider is up",
    ]


def test_without_failures_for_its_time_a_condition_ends_by_itself(story: Story) -> None:
    for _ in range(20):
        story.conditions.failed(CALLBACKS, "studio invalid_signature", "invalid_signature", provider="studio")
        story.pass_time(1)
    story.pass_time(60)
    story.conditions.failed(CALLBACKS, "studio invalid_signature", "invalid_signature", provider="studio")
    assert story.lines == [
        "refusal: callbacks are refused: invalid_signature",
        "recovery: no callback was refused for a minute; lasted 19 s, 20 failures",
        "refusal: callbacks are refused: invalid_signature",
    ]


def test_a_condition_may_need_several_failures_in_a_row(story: Story) -> None:
    receiver = "acct_1 shop.example"
    for _ in range(10):
        story.conditions.failed(WEBHOOKS, receiver, "status 500")
        story.conditions.failed(WEBHOOKS, receiver, "status 500")
        story.conditions.ended(WEBHOOKS, receiver)
    assert story.lines == []
    for _ in range(3):
        story.conditions.failed(WEBHOOKS, receiver, "status 500", account_id="acct_1")
    assert story.lines == ["outage: webhooks are not delivered: status 500"]
    assert story.reporter.recent(1)[0].key == receiver


def test_a_dead_host_has_one_report_with_its_accounts_and_events(story: Story) -> None:
    for number in range(40):
        concerned = {"account_id": f"acct_{number % 4}", "event_id": f"evt_{number % 20}"}
        story.conditions.failed(WEBHOOKS, "shop.example", "status 500", **concerned)
    story.pass_time(int(FIRST_COUNT_S))
    story.conditions.ended(WEBHOOKS, "shop.example")
    begun, lasting, _ = story.lines
    assert begun == "outage: webhooks are not delivered: status 500; 3 accounts and 3 events"
    assert lasting.startswith("outage: webhooks are not delivered: status 500; 4 accounts and 20 events; ")


def test_many_subjects_are_counted_as_others(story: Story) -> None:
    for number in range(SUBJECTS_MAX + 100):
        story.conditions.failed(CALLBACKS, f"box{number}", "invalid_signature", provider=f"box{number}")
    reports = story.reporter.recent()
    assert len(reports) == SUBJECTS_MAX + 1
    assert (reports[0].key, reports[0].provider) == (OTHERS, None)
    story.pass_time(60)
    assert story.reporter.recent(1)[0].count in (1, 100)
    assert len(story.reporter.recent()) == 2 * (SUBJECTS_MAX + 1)


def test_a_forgotten_subject_ends_without_a_report(story: Story) -> None:
    story.conditions.failed(PROVIDER, "studio", "down: refused")
    story.conditions.forget(PROVIDER, "studio")
    story.conditions.ended(PROVIDER, "studio")
    assert len(story.lines) == 1
