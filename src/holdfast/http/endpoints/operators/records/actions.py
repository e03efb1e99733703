"""What operators did."""

from __future__ import annotations

from typing import Final, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import FILTER_MAX_CHARS, Position, Window, read_operators_page
from holdfast.http.kit.parameters import CURSOR, FROM, LIMIT, TO
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.schemas.rendering import render
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.operators.actions import ActionResult, OperatorAction, list_actions

route = RouteTable("Operators")

_FILTERS: Final = (
    *(
        Parameter(
            name=name,
            place="query",
            description=f"Only actions {what}.",
            schema=(("type", "string"), ("maxLength", FILTER_MAX_CHARS)),
        )
        for name, what in (
            ("operator", "by this operator"),
            ("action", "of this name"),
            ("target", "on exactly this target"),
            ("account_id", "that concern this account"),
            ("task_id", "that concern this task"),
        )
    ),
    Parameter(
        name="result",
        place="query",
        description="Only actions with this result.",
        schema=(("type", "string"), ("enum", list(get_args(ActionResult)))),
    ),
)


class ActionBody(msgspec.Struct, frozen=True):
    """What an operator did. ``result`` is null while it runs, or if the process ended before it.

    ``credential`` is what the operator showed: ``token``, ``session`` or ``cookie``. ``code`` is that of a refusal
    or fault. ``trace_id`` is the id of the request, which log lines and reports name too.
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


class ActionList(msgspec.Struct, frozen=True):
    """A page of operators' actions, newest first."""

    data: list[ActionBody]
    next_cursor: str | None


@route(
    "GET",
    "/ops/api/actions",
    summary="List what operators did, newest first",
    auth=Auth.OPERATOR_READ,
    reply=ActionList,
    parameters=(*_FILTERS, FROM, TO, CURSOR, LIMIT),
    errors=("invalid_parameter", "invalid_cursor"),
)
async def list_operator_actions(call: Call) -> Outcome:
    """One read."""

    def read(rows: Connection, window: Window, after: Position | None) -> list[OperatorAction]:
        return list_actions(
            rows,
            limit=window.read_max,
            since=window.since,
            until=window.until,
            after=after,
            filters=window.filters,
        )

    page = await read_operators_page(
        call,
        read,
        lambda action: Position(action.at, action.action_id),
        kind="operators' actions",
        filters=_FILTERS,
    )
    if isinstance(page, Refusal):
        return page
    return ActionList(data=[render(ActionBody, action) for action in page.entries], next_cursor=page.next_cursor)
