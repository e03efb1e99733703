"""Contents: a row for each content of the asset store, so that each is known, and none is deleted while in use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table ``contents``, and insert the contents of existing assets."""
    op.create_table(
        "contents",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("claimed_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("doomed_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("sha256", "content_type", name=op.f("pk_contents")),
    )
    op.execute(
        "insert into contents (sha256, content_type, claimed_at) "
        "select sha256, content_type, max(created_at) from assets group by sha256, content_type"
    )
