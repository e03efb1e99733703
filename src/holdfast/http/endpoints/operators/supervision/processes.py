"""The processes that serve the database: their trees as they live, and what operators do with them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec

from holdfast.http.endpoints.operators.supervision.controls import ask_all, ask_control
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.operators import ActionWithReason, Reason
from holdfast.supervision.control.messages import (
    ChildAction,
    DescribeProcess,
    Draining,
    DrainProcess,
    GroupAction,
    GroupDescription,
    MemberView,
    PauseGroup,
    ProcessDescription,
    RestartChild,
    ResumeGroup,
    StartChild,
    StopChild,
)
from holdfast.supervision.status import ChildStatus

route = RouteTable("Operators")


class ChildRequest(msgspec.Struct, frozen=True):
    """A child of a process's tree by its path, such as `holdfast/workers/outbox`, and why the operator acts."""

    path: Annotated[str, msgspec.Meta(max_length=200, examples=["holdfast/workers/outbox"])]
    reason: Reason


_action: Final = partial(route, "POST", auth=Auth.OPERATOR_ACT, is_urgent=True)
_child_action: Final = partial(
    _action,
    body=ChildRequest,
    reply=ChildStatus,
    errors=("member_not_found", "child_not_found", "child_not_stoppable", "child_running"),
)
_group_action: Final = partial(
    _action, body=ActionWithReason, reply=GroupDescription, errors=("member_not_found", "group_not_found")
)


class ProcessBody(MemberView, frozen=True, kw_only=True):
    """A member. One that cannot be reached, for `unreachable_for_s` already, has no `process`."""

    process: ProcessDescription | None


class Tree(msgspec.Struct, frozen=True):
    """All processes that serve the database, the one that answers first."""

    members: list[ProcessBody]


@route(
    "GET",
    "/ops/api/tree",
    summary="Retrieve all processes, each with its tree and the state of every child",
    auth=Auth.OPERATOR_READ,
    reply=Tree,
)
async def read_tree(call: Call) -> Outcome:
    """Answered from memory, also while the database is away."""
    answers = await ask_all(call.deps, DescribeProcess())
    return Tree(
        [
            ProcessBody(**msgspec.structs.asdict(member), process=answers.by_member.get(member.member_id))
            for member in call.deps.controls.members()
        ]
    )


@_child_action(
    "/ops/api/processes/{member_id}/children/stop",
    summary="Stop a child of a process's tree until it is started",
    action="stop_child",
)
async def stop_child(call: Call) -> Outcome:
    """The response is the child afterwards."""
    return await _act_on_child(call, StopChild)


@_child_action(
    "/ops/api/processes/{member_id}/children/start",
    summary="Start a child of a process's tree that was stopped or has ended",
    action="start_child",
)
async def start_child(call: Call) -> Outcome:
    """The response is the child afterwards."""
    return await _act_on_child(call, StartChild)


@_child_action(
    "/ops/api/processes/{member_id}/children/restart",
    summary="Restart a child of a process's tree, with the siblings that its supervisor restarts with it",
    action="restart_child",
)
async def restart_child(call: Call) -> Outcome:
    """It does not count against the restart budget."""
    return await _act_on_child(call, RestartChild)


@_group_action(
    "/ops/api/processes/{member_id}/groups/{group}/pause",
    summary="Pause a group of actors in one process: its requests get 503 until it is resumed",
    action="pause_group",
)
async def pause_group(call: Call) -> Outcome:
    """Actors that are active finish what they have."""
    return await _act_on_group(call, PauseGroup)


@_group_action(
    "/ops/api/processes/{member_id}/groups/{group}/resume",
    summary="Resume a group of actors in one process",
    action="resume_group",
)
async def resume_group(call: Call) -> Outcome:
    """Whether an operator paused it or crashes did."""
    return await _act_on_group(call, ResumeGroup)


@_action(
    "/ops/api/processes/{member_id}/drain",
    summary="Stop a process in order, as at SIGTERM; a parent starts another in its place",
    action="drain_process",
    body=ActionWithReason,
    reply=Draining,
    errors=("member_not_found",),
)
async def drain_process(call: Call) -> Outcome:
    """It gives its accounts to the other members and finishes what it has accepted."""
    return await ask_control(call, call.path["member_id"], DrainProcess(call.body(ActionWithReason).reason))


async def _act_on_child(call: Call, action: type[ChildAction]) -> Outcome:
    body = call.body(ChildRequest)
    return await ask_control(call, call.path["member_id"], action(body.path, body.reason))


async def _act_on_group(call: Call, action: type[GroupAction]) -> Outcome:
    return await ask_control(
        call, call.path["member_id"], action(call.path["group"], call.body(ActionWithReason).reason)
    )
