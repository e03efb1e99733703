"""One key of a keyed directory: its mailbox, its incarnation and its history; and the limits of a directory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import trio

from holdfast.actors.runtime.actor import MessageLoss, TrioActor
from holdfast.actors.runtime.journaled import JournaledActor
from holdfast.actors.runtime.mailbox import Envelope, Mailbox
from holdfast.supervision.spec import Backoff, RestartWindow
from holdfast.telemetry.traces import traceparent

KeyedState = Literal["passivated", "active", "backing_off", "quarantined"]


RATE_PERIOD_S: Final = 60.0

EndKind = Literal["restart", "crash", "quarantine"]


@dataclass(frozen=True, slots=True)
class EndRequest:
    """Why an operator ends an incarnation, and within which trace. ``for_s``: how long a quarantine lasts."""

    kind: EndKind
    reason: str
    for_s: float | None = None
    done: trio.Event = field(default_factory=trio.Event)
    traceparent: str | None = field(default_factory=traceparent.get)


_RESTARTS = Backoff(0.2, 30.0, jitter=0.2)
_PROBES = Backoff(0.5, 5.0, jitter=0.1)
_QUARANTINES = Backoff(120.0, 3600.0, jitter=0.1)


@dataclass(frozen=True, slots=True)
class KeyedLimits:
    """The limits of a keyed directory. The defaults suit accounts and tasks."""

    mailbox_max: int = 1000
    idle_s: float = 120.0
    active_max: int = 20_000
    loading_max: int = 16
    child_restarts: int = 5
    child_period_s: float = 60.0
    group_crashes: int = 20
    group_period_s: float = 10.0
    voids_in_row_max: int = 100
    backoff: Backoff = _RESTARTS
    probe_backoff: Backoff = _PROBES
    quarantine: Backoff = _QUARANTINES


class WriteGate(Protocol):
    """Whether actors can read and write now; without that no actor can load or change anything."""

    @property
    def is_open(self) -> bool: ...

    @property
    def reason(self) -> str: ...

    @property
    def retry_after_s(self) -> float: ...

    async def wait_open(self) -> None: ...


class KeyedChild:
    """The state of one key. ``actor`` is its present incarnation, if it has one."""

    __slots__ = (
        "actor",
        "backoff",
        "before",
        "began_at",
        "crashed",
        "end_request",
        "incarnation",
        "key",
        "last_used",
        "mailbox",
        "on_dead_letter",
        "postponed",
        "quarantine_reason",
        "quarantined_until",
        "quarantines",
        "refused_types",
        "scope",
        "state",
        "task",
        "trial_at",
        "turn_rate",
        "turned_at",
        "voids_in_row",
        "waiting_on",
        "window",
    )

    def __init__(
        self, key: str, mailbox_max: int, on_dead_letter: Callable[[KeyedChild, MessageLoss, Envelope], None]
    ) -> None:
        self.key = key
        self.on_dead_letter = on_dead_letter
        self.mailbox = Mailbox(mailbox_max)
        self.state: KeyedState = "passivated"
        self.actor: TrioActor | None = None
        self.task: trio.lowlevel.Task | None = None
        """The task of its incarnations, while it is active or backs off."""
        self.scope: trio.CancelScope | None = None
        """The scope of its present incarnation, and of the wait for it; None if the child has no task."""
        self.backoff: trio.CancelScope | None = None
        self.end_request: EndRequest | None = None
        self.incarnation = 0
        self.began_at = 0.0
        """When the present incarnation began to load (trio's clock)."""
        self.last_used = 0.0
        self.turn_rate = 0.0
        """Turns a second at ``turned_at``, an average over about a minute: a turn counts less with its age."""
        self.turned_at = 0.0
        self.window: RestartWindow | None = None
        self.crashed = False
        """Whether the last incarnation crashed, or an operator ended it."""
        self.voids_in_row = 0
        self.postponed = 0
        """How many incarnations in a row the database ended although the gate was open."""
        self.quarantines = 0
        self.quarantined_until = 0.0
        self.quarantine_reason: str | None = None
        self.refused_types: frozenset[str] = frozenset()
        """The types of messages that its quarantine has refused."""
        self.trial_at: float | None = None
        self.waiting_on: KeyedChild | None = None
        self.before: JournaledActor | None = None
        """The last incarnation, unless it ended in order: the next one inherits from it."""

    def turn_ended(self, at: float) -> None:
        """Count a turn."""
        self.turn_rate = self.turns_per_s(at) + 1 / RATE_PERIOD_S
        self.turned_at = at

    def turns_per_s(self, now: float) -> float:
        """Return the rate of its turns of late."""
        return self.turn_rate * math.exp((self.turned_at - now) / RATE_PERIOD_S)

    def dead_letter(self, reason: MessageLoss, envelope: Envelope) -> None:
        """Record a message that was not handled, or whose sender no longer waits."""
        self.on_dead_letter(self, reason, envelope)

    def finish_end_request(self) -> None:
        """Record that the incarnation that an operator ended has ended."""
        request, self.end_request = self.end_request, None
        if request is not None:
            request.done.set()

    @property
    def is_idle(self) -> bool:
        """Whether its actor is active with no message to handle."""
        return self.state == "active" and self.mailbox.empty() and not self.mailbox.system

    @property
    def has_crashed_lately(self) -> bool:
        """Whether a passivated child is retained for its crash count: one crash a message is a crash loop too."""
        return self.window is not None and self.window.count(trio.current_time()) > 0
