"""A unit of work: the rows that one decision writes, all or none of them, and the results it can have."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast.persistence.records.rows import IdempotencyProbe, Row, StoredReply

FenceKind = Literal["account", "task", "sign_in"]


class Fence(NamedTuple):
    """The version of a row that a decision was made on. Committing the unit moves that row to the next version."""

    kind: FenceKind
    key: str
    expected: int


class Unless(NamedTuple):
    """A stored reply that voids a unit: one under the key of ``probe`` whose fingerprint is not ``known``."""

    probe: IdempotencyProbe
    known: bytes


class Unit(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One decision's effects: the values in ``rows``; an operation includes its postings and its hold.

    A unit with ``advances`` False leaves the fenced rows as they are: it only checks that its fences still hold, so
    that no refusal is based on a state that another process has changed. Its ``rows`` are not part of the fenced
    state, such as an event stored as it was received.
    """

    fences: tuple[Fence, ...] = ()
    rows: tuple[Row, ...] = ()
    probe: IdempotencyProbe | None = None
    unless: Unless | None = None
    advances: bool = True


class Committed(msgspec.Struct, frozen=True):
    """The unit is durable."""


class Stale(msgspec.Struct, frozen=True):
    """The unit is void: the rows of ``fences`` had another version. Nothing of it was written."""

    fences: tuple[Fence, ...]


class AlreadyReplied(msgspec.Struct, frozen=True):
    """The unit is void: there is a reply under its idempotency key, or one that it names. Nothing was written."""

    probe: IdempotencyProbe
    stored: StoredReply


class NotWritten(msgspec.Struct, frozen=True):
    """The unit was not written for a reason outside it, such as a rollback of its batch; it may be tried again.

    ``timed_out``: the database took too long for the batch.
    """

    reason: str
    timed_out: bool = False


class Broken(msgspec.Struct, frozen=True):
    """The database rejects this unit itself. Nothing of it was written, and a retry would fail again."""

    cause: Exception


class Unknown(msgspec.Struct, frozen=True):
    """It is not known whether the unit was written; its caller gets exactly this as the reply."""

    reason: str


UnitResult: TypeAlias = Committed | Stale | AlreadyReplied | NotWritten | Broken | Unknown


class Author(Protocol):
    """The submitter of a unit, an actor's incarnation. Called on the trio thread, in the order of submission."""

    @property
    def is_void(self) -> bool:
        """Whether this incarnation's undurable decisions are void; its queued units are then skipped."""
        ...

    def unit_ended(self, unit: Unit, result: UnitResult, /) -> None:
        """Receive the result of a unit."""
        ...
