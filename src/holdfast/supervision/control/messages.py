"""The commands to a control actor, and their replies. All are answered from memory, and while the database is away.

The ``key`` of a command is that of the actor, or the one shown for it: a sign-in actor's own is an e-mail address.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal, TypeAlias

import msgspec

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.public_types import MemberId, Time
from holdfast.persistence.claims.processes import MemberState
from holdfast.providers.media.health import ProviderState
from holdfast.supervision.dead_letters import DeadLetter, DeadReason
from holdfast.supervision.keyed_child import ActorState
from holdfast.supervision.keyed_group import KeyRestart
from holdfast.supervision.status import ChildStatus, Work
from holdfast.telemetry.costs import Costs
from holdfast.telemetry.logs.raised import RaisedLevel
from holdfast.telemetry.metrics.figures import ProviderFigures, RefusalFigures, RouteFigures
from holdfast.telemetry.metrics.samples import Sample
from holdfast.telemetry.profile import Profile
from holdfast.telemetry.refused_requests import RefusedCaller, RefusedRequest
from holdfast.telemetry.reports.conditions import LastingCondition
from holdfast.telemetry.slow_turns import SlowTurn

KeyOrder = Literal["key", "queue", "wait", "rate"]


# -------------------------------------------------------------------------------------------------- what is shown


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A member as another sees it."""

    member_id: MemberId
    is_this: bool
    """Whether it is the process that answers."""
    state: MemberState
    """`joining`, `ready` for requests, or `draining` before its end."""
    unreachable_for_s: float | None
    """How long it has not been reached, in seconds; null if it answers."""


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A keyed group of one process."""

    name: str
    """The group's name."""
    paused_by: Literal["crashes", "operator"] | None
    """`crashes` if too many of its actors crashed, `operator` if one paused it; null if it runs."""
    pause_reason: str | None
    """Why it is paused; null if it runs."""
    states: dict[str, int]
    """How many actors are in each state."""
    messages: int
    """The messages in all mailboxes."""
    oldest_message_age_s: float | None
    """The age of the oldest of them, in seconds; null if there is none."""


class ProviderView(ProviderFigures, frozen=True, kw_only=True):
    """A media provider as one process sees it."""

    state: ProviderState
    """Its state as this process sees it."""


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which process this is."""

    member_id: MemberId
    host: str
    """The machine's name."""
    pid: int
    """Its process id on that machine."""
    worker: int | None
    """Its slot below a parent, from 0; null without a parent."""
    version: str
    """The version of the program."""
    started_at: Time
    """When it started."""


class ProcessDescription(ProcessIdentity, frozen=True, kw_only=True):
    """A process: who it is, its tree with the state of each child, and its keyed groups."""

    state: MemberState
    """Its state as a member."""
    database_open: bool
    """Whether its database can be used."""
    conditions: list[LastingCondition]
    """What lasts, such as an outage."""
    tree: ChildStatus
    """Its supervisor tree, from the top."""
    groups: list[GroupDescription]
    """Its keyed groups."""
    dead_letters: dict[DeadReason, int]
    """Messages that no actor handled since the start, by reason."""
    providers: dict[str, ProviderView]
    """The media providers as it sees them, by name."""
    slowest_routes: list[RouteFigures]
    """The routes that took longest since the start."""
    refusals: list[RefusalFigures]
    """Refused requests since the start, the most frequent first."""


class KeySummary(msgspec.Struct, frozen=True, kw_only=True):
    """An actor, or a key that is remembered without one."""

    group: str
    """The group of the actor."""
    key: str
    """Its key in the group."""
    member_id: MemberId
    state: ActorState
    """Its state."""
    incarnation: int
    """Counts its incarnations."""
    restarts: int
    """How often it was restarted within the period of its budget."""
    work: Work
    """The messages that wait for it, and its present turn."""
    messages_per_s: float
    """Messages handled a second, on average over about a minute."""
    quarantined_for_s: float | None
    """How long its quarantine still lasts, in seconds; null without one."""
    retry_in_s: float | None
    """How long its backoff still lasts, in seconds; null without one."""


