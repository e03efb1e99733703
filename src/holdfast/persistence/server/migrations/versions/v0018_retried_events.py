"""An index of an account's events that were retried or given up, for its time line. Older releases ignore it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index, which is small: most events are delivered at once."""
    op.create_index(
        "ix_outbox_retried",
        "outbox",
        ["account_id", "created_at", "event_id"],
        postgresql_where=sa.text("status = 'given_up' or tries > 1"),
    )
