"""The tables of operators: what they did, and their sessions in a browser."""

from __future__ import annotations

from sqlalchemy import Column, Index, LargeBinary, Table, Text, text

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