class KeyDescription(KeySummary, frozen=True, kw_only=True):
    """An actor in detail."""

    budget: int
    """How many restarts within the period lead to a quarantine."""
    trace_id: str | None
    """The trace of its present turn; null without one."""
    await_stack: list[str]
    """Where it waits now, the outermost call first."""
    quarantine_reason: str | None
    """Why it is quarantined; null if it is not."""
    history: list[KeyRestart]
    """Its newest restarts, newest first."""


class KeyList(msgspec.Struct, frozen=True):
    """Keys in the order asked for, at most as many as were asked for."""

    keys: list[KeySummary]


class DeadLetterList(msgspec.Struct, frozen=True):
    """Messages that no actor handled."""

    data: list[DeadLetter]
    """The newest of them, newest first."""
    counts: dict[DeadReason, int]
    """All since the start, by reason."""


class RefusedRequestList(msgspec.Struct, frozen=True):
    """Refused requests of one process, and who sent them."""

    data: list[RefusedRequest]
    """The newest of them, newest first."""
    callers: list[RefusedCaller]
    """Who was refused most in the last ten minutes."""


class LineList(msgspec.Struct, frozen=True):
    """Log lines that one process has in memory, each as JSON, newest first.

    From ``complete_from`` on all that fit are among them; ``is_cut`` if older ones were dropped or are left out.
    """

    lines: list[str]
    complete_from: str
    is_cut: bool


class LevelList(msgspec.Struct, frozen=True):
    """The levels that are raised in one process."""

    levels: list[RaisedLevel]


class SlowTurnList(msgspec.Struct, frozen=True):
    """The slowest turns of one process."""

    turns: list[SlowTurn]


class SampleList(msgspec.Struct, frozen=True):
    """Samples of one process."""

    member_id: MemberId
    samples: list[Sample]
    """The samples, oldest first."""


class OverridesKnown(msgspec.Struct, frozen=True):
    """A process knows the overrides of these versions; -1: none yet."""

    seen: int


class SessionEnded(msgspec.Struct, frozen=True):
    """The process accepts the session no longer."""

    member_id: MemberId


class Draining(msgspec.Struct, frozen=True):
    """The process stops in order: it finishes what it has accepted, and then ends."""

    member_id: MemberId


# ----------------------------------------------------------------------------------------------------- questions


class DescribeProcess(Command["ProcessDescription"], frozen=True):
    """Describe the process."""

    is_idempotent: ClassVar[bool] = True


class ListKeys(Command["KeyList"], frozen=True):
    """List a group's keys after ``after``, in their order; only those in ``state`` if given.

    With ``order`` those with the most waiting messages, the oldest one or the most handled ones come first.
    """

    is_idempotent: ClassVar[bool] = True
    group: str
    state: ActorState | None
    after: str
    limit: int
    order: KeyOrder = "key"


class DescribeKey(Command["KeyDescription"], frozen=True):
    """Describe one actor. Refused: ``actor_not_found``."""

    is_idempotent: ClassVar[bool] = True
    group: str
    key: str


class ListDeadLetters(Command["DeadLetterList"], frozen=True):
    """List the newest dead letters; only those with ``reason`` if given."""

    is_idempotent: ClassVar[bool] = True
    reason: str | None
    limit: int


class ListRefusedRequests(Command["RefusedRequestList"], frozen=True):
    """List the newest refused requests; only those about ``sought`` if given, such as a request or a caller."""

    is_idempotent: ClassVar[bool] = True
    sought: str | None
    limit: int


class ListLines(Command["LineList"], frozen=True):
    """List the newest log lines with any of ``texts``, from ``since`` to before ``until``, at most ``limit``.

    The times are compared as text, in the form of a line. All lines are those of the process's own id.
    """

    is_idempotent: ClassVar[bool] = True
    texts: list[str]
    since: str
    until: str
    limit: int


class ListLevels(Command["LevelList"], frozen=True):
    """List the levels that are raised."""

    is_idempotent: ClassVar[bool] = True


