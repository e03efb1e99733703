"""The status of supervised children, for the operators' page and ``/readyz``."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import msgspec

from holdfast.ledger.public_types import Time
from holdfast.supervision.spec import Restart

ChildState = Literal[
    "pending", "starting", "running", "waiting", "stopping", "restarting", "finished", "failed", "stopped"
]
"""pending: not started yet. waiting: it runs, but the database that it needs is away.

restarting: down, waiting for its backoff or its turn.

finished, failed: ended by itself and not restarted. stopped: by an operator, or with the supervisor.
"""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that wait for an actor, and its present turn."""

    mailbox_depth: int
    """How many messages wait."""
    oldest_message_age_s: float | None = None
    """The age of the oldest of them, in seconds; null if none waits."""
    turn: str | None = None
    """The type of the message that it handles; null if it handles none."""
    turn_age_s: float | None = None
    """How long it has handled it, in seconds; null if it handles none."""


class ChildStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One child's status."""

    child_id: str
    """Its name below its supervisor."""
    state: ChildState
    """Its state."""
    restart: Restart
    """When its supervisor restarts it."""
    incarnation: int
    """Counts its starts."""
    restarts_in_window: int
    """How often it was restarted within the period of the budget."""
    since: Time
    """Since when it is in this state."""
    retry_in_s: float | None = None
    """How long its backoff still lasts, in seconds; null without one."""
    last_fault: str | None = None
    """Its last fault in words; null if there was none."""
    work: Work | None = None
    """The messages that wait for it; null if it is no actor."""
    children: tuple[ChildStatus, ...]
    """Its own children; empty if it is no supervisor."""


@runtime_checkable
class Branch(Protocol):
    """A child with children of its own, or one that may be up and not ready."""

    @property
    def is_ready(self) -> bool:
        """Whether it can work now."""
        ...

    def children(self) -> tuple[ChildStatus, ...]:
        """Return its children in start order."""
        ...


class Inbox(Protocol):
    """A mailbox."""

    def __len__(self) -> int: ...

    def oldest_sent_at(self) -> float | None: ...


class Turn(Protocol):
    """The envelope of the message that an actor handles."""

    @property
    def message(self) -> object: ...

    @property
    def began_at(self) -> float: ...


@runtime_checkable
class Works(Protocol):
    """A child that is an actor."""

    @property
    def actor_inbox(self) -> Inbox: ...

    @property
    def turn(self) -> Turn | None: ...


def work_of(inbox: Inbox, actor: Works | None, now: float) -> Work:
    """Return what waits in a mailbox at ``now`` (trio's clock), and what its actor does, if there is one."""
    oldest = inbox.oldest_sent_at()
    turn = None if actor is None else actor.turn
    return Work(
        mailbox_depth=len(inbox),
        oldest_message_age_s=None if oldest is None else round(now - oldest, 3),
        turn=None if turn is None else type(turn.message).__name__,
        turn_age_s=None if turn is None else round(now - turn.began_at, 3),
    )
