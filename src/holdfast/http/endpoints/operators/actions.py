"""What operators did."""

from __future__ import annotations

from functools import partial
from typing import Final, get_args

import msgspec

from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import PAGE, Position, StoredListBody, filter_by, list_for_operators
from holdfast.http.kit.operators import OperatorCredential
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.common import render
from holdfast.ledger.public_types import Time
from holdfast.persistence.operators.records import list_actions
from holdfast.persistence.records.operator_tables import ActionResult

route = OperatorRoutes("Actions")

_FILTERS: Final = (
    filter_by("operator", "Only actions by this operator."),
    filter_by("action", "Only actions of this name."),
    filter_by("target", "Only actions on exactly this target."),
    filter_by("account_id", "Only actions that concern this account."),
    filter_by("task_id", "Only actions that concern this task."),
    filter_by("result", "Only actions with this result.", get_args(ActionResult)),
)


class ActionBody(msgspec.Struct, frozen=True):
    """What an operator did."""

    action_id: str
    """The action's id, `act_…`."""
    at: Time
    """When it began."""
    operator: str
    """The operator's e-mail address, or `operator-token`."""
    credential: OperatorCredential
    """What the operator showed."""
    origin: str
    """The address that the request came from."""
    action: str
    """The action's name."""
    target: str
    """What it was done to."""
    account_id: str | None
    """The account that it concerns; null if it concerns none."""
    task_id: str | None
    """The task that it concerns; null if it concerns none."""
    reason: str | None
    """Why, by the operator; null if none was given."""
    trace_id: str
    """The id of the request, which log lines and reports name too."""
    ended_at: Time | None
    """When it ended; null while it runs, or if the process ended before it."""
    result: ActionResult | None
    """How it ended; null while it runs, or if the process ended before it."""
    code: str | None
    """The code of the refusal or fault; null if it was done."""
    parameters: dict[str, str] | None
    """What was sent, by name, secrets and coupons' codes as `***`; null if nothing was."""
    effect: dict[str, str] | None
    """What was done, by name, such as the amount refunded; null if nothing is recorded."""


class ActionList(StoredListBody[ActionBody], frozen=True):
    """A page of operators' actions, newest first."""


@route.read("/ops/api/actions", "List what operators did; newest first", ActionList, parameters=(*_FILTERS, *PAGE))
async def list_operator_actions(call: Call) -> Outcome:
    """Actions that were refused or failed are listed too."""
    return await list_for_operators(
        call, list_actions, partial(render, ActionBody), lambda action: Position(action.at, action.action_id)
    )
