"""Events to deliver are found by account. The new index serves older releases as well, though less fast."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Replace the index of due events."""
    op.drop_index("ix_outbox_due", "outbox")
    op.create_index(
        "ix_outbox_pending", "outbox", ["account_id", "due_at"], postgresql_where=sa.text("due_at is not null")
    )
