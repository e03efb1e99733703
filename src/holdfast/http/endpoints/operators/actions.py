"""What operators did."""

from __future__ import annotations

from functools import partial
from typing import Final, get_args

import msgspec

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import PAGE, ListBody, Position, filter_by, list_for_operators
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.common import render
from holdfast.ledger.public_types import Time
from holdfast.persistence.operators.records import list_actions
from holdfast.persistence.records.operator_tables import ActionResult

route = RouteTable("Operators")

_FILTERS: Final = (
    filter_by("operator", "Only actions by this operator."),
    filter_by("action", "Only actions of this name."),
    filter_by("target", "Only actions on exactly this target."),
    filter_by("account_id", "Only actions that concern this account."),
    filter_by("task_id", "Only actions that concern this task."),
    filter_by("result", "Only actions with this result.", get_args(ActionResult)),
)


class ActionBody(msgspec.Struct, frozen=True):
    """What an operator did. ``result`` is null while it runs, or if the process ended before it.

    ``credential`` is what the operator showed: ``token``, ``session`` or ``cookie``. ``code`` is that of a refusal
    or fault. ``parameters`` are what was sent, ``effect`` is what was done, such as the amount refunded.
    ``trace_id`` is the id of the request, which log lines and reports name too.
    """

    action_id: str
    at: Time
    operator: str
    credential: str
    origin: str
    action: str
    target: str
    account_id: str | None
    task_id: str | None
    reason: str | None
    trace_id: str
    ended_at: Time | None
    result: ActionResult | None
    code: str | None
    parameters: dict[str, str] | None
    effect: dict[str, str] | None


class ActionList(ListBody[ActionBody], frozen=True):
    """A page of operators' actions, newest first."""


@route(
    "GET",
    "/ops/api/actions",
    summary="List what operators did, newest first",
    auth=Auth.OPERATOR_READ,
    reply=ActionList,
    parameters=(*_FILTERS, *PAGE),
)
async def list_operator_actions(call: Call) -> Outcome:
    """Actions that were refused or failed are listed too."""
    return await list_for_operators(
        call, list_actions, partial(render, ActionBody), lambda action: Position(action.at, action.action_id)
    )
