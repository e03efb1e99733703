"""An index of the events that were given up, for the operators' list of them. Older releases ignore it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Create the index."""
    op.create_index(
        "ix_outbox_given_up", "outbox", ["created_at", "event_id"], postgresql_where=sa.text("status = 'given_up'")
    )
