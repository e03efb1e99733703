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
    """The messages that wait for an actor, and its present turn.

    ``turn`` is the type of the message that it handles, for ``turn_age_s`` already.
    """

    mailbox_depth: int
    oldest_message_age_s: float | None = None
    turn: str | None = None
    turn_age_s: float | None = None


class ChildStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One child's status.

    ``restarts_in_window`` are its own; ``retry_in_s`` is the rest of its backoff. ``work`` is that of an actor.
    """

    child_id: str
    state: ChildState
    restart: Restart
    incarnation: int
    restarts_in_window: int
    since: Time
    retry_in_s: float | None = None
    last_fault: str | None = None
    work: Work | None = None
    children: tuple[ChildStatus, ...]


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
