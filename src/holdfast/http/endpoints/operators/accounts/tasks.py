"""One task of any account."""

from __future__ import annotations

import msgspec

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.shown import shown
from holdfast.http.schemas.tasks import TaskBody, task_body
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import Amount, Time, time_or_none
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.tasks import task_by_id

route = RouteTable("Operators")


class TaskDetails(msgspec.Struct, frozen=True):
    """A task as operators see it.

    ``provider`` got ``attempts`` submissions of it. ``wake_at`` is when the task is looked at next, null once it
    has ended.
    """

    account_id: str
    api_key_id: str | None
    provider: str
    attempts: int
    hold_credits: Amount
    wake_at: Time | None
    task: TaskBody


@route(
    "GET",
    "/ops/api/tasks/{request_id}",
    summary="Retrieve a task of any account",
    auth=Auth.OPERATOR_READ,
    reply=TaskDetails,
    errors=("task_not_found",),
)
async def read_task_details(call: Call) -> Outcome:
    """One read."""
    task_id = call.path["request_id"]
    found = await call.deps.database.read(lambda rows: task_by_id(rows, task_id))
    if found is None:
        return Refusal(code="task_not_found", message=f"The task {shown(task_id)} does not exist.")
    return TaskDetails(
        account_id=found.account_id,
        api_key_id=found.request.api_key_id,
        provider=found.provider,
        attempts=found.state.attempt,
        hold_credits=format_amount(found.request.hold_micro),
        wake_at=time_or_none(found.wake_at),
        task=task_body(call.deps, found, for_operators=True),
    )
