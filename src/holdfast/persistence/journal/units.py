"""A unit of work: what one decision wants written, whole or not at all, and how it can end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast.persistence.records.accounts import IdempotencyProbe, RememberedAnswer
from holdfast.persistence.records.rows import Row

FenceKind = Literal["account", "task", "sign_in"]


class Fence(NamedTuple):
    """The version of a row that a decision was made on. Committing the unit moves that row to the next."""

    kind: FenceKind
    key: str
    expected: int


class Unit(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One decision's effects.

    ``rows`` are the values to write; an operation includes its postings and its hold.

    A unit with ``moves`` False leaves the fenced rows as they are: it only asks whether its fences still hold, so
    that a refusal is never based on a state that another process has changed. Its ``rows`` are not part of the
    fenced state, such as an event stored as it was received.
    """

    fences: tuple[Fence, ...] = ()
    rows: tuple[Row, ...] = ()
    probe: IdempotencyProbe | None = None
    moves: bool = True


@dataclass(frozen=True, slots=True)
class Committed:
    """The unit is durable."""


@dataclass(frozen=True, slots=True)
class Stale:
    """The unit is void: rows named by ``fences`` had moved on. Nothing of it was written."""

    fences: tuple[Fence, ...]


@dataclass(frozen=True, slots=True)
class AlreadyAnswered:
    """The unit is void: its idempotency key had been used. Nothing of it was written."""

    answer: RememberedAnswer


@dataclass(frozen=True, slots=True)
class NotWritten:
    """The unit is void through no fault of its own: its batch was rolled back. Nothing of it was written.

    ``timed_out`` says that the database took too long over the batch.
    """

    reason: str
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """The database refuses this very unit. Nothing of it was written, and trying again would not help."""

    cause: Exception


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can say whether the unit was written; its asker must be told just that."""

    reason: str


Verdict: TypeAlias = Committed | Stale | AlreadyAnswered | NotWritten | Broken | Unknown


class Author(Protocol):
    """Who submitted a unit: an actor's incarnation. Called on the trio thread, in the order of submission."""

    @property
    def is_void(self) -> bool:
        """True once this incarnation's undurable decisions no longer stand; its waiting units are skipped."""
        ...

    def settle(self, unit: Unit, verdict: Verdict) -> None:
        """Hear how a unit ended."""
        ...
