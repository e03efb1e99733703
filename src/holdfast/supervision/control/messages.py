"""The commands to a control actor, and their replies. All are answered from memory, without the database.

The ``key`` of a command is that of the actor, or the one shown for it: a sign-in actor's own is an e-mail address.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal, TypeAlias

import msgspec

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.public_types import Time
from holdfast.supervision.dead_letters import DeadLetter, DeadReason
from holdfast.supervision.keyed_reports import KeyRestart
from holdfast.supervision.status import ChildStatus, Work
from holdfast.telemetry.metrics.figures import ProviderFigures, RefusalFigures, RouteFigures
from holdfast.telemetry.metrics.samples import Sample
from holdfast.telemetry.reports.conditions import LastingCondition

ActorState = Literal["passivated", "starting", "active", "backing_off", "quarantined"]
"""passivated: not active, but remembered. starting: it loads its rows, or waits until it may."""

KeyOrder = Literal["key", "queue", "wait", "rate"]


# -------------------------------------------------------------------------------------------------- what is shown


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A member as another sees it.

    ``unreachable_for_s`` is how long it has not been reached; null if it answers.
    """

    member_id: str
    is_this: bool
    state: str
    unreachable_for_s: float | None


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A keyed group of one process.

    ``paused_by`` is ``crashes`` if too many of its actors crashed, and ``operator`` if one paused it. ``messages``
    is the sum of all mailboxes.
    """

    name: str
    paused_by: Literal["crashes", "operator"] | None
    pause_reason: str | None
    states: dict[str, int]
    messages: int
    oldest_message_age_s: float | None


class ProviderView(ProviderFigures, frozen=True, kw_only=True):
    """A media provider as one process sees it; the counts are since the start."""

    state: str


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which process this is. ``worker`` is its slot below a parent."""

    member_id: str
    host: str
    pid: int
    worker: int | None
    version: str
    started_at: Time


class ProcessDescription(ProcessIdentity, frozen=True, kw_only=True):
    """A process: who it is, its tree with the state of each child, and its keyed groups.

    ``worker`` is its slot below a parent. ``state`` is that of the member. ``dead_letters`` are counted by reason
    since the start, and ``providers`` by name as this process sees them. ``conditions`` are those that last.
    ``slowest_routes`` and ``refusals``, the most frequent first, are since the start.
    """

    state: str
    database_open: bool
    conditions: list[LastingCondition]
    tree: ChildStatus
    groups: list[GroupDescription]
    dead_letters: dict[DeadReason, int]
    providers: dict[str, ProviderView]
    slowest_routes: list[RouteFigures]
    refusals: list[RefusalFigures]


class KeySummary(msgspec.Struct, frozen=True, kw_only=True):
    """An actor, or a key that is remembered without one.

    ``restarts`` are those within the period of its budget. ``messages_per_s`` is an average over about a minute, in
    which a message counts less with its age. ``quarantined_for_s`` is the time left, and ``retry_in_s`` that of its
    backoff.
    """

    group: str
    key: str
    member_id: str
    state: ActorState
    incarnation: int
    restarts: int
    work: Work
    messages_per_s: float
    quarantined_for_s: float | None
    retry_in_s: float | None


class KeyDescription(KeySummary, frozen=True, kw_only=True):
    """An actor in detail.

    ``await_stack`` is where it waits now, the outermost call first. ``history`` has the newest restarts first; it
    outlives the actor for a while.
    """

    budget: int
    trace_id: str | None
    await_stack: list[str]
    quarantine_reason: str | None
    history: list[KeyRestart]


class KeyList(msgspec.Struct, frozen=True):
    """Keys in the order asked for, at most as many as were asked for."""

    keys: list[KeySummary]


class DeadLetterList(msgspec.Struct, frozen=True):
    """Dead letters, the newest first, and all counts by reason since the start."""

    data: list[DeadLetter]
    counts: dict[DeadReason, int]


class SampleList(msgspec.Struct, frozen=True):
    """Samples of one process, the oldest first."""

    member_id: str
    samples: list[Sample]


class Draining(msgspec.Struct, frozen=True):
    """The process stops in order: it finishes what it has accepted, and then ends."""

    member_id: str


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


class DrainProcess(Command["Draining"], frozen=True):
    """Stop the process in order, as at SIGTERM."""

    reason: str


KeyAction: TypeAlias = RestartKey | CrashKey | QuarantineKey | ReleaseKey
ChildAction: TypeAlias = StopChild | StartChild | RestartChild
GroupAction: TypeAlias = PauseGroup | ResumeGroup
GroupCommand: TypeAlias = ListKeys | DescribeKey | KeyAction | GroupAction
ControlCommand: TypeAlias = (
    DescribeProcess | ListDeadLetters | ReadSamples | DrainProcess | ChildAction | GroupCommand
)
