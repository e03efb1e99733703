"""The processes that serve the database: their trees, what they remember, and what operators do with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Final, Generic, NamedTuple, TypeVar

import msgspec
import trio

from holdfast.actors.runtime.faults import AskFault
from holdfast.actors.runtime.messages import Command
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import FROM, LIMIT, filter_by, read_window
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.operators import ActionWithReason, Reason
from holdfast.ledger.public_types import MemberId
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import (
    DescribeProcess,
    Draining,
    DrainProcess,
    GroupDescription,
    ListRefusedRequests,
    ListSlowTurns,
    MemberView,
    PauseGroup,
    ProcessDescription,
    ProfileLoop,
    ReadSamples,
    RestartChild,
    ResumeGroup,
    SampleList,
    StartChild,
    StopChild,
)
from holdfast.supervision.status import ChildStatus
from holdfast.telemetry.profile import Profile
from holdfast.telemetry.refused_requests import RefusedCaller, RefusedRequest, most_refused
from holdfast.telemetry.slow_turns import SlowTurn

T = TypeVar("T")

GATHER_S: Final = 2.0
"""How long a view over all members waits for each of them."""


async def ask_control(deps: Dependencies, member_id: str, command: Command[T]) -> T | Refusal:
    """Ask one member's control actor. Raises as an ask does."""
    return await deps.operating.controls.ask(member_id, command, deadline_s=deps.settings.ask_deadline_s)


class Answers(NamedTuple, Generic[T]):
    """What control actors answered, by member, and which of those ``asked`` did not answer in time."""

    by_member: dict[str, T]
    unreachable: list[str]
    asked: int

    def complete(self, refusal: Refusal) -> Refusal:
        """Return a refusal that says, if some did not answer, that it is by the answers of the others."""
        if not self.unreachable:
            return refusal
        silent = f"{len(self.unreachable)} of {self.asked} processes did not answer: {', '.join(self.unreachable)}."
        return msgspec.structs.replace(refusal, message=f"{refusal.message} {silent}")


async def ask_all(deps: Dependencies, command: Command[T]) -> Answers[T]:
    """Ask the control actors of all members at once. Refusals are left out."""
    controls = deps.operating.controls
    members = controls.members()
    answers: dict[str, T | Refusal | None] = {member.member_id: None for member in members}

    async def ask_one(member_id: str) -> None:
        with suppress(AskFault):
            answers[member_id] = await controls.ask(member_id, command, deadline_s=GATHER_S)

    async with trio.open_nursery() as nursery:
        for member in members:
            if member.unreachable_for_s is None:
                nursery.start_soon(ask_one, member.member_id)
    return Answers(
        {
            member_id: answer
            for member_id, answer in answers.items()
            if answer is not None and not isinstance(answer, Refusal)
        },
        [member_id for member_id, answer in answers.items() if answer is None],
        len(answers),
    )


def count_quarantined(processes: Iterable[ProcessDescription], group: str | None = None) -> int:
    """Return how many actors of a group, or of all, are quarantined in these processes."""
    groups = [each for process in processes for each in process.groups if group in (None, each.name)]
    return sum(each.states.get("quarantined", 0) for each in groups)


route = OperatorRoutes("Processes")


class ChildRequest(msgspec.Struct, frozen=True):
    """A child of a process's tree, and why the operator acts."""

    path: Annotated[str, msgspec.Meta(max_length=200, examples=["holdfast/workers/outbox"])]
    """The child's path in the tree."""
    reason: Reason


_on_process: Final = route.below("/ops/api/processes/{member_id}", errors=("member_not_found",), is_urgent=True)
_on_child: Final = _on_process.below(
    "/children", errors=("child_not_found", "child_not_stoppable", "child_running")
)
_on_group: Final = _on_process.below("/groups/{group}", errors=("group_not_found",))


class ProcessBody(MemberView, frozen=True, kw_only=True):
    """A member."""

    process: ProcessDescription | None
    """What it says of itself; null if it cannot be reached."""


class Tree(msgspec.Struct, frozen=True):
    """All processes that serve the database."""

    members: list[ProcessBody]
    """The processes, the one that answers first."""


@route.read("/ops/api/tree", "Retrieve all processes, each with its tree and the state of every child", Tree)
async def read_tree(call: Call) -> Outcome:
    """Answered from memory, also while the database is away."""
    answers = await ask_all(call.deps, DescribeProcess())
    return Tree(
        [
            ProcessBody(**msgspec.structs.asdict(member), process=answers.by_member.get(member.member_id))
            for member in call.deps.operating.controls.members()
        ]
    )


@_on_child.action("/stop", "Stop a child of a process's tree until it is started")
async def stop_child(run: ActionRun, given: ChildRequest, member_id: str) -> ChildStatus | Refusal:
    """The response is the child afterwards."""
    return await ask_control(run.deps, member_id, StopChild(given.path, given.reason))


@_on_child.action("/start", "Start a child of a process's tree that was stopped or has ended")
async def start_child(run: ActionRun, given: ChildRequest, member_id: str) -> ChildStatus | Refusal:
    """The response is the child afterwards."""
    return await ask_control(run.deps, member_id, StartChild(given.path, given.reason))


