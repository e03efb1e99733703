"""The tables that are not spread by account: what is unique across accounts, and what belongs to none.

``account_emails`` and ``order_payments`` are directories: triggers of ``accounts`` and ``orders`` write their
entries in the transaction of the row. Their keys reject a second account of an e-mail address, and a second order
of a payment.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSON

from holdfast.persistence.records.table_base import Time, metadata

account_emails = Table(
    "account_emails",
    metadata,
    Column("email", Text, primary_key=True),
    Column("account_id", Text, nullable=False),
)

order_payments = Table(
    "order_payments",
    metadata,
    Column("provider", Text, nullable=False),
    Column("provider_payment_id", Text, nullable=False),
    Column("account_id", Text, nullable=False),
    Column("order_id", Text, nullable=False),
    PrimaryKeyConstraint("provider", "provider_payment_id"),
)

payment_events = Table(
    "payment_events",
    metadata,
    Column("provider", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    # Both null until the event's order is known.
    Column("account_id", Text),
    Column("order_id", Text),
    Column("type", Text, nullable=False),
    Column("received_at", Time, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("provider", "event_id"),
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
