"""News comes late, twice, in the wrong order and in contradiction; the task moves forward only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.decisions import (
    CancelJob,
    HostOutputs,
    PollJob,
    ProviderTraits,
    Step,
    on_cancel,
    on_poll,
    on_update,
    on_wake,
)
from holdfast.ledger.tasks.provider_update import Moderation, Output, ProviderUpdate, ReportedError
from holdfast.ledger.tasks.task import TERMINAL, Task
from holdfast.ledger.tasks.transitions import TRANSITIONS, transition

MakeTask = Callable[..., Task]
MakeNews = Callable[..., ProviderUpdate]


def moved(step: Step | Refusal) -> Task:
    assert isinstance(step, Step)
    assert step.task is not None
    return step.task


def hear(task: Task, news: ProviderUpdate, seconds: float = 5) -> Step:
    now = task.created_at + timedelta(seconds=seconds)
    return on_update(task, news, now, operation_id="op_1")


def test_running_moves_the_status_once(make_acked: MakeTask, make_news: MakeNews) -> None:
    waiting = moved(hear(make_acked(), make_news("queued")))
    assert waiting.status == "queued"
    running = moved(hear(waiting, make_news("processing", percent=40, stage="render", message="frame 19/48")))
    assert [entry.status for entry in running.state.status_history] == ["queued", "processing"]
    note = running.state.progress[-1]
    assert (note.status, note.percent, note.stage, note.message) == ("processing", 40, "render", "frame 19/48")
    assert note.source_ref.startswith("callback:evt_")
    again = moved(hear(running, make_news("processing", percent=60), 7))
    assert len(again.state.status_history) == 2


def test_a_repeated_event_changes_nothing(make_acked: MakeTask, make_news: MakeNews) -> None:
    news = make_news("processing", percent=40)
    running = moved(hear(make_acked(), news))
    assert hear(running, news, 9) == Step(task=None, verdict="duplicate")


def test_news_of_another_task_or_provider_is_not_heard(make_acked: MakeTask, make_news: MakeNews) -> None:
    for news in (make_news("failed", request_id="task_02"), make_news("failed", provider="other")):
        assert hear(make_acked(), news) == Step(task=None, verdict="ignored")


@pytest.mark.parametrize("status", ["processing", "succeeded", "failed"])
def test_a_callback_about_another_job_than_the_attempts_own_is_not_heard(
    make_acked: MakeTask, make_news: MakeNews, status: str
) -> None:
    assert hear(make_acked(), make_news(status, provider_ref="job-2")) == Step(task=None, verdict="ignored")
    assert hear(make_acked(), make_news(status, provider_ref="job-1")).verdict == "applied"
    assert hear(make_acked(), make_news(status, provider_ref=None)).verdict == "applied"


@pytest.mark.parametrize("attempt", [0, 2])
def test_news_of_another_attempt_is_fenced_off(make_acked: MakeTask, make_news: MakeNews, attempt: int) -> None:
    step = hear(make_acked(), make_news("failed", attempt=attempt))
    assert (step.verdict, step.settle) == ("stale", None)
    assert moved(step).status == "queued"
    assert moved(step).state.progress[-1].status == "stale"


def test_percent_never_falls(make_acked: MakeTask, make_news: MakeNews) -> None:
    task = moved(hear(make_acked(), make_news("processing", percent=70)))
    task = moved(hear(task, make_news("processing", percent=30), 8))
    task = moved(hear(task, make_news("processing", percent=900), 10))
    assert [note.percent for note in task.state.progress if note.percent is not None] == [70, 70, 100]


def test_an_overtaken_sequence_is_only_noted(make_acked: MakeTask, make_news: MakeNews) -> None:
    task = moved(hear(make_acked(), make_news("processing", sequence=5, percent=50)))
    late = hear(task, make_news("processing", sequence=4, percent=80), 8)
    assert late.verdict == "late"
    assert moved(late).state.percent == 50
    assert moved(late).state.progress[-1].status == "late"


def test_rank_outweighs_sequence(make_acked: MakeTask, make_news: MakeNews) -> None:
    task = moved(hear(make_acked(), make_news("processing", sequence=5)))
    assert hear(task, make_news("succeeded", sequence=2, made=4), 8).effects != ()
    assert hear(task, make_news("queued", sequence=9), 8).verdict == "late"


def test_success_before_processing_stays_success(make_acked: MakeTask, make_news: MakeNews) -> None:
    step = hear(make_acked(), make_news("succeeded", made=4, percent=100))
    hosting = moved(step)
    assert (hosting.status, hosting.state.hosting.status) == ("processing", "transferring")
    assert isinstance(step.effects[0], HostOutputs)
    assert step.settle is None
    behind = hear(hosting, make_news("processing", percent=40), 8)
    assert behind.verdict == "late"
    assert moved(behind).state.hosting == hosting.state.hosting
    assert moved(behind).state.percent == 100
    assert moved(behind).state.progress[-1].percent is None


def test_a_second_success_does_not_start_hosting_again(make_acked: MakeTask, make_news: MakeNews) -> None:
    hosting = moved(hear(make_acked(), make_news("succeeded", made=4)))
    again = hear(hosting, make_news("succeeded", made=2), 8)
    assert (again.verdict, again.effects, again.settle) == ("late", (), None)
    assert moved(again).state.hosting == hosting.state.hosting


@pytest.mark.parametrize("word", ["failed", "canceled"])
def test_a_failure_after_a_success_goes_to_review(make_acked: MakeTask, make_news: MakeNews, word: str) -> None:
    hosting = moved(hear(make_acked(), make_news("succeeded", made=4)))
    step = hear(hosting, make_news(word), 8)
    task = moved(step)
    assert (task.status, step.settle, step.effects) == ("review", None, ())
    assert task.state.review is not None
    assert (task.state.review.reason, task.state.review.decision) == ("provider_conflict", "capture_blocked")
    assert task.state.review.case_id == "rev_01"
    assert hear(task, make_news("succeeded", made=4), 9).verdict == "late"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (
            {"status": "failed", "error": ReportedError(code="oom", message="out of memory")},
            "provider_error: out of memory",
        ),
        ({"status": "failed", "error": ReportedError(code="oom")}, "provider_error: oom"),
        ({"status": "failed", "error": ReportedError(code="nsfw", message="no")}, "content_policy: no"),
        (
            {"status": "failed", "moderation": Moderation(flagged=True), "message": "refused"},
            "content_policy: refused",
        ),
        (
            {"status": "failed", "error": ReportedError(code="invalid_input", message="n")},
            "invalid_upstream_input: n",
        ),
        ({"status": "canceled", "message": "shutdown"}, "canceled_by_provider: shutdown"),
        ({"status": "succeeded"}, "provider_error: the provider finished without any output"),
    ],
)
@pytest.mark.parametrize("started", [False, True])
def test_a_failure_releases_the_hold_and_says_why(
    make_acked: MakeTask, make_news: MakeNews, fields: dict[str, object], error: str, started: bool
) -> None:
    task = make_acked()
    if started:
        task = moved(hear(task, make_news("processing"), 3))
    news = make_news(**({"source": "poll"} | fields))
    step = hear(task, news)
    ended = moved(step)
    assert (ended.status, ended.state.error, ended.wake_at) == ("failed", error, None)
    assert step.settle is not None
    assert (step.settle.kind, step.settle.charge_micro) == ("release", 0)
    last = ended.state.status_history[-1]
    assert (last.status, last.error, last.cost_micro) == ("failed", error, 0)


def test_a_success_without_outputs_is_asked_about_first(make_acked: MakeTask, make_news: MakeNews) -> None:
    step = hear(make_acked(), make_news("succeeded"))
    assert step.effects == (PollJob("task_01", 1, "job-1"),)
    assert moved(step).status == "queued"


def test_flagged_output_is_frozen(make_acked: MakeTask, make_news: MakeNews, noon: datetime) -> None:
    flag = Moderation(flagged=True, categories=("violence",))
    step = hear(make_acked(), make_news("succeeded", made=4, moderation=flag))
    task = moved(step)
    assert (task.status, step.settle, step.effects) == ("review", None, ())
    assert task.state.error == "content_policy: the output was flagged, violence"
    assert task.wake_at == noon + timedelta(seconds=5 + 24 * 3600)
    assert len(task.state.hosting.wanted) == 4


def test_a_flag_raised_while_running_is_remembered(make_acked: MakeTask, make_news: MakeNews) -> None:
    task = moved(hear(make_acked(), make_news("processing", moderation=Moderation(flagged=True))))
    assert moved(hear(task, make_news("succeeded", made=4), 8)).status == "review"


def test_passed_through_urls_are_charged_at_once(make_acked: MakeTask, make_news: MakeNews) -> None:
    task = make_acked(hosting=Hosting(mode="passthrough"), webhook_url="https://ada.test/hook")
    step = hear(task, make_news("succeeded", made=4))
    done = moved(step)
    assert (done.status, done.state.cost_micro, done.state.billable_units) == ("succeeded", 240_000, 4)
    assert step.settle is not None
    assert (step.settle.kind, step.settle.charge_micro) == ("capture", 240_000)
    assert [item.url for item in done.state.output] == [f"https://studio.test/{n}.png" for n in range(4)]
    hosting = done.state.hosting
    assert (hosting.status, hosting.mode, hosting.final_url_ready) == ("skipped", "passthrough", True)
    assert [entry.status for entry in done.state.status_history] == ["queued", "succeeded"]


@pytest.mark.parametrize("output", [Output(index=0, data="aGk="), Output(index=0, url="javascript:alert(1)")])
def test_what_cannot_be_passed_through_is_stored_instead(
    make_acked: MakeTask, make_news: MakeNews, output: Output
) -> None:
    task = make_acked(hosting=Hosting(mode="passthrough"))
    done = moved(hear(task, make_news("succeeded", outputs=(output,))))
    assert (done.state.hosting.mode, done.state.hosting.status) == ("rehost", "transferring")


def test_outputs_get_positions_of_their_own(make_acked: MakeTask, make_news: MakeNews) -> None:
    twice = (
        Output(index=3, url="https://b.test"),
        Output(index=0, url="https://a.test"),
        Output(index=0, data="aGk="),
    )
    wanted = moved(hear(make_acked(), make_news("succeeded", outputs=twice))).state.hosting.wanted
    assert [(output.index, output.url) for output in wanted] == [
        (0, "https://a.test"),
        (1, None),
        (2, "https://b.test"),
    ]


def test_a_cancel_and_a_success_settle_once_whoever_is_first(make_acked: MakeTask, make_news: MakeNews) -> None:
    task = make_acked(hosting=Hosting(mode="passthrough"))
    now = task.created_at + timedelta(seconds=6)
    done = moved(hear(task, make_news("succeeded", made=4)))
    assert isinstance(on_cancel(done, now, operation_id="op_c"), Refusal)
    canceled = moved(on_cancel(task, now, operation_id="op_c"))
    late = hear(canceled, make_news("succeeded", made=4), 7)
    assert (late.verdict, late.settle, late.effects) == ("late", None, ())
    kept = moved(late)
    assert (kept.status, kept.state.cost_micro, kept.state.progress[-1].status) == ("canceled", 0, "late")
    assert hear(kept, make_news("failed"), 8).settle is None


def test_a_running_job_first_heard_of_after_the_cancel_is_stopped_once(
    make_task: MakeTask, make_news: MakeNews, noon: datetime, traits: ProviderTraits
) -> None:
    sent = moved(on_wake(make_task(), noon, traits=traits, operation_id="op_1"))
    canceled = moved(on_cancel(sent, noon, operation_id="op_c"))
    first = hear(canceled, make_news("processing", provider_ref="job-1"))
    assert first.effects == (CancelJob("task_01", 1, "job-1"),)
    assert hear(moved(first), make_news("processing", provider_ref="job-1"), 9).effects == ()


def test_a_poll_answered_after_a_callback_told_more_is_late(
    make_acked: MakeTask, make_news: MakeNews, traits: ProviderTraits
) -> None:
    hosting = moved(hear(make_acked(), make_news("succeeded", made=4)))
    now = hosting.updated_at
    step = on_poll(hosting, None, now, attempt=1, traits=traits, operation_id="op_1")
    assert step == Step(task=None, verdict="late")


def test_the_table_of_transitions_leaves_no_terminal_state_and_settles_each_once() -> None:
    for rule in TRANSITIONS.values():
        assert not rule.sources & TERMINAL
        assert (rule.settles is not None) == (rule.target in TERMINAL)
        assert (rule.settles == "capture") == (rule.target == "succeeded")
    assert {rule.target for rule in TRANSITIONS.values()} == {
        "processing",
        "review",
        "succeeded",
        "failed",
        "canceled",
    }


def test_breaking_the_table_is_a_bug(make_acked: MakeTask, make_news: MakeNews) -> None:
    ended = moved(hear(make_acked(), make_news("failed")))
    with pytest.raises(AssertionError):
        transition(ended, "outputs_stored", ended.updated_at, operation_id="op_2", charge_micro=1)
    with pytest.raises(AssertionError):
        transition(make_acked(), "passed_through", ended.updated_at, operation_id="op_2", charge_micro=240_001)


def test_nothing_can_be_told_of_a_task_that_was_never_dispatched(make_task: MakeTask, make_news: MakeNews) -> None:
    for attempt in (0, 1):
        step = hear(make_task(), make_news("succeeded", made=4, attempt=attempt))
        assert (step.verdict, step.settle, step.effects) == ("stale", None, ())
        assert moved(step).state.hosting.status == "pending"