@_on_child.action(
    "/restart", "Restart a child of a process's tree, with the siblings that its supervisor restarts with it"
)
async def restart_child(run: ActionRun, given: ChildRequest, member_id: str) -> ChildStatus | Refusal:
    """It does not count against the restart budget."""
    return await ask_control(run.deps, member_id, RestartChild(given.path, given.reason))


@_on_group.action("/pause", "Pause a group of actors in one process: its requests get 503 until it is resumed")
async def pause_group(
    run: ActionRun, given: ActionWithReason, member_id: str, group: str
) -> GroupDescription | Refusal:
    """Actors that are active finish what they have."""
    return await ask_control(run.deps, member_id, PauseGroup(group, given.reason))


@_on_group.action("/resume", "Resume a group of actors in one process")
async def resume_group(
    run: ActionRun, given: ActionWithReason, member_id: str, group: str
) -> GroupDescription | Refusal:
    """The group is resumed, whether an operator or its crashes paused it."""
    return await ask_control(run.deps, member_id, ResumeGroup(group, given.reason))


@_on_process.action("/drain", "Stop a process in order, as at SIGTERM; a parent starts another in its place")
async def drain_process(run: ActionRun, given: ActionWithReason, member_id: str) -> Draining | Refusal:
    """It gives its accounts to the other members and finishes what it has accepted."""
    return await ask_control(run.deps, member_id, DrainProcess(given.reason))


class ProcessSamples(msgspec.Struct, frozen=True):
    """The samples of each process."""

    processes: list[SampleList]
    """The samples by process."""
    unreachable: list[str]
    """The members that did not answer."""


@route.read(
    "/ops/api/samples",
    "List the samples of all processes: rates, latencies and queues of the last half hour",
    ProcessSamples,
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


_SOUGHT: Final = filter_by(
    "about",
    "Only this request, by its `X-Request-Id`; or those of this trace, account, operator, origin, or API key by "
    "its first 12 characters.",
)


class RefusedRequestPage(msgspec.Struct, frozen=True):
    """The newest refused requests of all processes, from their memory."""

    data: list[RefusedRequest]
    """The newest, newest first; each process remembers a thousand."""
    callers: list[RefusedCaller]
    """Who was refused most in the last ten minutes, the most often refused first."""
    unreachable: list[str]
    """The members that did not answer."""


@route.read(
    "/ops/api/refused-requests",
    "List the newest refused requests, and who sent most of them",
    RefusedRequestPage,
    parameters=(_SOUGHT, LIMIT),
)
async def list_refused_requests(call: Call) -> Outcome:
    """Answered from memory, also while the database is away."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    answers = await ask_all(call.deps, ListRefusedRequests(window.filters.get("about"), window.limit))
    found: list[RefusedRequest] = []
    codes: dict[str, Counter[str]] = {}
    for answer in answers.by_member.values():
        found += answer.data
        for each in answer.callers:
            codes.setdefault(each.caller, Counter()).update(each.codes)
    found.sort(key=lambda each: (each.at, each.request_id), reverse=True)
    return RefusedRequestPage(found[: window.limit], most_refused(codes), answers.unreachable)


class ListedTurn(SlowTurn, frozen=True, kw_only=True):
    """A slow turn of a process."""

    member_id: MemberId


class SlowestTurns(msgspec.Struct, frozen=True):
    """The slowest turns of all processes in the last hour."""

    data: list[ListedTurn]
    """The slowest of each kind of actor with each type of message, in each process, the slowest first."""
    unreachable: list[str]
    """The members that did not answer."""


@route.read(
    "/ops/api/slowest-turns",
    "List the slowest turns of the last hour by actor and message",
    SlowestTurns,
    parameters=(LIMIT,),
)
async def list_slowest_turns(call: Call) -> Outcome:
    """Answered from memory, also while the database is away. A turn counts with what it waits for."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    answers = await ask_all(call.deps, ListSlowTurns(window.limit))
    found = [
        ListedTurn(**msgspec.structs.asdict(turn), member_id=member_id)
        for member_id, answer in answers.by_member.items()
        for turn in answer.turns
    ]
    found.sort(key=lambda each: -each.duration_s)
    return SlowestTurns(found[: window.limit], answers.unreachable)


PROFILE_S: Final = ("1", "3", "10")
_FOR_S: Final = filter_by("for_s", "For how many seconds it is watched; three, if not given.", PROFILE_S)


@_on_process.read(
    "/profile",
    "Watch for some seconds what a process's event loop computes, as a tree of calls",
    Profile,
    parameters=(_FOR_S,),
)
async def profile_process(call: Call) -> Outcome:
    """A thread of that process looks it up a hundred times a second; one such request at a time is answered."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    for_s = float(window.filters.get("for_s", "3"))
    deadline_s = for_s + call.deps.settings.ask_deadline_s
    return await call.deps.operating.controls.ask(call.path["member_id"], ProfileLoop(for_s), deadline_s=deadline_s)
