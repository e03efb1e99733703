"""The tables of what is unique across accounts, and of what belongs to none.

An index by account of ``payment_events`` serves the checks of one account at a time.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSON

from holdfast.persistence.records.row_types import OrderPaymentRow, PaymentEventRow
from holdfast.persistence.records.table_base import Time, columns_of, metadata


class AuditProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the checker's passes, each of which checks every account once.

    Every operation committed before ``verified_up_to`` has been checked; None before the first pass has ended. The
    current pass ``begun_at`` has come to the account ``after``. ``skipped`` counts checks that took too long; a
    pass with any verifies nothing.
    """

    begun_at: datetime
    written_at: datetime
    passes: int = 0
    verified_up_to: datetime | None = None
    after: str = ""
    accounts_total: int = 0
    accounts_done: int = 0
    operations_done: int = 0
    skipped: int = 0
    newest_operation_id: str | None = None
    newest_operation_at: datetime | None = None
    operations_per_s: float = 0.0


class KnownDifference(NamedTuple):
    """A rule that an account breaks, as it was last seen; ``found_at`` is when it was first."""

    account_id: str
    rule: str
    what: str
    found_at: datetime
    seen_at: datetime


# Every payment and charge that the provider named for an order. Each belongs to one order, so that its money is
# credited once, whichever orders later events name.
order_payments = Table(
    "order_payments",
    metadata,
    *columns_of(OrderPaymentRow, key=["provider", "provider_object_id"]),
    Index("ix_order_payments_account_id", "account_id"),
)

payment_events = Table(
    "payment_events",
    metadata,
    *columns_of(PaymentEventRow),
    PrimaryKeyConstraint("provider", "event_id"),
    Index("ix_payment_events_account_id", "account_id"),
    Index("ix_payment_events_order_id", "order_id", postgresql_where=text("order_id is not null")),
    Index("ix_payment_events_unmatched", "received_at", postgresql_where=text("order_id is null")),
)

sign_ins = Table(
    "sign_ins",
    metadata,
    # "email:ada@example.com" or "origin:127.0.0.1": the key of the sign-in limits.
    Column("key", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("updated_at", Time, nullable=False),
    Column("state", JSON, nullable=False),
    Index("ix_sign_ins_updated_at", "updated_at"),
    Index("ix_sign_ins_unproven", "updated_at", postgresql_where=text("(state -> 'proven') is null")),
    postgresql_with={"fillfactor": "70"},
)

contents = Table(
    "contents",
    metadata,
    Column("sha256", Text, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("claimed_at", Time, nullable=False),
    Column("doomed_at", Time),
    PrimaryKeyConstraint("sha256", "content_type"),
)

journal_batches = Table(
    "journal_batches",
    metadata,
    # Written inside each batch's transaction: after a lost response to COMMIT, the row shows whether it committed.
    Column("batch_id", Text, primary_key=True),
    Column("units", Integer, nullable=False),
    Column("committed", Boolean, nullable=False),
    Column("at", Time, nullable=False),
    Index("ix_journal_batches_at", "at"),
)

audit_progress = Table(
    "audit_progress",
    metadata,
    # One row.
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    *columns_of(AuditProgress),
)

audit_differences = Table("audit_differences", metadata, *columns_of(KnownDifference, key=["account_id", "rule"]))
