"""The types of rows whose fields are the columns of their tables."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from holdfast.ledger.tasks.task import StatusEntry, TaskStatus
from holdfast.persistence.records.table_base import Int16, Int32


class SessionRow(NamedTuple):
    """A new session, with only the hash of its token."""

    account_id: str
    session_id: str
    token_sha256: bytes
    created_at: datetime
    expires_at: datetime


class TaskEventRow(msgspec.Struct, frozen=True, tag=True):
    """A provider's callback as received, and its effect."""

    account_id: str
    request_id: str
    provider: str
    event_id: str
    received_at: datetime
    verdict: str
    body: bytes


class UsageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A task's entry in the usage log, written with the task. ``ts`` is when the task was created."""

    account_id: str
    request_id: str
    ts: datetime
    model: str
    modality: str
    api_key_id: str | None
    status: TaskStatus
    billable_units: int
    tokens_in: int
    tokens_out: int
    latency_ms: int | None
    cost_micro: int
    error: str | None
    operation_id: str | None
    status_history: tuple[StatusEntry, ...]


class AssetRow(msgspec.Struct, frozen=True, tag=True):
    """A stored output; its bytes are in the asset store under ``sha256``."""

    account_id: str
    request_id: str
    position: Int16
    asset_id: str
    sha256: str
    bytes: int
    content_type: str
    created_at: datetime
    expires_at: datetime


class PaymentEventRow(NamedTuple):
    """An event that was applied to its order, as received. It replaces a stored one that had no effect.

    ``account_id`` and ``order_id`` are None until the event's order is known.
    """

    provider: str
    event_id: str
    account_id: str | None
    order_id: str | None
    type: str
    received_at: datetime
    verdict: str
    body: bytes


class OrderPaymentRow(NamedTuple):
    """A provider's payment or charge, and the one order it belongs to."""

    provider: str
    provider_object_id: str
    account_id: str
    order_id: str


class OutboxAttemptRow(msgspec.Struct, frozen=True, tag=True):
    """One delivery and its outcome: the receiver's status, or in ``error`` why there was none."""

    account_id: str
    event_id: str
    number: Int32
    at: datetime
    status_code: Int32 | None
    error: str | None
    duration_ms: Int32


class WebhookSecretRow(NamedTuple):
    """The next generation of an account's webhook secret, not stored itself. No row: still the first, 0."""

    account_id: str
    generation: Int32
    rotated_at: datetime
