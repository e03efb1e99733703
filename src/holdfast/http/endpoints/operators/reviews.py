"""Reviews: the open ones, one of them, and the operator's decision to approve or reject.

Operators see every account. The task's actor applies a decision, like any other change of a task; the response is
read from the rows afterwards.
"""

from __future__ import annotations

from functools import partial
from typing import Final, get_args

import msgspec

from holdfast.actors.task.messages import DecideReview
from holdfast.http.endpoints.operators.tasks import input_of, position_of_task
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import PAGE, StoredListBody, filter_by, list_for_operators
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.values import shown
from holdfast.http.schemas.common import render
from holdfast.http.schemas.operators import ActionRequest, Note, text_of
from holdfast.http.schemas.tasks import TaskBody, task_body
from holdfast.ledger.public_types import AccountId, Amount, FreeForm, Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import ReviewDecision, ReviewReason, Task
from holdfast.ledger.values import format_amount, format_time
from holdfast.persistence.queries.tasks import open_reviews, task_under_review

route = OperatorRoutes("Reviews")

REASON: Final = filter_by("reason", "Only reviews for this reason.", get_args(ReviewReason))


class Decision(ActionRequest, frozen=True):
    """A decision of an operator."""

    note: Note | None = None
    """Recorded in the task's progress, which its owner can read; null or omitted: none."""


class ProviderOutput(msgspec.Struct, frozen=True):
    """A result at its provider, not stored by this service."""

    index: int
    """Its number among the outputs, from 0."""
    url: str | None
    """Its address at the provider; null if it came embedded."""
    content_type: str | None
    """The media type by the provider; null if it named none."""
    bytes: int | None
    """The size in bytes; null if it is not known."""


class ReviewBody(msgspec.Struct, frozen=True):
    """A task whose charge an operator decides."""

    review_case_id: str
    """The review's id, `rev_…`."""
    reason: ReviewReason
    """Why an operator has to decide."""
    decision: ReviewDecision
    """What was decided; `capture_blocked` before that."""
    opened_at: Time
    """When the review began."""
    deadline_at: Time
    """When the hold is released if it is not decided."""
    account_id: AccountId
    hold_credits: Amount
    """The credit held for the task."""
    provider_outputs: list[ProviderOutput]
    """Results at the provider that are not stored here."""
    task: TaskBody
    """The task."""


class ReviewRecord(ReviewBody, frozen=True):
    """A review with the input of its task."""

    input: FreeForm | None
    """The input; null once it was deleted."""
    provider_job_id: str | None
    """The provider's name of the job; null until it has accepted it."""


class ReviewList(StoredListBody[ReviewBody], frozen=True):
    """A page of open reviews, oldest task first."""


@route.read(
    "/ops/api/reviews",
    "List the open reviews of all accounts; oldest task first",
    ReviewList,
    parameters=(REASON, *PAGE),
)
async def list_reviews(call: Call) -> Outcome:
    """A review is listed until its task leaves it, so also while approved results are being stored."""
    return await list_for_operators(call, open_reviews, partial(review_body, call.deps), position_of_task)


_on_review: Final = route.below("/ops/api/reviews/{review_case_id}", errors=("review_not_found",))


@_on_review.read("", "Retrieve a review, open or decided", ReviewRecord)
async def read_review(call: Call) -> Outcome:
    """It has the provider's own outputs, for the operator to look at before a decision."""
    task = await _task_of(call.deps, call.path["review_case_id"])
    if isinstance(task, Refusal):
        return task
    body = review_body(call.deps, task)
    return render(ReviewRecord, body, input=input_of(task), provider_job_id=task.state.provider_ref)


@_on_review.action(
    "/approve",
    "Approve a review: store the results not stored yet, then capture the charge",
    errors=("review_not_open",),
)
async def approve_review(run: ActionRun, given: Decision, review_case_id: str) -> ReviewBody | Refusal:
    """The response may still have the status ``review``: the task succeeds when its results are stored."""
    return await _decide(run, review_case_id, approve=True, note=given.note)


@_on_review.action(
    "/reject", "Reject a review: the task fails and its whole hold is released", errors=("review_not_open",)
)
async def reject_review(run: ActionRun, given: Decision, review_case_id: str) -> ReviewBody | Refusal:
    """The task's status and the credit change in one commit."""
    return await _decide(run, review_case_id, approve=False, note=given.note)


async def _decide(run: ActionRun, case_id: str, *, approve: bool, note: str | None) -> ReviewBody | Refusal:
    task = await _task_of(run.deps, case_id)
    if isinstance(task, Refusal):
        return task
    run.concern(task.account_id, task.request_id)
    command = DecideReview(approve=approve, note=text_of(note))
    done = await run.ask(run.deps.tasks.ref(task.request_id), command)
    if isinstance(done, Refusal):
        return done
    decided = await _task_of(run.deps, case_id)
    return decided if isinstance(decided, Refusal) else review_body(run.deps, decided)


def review_body(deps: Dependencies, task: Task) -> ReviewBody:
    """Render a task's review."""
    state, review = task.state, task.state.review
    assert review is not None
    opened = next(entry.ts for entry in state.status_history if entry.status == "review")
    return ReviewBody(
        review_case_id=review.case_id,
        reason=review.reason,
        decision=review.decision,
        opened_at=format_time(opened),
        deadline_at=format_time(review.deadline_at),
        account_id=task.account_id,
        hold_credits=format_amount(task.request.hold_micro),
        provider_outputs=[render(ProviderOutput, each) for each in (*state.hosting.wanted, *state.hosting.lost)],
        task=task_body(deps, task, for_operators=True),
    )


async def _task_of(deps: Dependencies, case_id: str) -> Task | Refusal:
    task = await deps.find_by_id(task_under_review, case_id)
    if task is None:
        return Refusal(code="review_not_found", message=f"The review {shown(case_id)} does not exist.")
    return task
