"""Tasks whose caller gave a deadline: canceled at that time in every phase, with the hold released."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace
from tests.made_requests import make_request, make_terms

from holdfast.ledger.tasks.decisions import on_wake
from holdfast.ledger.tasks.dispatch import on_submitted
from holdfast.ledger.tasks.provider_update import Output, ProviderUpdate
from holdfast.ledger.tasks.provider_updates import on_update
from holdfast.ledger.tasks.task import HostingState, Review, Task, accept_task
from holdfast.ledger.tasks.transitions import CancelJob, Context, ProviderTraits, Step

NOON = datetime.fromisoformat("2026-11-28T12:00:00+00:00")
TRAITS = ProviderTraits(idempotent_submit=True, polls=True, cancels=True)
DEADLINE_S = 30
DEADLINE_AT = NOON + timedelta(seconds=DEADLINE_S)
WHY = "deadline_exceeded: the task had not ended 30 s after it was created"


def context(seconds: float) -> Context:
    return Context(NOON + timedelta(seconds=seconds), "op_1")


def task_after(step: Step) -> Task:
    assert step.task is not None
    return step.task


def waiting(deadline_s: int | None = DEADLINE_S) -> Task:
    terms = make_terms(1, provider="box", upstream_model="m")
    return accept_task("acct_1", "task_1", make_request(terms, deadline_s=deadline_s), NOON)


def submitted() -> Task:
    return task_after(on_wake(waiting(), context(0), traits=TRAITS))


def running() -> Task:
    return task_after(on_submitted(submitted(), 1, "job", NOON))


def storing() -> Task:
    update = ProviderUpdate(
        source="callback",
        provider="box",
        event_id="e1",
        request_id="task_1",
        attempt=1,
        status="succeeded",
        outputs=(Output(index=0, url="https://cdn.example/a.png"),),
    )
    task = task_after(on_update(running(), update, context(5)))
    assert task.state.hosting.status == "transferring"
    return task


def in_review() -> Task:
    review = Review(
        case_id="rev_1",
        reason="hosting_failed",
        decision="capture_blocked",
        deadline_at=NOON + timedelta(days=7),
    )
    state = replace(running().state, review=review, due_at=None, hosting=HostingState(status="failed"))
    return replace(running(), status="review", state=state)


@pytest.mark.parametrize("phase", [waiting, submitted, running, storing, in_review])
def test_a_deadline_cancels_a_task_in_every_phase(phase: object) -> None:
    assert callable(phase)
    task = phase()
    early = on_wake(task, context(DEADLINE_S - 0.001), traits=TRAITS)
    assert early.settle is None
    step = on_wake(task, context(DEADLINE_S), traits=TRAITS)
    ended = task_after(step)
    assert (ended.status, ended.state.error, ended.state.canceled_at) == ("canceled", WHY, DEADLINE_AT)
    assert ended.wake_at is None
    assert step.settle is not None
    assert (step.settle.kind, step.settle.charge_micro) == ("release", 0)
    cancels = (CancelJob("task_1", 1, "job"),) if phase is running else ()
    assert step.effects == cancels


@pytest.mark.parametrize("phase", [submitted, running, storing])
def test_a_task_is_woken_by_its_deadline_at_the_latest(phase: object) -> None:
    assert callable(phase)
    task = phase()
    assert task.wake_at is not None
    assert task.wake_at <= DEADLINE_AT
    assert task.overall_deadline_at == task.deadline_at == DEADLINE_AT


def test_the_last_poll_and_a_review_are_not_awaited_beyond_the_deadline() -> None:
    polled = replace(running(), state=replace(running().state, final_poll=True, due_at=NOON + timedelta(hours=1)))
    for task in (polled, in_review()):
        noted = task_after(on_wake(task, context(DEADLINE_S), traits=TRAITS))
        assert noted.status == "canceled"


def test_a_deadline_later_than_the_services_own_moves_nothing() -> None:
    patient, usual = waiting(7 * 24 * 3600), waiting(None)
    assert patient.overall_deadline_at == usual.overall_deadline_at
    assert usual.deadline_at is None


def test_a_result_that_comes_first_is_kept() -> None:
    task = replace(storing(), status="succeeded", wake_at=None)
    assert on_wake(task, context(DEADLINE_S + 1), traits=TRAITS).verdict == "ignored"
