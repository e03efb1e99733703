"""The state and addresses of each process, and the process that does each kind of work alone.

Older releases work with this schema: their rows leave the new columns null, and no other process sends them asks.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns and the table."""
    op.add_column("processes", sa.Column("state", sa.Text(), nullable=True))
    op.add_column("processes", sa.Column("addresses", postgresql.ARRAY(sa.Text()), nullable=True))
    op.add_column("processes", sa.Column("protocol", sa.SmallInteger(), nullable=True))
    op.create_table(
        "singletons",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("process_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_singletons")),
    )
