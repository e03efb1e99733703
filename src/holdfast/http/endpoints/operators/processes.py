"""The processes that serve the database: their trees as they live, and what operators do with them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Annotated, Final, Generic, NamedTuple, TypeVar

import msgspec
import trio

from holdfast.actors.runtime.faults import AskFault
from holdfast.actors.runtime.messages import Command
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import FROM, read_window
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.operators import ActionWithReason, Reason
from holdfast.ledger.refusals import Refusal
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
    ReadSamples,
    RestartChild,
    ResumeGroup,
    SampleList,
    StartChild,
    StopChild,
)
from holdfast.supervision.status import ChildStatus

T = TypeVar("T")

GATHER_S: Final = 2.0
"""How long a view over all members waits for each of them."""


async def ask_control(call: Call, member_id: str, command: Command[T]) -> T | Refusal:
    """Ask one member's control actor. Raises as an ask does."""
    return await call.deps.operating.controls.ask(member_id, command, deadline_s=call.deps.settings.ask_deadline_s)


class Answers(NamedTuple, Generic[T]):
    """What control actors answered, by member, and the members that did not answer in time."""

    by_member: dict[str, T]
    unreachable: list[str]


async def ask_all(deps: Dependencies, command: Command[T]) -> Answers[T]:
    """Ask the control actors of all members at once. A refusal is no answer."""
    controls = deps.operating.controls
    answers: dict[str, T | None] = {member.member_id: None for member in controls.members()}

    async def ask_one(member_id: str) -> None:
        with suppress(AskFault):
            answer = await controls.ask(member_id, command, deadline_s=GATHER_S)
            answers[member_id] = None if isinstance(answer, Refusal) else answer

    async with trio.open_nursery() as nursery:
        for member in controls.members():
            if member.unreachable_for_s is None:
                nursery.start_soon(ask_one, member.member_id)
    return Answers(
        {member_id: answer for member_id, answer in answers.items() if answer is not None},
        [member_id for member_id, answer in answers.items() if answer is None],
    )


route = RouteTable("Operators")


class ChildRequest(msgspec.Struct, frozen=True):
    """A child of a process's tree, and why the operator acts."""

    path: Annotated[str, msgspec.Meta(max_length=200, examples=["holdfast/workers/outbox"])]
    """The child's path in the tree."""
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
    """A member."""

    process: ProcessDescription | None
    """What it says of itself; null if it cannot be reached."""


class Tree(msgspec.Struct, frozen=True):
    """All processes that serve the database."""

    members: list[ProcessBody]
    """The processes, the one that answers first."""


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
            for member in call.deps.operating.controls.members()
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
    """The group is resumed, whether an operator or its crashes paused it."""
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


class ProcessSamples(msgspec.Struct, frozen=True):
    """The samples of each process."""

    processes: list[SampleList]
    """The samples by process."""
    unreachable: list[str]
    """The members that did not answer."""


@route(
    "GET",
    "/ops/api/samples",
    summary="List the samples of all processes: rates, latencies and queues of the last half hour",
    auth=Auth.OPERATOR_READ,
    reply=ProcessSamples,
    parameters=(FROM,),
)
async def list_samples(call: Call) -> Outcome:
    """Answered from memory, also while the database is away."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    answers = await ask_all(call.deps, ReadSamples(window.since))
    return ProcessSamples(
        processes=[*answers.by_member.values()],
        unreachable=answers.unreachable,
    )
