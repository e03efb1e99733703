"""Dispatch: a job is submitted once, and every wait of a task ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.decisions import on_cancel, on_cancel_answered, on_wake
from holdfast.ledger.tasks.dispatch import on_submit_failed, on_submitted, submit_at_once
from holdfast.ledger.tasks.provider_update import Moderation, ProviderUpdate
from holdfast.ledger.tasks.provider_updates import on_poll, on_update
from holdfast.ledger.tasks.task import Task, TaskRequest, TaskState
from holdfast.ledger.tasks.transitions import CancelJob, Context, PollJob, ProviderTraits, Step, SubmitJob

MakeTask = Callable[..., Task]
MakeUpdate = Callable[..., ProviderUpdate]
ONE_SHOT = ProviderTraits(idempotent_submit=False, polls=True, cancels=True)


def at(noon: datetime, seconds: float) -> datetime:
    return noon + timedelta(seconds=seconds)


def task_after(step: Step | Refusal) -> Task:
    assert isinstance(step, Step)
    assert step.task is not None
    return step.task


def wake(task: Task, now: datetime, traits: ProviderTraits) -> Step:
    return on_wake(task, Context(now, "op_1"), traits=traits)


def test_a_new_task_is_queued_and_due_at_once(make_task: MakeTask, noon: datetime) -> None:
    task = make_task()
    assert (task.status, task.version, task.wake_at, task.dispatched) == ("queued", 1, noon, False)
    assert task.request.hold_micro == 240_000
    assert [(entry.status, entry.ts) for entry in task.state.status_history] == [("queued", noon)]


def test_both_json_columns_decode_to_what_was_encoded(make_acked: MakeTask) -> None:
    task = make_acked()
    assert msgspec.json.decode(msgspec.json.encode(task.request), type=TaskRequest) == task.request
    assert msgspec.json.decode(msgspec.json.encode(task.state), type=TaskState) == task.state


def test_the_intent_is_committed_before_the_job_is_submitted(
    make_task: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    step = wake(make_task(), noon, traits)
    task = task_after(step)
    assert step.effects == (SubmitJob("task_01", 1),)
    assert (task.state.dispatch, task.state.attempt, task.dispatched) == ("intent", 1, True)
    assert (task.version, task.wake_at) == (2, at(noon, 15))
    assert step.settle is None


def test_a_task_with_a_slot_has_the_intent_in_its_first_version(
    make_task: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    step, later = submit_at_once(make_task(), Context(noon)), wake(make_task(), noon, traits)
    assert step.effects == later.effects
    assert task_after(step) == msgspec.structs.replace(task_after(later), version=1)


def test_an_intent_in_flight_is_left_alone(make_task: MakeTask, noon: datetime, traits: ProviderTraits) -> None:
    sent = task_after(wake(make_task(), noon, traits))
    step = wake(sent, at(noon, 5), traits)
    assert (step.task, step.verdict, step.effects) == (None, "ignored", ())


def test_an_unanswered_intent_is_submitted_again_if_idempotent(
    make_task: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    sent = task_after(wake(make_task(), noon, traits))
    step = wake(sent, at(noon, 15), traits)
    assert step.effects == (SubmitJob("task_01", 1),)
    assert task_after(step).state.maybe_sent


def test_an_unanswered_intent_is_not_repeated_if_not_idempotent(make_task: MakeTask, noon: datetime) -> None:
    sent = task_after(wake(make_task(), noon, ONE_SHOT))
    left = wake(sent, at(noon, 15), ONE_SHOT)
    assert left.effects == ()
    task = task_after(left)
    assert task.state.dispatch == "ambiguous"
    assert task.wake_at == at(noon, 60)
    failed = wake(task, at(noon, 60), ONE_SHOT)
    assert failed.effects == ()
    assert failed.settle is not None
    assert failed.settle.kind == "release"
    assert (task_after(failed).state.error or "").startswith("submit_ambiguous: ")


def test_a_callback_resolves_an_ambiguous_submit(
    make_task: MakeTask, make_update: MakeUpdate, noon: datetime
) -> None:
    sent = task_after(wake(make_task(), noon, ONE_SHOT))
    doubt = task_after(on_submit_failed(sent, 1, "ambiguous", "read timed out", Context(at(noon, 9), "op_1")))
    assert doubt.state.dispatch == "ambiguous"
    updated = task_after(
        on_update(doubt, make_update("processing", provider_ref="job-1"), Context(at(noon, 20), "op_1"))
    )
    assert (updated.status, updated.state.dispatch, updated.state.provider_ref) == ("processing", "acked", "job-1")
    assert updated.state.run_deadline_at == at(noon, 20 + 900)


@pytest.mark.parametrize("outcome", ["not_sent", "busy"])
def test_a_submit_that_was_not_sent_is_retried_until_the_deadline(
    make_task: MakeTask, noon: datetime, outcome: str
) -> None:
    task, tries = make_task(), 0
    while not task.is_terminal:
        assert task.wake_at is not None
        step = wake(task, task.wake_at, ONE_SHOT)
        now, task = task.wake_at, task_after(step)
        if step.effects:
            assert step.effects == (SubmitJob("task_01", 1),)
            tries += 1
            recorded = on_submit_failed(task, 1, outcome, "no route", Context(now, "op_1"))  # type: ignore[arg-type]  # a parameter
            task = task_after(recorded)
            assert not task.dispatched
    assert now == at(noon, 60)
    assert 3 < tries < 12
    assert (task.state.error or "").startswith("provider_unavailable: ")


def test_an_ambiguous_attempt_stays_in_doubt_after_an_unsent_retry(
    make_task: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    task = task_after(wake(make_task(), noon, traits))
    task = task_after(on_submit_failed(task, 1, "ambiguous", "timeout", Context(at(noon, 1), "op_1")))
    task = task_after(wake(task, at(noon, 10), traits))
    task = task_after(on_submit_failed(task, 1, "not_sent", "refused", Context(at(noon, 11), "op_1")))
    assert (task.state.dispatch, task.dispatched) == ("ambiguous", True)
    assert (task_after(wake(task, at(noon, 60), traits)).state.error or "").startswith("submit_ambiguous: ")


def test_a_rejected_job_fails_and_releases(make_task: MakeTask, noon: datetime, traits: ProviderTraits) -> None:
    sent = task_after(wake(make_task(), noon, traits))
    step = on_submit_failed(
        sent, 1, "rejected", "size too big", Context(at(noon, 1), "op_9"), error_code="invalid_upstream_input"
    )
    task = task_after(step)
    assert (task.status, task.state.error) == ("failed", "invalid_upstream_input: size too big")
    assert step.settle is not None
    assert (step.settle.kind, step.settle.charge_micro, step.settle.operation_id) == ("release", 0, "op_9")
    assert (task.state.cost_micro, task.latency_ms, task.state.operation_id) == (0, 1000, "op_9")


def test_an_answer_to_an_earlier_attempt_cancels_its_job(make_acked: MakeTask, noon: datetime) -> None:
    step = on_submitted(make_acked(), 0, "job-0", at(noon, 2))
    assert (step.task, step.verdict, step.effects) == (None, "stale", (CancelJob("task_01", 0, "job-0"),))


def test_a_second_acknowledgement_changes_nothing(make_acked: MakeTask, noon: datetime) -> None:
    assert on_submitted(make_acked(), 1, "job-1", at(noon, 2)) == Step(task=None, verdict="duplicate")


def test_a_silent_job_is_polled_and_polled_again(
    make_acked: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    task = make_acked()
    assert task.wake_at == at(noon, 31)
    step = wake(task, at(noon, 31), traits)
    assert step.effects == (PollJob("task_01", 1, "job-1"),)
    assert task_after(step).wake_at == at(noon, 61)


def test_a_job_known_only_from_a_callback_is_polled_by_our_name(
    make_task: MakeTask, make_update: MakeUpdate, noon: datetime, traits: ProviderTraits
) -> None:
    sent = task_after(wake(make_task(), noon, traits))
    doubt = task_after(on_submit_failed(sent, 1, "ambiguous", "no answer", Context(at(noon, 1), "op_1")))
    task = task_after(on_update(doubt, make_update("processing"), Context(at(noon, 2), "op_1")))
    assert (task.state.dispatch, task.state.provider_ref, task.wake_at) == ("acked", None, at(noon, 32))
    step = wake(task, at(noon, 32), traits)
    assert step.effects == (PollJob("task_01", 1, None),)
    assert task_after(step).wake_at == at(noon, 62)
    overdue = wake(task_after(step), at(noon, 2 + 900), traits)
    assert overdue.effects == (PollJob("task_01", 1, None, last=True),)


def test_a_job_with_an_unknown_provider_name_waits_for_updates(
    make_task: MakeTask, make_update: MakeUpdate, noon: datetime
) -> None:
    sent = task_after(wake(make_task(), noon, ONE_SHOT))
    doubt = task_after(on_submit_failed(sent, 1, "ambiguous", "no answer", Context(at(noon, 1), "op_1")))
    task = task_after(on_update(doubt, make_update("processing"), Context(at(noon, 2), "op_1")))
    step = wake(task, at(noon, 32), ONE_SHOT)
    assert step.effects == ()
    assert task_after(step).wake_at == at(noon, 2 + 900)


def test_an_update_postpones_the_poll(make_acked: MakeTask, make_update: MakeUpdate, noon: datetime) -> None:
    updated = task_after(on_update(make_acked(), make_update("processing"), Context(at(noon, 25), "op_1")))
    assert updated.wake_at == at(noon, 55)


def test_jitter_spreads_polls(make_acked: MakeTask, noon: datetime, traits: ProviderTraits) -> None:
    step = on_wake(make_acked(), Context(at(noon, 31), "op_1", 1.0), traits=traits)
    assert task_after(step).wake_at == at(noon, 31 + 37.5)


def test_a_poll_without_changes_is_not_recorded(
    make_acked: MakeTask, make_update: MakeUpdate, noon: datetime, traits: ProviderTraits
) -> None:
    task = task_after(wake(make_acked(), at(noon, 31), traits))
    update = make_update("processing", source="poll", percent=10)
    task = task_after(on_poll(task, update, Context(at(noon, 32), "op_1"), attempt=1, traits=traits))
    again = on_poll(task, update, Context(at(noon, 62), "op_1"), attempt=1, traits=traits)
    assert again == Step(task=None, verdict="duplicate")


def test_a_lost_callback_is_found_by_polling(
    make_acked: MakeTask, make_update: MakeUpdate, noon: datetime, traits: ProviderTraits
) -> None:
    task = task_after(wake(make_acked(), at(noon, 31), traits))
    update = make_update("succeeded", source="poll", output_count=4)
    step = on_poll(task, update, Context(at(noon, 32), "op_1"), attempt=1, traits=traits)
    assert task_after(step).state.hosting.status == "transferring"
    assert task_after(step).state.progress[-1].source_ref == "poll:1"


def test_an_unanswered_job_is_polled_once_more_and_then_failed(
    make_acked: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    task, polls = make_acked(), 0
    while True:
        assert task.wake_at is not None
        now = task.wake_at
        step = wake(task, now, traits)
        task = task_after(step)
        if task.is_terminal:
            break
        polls += 1
        last = now >= at(noon, 901)
        assert step.effects == (PollJob("task_01", 1, "job-1", last=last),)
    assert polls == 30
    assert now == at(noon, 931)
    assert (task.state.error or "").startswith("provider_timeout: ")
    assert step.settle is not None
    assert step.settle.kind == "release"
    assert step.effects == (CancelJob("task_01", 1, "job-1"),)
    assert (task.wake_at, task.state.cost_micro) == (None, 0)


@pytest.mark.parametrize("answer", ["unknown", "processing"])
def test_the_last_poll_is_final(
    make_acked: MakeTask, make_update: MakeUpdate, noon: datetime, traits: ProviderTraits, answer: str
) -> None:
    task = task_after(wake(make_acked(), at(noon, 901), traits))
    update = None if answer == "unknown" else make_update(answer, source="poll", percent=99)
    step = on_poll(task, update, Context(at(noon, 902), "op_1"), attempt=1, traits=traits)
    assert task_after(step).status == "failed"
    assert (task_after(step).state.error or "").startswith("provider_timeout: ")
    assert step.settle is not None


def test_a_success_in_the_last_poll_counts(
    make_acked: MakeTask, make_update: MakeUpdate, noon: datetime, traits: ProviderTraits
) -> None:
    task = task_after(wake(make_acked(), at(noon, 901), traits))
    update = make_update("succeeded", source="poll", output_count=4)
    step = on_poll(task, update, Context(at(noon, 902), "op_1"), attempt=1, traits=traits)
    assert (task_after(step).status, task_after(step).state.hosting.status) == ("processing", "transferring")


def test_a_deadline_without_polling_fails_at_once(make_acked: MakeTask, noon: datetime) -> None:
    no_polls = ProviderTraits(idempotent_submit=True, polls=False, cancels=False)
    quiet = task_after(wake(make_acked(), at(noon, 31), no_polls))
    assert quiet.wake_at == at(noon, 901)
    assert task_after(wake(quiet, at(noon, 901), no_polls)).status == "failed"


def test_a_lost_job_is_submitted_again_and_its_callbacks_are_stale(
    make_acked: MakeTask, make_update: MakeUpdate, noon: datetime, traits: ProviderTraits
) -> None:
    task = task_after(on_update(make_acked(), make_update("processing", percent=40), Context(at(noon, 5), "op_1")))
    task = task_after(wake(task, at(noon, 35), traits))
    step = on_poll(task, None, Context(at(noon, 36), "op_1"), attempt=1, traits=traits)
    task = task_after(step)
    assert step.effects == (SubmitJob("task_01", 2),)
    assert (task.status, task.state.attempt, task.state.provider_ref) == ("processing", 2, None)
    stale = on_update(task, make_update("succeeded", output_count=4), Context(at(noon, 37), "op_1"))
    assert stale.verdict == "stale"
    assert stale.settle is None
    assert task_after(stale).state.progress[-1].status == "stale"
    assert task_after(stale).state.hosting.status == "pending"
    old_poll = on_poll(task_after(stale), None, Context(at(noon, 38), "op_1"), attempt=1, traits=traits)
    assert old_poll == Step(task=None, verdict="stale")


def test_a_running_job_of_an_earlier_attempt_is_canceled(
    make_acked: MakeTask, make_update: MakeUpdate, noon: datetime, traits: ProviderTraits
) -> None:
    task = task_after(wake(make_acked(), at(noon, 31), traits))
    task = task_after(on_poll(task, None, Context(at(noon, 32), "op_1"), attempt=1, traits=traits))
    step = on_update(task, make_update("processing", provider_ref="job-1"), Context(at(noon, 33), "op_1"))
    assert step.effects == (CancelJob("task_01", 1, "job-1"),)


def test_a_task_fails_after_its_job_was_lost_several_times(
    make_acked: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    task = make_acked()
    for attempt in (1, 2, 3):
        assert task.wake_at is not None
        task = task_after(wake(task, task.wake_at, traits))
        assert task.wake_at is not None
        step = on_poll(task, None, Context(task.wake_at, "op_1"), attempt=attempt, traits=traits)
        task = task_after(step)
        if attempt < 3:
            task = task_after(on_submitted(task, attempt + 1, f"job-{attempt + 1}", task.updated_at))
    assert task.state.error == "provider_error: the provider lost the job"
    assert step.settle is not None


def test_an_unknown_job_waits_for_the_deadline_if_not_idempotent(make_acked: MakeTask, noon: datetime) -> None:
    task = task_after(wake(make_acked(), at(noon, 31), ONE_SHOT))
    step = on_poll(task, None, Context(at(noon, 32), "op_1"), attempt=1, traits=ONE_SHOT)
    assert step == Step(task=None, verdict="ignored")


def test_canceling_before_dispatch_never_calls_the_provider(make_task: MakeTask, noon: datetime) -> None:
    step = on_cancel(make_task(), Context(at(noon, 1), "op_c"))
    task = task_after(step)
    assert isinstance(step, Step)
    assert (task.status, step.effects, task.wake_at) == ("canceled", (), None)
    assert step.settle is not None
    assert (step.settle.kind, step.settle.hold_id, step.settle.operation_id) == ("release", "hold_1", "op_c")
    assert (task.state.canceled_at, task.state.completed_at) == (at(noon, 1), None)
    assert task.state.hosting.status == "skipped"


def test_canceling_cancels_the_current_attempts_job(
    make_acked: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    task = task_after(wake(make_acked(), at(noon, 31), traits))
    task = task_after(on_poll(task, None, Context(at(noon, 32), "op_1"), attempt=1, traits=traits))
    undispatched = on_cancel(task, Context(at(noon, 33), "op_c"))
    assert isinstance(undispatched, Step)
    assert undispatched.effects == ()
    task = task_after(on_submitted(task, 2, "job-2", at(noon, 33)))
    step = on_cancel(task, Context(at(noon, 34), "op_c"))
    assert isinstance(step, Step)
    assert step.effects == (CancelJob("task_01", 2, "job-2"),)


def test_a_job_accepted_after_the_cancel_is_canceled_once(
    make_task: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    sent = task_after(wake(make_task(), noon, traits))
    canceled = task_after(on_cancel(sent, Context(at(noon, 1), "op_c")))
    step = on_submitted(canceled, 1, "job-1", at(noon, 2))
    assert (step.verdict, step.effects) == ("late", (CancelJob("task_01", 1, "job-1"),))
    assert task_after(step).status == "canceled"
    assert on_submitted(task_after(step), 1, "job-1", at(noon, 3)) == Step(task=None, verdict="late")
    recorded = task_after(on_cancel_answered(task_after(step), 1, "too_late", at(noon, 4)))
    assert recorded.state.progress[-1].message == "provider cancel too late"


@pytest.mark.parametrize(
    "ended",
    [{"status": "failed"}, {"status": "canceled"}, {"status": "succeeded", "moderation": Moderation(flagged=True)}],
)
def test_a_job_whose_end_is_known_before_its_acceptance_is_not_canceled(
    make_task: MakeTask,
    make_update: MakeUpdate,
    noon: datetime,
    traits: ProviderTraits,
    ended: dict[str, Any],
) -> None:
    sent = task_after(wake(make_task(), noon, traits))
    failed = task_after(on_update(sent, make_update(**ended, provider_ref="job-1"), Context(at(noon, 1), "op_1")))
    assert (failed.status, failed.state.dispatch, failed.state.provider_ref) == ("failed", "acked", "job-1")
    assert failed.wake_at is None
    assert on_submitted(failed, 1, "job-1", at(noon, 2)) == Step(task=None, verdict="late")


def test_canceling_twice_is_one_cancel(make_acked: MakeTask, noon: datetime) -> None:
    canceled = task_after(on_cancel(make_acked(), Context(at(noon, 1), "op_c")))
    assert on_cancel(canceled, Context(at(noon, 2), "op_d")) == Step(task=None, verdict="duplicate")


def test_a_failed_task_cannot_be_canceled(make_acked: MakeTask, make_update: MakeUpdate, noon: datetime) -> None:
    failed = task_after(on_update(make_acked(), make_update("failed"), Context(at(noon, 2), "op_1")))
    refusal = on_cancel(failed, Context(at(noon, 3), "op_c"))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.final) == ("task_already_terminal", True)


def test_the_overall_deadline_fails_a_task_that_was_never_submitted(
    make_task: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    step = wake(make_task(), at(noon, 24 * 3600), traits)
    assert (task_after(step).state.error or "").startswith("provider_unavailable: ")
    assert step.effects == ()


def test_answers_after_the_end_change_nothing(
    make_acked: MakeTask, make_update: MakeUpdate, noon: datetime, traits: ProviderTraits
) -> None:
    ended = task_after(on_update(make_acked(), make_update("failed"), Context(at(noon, 2), "op_1")))
    late = Step(task=None, verdict="late")
    assert on_submit_failed(ended, 1, "rejected", "no", Context(at(noon, 3), "op_2")) == late
    assert on_poll(ended, None, Context(at(noon, 3), "op_2"), attempt=1, traits=traits) == late
    assert wake(ended, at(noon, 9999), traits).verdict == "ignored"


def test_a_recovered_job_is_polled_at_once(make_acked: MakeTask, noon: datetime, traits: ProviderTraits) -> None:
    task = make_acked()
    soon = at(noon, 2)

    assert wake(task, soon, traits).verdict == "ignored"
    step = on_wake(task, Context(soon, "op_1"), traits=traits, recovering=True)

    assert [type(effect) for effect in step.effects] == [PollJob]


def test_a_recovered_submit_is_repeated_only_if_idempotent(
    make_task: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    sent = task_after(wake(make_task(), noon, traits))
    soon = at(noon, 2)

    again = on_wake(sent, Context(soon, "op_1"), traits=traits, recovering=True)
    assert again.effects == (SubmitJob(sent.request_id, sent.state.attempt),)

    once = on_wake(sent, Context(soon, "op_1"), traits=ONE_SHOT, recovering=True)
    assert once.effects == ()


def test_recovery_does_not_shorten_the_pause_before_a_submit(
    make_task: MakeTask, noon: datetime, traits: ProviderTraits
) -> None:
    sent = task_after(wake(make_task(), noon, traits))
    refused = task_after(on_submit_failed(sent, 1, "not_sent", "unreachable", Context(noon, "op_1")))

    step = on_wake(refused, Context(at(noon, 0.1), "op_1"), traits=traits, recovering=True)

    assert step.verdict == "ignored"
