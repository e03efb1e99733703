"""The control actor: answers the commands of operators to one process, from this process or from another member.

Each command has a task of its own, so that an action that waits delays no other, and a description is answered at
any time. A command that fails ends itself and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import structlog
import trio
from msgspec.structs import asdict, replace

from holdfast.actors.runtime.faults import Crashed, OutcomeUnknown, Overloaded
from holdfast.actors.runtime.mailbox import AskDeadlines, Envelope, MailboxFull, TrioFuture
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import ASK_DEADLINE_S, WhileDown, WorkerRef
from holdfast.actors.workers.worker import Worker
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.claims.processes import MemberState
from holdfast.persistence.operators.overrides import Overrides
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.providers.media.health import ProviderState
from holdfast.supervision.control.keys import ControlledGroup
from holdfast.supervision.control.messages import (
    ChildAction,
    ControlCommand,
    DeadLetterList,
    DescribeProcess,
    Draining,
    DrainProcess,
    EndSession,
    LevelList,
    LineList,
    ListDeadLetters,
    ListLevels,
    ListLines,
    ListRefusedRequests,
    ListSlowTurns,
    OverridesKnown,
    ProcessDescription,
    ProcessIdentity,
    ProcessQuery,
    ProfileLoop,
    ProviderView,
    RaiseLevel,
    ReadCosts,
    ReadSamples,
    RefusedRequestList,
    RereadOverrides,
    RestartChild,
    SampleList,
    SessionEnded,
    SlowTurnList,
    StartChild,
    StopChild,
)
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.faults import NotRunning
from holdfast.supervision.status import ChildStatus
from holdfast.supervision.supervisor import Supervisor
from holdfast.telemetry.costs import costs
from holdfast.telemetry.logs import find_lines, levels, raise_level
from holdfast.telemetry.metrics.figures import UNKNOWN, figures_of, frequent_refusals, slowest_routes
from holdfast.telemetry.metrics.samples import SampleRing
from holdfast.telemetry.profile import Profile, profile_of, sample_thread
from holdfast.telemetry.refused_requests import RefusedRequests
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.slow_turns import slowest_turns
from holdfast.telemetry.traces import traceparent

log = structlog.get_logger(__name__)

NO_SUCH_GROUP: Final = Refusal(code="group_not_found", message="The group does not exist.")
COMMANDS_MAX: Final = 100
"""How many commands may be open at a time."""
PROFILE_MAX_S: Final = 10.0
NEED_DATABASE: Final = ("database", "journal")
"""The children of the top that have no work of their own while the database is away."""
KEPT: Final = ("http", "control")
"""The children of the top that answer operators, whose end would leave no way to start them again."""


@dataclass(frozen=True, slots=True)
class ControlledProcess:
    """What a control actor describes and acts on. ``drain`` begins an orderly stop of the process."""

    identity: ProcessIdentity
    tree: Supervisor
    groups: Mapping[str, ControlledGroup]
    dead_letters: DeadLetters
    refused: RefusedRequests
    member_state: Callable[[], MemberState]
    is_database_open: Callable[[], bool]
    conditions: Conditions
    provider_states: Callable[[], Mapping[str, ProviderState]]
    samples: SampleRing
    overrides: Overrides
    end_session: Callable[[bytes], None]
    drain: Callable[[], None]


class ControlRef(WorkerRef):
    """The address of this process's control actor, which other members may ask."""

    def __init__(self) -> None:
        super().__init__("control", mailbox_max=COMMANDS_MAX)
        self._deadlines = AskDeadlines()

    def accept(self, key: str, envelope: Envelope, *, fails_fast: bool = False) -> object:  # noqa: ARG002 - as every group
        """Put a command into the mailbox. Raises :class:`Overloaded`."""
        try:
            self.actor_inbox.put(envelope)
        except MailboxFull as full:
            raise Overloaded(f"the control actor: {full}") from full
        return self

    async def ask(  # type: ignore[override]  # as in AskRef
        self,
        message: Command[object],
        *,
        deadline_s: float = ASK_DEADLINE_S,
        while_down: WhileDown = "queue",  # noqa: ARG002 - it is never down alone
    ) -> object:
        """Send a command and return its reply."""
        now = trio.current_time()
        future: TrioFuture[object] = TrioFuture()
        self.accept(
            "", Envelope(message, future, deadline=now + deadline_s, sent_at=now, traceparent=traceparent.get())
        )
        return await self._deadlines.wait(future, now + deadline_s, deadline_s)


