"""The accounts whose webhook receivers are silent. Older releases ignore the table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "silent_receivers",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("since", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_silent_receivers")),
    )
