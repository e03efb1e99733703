"""The tables of operators: what they did, their sessions, messages that crashed their actor, provider checks."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table, Text, text

from holdfast.persistence.records.table_base import Time, metadata

operator_actions = Table(
    "operator_actions",
    metadata,
    # Rows are never deleted: a trigger rejects it.
    Column("action_id", Text, primary_key=True),
    Column("at", Time, nullable=False),
    Column("operator", Text, nullable=False),
    Column("credential", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("account_id", Text),
    Column("task_id", Text),
    Column("reason", Text),
    Column("trace_id", Text, nullable=False),
    # Null until the action has ended; it stays null if the process ended first.
    Column("ended_at", Time),
    Column("result", Text),
    Column("code", Text),
    Index("ix_operator_actions_at", "at", "action_id"),
    Index(
        "ix_operator_actions_account",
        "account_id",
        "at",
        "action_id",
        postgresql_where=text("account_id is not null"),
    ),
    Index("ix_operator_actions_task", "task_id", "at", "action_id", postgresql_where=text("task_id is not null")),
)

operator_sessions = Table(
    "operator_sessions",
    metadata,
    # An HMAC of the cookie under a key derived from the operators' token: with a new token all sessions end.
    Column("cookie_mac", LargeBinary, primary_key=True),
    Column("operator", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("created_at", Time, nullable=False),
    Column("expires_at", Time, nullable=False),
    Column("ended_at", Time),
    Index("ix_operator_sessions_expires_at", "expires_at"),
)

poison_messages = Table(
    "poison_messages",
    metadata,
    Column("poison_id", Text, primary_key=True),
    Column("group_name", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("message_type", Text, nullable=False),
    # Encrypted; null if the message must not be stored, or was discarded.
    Column("body", LargeBinary),
    # An HMAC, by which a message that crashes again is recognised.
    Column("body_mac", LargeBinary, nullable=False),
    Column("state", Text, nullable=False),
    Column("first_at", Time, nullable=False),
    Column("last_at", Time, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("trace_id", Text),
    Column("reason_type", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("location", Text),
    Column("incarnation", Integer, nullable=False),
    Column("version", BigInteger),
    Column("state_digest", Text),
    Column("replays", Integer, nullable=False),
    Column("replayed_at", Time),
    Column("replay_result", Text),
    # A replay without a result by then has none.
    Column("claimed_until", Time),
    Index(
        "uq_poison_messages_open",
        "group_name",
        "key",
        "message_type",
        "body_mac",
        unique=True,
        postgresql_where=text("state in ('kept', 'replaying', 'unknown')"),
    ),
    Index("ix_poison_messages_last_at", "last_at"),
    Index("ix_poison_messages_first_at", "first_at", "poison_id"),
)

check_callbacks = Table(
    "check_callbacks",
    metadata,
    # A callback about the job of a provider check: the update it reports, or why it was refused.
    Column("callback_id", Text, primary_key=True),
    Column("check_id", Text, nullable=False),
    Column("at", Time, nullable=False),
    Column("refused", Text),
    Column("update", LargeBinary),
    Index("ix_check_callbacks_check", "check_id", "at"),
    Index("ix_check_callbacks_at", "at"),
)
