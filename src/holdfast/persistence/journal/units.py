"""A unit of work: what one decision wants written, whole or not at all, and how it can end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast.ledger.credit.operations import Operation
from holdfast.persistence.records.rows import AccountHead, Row

FenceKind = Literal["account", "task", "sign_in"]


class Fence(NamedTuple):
    """The version of a row that a decision was made on. Committing the unit moves that row to the next."""

    kind: FenceKind
    key: str
    expected: int


class IdempotencyProbe(NamedTuple):
    """A key the decision believes unused; the journal looks before it writes."""

    account_id: str
    route: str
    key: str


class Unit(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One decision's effects.

    ``account`` is set for every decision of an account: its ``version`` is the one behind the unit, and the
    fence is the version before. ``operations`` bring their postings and hold rows along.

    A unit with ``moves`` False leaves the fenced rows where they are: it only asks whether its fences still
    stand, so that a refusal is never given on a memory that another process has overtaken. What it brings in
    ``rows`` is no part of them, such as an event kept as it was received.
    """

    fences: tuple[Fence, ...] = ()
    account: AccountHead | None = None
    operations: tuple[Operation, ...] = ()
    rows: tuple[Row, ...] = ()
    probe: IdempotencyProbe | None = None
    moves: bool = True


class RememberedAnswer(NamedTuple):
    """What an idempotency record holds."""

    fingerprint: bytes
    reply: bytes


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