class ListSlowTurns(Command["SlowTurnList"], frozen=True):
    """List the slowest turns of the last hour, one of each actor and message, at most ``limit``."""

    is_idempotent: ClassVar[bool] = True
    limit: int


class ProfileLoop(Command[Profile], frozen=True):
    """Look up for ``for_s`` seconds what the event loop computes."""

    is_idempotent: ClassVar[bool] = True
    for_s: float


class ReadSamples(Command["SampleList"], frozen=True):
    """Return the samples taken after ``since``, or all that the process keeps."""

    is_idempotent: ClassVar[bool] = True
    since: datetime | None


# ------------------------------------------------------------------------------------------------------- actions


class _OnKey(Command["KeyDescription"], frozen=True):
    """What an operator does with an actor, and why."""

    group: str
    key: str
    reason: str


class RestartKey(_OnKey, frozen=True):
    """End an actor after its turn, or in it if that takes too long, and start it again; its messages stay."""


class CrashKey(_OnKey, frozen=True):
    """End an actor as if its handler had raised: it counts against its restart budget."""


class QuarantineKey(_OnKey, frozen=True):
    """Refuse all messages to a key for ``for_s`` seconds, or until it is released."""

    for_s: float


class ReleaseKey(_OnKey, frozen=True):
    """End a key's quarantine. Refused: ``actor_not_quarantined``."""


class _OnChild(Command["ChildStatus"], frozen=True):
    """What an operator does with a child of the tree. ``path`` is such as ``holdfast/workers/outbox``."""

    path: str
    reason: str


class StopChild(_OnChild, frozen=True):
    """Stop a child of the tree until it is started."""


class StartChild(_OnChild, frozen=True):
    """Start a child that was stopped or has ended."""


class RestartChild(_OnChild, frozen=True):
    """Restart a child, and the siblings that its supervisor's strategy includes."""


class _OnGroup(Command["GroupDescription"], frozen=True):
    """What an operator does with a group."""

    group: str
    reason: str


class PauseGroup(_OnGroup, frozen=True):
    """Refuse asks to a group until it is resumed; actors that are active finish what they have."""


class ResumeGroup(_OnGroup, frozen=True):
    """End a group's pause, whether an operator or crashes began it."""


class ReadCosts(Command[Costs], frozen=True):
    """Return what is counted of who and what costs most."""

    is_idempotent: ClassVar[bool] = True


class RaiseLevel(Command["LevelList"], frozen=True):
    """Write the lines at ``debug`` of a subject for ``for_s`` seconds (0: no longer), at most ``lines_per_s``."""

    subject: str
    for_s: float
    lines_per_s: int
    reason: str


class RereadOverrides(Command["OverridesKnown"], frozen=True):
    """Read the overrides again, unless the database is away: one was changed."""

    is_idempotent: ClassVar[bool] = True


class EndSession(Command["SessionEnded"], frozen=True):
    """Accept an operator's session no longer, given the MAC of its cookie, also while the database is away."""

    is_idempotent: ClassVar[bool] = True
    cookie_mac: bytes


class DrainProcess(Command["Draining"], frozen=True):
    """Stop the process in order, as at SIGTERM."""

    reason: str


KeyAction: TypeAlias = RestartKey | CrashKey | QuarantineKey | ReleaseKey
ChildAction: TypeAlias = StopChild | StartChild | RestartChild
GroupAction: TypeAlias = PauseGroup | ResumeGroup
GroupCommand: TypeAlias = ListKeys | DescribeKey | KeyAction | GroupAction
ProcessQuery: TypeAlias = (
    DescribeProcess
    | ListDeadLetters
    | ListRefusedRequests
    | ListLines
    | ListLevels
    | ListSlowTurns
    | ProfileLoop
    | ReadSamples
    | ReadCosts
)
ProcessAction: TypeAlias = RaiseLevel | RereadOverrides | EndSession | DrainProcess
ControlCommand: TypeAlias = ProcessQuery | ProcessAction | ChildAction | GroupCommand
