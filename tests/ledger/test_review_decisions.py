"""Reviews: decisions, deadlines, and what an approval stores and charges."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.decisions import on_cancel, on_review, on_wake
from holdfast.ledger.tasks.provider_update import Moderation
from holdfast.ledger.tasks.provider_updates import on_update
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.tasks.transitions import Context, HostOutputs, ProviderTraits, Step

from .task_steps import MakeTask, MakeUpdate, at, host, lost, stored, task_after


@pytest.fixture
def flagged(make_acked: MakeTask, make_update: MakeUpdate) -> MakeTask:
    def make(**options: Any) -> Task:
        task = make_acked(**options)
        update = make_update("succeeded", output_count=4, moderation=Moderation(flagged=True))
        return task_after(on_update(task, update, Context(at(task, 5), "op_1")))

    return make


def test_an_approved_review_stores_first_and_charges_then(flagged: MakeTask) -> None:
    step = on_review(flagged(), True, Context(at(flagged(), 100), "op_r"))
    task = task_after(step)
    assert isinstance(step, Step)
    assert [type(effect) for effect in step.effects] == [HostOutputs]
    assert (task.status, step.settle) == ("review", None)
    assert on_review(task, True, Context(at(task, 101), "op_r")) == Step(task=None, verdict="duplicate")
    done = host(task, *(stored(n) for n in range(4)), seconds=102)
    assert (task_after(done).status, task_after(done).state.error) == ("succeeded", None)
    assert done.settle is not None
    assert done.settle.kind == "capture"
    review = task_after(done).state.review
    assert review is not None
    assert review.decision == "capture_approved"


def test_an_approved_passthrough_is_charged_at_once(flagged: MakeTask) -> None:
    task = flagged(hosting=Hosting(mode="passthrough"))
    done = task_after(on_review(task, True, Context(at(task, 100), "op_r")))
    assert (done.status, done.state.cost_micro, len(done.state.output)) == ("succeeded", 240_000, 4)


def test_a_rejected_review_fails_and_releases(flagged: MakeTask) -> None:
    task = flagged()
    step = on_review(task, False, Context(at(task, 100), "op_r"))
    ended = task_after(step)
    assert isinstance(step, Step)
    assert (ended.status, ended.state.error) == ("failed", "content_policy: the output was flagged")
    assert step.settle is not None
    assert (step.settle.kind, step.settle.charge_micro) == ("release", 0)
    assert ended.state.review is not None
    assert ended.state.review.decision == "release_approved"
    assert isinstance(on_review(ended, True, Context(at(task, 101), "op_r")), Refusal)


def test_the_same_decision_again_is_known_also_after_the_end(flagged: MakeTask) -> None:
    task = flagged()
    approved = task_after(on_review(task, True, Context(at(task, 100), "op_r")))
    done = task_after(host(approved, *(stored(n) for n in range(4)), seconds=102))
    rejected = task_after(on_review(task, False, Context(at(task, 100), "op_r")))
    again = Step(task=None, verdict="duplicate")
    for ended, decision in ((done, True), (rejected, False)):
        assert on_review(ended, decision, Context(at(task, 200), "op_s")) == again
        refusal = on_review(ended, not decision, Context(at(task, 200), "op_s"))
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.final) == ("review_not_open", True)
    canceled = task_after(on_cancel(approved, Context(at(task, 101), "op_c")))
    assert isinstance(on_review(canceled, True, Context(at(task, 200), "op_s")), Refusal)


def test_an_approval_can_be_revoked_while_outputs_are_stored(flagged: MakeTask) -> None:
    approved = task_after(on_review(flagged(), True, Context(at(flagged(), 100), "op_r")))
    step = on_review(approved, False, Context(at(approved, 101), "op_s"))
    assert (task_after(step).status, task_after(step).state.output) == ("failed", ())
    assert isinstance(step, Step)
    assert step.settle is not None
    assert step.settle.kind == "release"
    assert host(task_after(step), stored(0), seconds=102) == Step(task=None, verdict="late")


@pytest.mark.parametrize(("approve", "word"), [(True, "approved"), (False, "rejected")])
def test_an_operators_note_is_recorded_without_urls_and_keys(flagged: MakeTask, approve: bool, word: str) -> None:
    task = flagged()
    note = "looked at it, see https://tickets.test/7?token=abc"
    line = task_after(on_review(task, approve, Context(at(task, 100), "op_r"), note=note)).state.progress[-1]
    assert (line.source_ref, line.stage) == ("system:review", "review")
    assert line.message == f"{word}: looked at it, see [url]"


def test_an_approval_that_fails_after_the_deadline_lapses_at_once(
    flagged: MakeTask, traits: ProviderTraits
) -> None:
    task = flagged()
    assert task.state.review is not None
    deadline = task.state.review.deadline_at
    late_s = (deadline - task.created_at).total_seconds()
    approved = task_after(on_review(task, True, Context(at(task, late_s - 1), "op_r")))
    # Past its deadline the review does not lapse while outputs are being stored.
    assert on_wake(approved, Context(at(task, late_s + 1), "op_w"), traits=traits).settle is None
    blocked = task_after(host(approved, *(lost(n) for n in range(4)), seconds=late_s + 2))
    assert (blocked.status, blocked.wake_at) == ("review", deadline)
    step = on_wake(blocked, Context(at(task, late_s + 3), "op_w"), traits=traits)
    assert (task_after(step).status, task_after(step).wake_at) == ("failed", None)
    assert task_after(step).state.review == msgspec.structs.replace(
        task.state.review, decision="released_by_timeout"
    )
    assert step.settle is not None
    assert step.settle.kind == "release"


def test_an_approval_without_any_result_lapses(flagged: MakeTask, traits: ProviderTraits) -> None:
    task = task_after(on_review(flagged(), True, Context(at(flagged(), 100), "op_r")))
    wakes = 0
    while not task.is_terminal:
        assert task.wake_at is not None
        wakes += 1
        assert wakes < 500
        task = on_wake(task, Context(task.wake_at, "op_w"), traits=traits).task or task
    assert task.status == "failed"
    assert task.state.review is not None
    assert task.state.review.decision == "released_by_timeout"


def test_a_review_whose_storing_fails_again_is_blocked_again(make_hosting: MakeTask) -> None:
    task = task_after(host(make_hosting(output_count=1, units=1), lost(0)))
    approved = task_after(on_review(task, True, Context(at(task, 100), "op_r")))
    blocked = task_after(host(approved, lost(0), seconds=101))
    assert blocked.status == "review"
    assert blocked.state.review is not None
    assert task.state.review is not None
    assert blocked.state.review.decision == "capture_blocked"
    assert blocked.wake_at == task.state.review.deadline_at
    assert [output.index for output in blocked.state.hosting.wanted] == [0]
    saved = task_after(on_review(blocked, True, Context(at(task, 200), "op_r")))
    assert task_after(host(saved, stored(0), seconds=201)).status == "succeeded"


def test_a_task_in_review_can_be_canceled(flagged: MakeTask) -> None:
    task = flagged()
    step = on_cancel(task, Context(at(task, 50), "op_c"))
    assert isinstance(step, Step)
    assert (task_after(step).status, step.effects) == ("canceled", ())


def test_a_review_that_is_not_open_is_refused(make_hosting: MakeTask) -> None:
    task = make_hosting()
    refusal = on_review(task, True, Context(at(task, 9), "op_r"))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.final) == ("review_not_open", False)
