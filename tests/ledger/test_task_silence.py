"""Tasks of providers that are silent or removed, and submissions that are still in progress."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace
from tests.made_requests import make_request, make_terms

from holdfast.ledger.tasks.decisions import on_cancel, on_wake
from holdfast.ledger.tasks.dispatch import Silence, Unanswered, on_silence, on_submitted
from holdfast.ledger.tasks.inputs import INPUT_RETENTION_S, INPUT_SMALL_BYTES_MAX, input_until, on_input_expired
from holdfast.ledger.tasks.task import Task, accept_task
from holdfast.ledger.tasks.transitions import Context, ProviderTraits, Step

NOON = datetime.fromisoformat("2026-11-21T12:00:00+00:00")
ONE_SHOT = ProviderTraits(idempotent_submit=False, polls=True, cancels=True)
GONE = ProviderTraits(idempotent_submit=False, polls=False, cancels=False, listed="no")


def new_task(input_bytes: int = 10) -> Task:
    terms = make_terms(1, provider="box", upstream_model="m")
    return accept_task("acct_1", "task_1", make_request(terms, input={"prompt": "x" * input_bytes}), NOON)


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def task_after(step: Step) -> Task:
    assert step.task is not None
    return step.task


def submitted() -> Task:
    return task_after(on_wake(new_task(), Context(NOON, "op_1"), traits=ONE_SHOT))


def test_a_submission_in_progress_is_not_lost_before_its_deadline() -> None:
    task = submitted()
    late = later(30)
    lost = task_after(on_wake(task, Context(late, "op_1"), traits=ONE_SHOT))
    assert lost.state.dispatch == "ambiguous"
    for recovering in (False, True):
        step = on_wake(task, Context(late, "op_1"), traits=ONE_SHOT, recovering=recovering, submitting=True)
        assert (step.task, step.verdict) == (None, "ignored")
    ended = task_after(on_wake(task, Context(later(60), "op_1"), traits=ONE_SHOT, submitting=True))
    assert (ended.status, (ended.state.error or "")[:16]) == ("failed", "submit_ambiguous")


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_task_of_a_removed_provider_fails_with_that_reason(dispatched: bool) -> None:
    task = new_task()
    if dispatched:
        task = task_after(on_submitted(submitted(), 1, "job", NOON))
    step = on_wake(task, Context(later(1), "op_1"), traits=GONE)
    ended = task_after(step)
    assert ended.status == "failed"
    assert ended.state.error == "provider_removed: the provider is no longer in the catalog"
    assert step.settle is not None
    assert (step.settle.kind, ended.wake_at) == ("release", None)
    assert len(step.effects) == int(dispatched)


def test_a_running_task_waits_for_its_provider_during_the_grace_period() -> None:
    task = task_after(on_submitted(submitted(), 1, "job", NOON))
    recently = replace(GONE, listed="recently")
    waits = task_after(on_wake(task, Context(later(40), "op_1"), traits=recently))
    assert waits.status == "queued"
    assert waits.wake_at == later(70)


@pytest.mark.parametrize(
    ("of", "limit_s", "error"),
    [
        ("submissions", 60, "provider_unavailable: the provider has answered no submission for 300 s"),
        ("updates", 900, "provider_timeout: the provider has answered no poll of a job for 1000 s"),
    ],
)
def test_a_task_waits_for_a_silent_provider_up_to_the_phases_deadline(
    of: Unanswered, limit_s: int, error: str
) -> None:
    task = new_task()
    silent_s = 300.0 if of == "submissions" else 1000.0
    early = on_silence(task, Silence(of, silent_s), Context(later(limit_s - 1), "op_1"))
    assert early.task is None
    lately_silent = on_silence(task, Silence(of, limit_s - 1), Context(later(5000), "op_1"))
    assert lately_silent.task is None
    step = on_silence(task, Silence(of, silent_s), Context(later(limit_s), "op_1"))
    assert task_after(step).state.error == error
    assert step.settle is not None
    assert step.settle.kind == "release"
    assert on_silence(submitted(), Silence(of, 5000), Context(later(5000), "op_1")).task is None


def test_a_job_without_any_update_has_that_in_its_error() -> None:
    task = task_after(on_submitted(submitted(), 1, "job", NOON))
    mute = ProviderTraits(idempotent_submit=False, polls=False, cancels=False)
    ended = task_after(on_wake(task, Context(later(900), "op_1"), traits=mute))
    assert ended.state.error == "provider_timeout: the job was not finished in time; no update within 900 s"


def test_a_cancel_deletes_a_large_input_and_not_a_small_one() -> None:
    for size, dropped in ((INPUT_SMALL_BYTES_MAX + 1, True), (1000, False)):
        step = on_cancel(new_task(size), Context(later(1), "op_1"))
        assert isinstance(step, Step)
        request = task_after(step).request
        assert (request.input_dropped, request.input == {}) == (dropped, dropped)
        assert input_until(task_after(step)) is None


def test_a_large_input_of_an_ended_task_is_stored_for_its_retention() -> None:
    task = new_task(INPUT_SMALL_BYTES_MAX + 1)
    assert input_until(task) is None
    ended = task_after(on_wake(task, Context(later(1), "op_1"), traits=GONE))
    until = later(1) + timedelta(seconds=INPUT_RETENTION_S)
    assert input_until(ended) == until
    assert on_input_expired(ended, until - timedelta(seconds=1)).task is None
    dropped = task_after(on_input_expired(ended, until))
    assert (dropped.request.input_dropped, dropped.version, input_until(dropped)) == (True, ended.version + 1, None)
    assert on_input_expired(dropped, until).task is None
