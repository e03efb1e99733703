"""The messages to an account about its credit, its tasks' holds, its keys and sessions, and their replies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from holdfast.actors.runtime.messages import Command, IdempotencyKey, Replayed
from holdfast.ledger.tasks.task import TaskRequest
from holdfast.persistence.records.accounts import ApiKeyRecord
from holdfast.persistence.records.rows import Row


class AccountSummary(msgspec.Struct, frozen=True):
    """An account's totals as of one version, in micro-credits."""

    account_id: str
    balance_micro: int
    held_micro: int

    @property
    def available_micro(self) -> int:
        """The balance less everything held."""
        return self.balance_micro - self.held_micro


class Recharged(msgspec.Struct, frozen=True, tag="recharged"):
    """Sandbox credit was added."""

    operation_id: str
    amount_micro: int
    account: AccountSummary


@dataclass(frozen=True, slots=True)
class Recharge(Command[Recharged | Replayed[Recharged]]):
    """Add sandbox credit. Reply: :class:`Recharged`."""

    amount_micro: int
    idempotency: IdempotencyKey | None = None


class TaskAccepted(msgspec.Struct, frozen=True, tag="task_accepted"):
    """A task exists and its credit is held. Amounts in micro-credits."""

    request_id: str
    quote_id: str
    status: str
    retry_of: str | None
    estimated_micro: int
    basis: str


@dataclass(frozen=True, slots=True)
class CreateTask(Command[TaskAccepted | Replayed[TaskAccepted]]):
    """Hold credit and accept a task. Reply: :class:`TaskAccepted`.

    ``request`` contains the id of its hold, and its API key, which must still have ``scope``.
    """

    request: TaskRequest
    scope: str
    idempotency: IdempotencyKey | None = None


@dataclass(frozen=True, slots=True)
class SettleTask(Command["TaskSettled"]):
    """Settle the hold of a task that ends and write its rows in the same unit of work.

    ``task_version`` is the version the step was decided on; ``rows`` are the task's own. ``charge_micro`` is
    None for a release. Reply: :class:`TaskSettled`, or a Refusal ``hold_not_open`` if the hold was settled
    otherwise. Raises :class:`~holdfast.actors.runtime.faults.StaleFence` in the caller if the task
    has changed since.
    """

    request_id: str
    task_version: int
    hold_id: str
    charge_micro: int | None
    operation_id: str
    reason: str
    at: datetime
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class TaskSettled:
    """The hold is captured or released, and the task's rows are written."""

    operation_id: str


@dataclass(frozen=True, slots=True)
class CreateApiKey(Command[ApiKeyRecord]):
    """Create an API key whose secret the caller has generated. Reply: its record."""

    key_id: str
    secret_sha256: bytes
    prefix: str
    name: str
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RevokeApiKey(Command["ApiKeyRevoked"]):
    """Revoke an API key at once; repeating it changes nothing. Reply: :class:`ApiKeyRevoked`."""

    key_id: str


class ApiKeyRevoked(msgspec.Struct, frozen=True, tag="api_key_revoked"):
    """The API key was revoked."""

    key_id: str
    revoked_at: datetime


@dataclass(frozen=True, slots=True)
class RecordKeyUse(Command[None]):
    """Record that an API key was used; sent at most once a minute for each key."""

    key_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SignOut(Command["SignedOut"]):
    """Revoke a session. Reply: :class:`SignedOut`."""

    session_id: str


class SignedOut(msgspec.Struct, frozen=True, tag="signed_out"):
    """The session was revoked."""

    session_id: str
