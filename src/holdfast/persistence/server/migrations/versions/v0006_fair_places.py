"""Slots assigned by account, owners of dispatched tasks, a clock for all processes, and expiring inputs.

Older releases work with this schema: their rows leave the new columns null, and the two indexes that replace one
serve their queries as well.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns, replace the index of due tasks by two, and create the tables."""
    op.add_column("tasks", sa.Column("owner", sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("input_until", postgresql.TIMESTAMP(timezone=True), nullable=True))
    op.drop_index("ix_tasks_due", "tasks")
    op.create_index(
        "ix_tasks_waiting",
        "tasks",
        ["provider", "account_id", "wake_at"],
        postgresql_where=sa.text("wake_at is not null and not dispatched"),
    )
    op.create_index(
        "ix_tasks_due", "tasks", ["wake_at"], postgresql_where=sa.text("wake_at is not null and dispatched")
    )
    op.create_index(
        "ix_tasks_input_until", "tasks", ["input_until"], postgresql_where=sa.text("input_until is not null")
    )
    op.create_table(
        "processes",
        sa.Column("process_id", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started", sa.Text(), nullable=True),
        sa.Column("lease_until", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("providers", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("process_id", name=op.f("pk_processes")),
    )
    op.create_table(
        "service_clock",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("ahead_s", sa.Double(), nullable=False),
        sa.Column("process_id", sa.Text(), nullable=False),
        sa.Column("database_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("service_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_service_clock")),
    )
