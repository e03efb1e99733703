"""The rows that the journal writes, as frozen tuples. A row's fields are columns of its table.

:mod:`holdfast.persistence.journal.statements` has the statement of each kind.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, TypeAlias

from holdfast.persistence.records.outbox_rows import (
    OutboxAttemptRow,
    OutboxOutcomeRow,
    OutboxResendRow,
    OutboxRow,
    WebhookSecretRow,
)


class AccountRow(NamedTuple):
    """A new account, empty."""

    id: str
    email: str
    role: str
    brand_id: str
    created_at: datetime
    version: int
    operation_count: int
    balance_micro: int
    held_micro: int
    chain_head: bytes


class AccountHead(NamedTuple):
    """An account's version and totals after a unit of work; the fence of every account unit."""

    id: str
    version: int
    operation_count: int
    balance_micro: int
    held_micro: int
    chain_head: bytes


class OperationRow(NamedTuple):
    """One operation of the immutable journal."""

    account_id: str
    number: int
    operation_id: str
    kind: str
    amount_micro: int
    balance_after_micro: int
    held_after_micro: int
    hold_id: str | None
    reference: str
    reason: str
    at: datetime
    chain_hash: bytes


class PostingRow(NamedTuple):
    """One posting of the immutable journal."""

    account_id: str
    number: int
    line: int
    ledger_account: str
    amount_micro: int


class HoldRow(NamedTuple):
    """A new hold."""

    account_id: str
    hold_id: str
    amount_micro: int
    reference: str
    opened_number: int


class HoldSettledRow(NamedTuple):
    """The settlement of a hold."""

    account_id: str
    hold_id: str
    settled_number: int


class TaskRow(NamedTuple):
    """A new task. ``request`` and ``state`` are JSON text."""

    account_id: str
    request_id: str
    version: int
    status: str
    model: str
    provider: str
    created_at: datetime
    updated_at: datetime
    wake_at: datetime | None
    dispatched: bool
    request: str
    state: str


class TaskChangedRow(NamedTuple):
    """A task after a transition. Found by its id alone: with the account, the plan might read all of its tasks.

    ``owner`` is the process that made the transition; ``input_until`` is the expiry of a large input.
    """

    request_id: str
    version: int
    status: str
    updated_at: datetime
    wake_at: datetime | None
    dispatched: bool
    state: str
    owner: str | None = None
    input_until: datetime | None = None


class TaskRequestRow(NamedTuple):
    """What was asked of a task, without its input. ``request`` is JSON text."""

    request_id: str
    request: str


class TaskEventRow(NamedTuple):
    """A provider's callback as received, and its effect."""

    account_id: str
    request_id: str
    provider: str
    event_id: str
    received_at: datetime
    verdict: str
    body: bytes


class OrderRow(NamedTuple):
    """A new payment order. ``request`` and ``state`` are JSON text."""

    account_id: str
    order_id: str
    version: int
    provider: str
    status: str
    reconcile_status: str
    provider_payment_id: str | None
    provider_charge_id: str | None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime
    wake_at: datetime | None
    request: str
    state: str


class OrderChangedRow(NamedTuple):
    """A payment order after a transition."""

    account_id: str
    order_id: str
    version: int
    status: str
    reconcile_status: str
    provider_payment_id: str | None
    provider_charge_id: str | None
    updated_at: datetime
    wake_at: datetime | None
    state: str


class PaymentEventRow(NamedTuple):
    """An event that was applied to its order, as received. It replaces a stored one that had no effect."""

    provider: str
    event_id: str
    account_id: str
    order_id: str
    type: str
    received_at: datetime
    verdict: str
    body: bytes


class UnappliedPaymentEventRow(NamedTuple):
    """An event without effect: refused, ignored, or of an unknown order. The first one received is stored."""

    provider: str
    event_id: str
    account_id: str | None
    order_id: str | None
    type: str
    received_at: datetime
    verdict: str
    body: bytes


class UsageRow(NamedTuple):
    """A new usage entry. ``status_history`` is JSON text."""

    account_id: str
    request_id: str
    ts: datetime
    model: str
    modality: str
    api_key_id: str | None
    status: str
    billable_units: int
    tokens_in: int
    tokens_out: int
    latency_ms: int | None
    cost_micro: int
    error: str | None
    operation_id: str | None
    status_history: str


class UsageChangedRow(NamedTuple):
    """A usage entry after its task's public status changed."""

    account_id: str
    request_id: str
    ts: datetime
    status: str
    billable_units: int
    tokens_in: int
    tokens_out: int
    latency_ms: int | None
    cost_micro: int
    error: str | None
    operation_id: str | None
    status_history: str


class AssetRow(NamedTuple):
    """A stored output."""

    account_id: str
    request_id: str
    position: int
    asset_id: str
    sha256: str
    bytes: int
    content_type: str
    created_at: datetime
    expires_at: datetime


class AssetsExpiryRow(NamedTuple):
    """The new expiry of all assets of a task."""

    account_id: str
    request_id: str
    expires_at: datetime


class AssetsDeletedRow(NamedTuple):
    """The deletion of all assets of a task."""

    account_id: str
    request_id: str


class ApiKeyRow(NamedTuple):
    """A new API key; only the hash of its secret."""

    account_id: str
    key_id: str
    secret_sha256: bytes
    prefix: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime


class ApiKeyRevokedRow(NamedTuple):
    """The revocation of an API key."""

    account_id: str
    key_id: str
    revoked_at: datetime


class ApiKeyUsedRow(NamedTuple):
    """When an API key was last used, written at most once a minute."""

    account_id: str
    key_id: str
    last_used_at: datetime


class SessionRow(NamedTuple):
    """A new session; only the hash of its token."""

    account_id: str
    session_id: str
    token_sha256: bytes
    created_at: datetime
    expires_at: datetime


class SessionRevokedRow(NamedTuple):
    """The revocation of a session."""

    account_id: str
    session_id: str
    revoked_at: datetime


class SignInRow(NamedTuple):
    """The sign-in state of an e-mail address or an origin. ``state`` is JSON text."""

    key: str
    version: int
    updated_at: datetime
    state: str


class IdempotencyRow(NamedTuple):
    """A stored reply. The fence proved that the key has no live record; an expired one is replaced."""

    account_id: str
    route: str
    key: str
    fingerprint: bytes
    reply: bytes
    created_at: datetime


class BatchRow(NamedTuple):
    """The marker that shows, after a lost response to COMMIT, whether the batch committed."""

    batch_id: str
    units: int
    committed: bool
    at: datetime


Row: TypeAlias = (
    AccountRow
    | AccountHead
    | OperationRow
    | PostingRow
    | HoldRow
    | HoldSettledRow
    | TaskRow
    | TaskChangedRow
    | TaskRequestRow
    | TaskEventRow
    | OrderRow
    | OrderChangedRow
    | PaymentEventRow
    | UnappliedPaymentEventRow
    | UsageRow
    | UsageChangedRow
    | AssetRow
    | AssetsExpiryRow
    | AssetsDeletedRow
    | ApiKeyRow
    | ApiKeyRevokedRow
    | ApiKeyUsedRow
    | SessionRow
    | SessionRevokedRow
    | SignInRow
    | IdempotencyRow
    | OutboxRow
    | OutboxOutcomeRow
    | OutboxResendRow
    | OutboxAttemptRow
    | WebhookSecretRow
    | BatchRow
)
