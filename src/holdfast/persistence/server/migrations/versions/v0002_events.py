"""Events to customers: the outbox, its attempts, and the generations of the secrets that sign them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables of version 2, and mark the ``assets_ready`` events of ended tasks as skipped."""
    op.create_table(
        "outbox",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("due_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("round_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("done_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("snapshot", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "event_id", name=op.f("pk_outbox")),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index("ix_outbox_task", "outbox", ["account_id", "request_id"], unique=False)
    op.create_index(
        "ix_outbox_due", "outbox", ["due_at"], unique=False, postgresql_where=sa.text("due_at is not null")
    )
    op.create_index(
        "ix_outbox_done", "outbox", ["done_at"], unique=False, postgresql_where=sa.text("done_at is not null")
    )
    op.create_table(
        "outbox_attempts",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "event_id", "number", name=op.f("pk_outbox_attempts")),
    )
    op.create_table(
        "webhook_secrets",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("rotated_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "generation", name=op.f("pk_webhook_secrets")),
    )
    # Version 1 accepted webhook URLs and sent nothing to them.
    op.execute(
        """
        update tasks set state = jsonb_set(state::jsonb, '{hosting,assets_ready_event}', '"skipped"')::json
        where status = 'succeeded' and request ->> 'webhook_url' is not null
          and coalesce(state -> 'hosting' ->> 'assets_ready_event', 'pending') = 'pending'
        """
    )
