"""Callbacks about the jobs of provider checks. Older releases refuse them, as those of unknown tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "check_callbacks",
        sa.Column("callback_id", sa.Text(), nullable=False),
        sa.Column("check_id", sa.Text(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("refused", sa.Text()),
        sa.Column("update", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("callback_id", name=op.f("pk_check_callbacks")),
    )
    op.create_index("ix_check_callbacks_check", "check_callbacks", ["check_id", "at"])
    op.create_index("ix_check_callbacks_at", "check_callbacks", ["at"])
