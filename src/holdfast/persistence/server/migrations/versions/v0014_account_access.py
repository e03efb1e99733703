"""Since when an account is disabled; and an index by time for sums by day. Older releases ignore both."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the column and the index, which is small: operations are appended in the order of their times."""
    op.add_column("accounts", sa.Column("disabled_at", TIMESTAMP(timezone=True), nullable=True))
    op.create_index(
        "ix_operations_at", "operations", ["at"], postgresql_using="brin", postgresql_with={"pages_per_range": 32}
    )
