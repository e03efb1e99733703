"""The messages to an account, and their replies.

They are about its credit, its tasks' holds, its keys and sessions; from operators, about its credit and whether it
may be used; and about its payment orders. Each of the last is replied to with :class:`OrderResult`, which contains
the whole order after the command, or a refusal: ``payment_order_not_found`` for an order that is not the account's.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, TypeAlias

import msgspec

from holdfast.actors.runtime.messages import Command, IdempotencyKey, Replayed
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import OrderRequest, OrderResult
from holdfast.ledger.orders.sandbox_signature import SandboxValues
from holdfast.ledger.orders.snapshots import ProviderSnapshot
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import TaskRequest, TaskStatus
from holdfast.ledger.tasks.transitions import Settlement
from holdfast.persistence.records.rows import (
    AccountAccessRow,
    ApiKeyRecord,
    ApiKeyRevokedRow,
    SessionRevokedRow,
    TaskRow,
)


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
    status: TaskStatus
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


class AdjustCredit(Command[CreditChanged | Replayed[CreditChanged]], frozen=True):
    """Give credit, or take it if ``amount_micro`` is below zero. Reply: :class:`CreditChanged`.

    ``action_id`` is the operator's recorded action; the account's owner reads ``note`` in the statement. Refused
    like :func:`holdfast.ledger.credit.account.decide_adjustment`.
    """

    amount_micro: int
    action_id: str
    note: str
    idempotency: IdempotencyKey


class SetAccess(Command[AccountAccessRow], frozen=True):
    """Disable the account, or enable it again; repeating it changes nothing. Reply: the state afterwards.

    A disabled account gets no sessions, keys, credit by its owner, orders or tasks. What has begun continues: tasks
    settle, and payments are credited.
    """

    is_idempotent: ClassVar[bool] = True

    is_disabled: bool


OperatorCommand: TypeAlias = AdjustCredit | SetAccess


class CreateOrder(Command[OrderResult | Replayed[OrderResult]], frozen=True):
    """Store a new order, before any call to the provider. Reply: :class:`OrderResult`, verdict ``applied``.

    ``request`` contains its ids (order, operation, sandbox event). A used idempotency key returns the order as it
    was then.
    """

    request: OrderRequest
    idempotency: IdempotencyKey | None = None


class AttachIntent(Command[OrderResult], frozen=True):
    """The card provider created this intent for the order; repeating the message changes nothing."""

    is_idempotent: ClassVar[bool] = True

    order_id: str
    payment_id: str


class RecordIntentRefused(Command[OrderResult], frozen=True):
    """The card provider refused to create an intent for the order; ``reason`` is its code."""

    order_id: str
    reason: str


class ReceivePaymentEvent(Command[OrderResult], frozen=True):
    """A card provider's verified event about the order; ``body`` is stored even if it has no effect."""

    is_idempotent: ClassVar[bool] = True

    order_id: str
    event: PaymentEvent
    body: bytes


class PaySandboxOrder(Command[OrderResult], frozen=True):
    """A sandbox callback with a valid signature for the order; ``body`` is stored as received.

    Refused like :func:`holdfast.ledger.orders.decisions.on_sandbox_callback`.
    """

    order_id: str
    values: SandboxValues
    body: bytes


class ExpireOrder(Command[OrderResult], frozen=True):
    """Expire the order if its deadline has passed. The caller has canceled a card order's intent."""

    is_idempotent: ClassVar[bool] = True

    order_id: str


class ReconcileOrder(Command[OrderResult], frozen=True):
    """A snapshot of the order's objects at the provider; None if they could not be read."""

    is_idempotent: ClassVar[bool] = True

    order_id: str
    snapshot: ProviderSnapshot | None


class ResolveOrder(Command[OrderResult], frozen=True):
    """An operator's decision on a held order: credit for it, or none. ``note`` is recorded in the order's history.

    Without ``amount_micro`` the amount received is credited, at most the amount ordered. Refused like
    :func:`holdfast.ledger.orders.decisions.resolve_held`.
    """

    order_id: str
    credit: bool
    amount_micro: int | None = None
    note: str | None = None


OrderCommand: TypeAlias = (
    CreateOrder
    | AttachIntent
    | RecordIntentRefused
    | ReceivePaymentEvent
    | PaySandboxOrder
    | ExpireOrder
    | ReconcileOrder
    | ResolveOrder
)
