"""Every kind of value that the journal writes."""

from __future__ import annotations

from typing import TypeAlias

from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.orders.order import Order
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.records.accounts import (
    AccountAccessRow,
    AccountHead,
    AccountRow,
    ApiKeyRevokedRow,
    ApiKeyRow,
    ApiKeyUsedRow,
    IdempotencyRow,
    SessionRevokedRow,
    SignInRow,
)
from holdfast.persistence.records.orders import OrderChangedRow
from holdfast.persistence.records.outbox import OutboxOutcomeRow, OutboxResendRow, OutboxRow
from holdfast.persistence.records.row_types import (
    AssetRow,
    OrderPaymentRow,
    OutboxAttemptRow,
    PaymentEventRow,
    SessionRow,
    TaskEventRow,
    WebhookSecretRow,
)
from holdfast.persistence.records.tasks import (
    AssetsDeletedRow,
    AssetsExpiryRow,
    TaskChangedRow,
    TaskRequestRow,
    UsageChangedRow,
)

TaskRow: TypeAlias = (
    AssetRow
    | AssetsDeletedRow
    | AssetsExpiryRow
    | OutboxAttemptRow
    | OutboxOutcomeRow
    | OutboxRow
    | TaskChangedRow
    | TaskEventRow
    | TaskRequestRow
    | UsageChangedRow
)
"""What a task's step writes: sent to the task's account if it settles the hold, so each class is tagged."""

Row: TypeAlias = (
    TaskRow
    | AccountAccessRow
    | AccountHead
    | AccountRow
    | ApiKeyRevokedRow
    | ApiKeyRow
    | ApiKeyUsedRow
    | IdempotencyRow
    | Operation
    | Order
    | OrderChangedRow
    | OutboxResendRow
    | OrderPaymentRow
    | PaymentEventRow
    | SessionRevokedRow
    | SessionRow
    | SignInRow
    | Task
    | WebhookSecretRow
)
