"""Updates arrive late, twice, out of order and contradict each other; a task only moves forward."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.decisions import on_cancel, on_wake
from holdfast.ledger.tasks.provider_update import Moderation, Output, ProviderUpdate, ReportedError
from holdfast.ledger.tasks.provider_updates import on_poll, on_update
from holdfast.ledger.tasks.task import TERMINAL, Task
from holdfast.ledger.tasks.transitions import (
    TRANSITIONS,
    CancelJob,
    Context,
    HostOutputs,
    PollJob,
    ProviderTraits,
    Step,
    transition,
)

MakeTask = Callable[..., Task]
MakeUpdate = Callable[..., ProviderUpdate]


def task_after(step: Step | Refusal) -> Task:
    assert isinstance(step, Step)
    assert step.task is not None
    return step.task


def apply(task: Task, update: ProviderUpdate, seconds: float = 5) -> Step:
    now = task.created_at + timedelta(seconds=seconds)
    return on_update(task, update, Context(now, "op_1"))


def test_running_moves_the_status_once(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    waiting = task_after(apply(make_acked(), make_update("queued")))
    assert waiting.status == "queued"
    running = task_after(
        apply(waiting, make_update("processing", percent=40, stage="render", message="frame 19/48"))
    )
    assert [entry.status for entry in running.state.status_history] == ["queued", "processing"]
    note = running.state.progress[-1]
    assert (note.status, note.percent, note.stage, note.message) == ("processing", 40, "render", "frame 19/48")
    assert note.source_ref.startswith("callback:evt_")
    again = task_after(apply(running, make_update("processing", percent=60), 7))
    assert len(again.state.status_history) == 2


def test_a_repeated_event_changes_nothing(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    update = make_update("processing", percent=40)
    running = task_after(apply(make_acked(), update))
    assert apply(running, update, 9) == Step(task=None, verdict="duplicate")


def test_an_update_of_another_task_or_provider_is_ignored(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    for update in (make_update("failed", request_id="task_02"), make_update("failed", provider="other")):
        assert apply(make_acked(), update) == Step(task=None, verdict="ignored")


@pytest.mark.parametrize("status", ["processing", "succeeded", "failed"])
def test_a_callback_about_another_job_is_ignored(
    make_acked: MakeTask, make_update: MakeUpdate, status: str
) -> None:
    assert apply(make_acked(), make_update(status, provider_ref="job-2")) == Step(task=None, verdict="ignored")
    assert apply(make_acked(), make_update(status, provider_ref="job-1")).verdict == "applied"
    assert apply(make_acked(), make_update(status, provider_ref=None)).verdict == "applied"


@pytest.mark.parametrize("attempt", [0, 2])
def test_an_update_of_another_attempt_is_stale(make_acked: MakeTask, make_update: MakeUpdate, attempt: int) -> None:
    step = apply(make_acked(), make_update("failed", attempt=attempt))
    assert (step.verdict, step.settle) == ("stale", None)
    assert task_after(step).status == "queued"
    assert task_after(step).state.progress[-1].status == "stale"


def test_percent_never_falls(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    task = task_after(apply(make_acked(), make_update("processing", percent=70)))
    task = task_after(apply(task, make_update("processing", percent=30), 8))
    task = task_after(apply(task, make_update("processing", percent=900), 10))
    assert [note.percent for note in task.state.progress if note.percent is not None] == [70, 70, 100]


def test_an_earlier_sequence_is_only_recorded(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    task = task_after(apply(make_acked(), make_update("processing", sequence=5, percent=50)))
    late = apply(task, make_update("processing", sequence=4, percent=80), 8)
    assert late.verdict == "late"
    assert task_after(late).state.percent == 50
    assert task_after(late).state.progress[-1].status == "late"


def test_rank_precedes_sequence(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    task = task_after(apply(make_acked(), make_update("processing", sequence=5)))
    assert apply(task, make_update("succeeded", sequence=2, output_count=4), 8).effects != ()
    assert apply(task, make_update("queued", sequence=9), 8).verdict == "late"


def test_success_before_processing_stays_success(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    step = apply(make_acked(), make_update("succeeded", output_count=4, percent=100))
    hosting = task_after(step)
    assert (hosting.status, hosting.state.hosting.status) == ("processing", "transferring")
    assert isinstance(step.effects[0], HostOutputs)
    assert step.settle is None
    overtaken = apply(hosting, make_update("processing", percent=40), 8)
    assert overtaken.verdict == "late"
    assert task_after(overtaken).state.hosting == hosting.state.hosting
    assert task_after(overtaken).state.percent == 100
    assert task_after(overtaken).state.progress[-1].percent is None


def test_a_second_success_does_not_start_hosting_again(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    hosting = task_after(apply(make_acked(), make_update("succeeded", output_count=4)))
    again = apply(hosting, make_update("succeeded", output_count=2), 8)
    assert (again.verdict, again.effects, again.settle) == ("late", (), None)
    assert task_after(again).state.hosting == hosting.state.hosting


@pytest.mark.parametrize("status", ["failed", "canceled"])
def test_a_failure_after_a_success_goes_to_review(
    make_acked: MakeTask, make_update: MakeUpdate, status: str
) -> None:
    hosting = task_after(apply(make_acked(), make_update("succeeded", output_count=4)))
    step = apply(hosting, make_update(status), 8)
    task = task_after(step)
    assert (task.status, step.settle, step.effects) == ("review", None, ())
    assert task.state.review is not None
    assert (task.state.review.reason, task.state.review.decision) == ("provider_conflict", "capture_blocked")
    assert task.state.review.case_id == "rev_01"
    assert apply(task, make_update("succeeded", output_count=4), 9).verdict == "late"


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
        ({"status": "succeeded", "moderation": Moderation(flagged=True)}, "content_policy: the output was flagged"),
    ],
)
@pytest.mark.parametrize("started", [False, True])
def test_a_failure_releases_the_hold_with_a_reason(
    make_acked: MakeTask, make_update: MakeUpdate, fields: dict[str, object], error: str, started: bool
) -> None:
    task = make_acked()
    if started:
        task = task_after(apply(task, make_update("processing"), 3))
    update = make_update(**({"source": "poll"} | fields))
    step = apply(task, update)
    ended = task_after(step)
    assert (ended.status, ended.state.error, ended.wake_at) == ("failed", error, None)
    assert step.settle is not None
    assert (step.settle.kind, step.settle.charge_micro) == ("release", 0)
    last = ended.state.status_history[-1]
    assert (last.status, last.error, last.cost_micro) == ("failed", error, 0)


def test_a_success_without_outputs_is_polled_first(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    step = apply(make_acked(), make_update("succeeded"))
    assert step.effects == (PollJob("task_01", 1, "job-1"),)
    assert task_after(step).status == "queued"


def test_flagged_output_is_frozen(make_acked: MakeTask, make_update: MakeUpdate, noon: datetime) -> None:
    flag = Moderation(flagged=True, categories=("violence",))
    step = apply(make_acked(), make_update("succeeded", output_count=4, moderation=flag))
    task = task_after(step)
    assert (task.status, step.settle, step.effects) == ("review", None, ())
    assert task.state.error == "content_policy: the output was flagged, violence"
    assert task.wake_at == noon + timedelta(seconds=5 + 24 * 3600)
    assert len(task.state.hosting.wanted) == 4


def test_a_flag_raised_while_running_is_remembered(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    task = task_after(apply(make_acked(), make_update("processing", moderation=Moderation(flagged=True))))
    assert task_after(apply(task, make_update("succeeded", output_count=4), 8)).status == "review"


def test_passed_through_urls_are_charged_at_once(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    task = make_acked(hosting=Hosting(mode="passthrough"), webhook_url="https://ada.test/hook")
    step = apply(task, make_update("succeeded", output_count=4))
    done = task_after(step)
    assert (done.status, done.state.cost_micro, done.state.billable_units) == ("succeeded", 240_000, 4)
    assert step.settle is not None
    assert (step.settle.kind, step.settle.charge_micro) == ("capture", 240_000)
    assert [item.url for item in done.state.output] == [f"https://studio.test/{n}.png" for n in range(4)]
    hosting = done.state.hosting
    assert (hosting.status, hosting.mode, hosting.final_url_ready) == ("skipped", "passthrough", True)
    assert [entry.status for entry in done.state.status_history] == ["queued", "succeeded"]


@pytest.mark.parametrize("output", [Output(index=0, data="aGk="), Output(index=0, url="javascript:alert(1)")])
def test_outputs_that_cannot_be_passed_through_are_stored(
    make_acked: MakeTask, make_update: MakeUpdate, output: Output
) -> None:
    task = make_acked(hosting=Hosting(mode="passthrough"))
    done = task_after(apply(task, make_update("succeeded", outputs=(output,))))
    assert (done.state.hosting.mode, done.state.hosting.status) == ("rehost", "transferring")


def test_outputs_get_positions_of_their_own(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    twice = (
        Output(index=3, url="https://b.test"),
        Output(index=0, url="https://a.test"),
        Output(index=0, data="aGk="),
    )
    wanted = task_after(apply(make_acked(), make_update("succeeded", outputs=twice))).state.hosting.wanted
    assert [(output.index, output.url) for output in wanted] == [
        (0, "https://a.test"),
        (1, None),
        (2, "https://b.test"),
    ]


def test_a_cancel_and_a_success_settle_once_in_either_order(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    task = make_acked(hosting=Hosting(mode="passthrough"))
    now = task.created_at + timedelta(seconds=6)
    done = task_after(apply(task, make_update("succeeded", output_count=4)))
    assert isinstance(on_cancel(done, Context(now, "op_c")), Refusal)
    canceled = task_after(on_cancel(task, Context(now, "op_c")))
    late = apply(canceled, make_update("succeeded", output_count=4), 7)
    assert (late.verdict, late.settle, late.effects) == ("late", None, ())
    canceled_still = task_after(late)
    assert (canceled_still.status, canceled_still.state.cost_micro, canceled_still.state.progress[-1].status) == (
        "canceled",
        0,
        "late",
    )
    assert apply(canceled_still, make_update("failed"), 8).settle is None


def test_a_running_job_found_after_the_cancel_is_canceled_once(
    make_task: MakeTask, make_update: MakeUpdate, noon: datetime, traits: ProviderTraits
) -> None:
    sent = task_after(on_wake(make_task(), Context(noon, "op_1"), traits=traits))
    canceled = task_after(on_cancel(sent, Context(noon, "op_c")))
    first = apply(canceled, make_update("processing", provider_ref="job-1"))
    assert first.effects == (CancelJob("task_01", 1, "job-1"),)
    assert apply(task_after(first), make_update("processing", provider_ref="job-1"), 9).effects == ()


def test_a_poll_that_a_callback_has_overtaken_is_late(
    make_acked: MakeTask, make_update: MakeUpdate, traits: ProviderTraits
) -> None:
    hosting = task_after(apply(make_acked(), make_update("succeeded", output_count=4)))
    now = hosting.updated_at
    step = on_poll(hosting, None, Context(now, "op_1"), attempt=1, traits=traits)
    assert step == Step(task=None, verdict="late")


def test_no_transition_leaves_a_terminal_status_and_each_settles_once() -> None:
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


def test_a_transition_outside_the_table_is_an_assertion_error(
    make_acked: MakeTask, make_update: MakeUpdate
) -> None:
    ended = task_after(apply(make_acked(), make_update("failed")))
    with pytest.raises(AssertionError):
        transition(ended, "outputs_stored", Context(ended.updated_at, "op_2"), charge_micro=1)
    with pytest.raises(AssertionError):
        transition(make_acked(), "passed_through", Context(ended.updated_at, "op_2"), charge_micro=240_001)


def test_updates_of_a_task_that_was_never_dispatched_are_stale(
    make_task: MakeTask, make_update: MakeUpdate
) -> None:
    for attempt in (0, 1):
        step = apply(make_task(), make_update("succeeded", output_count=4, attempt=attempt))
        assert (step.verdict, step.settle, step.effects) == ("stale", None, ())
        assert task_after(step).state.hosting.status == "pending"