class ControlActor(Worker):
    """One incarnation of the control actor."""

    def __init__(self, ref: ControlRef, process: ControlledProcess) -> None:
        super().__init__(ref)
        self._process = process
        self._profiles = trio.CapacityLimiter(1)

    def background_loops(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """The loop that ends raised levels."""
        return (levels.end_in_time,)

    async def _turn(self, envelope: Envelope) -> None:
        self.nursery.start_soon(self._answer, envelope)

    async def _answer(self, envelope: Envelope) -> None:
        traceparent.set(envelope.traceparent)
        try:
            envelope.reply(await self._decide(envelope.message))  # type: ignore[arg-type]  # of its codec, or of ours
        except trio.Cancelled:
            envelope.fail(OutcomeUnknown("the control actor was stopped"))
            raise
        except Exception as exc:
            log.exception("control command failed", command=type(envelope.message).__name__)
            crash = Crashed(f"{type(envelope.message).__name__} failed")
            crash.__cause__ = exc
            envelope.fail(crash)

    async def _decide(self, message: ControlCommand) -> object:
        match message:
            case RaiseLevel():
                raise_level(message.subject, message.reason, for_s=message.for_s, lines_per_s=message.lines_per_s)
                return LevelList(levels.list())
            case RereadOverrides():
                with suppress(DatabaseAway):
                    await self._process.overrides.reread()
                return OverridesKnown(self._process.overrides.seen)
            case EndSession():
                self._process.end_session(message.cookie_mac)
                return SessionEnded(self._process.identity.member_id)
            case DrainProcess():
                log.warning("draining for an operator", reason=message.reason)
                self._process.drain()
                return Draining(self._process.identity.member_id)
            case StopChild() | StartChild() | RestartChild():
                return await _act_on_child(self._process.tree, message)
            case _ if isinstance(message, ProcessQuery):
                return await self._read(message)
            case _:
                group = self._process.groups.get(message.group)
                return NO_SUCH_GROUP if group is None else await group.answer(message)

    async def _read(self, query: ProcessQuery) -> object:
        match query:
            case DescribeProcess():
                return self._describe()
            case ListDeadLetters():
                return self._dead_letters(query)
            case ListRefusedRequests():
                return self._refused_requests(query)
            case ListLines():
                return await self._lines(query)
            case ListSlowTurns():
                return SlowTurnList(slowest_turns(query.limit))
            case ProfileLoop():
                return await self._profile(query.for_s)
            case ReadCosts():
                return costs.read()
            case ReadSamples():
                return SampleList(self._process.identity.member_id, [*self._process.samples.since(query.since)])
            case ListLevels():
                return LevelList(levels.list())

    def _describe(self) -> ProcessDescription:
        process, identity = self._process, self._process.identity
        return ProcessDescription(
            **asdict(identity),
            state=process.member_state(),
            database_open=process.is_database_open(),
            conditions=process.conditions.lasting(),
            tree=_describe_tree(process.tree, identity.started_at, is_database_open=process.is_database_open()),
            groups=[group.describe() for group in process.groups.values()],
            dead_letters=process.dead_letters.counts(),
            providers=_providers(process.provider_states()),
            slowest_routes=slowest_routes(),
            refusals=frequent_refusals(),
        )

    def _dead_letters(self, query: ListDeadLetters) -> DeadLetterList:
        found = [each for each in self._process.dead_letters.recent() if query.reason in (None, each.reason)]
        return DeadLetterList(data=found[: query.limit], counts=self._process.dead_letters.counts())

    def _refused_requests(self, query: ListRefusedRequests) -> RefusedRequestList:
        refused, sought = self._process.refused, query.sought
        found = (each for each in refused.recent() if sought is None or each.is_about(sought))
        return RefusedRequestList(data=[*islice(found, query.limit)], callers=refused.callers())

    async def _lines(self, query: ListLines) -> LineList:
        texts = [""] if self._process.identity.member_id in query.texts else query.texts
        found = await find_lines(texts, since=query.since, until=query.until, limit=query.limit)
        return LineList(*found)

    async def _profile(self, for_s: float) -> Profile:
        """One at a time: another waits for it."""
        sample = partial(sample_thread, threading.get_ident(), min(for_s, PROFILE_MAX_S))
        found = await trio.to_thread.run_sync(sample, limiter=self._profiles, abandon_on_cancel=True)
        return profile_of(*found)


def _providers(states: Mapping[str, ProviderState]) -> dict[str, ProviderView]:
    """Return what this process knows of each provider; as ``unknown``, of callbacks that name none of them."""
    nameless = figures_of(UNKNOWN)
    known = {**states, UNKNOWN: UNKNOWN} if nameless.callbacks_refused else states
    return {name: ProviderView(state=state, **asdict(figures_of(name))) for name, state in known.items()}


def _describe_tree(top: Supervisor, since: Time, *, is_database_open: bool) -> ChildStatus:
    """Return the whole tree as the status of its top, which runs since then."""
    children = [
        replace(child, state="waiting")
        if child.child_id in NEED_DATABASE and child.state == "running" and not is_database_open
        else child
        for child in top.children()
    ]
    return ChildStatus(
        child_id=top.path,
        state="stopping" if top.is_stopping else "running" if top.is_ready else "starting",
        restart="temporary",
        incarnation=1,
        restarts_in_window=0,
        since=since,
        children=(*children,),
    )


async def _act_on_child(top: Supervisor, action: ChildAction) -> ChildStatus | Refusal:
    """Stop, start or restart a child, and return its status afterwards.

    Refuses: ``child_not_found``, ``child_not_stoppable``, ``child_running``.
    """
    found = _find(top, action.path)
    if found is None:
        return Refusal(code="child_not_found", message="The tree has no such child now.", param="path")
    parent, child_id = found
    if action.path.split("/")[1] in KEPT and not isinstance(action, StartChild):
        return Refusal(
            code="child_not_stoppable",
            message="This child answers operators, and ends with the process; drain the process instead.",
        )
    if isinstance(action, StartChild) and parent.state_of(child_id) in {"running", "starting", "restarting"}:
        return Refusal(code="child_running", message="The child is running, or about to start by itself.")
    reason = f"by an operator; reason: {action.reason}"
    try:
        if isinstance(action, StopChild):
            await parent.stop_child(child_id, reason)
        else:
            await parent.restart_child(child_id, reason)
    except NotRunning:
        return Refusal(code="child_not_found", message="Its supervisor has ended meanwhile.", param="path")
    return next(each for each in parent.children() if each.child_id == child_id)


def _find(top: Supervisor, path: str) -> tuple[Supervisor, str] | None:
    """Return the supervisor of a child and the child's id."""
    root, *steps = path.split("/")
    if root != top.path or not steps:
        return None
    supervisor: Supervisor | None = top
    try:
        for step in steps[:-1]:
            supervisor = supervisor.below(step) if supervisor is not None else None
        if supervisor is None:
            return None
        supervisor.state_of(steps[-1])
    except KeyError:
        return None
    return supervisor, steps[-1]
