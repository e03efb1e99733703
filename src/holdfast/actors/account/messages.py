"""The messages to an account about its credit, its tasks' holds, its keys and sessions, and their replies."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec

from holdfast.actors.runtime.messages import Command, IdempotencyKey, Replayed
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import TaskRequest
from holdfast.ledger.tasks.transitions import Settlement
from holdfast.persistence.records.accounts import ApiKeyRecord, ApiKeyRevokedRow, SessionRevokedRow
from holdfast.persistence.records.rows import TaskRow


class CreditChanged(msgspec.Struct, frozen=True, tag="recharged"):
    """Sandbox credit was added, or an operator gave credit, or took it if the amount is below zero."""

    operation_id: str
    amount_micro: int
    account: AccountTotals


class Recharge(Command[CreditChanged | Replayed[CreditChanged]], frozen=True):
    """Add sandbox credit. Reply: :class:`CreditChanged`."""

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


class CreateTask(Command[TaskAccepted | Replayed[TaskAccepted]], frozen=True):
    """Hold credit and accept a task. Reply: :class:`TaskAccepted`.

    ``request`` contains the id of its hold, and its API key, which must still have ``scope``.
    """

    request: TaskRequest
    scope: str
    idempotency: IdempotencyKey | None = None


class RefuseTask(Command[TaskAccepted | Replayed[TaskAccepted]], frozen=True):
    """Store the refusal of a task under its Idempotency-Key. Reply: the refusal, or what the used key replays.

    ``api_key_id`` must be live and have ``scope``, as for :class:`CreateTask`.
    """

    refusal: Refusal
    api_key_id: str
    scope: str
    idempotency: IdempotencyKey


class SettleTask(Command[Settlement], frozen=True):
    """Settle the hold of a task that ends and write its rows in the same unit of work.

    ``task_version`` is the version the step was decided on; ``rows`` are the task's own. Reply: the settlement, or
    a Refusal ``hold_not_open`` if the hold was settled otherwise. Raises
    :class:`~holdfast.actors.runtime.faults.StaleFence` in the caller if the task has changed since.
    """

    request_id: str
    task_version: int
    settlement: Settlement
    rows: tuple[TaskRow, ...]


class CreateApiKey(Command[ApiKeyRecord], frozen=True):
    """Create an API key whose secret the caller has generated. Reply: its record."""

    key_id: str
    secret_sha256: bytes
    prefix: str
    name: str
    scopes: tuple[str, ...]


class RevokeApiKey(Command[ApiKeyRevokedRow], frozen=True):
    """Revoke an API key at once. Reply: the row that was written."""

    key_id: str


class RecordKeyUse(Command[None], frozen=True):
    """Record that an API key was used; sent at most once a minute for each key."""

    key_id: str
    at: datetime


class SignOut(Command[SessionRevokedRow], frozen=True):
    """Revoke a session. Reply: the row that was written."""

    is_idempotent: ClassVar[bool] = True

    session_id: str
