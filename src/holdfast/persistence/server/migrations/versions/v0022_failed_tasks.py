"""Operators list the failed tasks of all accounts. Older releases are not concerned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add the index of failed tasks."""
    op.create_index(
        "ix_tasks_failed",
        "tasks",
        ["created_at", "request_id", "provider"],
        postgresql_where=sa.text("status = 'failed' and wake_at is null"),
    )
